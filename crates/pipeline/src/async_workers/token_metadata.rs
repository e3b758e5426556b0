//! `token_metadata_worker`: fetches the name, symbol, decimals and standard of tokens.
//!
//! Each contract is asked once, at the newest final block, for `name`, `symbol`, `decimals` and, by ERC-165, for the
//! standards of collections: constructors of many tokens run long before they have a name, and most nodes have no older
//! state. The contracts are those of the transfers in a range, which are those of `ft_tokens` and `nft_collections`.
//!
//! Guarantees: every answer is stored as an observation before it becomes a row, and rows follow from observations
//! alone, so [`TokenMetadata::rebuild`] makes the same rows without a node. A contract has one row. Rows hold texts
//! without hidden characters (`plain_bytes`); the observation keeps the raw answer. A contract that cannot be asked
//! fails its range, but does not delay other contracts in it. Leaves to others: prices, images.

use std::borrow::Cow;
use std::collections::BTreeMap;

use alloy_primitives::{Address, B256};
use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::sql::{Bulk, ColumnType, Migration, Migrations};
use logmill_io::{Sql, Value, params};
use logmill_work::Heights;

use super::RangeWork;
use super::derived;
use crate::derive::store::chain_param;
use crate::derive::{Reader, Table, Tables};
use crate::error::{Error, Result};
use crate::observe::plain::{NAME_CHARS_MAX, plain_bytes};
use crate::observe::{
    AnswerStatus, Call, LIST_MAX, Observation, Observations, Question, StateAnswer, StateReader,
    answer, height,
};
use crate::processors::token::{FT_TRANSFERS, NFT_TRANSFERS};

pub const NAME: &str = "token_metadata_worker";
/// Kind of its observations: the answer of a contract (20 bytes) to call data (the rest of the subject).
pub(crate) const TOKEN_CALL: &str = "token_call";

/// Contracts per page.
const PAGE: usize = 200;

pub static MIGRATIONS: Migrations = Migrations {
    component: "token_metadata",
    list: &[Migration {
        name: "token_metadata",
        statements: "
            CREATE TABLE token_metadata (
                chain_id BIGINT NOT NULL,
                contract_address {bytes} NOT NULL,
                name TEXT,
                symbol TEXT,
                decimals BIGINT,
                standard TEXT,
                observed_height BIGINT NOT NULL,
                PRIMARY KEY (chain_id, contract_address)
            ) {clustered};",
        postgres_only: "",
    }],
};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenRow {
    pub contract: Address,
    pub name: Option<String>,
    pub symbol: Option<String>,
    pub decimals: Option<u8>,
    /// `erc20`, `erc721` or `erc1155`, as far as the contract tells.
    pub standard: Option<&'static str>,
    /// Block at which the contract was asked.
    pub observed_height: u64,
}

const NAME_CALL: &[u8] = &[0x06, 0xfd, 0xde, 0x03];
const SYMBOL_CALL: &[u8] = &[0x95, 0xd8, 0x9b, 0x41];
const DECIMALS_CALL: &[u8] = &[0x31, 0x3c, 0xe5, 0x67];
const SUPPORTS: [u8; 4] = [0x01, 0xff, 0xc9, 0xa7];
const ERC721: [u8; 4] = [0x80, 0xac, 0x58, 0xcd];
const ERC1155: [u8; 4] = [0xd9, 0xb6, 0x7a, 0x26];
/// Interface id that no correct ERC-165 contract supports.
const NONSENSE: [u8; 4] = [0xff; 4];

/// Call data of `supportsInterface`.
fn supports(interface: [u8; 4]) -> Bytes {
    [&SUPPORTS[..], B256::right_padding_from(&interface).as_slice()].concat().into()
}

/// The calls made to each contract.
fn questions() -> [Bytes; 6] {
    [
        Bytes::from_static(NAME_CALL),
        Bytes::from_static(SYMBOL_CALL),
        Bytes::from_static(DECIMALS_CALL),
        supports(ERC721),
        supports(ERC1155),
        supports(NONSENSE),
    ]
}

/// Answers of a contract by call data: block, status, value.
type Answers = BTreeMap<Bytes, (u64, AnswerStatus, Bytes)>;

/// Derives a row from the answers of a contract.
fn row(contract: Address, answers: &Answers) -> TokenRow {
    let value = |data: &[u8]| {
        let found = answers.get(data).filter(|(_, status, _)| *status == AnswerStatus::Ok);
        found.map(|(_, _, value)| &value[..])
    };
    let text = |data: &[u8]| plain_bytes(answer::text(value(data)?)?, NAME_CHARS_MAX);
    let decimals = value(DECIMALS_CALL).and_then(answer::decimals);
    let is_supported = |interface| value(&supports(interface)).is_some_and(answer::is_yes);
    let standard = match () {
        // Answers yes to everything, so its answers mean nothing.
        () if is_supported(NONSENSE) => decimals.map(|_| "erc20"),
        () if is_supported(ERC721) => Some("erc721"),
        () if is_supported(ERC1155) => Some("erc1155"),
        () => decimals.map(|_| "erc20"),
    };
    TokenRow {
        contract,
        name: text(NAME_CALL),
        symbol: text(SYMBOL_CALL),
        decimals,
        standard,
        observed_height: answers.values().map(|(block, ..)| *block).max().unwrap_or(0),
    }
}

#[derive(Clone, Debug)]
pub struct TokenMetadata {
    reader: Reader,
    observations: Observations,
    state: StateReader,
}

impl TokenMetadata {
    /// Creates its tables if they do not exist.
    pub async fn open(tables: Tables, chain_id: u64, state: StateReader) -> Result<Self> {
        let sql = tables.sql().clone();
        sql.migrate(&MIGRATIONS).await?;
        let observations = Observations::open(sql, chain_id).await?;
        Ok(Self { reader: Reader::new(tables, chain_id), observations, state })
    }

    fn sql(&self) -> &Sql {
        self.reader.tables().sql()
    }

    /// Contracts of a range that have no row, after the given one.
    async fn unknown(&self, range: &Heights, after: Option<Address>) -> Result<Vec<Address>> {
        let text = |name: &dyn Fn(&'static Table) -> String| {
            let (ft, nft) = (name(&FT_TRANSFERS), name(&NFT_TRANSFERS));
            let within = "WHERE block_height >= $1 AND block_height < $2";
            format!(
                "SELECT a.address FROM (
                     SELECT token_contract_address AS id FROM {ft} {within}
                     UNION SELECT contract_address AS id FROM {nft} {within}
                 ) AS c JOIN address AS a ON a.id = c.id
                 WHERE a.address > $4 AND NOT EXISTS (SELECT 1 FROM token_metadata AS m
                     WHERE m.chain_id = $3 AND m.contract_address = a.address)
                 ORDER BY a.address LIMIT {PAGE}"
            )
        };
        let after = after.map_or_else(Bytes::new, |after| Bytes::copy_from_slice(after.as_slice()));
        let params = params![
            height(range.start)?,
            height(range.end)?,
            chain_param(self.reader.chain_id())?,
            after
        ];
        let found = self.reader.query_final(text, params).await?;
        found.rows.iter().map(|row| derived::address(row, 0)).collect()
    }

    /// Asks a contract, and stores its answers and its row in one transaction.
    async fn learn(&self, contract: Address, block: u64) -> Result<()> {
        let questions = questions();
        let calls = questions.iter().map(|data| Call { to: contract, data: data.clone() });
        let calls: Vec<Call> = calls.collect();
        let answers = self.state.call_all(&calls, block).await?;
        let kept: Vec<(Bytes, StateAnswer)> = questions.into_iter().zip(answers).collect();
        let kept = &kept;
        let answers = kept.iter().map(|(data, answer)| {
            (data.clone(), (answer.block, answer.status, answer.value.clone()))
        });
        let row = &row(contract, &answers.collect());
        let stored = self.sql().write(|tx| async move {
            // If two workers ask the same contract, the answers and the row of the first are kept.
            if tx.bulk(&INSERT, vec![self.values(row)?]).await? == 0 {
                return Ok(());
            }
            for (data, answer) in kept {
                let question = Question::new(TOKEN_CALL, &[contract.as_slice(), data]);
                self.observations.put_in(&tx, &question, answer).await?;
            }
            Ok(())
        });
        stored.await
    }

    fn values(&self, row: &TokenRow) -> logmill_io::Result<Vec<Value>> {
        Ok(params![
            chain_param(self.reader.chain_id())?,
            row.contract.as_slice(),
            row.name.clone(),
            row.symbol.clone(),
            row.decimals.map(u32::from),
            row.standard,
            height(row.observed_height)?,
        ])
    }

    /// Rebuilds all rows from observations alone; returns how many.
    pub async fn rebuild(&self) -> Result<u64> {
        let mut made = 0;
        let mut after: Option<(Bytes, u64)> = None;
        let mut open: Option<(Address, Answers)> = None;
        loop {
            let position = after.as_ref().map(|(subject, block)| (&subject[..], *block));
            let page = self.observations.list(TOKEN_CALL, position, LIST_MAX).await?;
            let is_last = page.len() < LIST_MAX;
            after = page.last().map(|found| (found.subject.clone(), found.block));
            let mut complete = gather(page, &mut open)?;
            if is_last {
                complete.extend(open.take());
            }
            made += self.replace(&complete).await?;
            if is_last {
                return Ok(made);
            }
        }
    }

    async fn replace(&self, complete: &[(Address, Answers)]) -> Result<u64> {
        let rows = complete.iter().map(|(contract, answers)| self.values(&row(*contract, answers)));
        let rows: Vec<Vec<Value>> = rows.collect::<logmill_io::Result<_>>()?;
        let written = self.sql().write(|tx| {
            let rows = rows.clone();
            async move { tx.bulk(&REPLACE, rows).await }
        });
        Ok(written.await?)
    }
}

/// Adds observations, ordered by subject, to the contract in `open`; returns the contracts that are complete.
fn gather(
    page: Vec<Observation>,
    open: &mut Option<(Address, Answers)>,
) -> Result<Vec<(Address, Answers)>> {
    let mut complete = Vec::new();
    for found in page {
        let (contract, data) = found
            .subject
            .split_at_checked(20)
            .ok_or_else(|| Error::corrupt("the subject of a token observation is too short"))?;
        let contract = Address::from_slice(contract);
        if open.as_ref().is_none_or(|(of, _)| *of != contract) {
            complete.extend(open.replace((contract, Answers::new())));
        }
        if let Some((_, answers)) = open {
            // In block order: the first answer of a token counts.
            let data = found.subject.slice_ref(data);
            answers.entry(data).or_insert((found.block, found.status, found.value));
        }
    }
    Ok(complete)
}

const COLUMNS: &[(&str, ColumnType)] = &[
    ("chain_id", ColumnType::Int),
    ("contract_address", ColumnType::Blob),
    ("name", ColumnType::Text),
    ("symbol", ColumnType::Text),
    ("decimals", ColumnType::Int),
    ("standard", ColumnType::Text),
    ("observed_height", ColumnType::Int),
];

static INSERT: Bulk = Bulk {
    table: Cow::Borrowed("token_metadata"),
    columns: Cow::Borrowed(COLUMNS),
    key_columns: 2,
    on_conflict: Cow::Borrowed("DO NOTHING"),
};

static REPLACE: Bulk = Bulk {
    table: Cow::Borrowed("token_metadata"),
    columns: Cow::Borrowed(COLUMNS),
    key_columns: 2,
    on_conflict: Cow::Borrowed(
        "DO UPDATE SET name = excluded.name, symbol = excluded.symbol, decimals = excluded.decimals,
         standard = excluded.standard, observed_height = excluded.observed_height",
    ),
};

#[async_trait]
impl RangeWork for TokenMetadata {
    fn name(&self) -> &'static str {
        NAME
    }

    fn version(&self) -> u32 {
        1
    }

    fn gates(&self) -> &'static [&'static str] {
        &["token_worker"]
    }

    async fn run(&self, range: &Heights) -> Result<()> {
        let mut block = None;
        let (mut after, mut failed) = (None, None);
        loop {
            let contracts = self.unknown(range, after).await?;
            let Some(last) = contracts.last() else {
                return failed.map_or(Ok(()), Err);
            };
            after = Some(*last);
            let at = match block {
                Some(block) => block,
                None => *block.insert(self.state.final_block(range.end.saturating_sub(1)).await?),
            };
            for contract in contracts {
                if let Err(error) = self.learn(contract, at).await {
                    let error = logmill_io::error_chain(&error);
                    tracing::debug!(%contract, error, "cannot read the metadata of a token");
                    let what = format!("the metadata of token {contract}");
                    failed = Some(Error::Unanswered { what, why: error });
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
