//! What is compared: some of what moved in a range, with what the tables say of it, and the block of that.
//!
//! Guarantees: what is given is the state of one block, up to which the tables are complete from the first on.
//! Leaves to others: asking contracts.

use alloy_primitives::U256;
use logmill_io::{Row, params};
use logmill_work::Heights;

use super::{Claim, Reconciler};
use crate::async_workers::derived::{address, number};
use crate::derive::Table;
use crate::error::{Error, Result};
use crate::observe::height;
use crate::processors::ft_holdings::FT_HOLDINGS;
use crate::processors::nft_ownership::{NFT_BALANCES, NFT_OWNERSHIP};
use crate::processors::token::{FT_TRANSFERS, NFT_TRANSFERS};

/// How often the tables are read again because they moved meanwhile.
const ATTEMPTS_MAX: usize = 10;

/// What sort of thing is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    /// Owners of items of ERC-721.
    Owners,
    /// Quantities of items of ERC-1155.
    Quantities,
    /// Balances of ERC-20.
    Balances,
}

impl Sort {
    pub(super) const ALL: [Self; 3] = [Self::Owners, Self::Quantities, Self::Balances];

    /// Whose table says it.
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

    /// The query over the transfers of a range and what the table says of the last of them.
    fn text(self, moves: &str, table: &str, most: usize) -> String {
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

    /// What a row says; none of the zero address, which nobody has to answer for.
    fn claim(self, row: &Row) -> Result<Option<Claim>> {
        let contract = address(row, 0)?;
        Ok(Some(match self {
            Self::Owners => Claim::Owner { contract, id: number(row, 1)?, owner: address(row, 2)? },
            Self::Quantities => {
                let (id, owner): (U256, _) = (number(row, 1)?, address(row, 2)?);
                if owner.is_zero() {
                    return Ok(None);
                }
                Claim::Quantity { contract, id, owner, quantity: row.amount(3)?.to_string() }
            }
            Self::Balances => {
                let owner = address(row, 1)?;
                if owner.is_zero() {
                    return Ok(None);
                }
                Claim::Balance { token: contract, owner, balance: row.amount(2)?.to_string() }
            }
        }))
    }
}

impl Reconciler {
    /// What to compare of a range, and the block of which it is.
    pub(super) async fn sample(&self, sort: Sort, range: &Heights) -> Result<(Vec<Claim>, u64)> {
        let params = params![height(range.start)?, height(range.end)?];
        for _ in 0..ATTEMPTS_MAX {
            let before = self.reader.covered(sort.processor()).await?.done;
            let text = |name: &dyn Fn(&'static Table) -> String| {
                let [moves, table] = sort.tables().map(name);
                sort.text(&moves, &table, self.settings.sample)
            };
            let found = self.reader.query_final(text, params.clone()).await?;
            // Rows and coverage change together: if it is the same before and after, the rows are of just these blocks.
            if self.reader.covered(sort.processor()).await?.done != before {
                continue;
            }
            let first = self.settings.first_block;
            let end = before.watermark_up(first);
            // What lies above a gap counts as well, and then the rows are of no one block.
            let is_one_run = before.overlap(&(first..u64::MAX)).len() == 1;
            if !is_one_run || end < range.end {
                return Err(moved("not every block is counted"));
            }
            let claims = found.rows.iter().filter_map(|row| sort.claim(row).transpose());
            return Ok((claims.collect::<Result<_>>()?, end - 1));
        }
        Err(moved("the tables move too fast"))
    }
}

fn moved(why: &str) -> Error {
    Error::Unanswered { what: "what the tables say at one block".to_owned(), why: why.to_owned() }
}
