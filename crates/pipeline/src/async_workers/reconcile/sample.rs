//! Samples what to compare: some of the items and balances that moved in a range, what the tables claim about them, and
//! the blocks that this covers.
//!
//! If the tables cover every block from the first on, a claim is the state at the last covered block. Otherwise it is
//! the effect of the range's transfers, to be added to the state before the range.
//!
//! Guarantees: the claims of a sample cover exactly the blocks that it names. Leaves to others: asking contracts.

use alloy_primitives::U256;
use logmill_io::{Amount, Row, params};
use logmill_work::{Heights, IntervalSet};

use super::claim::Claim;
use super::{Reconciler, height};
use crate::async_workers::derived::{address, number};
use crate::derive::Table;
use crate::error::{Error, Result};
use crate::processors::ft_holdings::FT_HOLDINGS;
use crate::processors::nft_ownership::{NFT_BALANCES, NFT_OWNERSHIP};
use crate::processors::token::{FT_TRANSFERS, NFT_TRANSFERS};

/// How often the tables are read again because they changed meanwhile.
const ATTEMPTS_MAX: usize = 10;

const MOVES: &str = "token_worker";

/// Claims about the same blocks.
#[derive(Debug)]
pub(super) struct Sample {
    pub(super) claims: Vec<Claim>,
    /// Last block before the counted ones; none if they were counted from the first on.
    pub(super) since: Option<u64>,
    pub(super) block: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
    /// Owners of ERC-721 items.
    Owners,
    /// Quantities of ERC-1155 items.
    Quantities,
    /// ERC-20 balances.
    Balances,
}

impl ClaimKind {
    pub(super) const ALL: [Self; 3] = [Self::Owners, Self::Quantities, Self::Balances];

    /// The processor that derives the table.
    fn processor(self) -> &'static str {
        match self {
            Self::Owners | Self::Quantities => "nft_ownership_worker",
            Self::Balances => "ft_holdings_worker",
        }
    }

    fn tables(self) -> [&'static Table; 2] {
        match self {
            Self::Owners => [&NFT_TRANSFERS, &NFT_OWNERSHIP],
            Self::Quantities => [&NFT_TRANSFERS, &NFT_BALANCES],
            Self::Balances => [&FT_TRANSFERS, &FT_HOLDINGS],
        }
    }

    /// Query for the last transfers of a range, joined with the state in the derived table.
    fn text_of_table(self, moves: &str, table: &str, most: usize) -> String {
        let within = "block_height >= $1 AND block_height < $2";
        let address = |column: &str| format!("(SELECT address FROM address WHERE id = {column})");
        let (contract, owner) = (address("h.contract_address"), address("h.owner"));
        match self {
            Self::Owners => format!(
                "SELECT {contract}, h.nft_id, {owner} FROM (
                     SELECT contract_address, token_id, max(block_height) AS at FROM {moves}
                     WHERE {within} AND standard = 721 GROUP BY contract_address, token_id
                     ORDER BY at DESC, contract_address, token_id LIMIT {most}
                 ) AS m JOIN {table} AS h
                     ON h.contract_address = m.contract_address AND h.nft_id = m.token_id"
            ),
            Self::Quantities => format!(
                "SELECT {contract}, h.nft_id, {owner}, h.quantity FROM (
                     SELECT contract_address, token_id, to_address, max(block_height) AS at
                     FROM {moves} WHERE {within} AND standard = 1155
                     GROUP BY contract_address, token_id, to_address
                     ORDER BY at DESC, contract_address, token_id, to_address LIMIT {most}
                 ) AS m JOIN {table} AS h ON h.contract_address = m.contract_address
                     AND h.nft_id = m.token_id AND h.owner = m.to_address"
            ),
            Self::Balances => format!(
                "SELECT {contract}, {}, h.balance FROM (
                     SELECT token_contract_address, to_address, max(block_height) AS at FROM {moves}
                     WHERE {within} GROUP BY token_contract_address, to_address
                     ORDER BY at DESC, token_contract_address, to_address LIMIT {most}
                 ) AS m JOIN {table} AS h
                     ON h.contract_address = m.token_contract_address AND h.address = m.to_address",
                address("h.address")
            ),
        }
    }

    /// Query for the last transfers of a range and their effect: the last owner, or the sums received and sent.
    fn text_of_moves(self, moves: &str, most: usize) -> String {
        let within = "block_height >= $1 AND block_height < $2";
        let address = |column: &str| format!("(SELECT address FROM address WHERE id = {column})");
        let (token, item) = match self {
            Self::Owners | Self::Quantities => ("contract_address", "token_id, "),
            Self::Balances => ("token_contract_address", ""),
        };
        let (standard, holder, amount) = match self {
            Self::Owners => ("AND standard = 721", "", ""),
            Self::Quantities => ("AND standard = 1155", "to_address", "quantity"),
            Self::Balances => ("", "to_address", "amount"),
        };
        let key = format!("{token}, {item}{holder}");
        let key = key.trim_end_matches(", ");
        let sampled = format!(
            "SELECT {key}, max(block_height) AS at FROM {moves} WHERE {within} {standard}
             GROUP BY {key} ORDER BY at DESC, {key} LIMIT {most}"
        );
        let same_item = if item.is_empty() { "" } else { "AND t.token_id = m.token_id" };
        let of_it = format!(
            "FROM {moves} AS t WHERE t.{token} = m.{token} {same_item}
                 AND t.block_height >= $1 AND t.block_height < $2 {standard}"
        );
        let contract = address(&format!("m.{token}"));
        match self {
            Self::Owners => format!(
                "SELECT {contract}, m.token_id, {} FROM ({sampled}) AS m",
                address(&format!(
                    "(SELECT t.to_address {of_it} ORDER BY t.block_height DESC,
                         t.event_index DESC, t.batch_index DESC LIMIT 1)"
                ))
            ),
            Self::Quantities | Self::Balances => format!(
                "SELECT {contract}, {}{}, (SELECT amount_sum(t.{amount}) {of_it}
                         AND t.to_address = m.to_address),
                     (SELECT amount_sum(t.{amount}) {of_it} AND t.from_address = m.to_address)
                 FROM ({sampled}) AS m",
                if item.is_empty() { "" } else { "m.token_id, " },
                address("m.to_address")
            ),
        }
    }

    /// The claim of a row: from a table, a state; from transfers, the sums received and sent. None for the zero
    /// address, which contracts need not answer for.
    fn claim(self, row: &Row) -> Result<Option<Claim>> {
        let contract = address(row, 0)?;
        let change = |first: usize| -> Result<Amount> {
            let or_none = |column| match row.is_null(column) {
                true => Ok(Amount::ZERO),
                false => row.amount(column),
            };
            let (came, went) = (or_none(first)?, or_none(first + 1)?);
            came.checked_add(-went)
                .ok_or_else(|| Error::corrupt("the sum of stored transfers overflows"))
        };
        Ok(match self {
            Self::Owners => {
                Some(Claim::Owner { contract, id: number(row, 1)?, owner: address(row, 2)? })
            }
            Self::Quantities => {
                let (id, owner): (U256, _) = (number(row, 1)?, address(row, 2)?);
                let change = change(3)?;
                (!owner.is_zero()).then_some(Claim::Quantity { contract, id, owner, change })
            }
            Self::Balances => {
                let (owner, change) = (address(row, 1)?, change(2)?);
                (!owner.is_zero()).then_some(Claim::Balance { token: contract, owner, change })
            }
        })
    }

    fn claims(self, rows: &[Row]) -> Result<Vec<Claim>> {
        rows.iter().filter_map(|row| self.claim(row).transpose()).collect()
    }
}

impl Reconciler {
    pub(super) async fn sample(&self, kind: ClaimKind, range: &Heights) -> Result<Sample> {
        for _ in 0..ATTEMPTS_MAX {
            let (generation, done) = self.serving_blocks(kind.processor()).await?;
            let sampled = match self.is_whole(&done, range) {
                true => self.sample_of_table(kind, range, (generation, done)).await?,
                false => self.sample_of_moves(kind, range).await?,
            };
            if let Some(sample) = sampled {
                return Ok(sample);
            }
        }
        Err(no_sample("the tables changed during every attempt"))
    }

    /// Whether a table covers all blocks from the first on, to the end of a range or beyond, without a gap. Blocks
    /// above a gap are counted in its rows too, and then the rows are not the state of any one block.
    fn is_whole(&self, done: &IntervalSet, range: &Heights) -> bool {
        let first = self.settings.first_block;
        done.watermark_up(first) >= range.end && done.overlap(&(first..u64::MAX)).len() == 1
    }

    /// Samples a gapless table; none if it changed meanwhile.
    async fn sample_of_table(
        &self,
        kind: ClaimKind,
        range: &Heights,
        before: (u32, IntervalSet),
    ) -> Result<Option<Sample>> {
        let text = |name: &dyn Fn(&'static Table) -> String| {
            let [moves, table] = kind.tables().map(name);
            kind.text_of_table(&moves, &table, self.settings.sample)
        };
        let found = self.reader.query_final(text, bounds(range)?).await?;
        // Rows and coverage change together: if the coverage is the same before and after, the rows are of exactly
        // these blocks.
        if self.serving_blocks(kind.processor()).await? != before {
            return Ok(None);
        }
        let end = before.1.watermark_up(self.settings.first_block);
        Ok(Some(Sample { claims: kind.claims(&found.rows)?, since: None, block: end - 1 }))
    }

    /// Samples the transfers of a range; none if another generation began to serve meanwhile.
    async fn sample_of_moves(&self, kind: ClaimKind, range: &Heights) -> Result<Option<Sample>> {
        let (generation, done) = self.serving_blocks(MOVES).await?;
        if !done.covers(range) {
            return Err(no_sample("not every block of the range is derived"));
        }
        let text = |name: &dyn Fn(&'static Table) -> String| {
            let [moves, _] = kind.tables().map(name);
            kind.text_of_moves(&moves, self.settings.sample)
        };
        let found = self.reader.query_final(text, bounds(range)?).await?;
        if self.serving_blocks(MOVES).await?.0 != generation {
            return Ok(None);
        }
        let is_first = range.start <= self.settings.first_block;
        let since = range.start.checked_sub(1).filter(|_| !is_first);
        Ok(Some(Sample { claims: kind.claims(&found.rows)?, since, block: range.end - 1 }))
    }

    /// The serving generation of a processor's tables, and its final blocks.
    async fn serving_blocks(&self, processor: &'static str) -> Result<(u32, IntervalSet)> {
        let serving = self.reader.progress(&[processor]).await?.into_iter().next();
        serving
            .map(|progress| (progress.generation, progress.done))
            .ok_or_else(|| no_sample("no generation of the tables serves"))
    }
}

fn bounds(range: &Heights) -> Result<Vec<logmill_io::Value>> {
    Ok(params![height(range.start)?, height(range.end)?])
}

fn no_sample(why: &str) -> Error {
    Error::Unanswered { what: "a consistent sample of the tables".to_owned(), why: why.to_owned() }
}
