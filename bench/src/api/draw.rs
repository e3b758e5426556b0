//! The subjects of the requests: account, token and transaction of transfers drawn from the whole chain.
//!
//! So active accounts and tokens are requested often, and their large pages contribute to the figures as on a real
//! server.

use anyhow::{Context, ensure};
use finalized_log_index::{Address, B256};
use logmill_io::{Amount, Row, Value, params};
use logmill_pipeline::derive::{Reader, Select, Table};
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use logmill_pipeline::processors::ft_holdings::FT_HOLDINGS;
use logmill_pipeline::processors::meta::ACCOUNT_STATS;
use logmill_pipeline::processors::token::{FT_TOKENS, FT_TRANSFERS};

/// Maximum number of draws that find nothing, per transfer drawn.
const EMPTY_MAX: usize = 20;

type Source<'a> = &'a dyn Fn(&'static Table, &Select<'_>) -> String;

#[derive(Clone, Debug)]
pub struct DrawnTransfer {
    /// Sender or recipient.
    pub account: Address,
    account_id: i64,
    pub token: Address,
    token_id: i64,
    pub block: u64,
    /// Hash of its transaction.
    pub hash: B256,
}

/// The values in the tables that belong to a drawn transfer.
#[derive(Clone, Debug)]
pub struct Facts {
    /// The account's balance of the token.
    pub balance: Amount,
    /// Number of transactions of the account.
    pub transactions: u64,
    /// Number of transfers of the token.
    pub transfers: u64,
    /// The largest balance of the token.
    pub most: Amount,
}

/// Draws transfers from the blocks below `end`.
pub async fn draw(
    reader: &Reader,
    end: u64,
    seed: u64,
    count: usize,
) -> anyhow::Result<Vec<DrawnTransfer>> {
    let (mut drawn, mut numbers, mut empty) = (Vec::new(), Numbers(seed), 0);
    while drawn.len() < count {
        match draw_one(reader, end, &mut numbers).await? {
            Some(one) => drawn.push(one),
            None => empty += 1,
        }
        ensure!(empty <= EMPTY_MAX * count, "the chain has hardly any transfers");
    }
    Ok(drawn)
}

async fn draw_one(
    reader: &Reader,
    end: u64,
    numbers: &mut Numbers,
) -> anyhow::Result<Option<DrawnTransfer>> {
    let block = numbers.below(end);
    let height = i64::try_from(block)?;
    let text = |source: Source<'_>| {
        let order = "event_index";
        let select = Select { key: "block_height = $1", order, ..Select::default() };
        let rows = source(&FT_TRANSFERS, &select);
        format!(
            "SELECT tx_index, token_contract_address, from_address, to_address FROM {rows} AS s \
             ORDER BY {order}"
        )
    };
    let found = reader.query(text, params![height]).await?;
    let Some(row) = found.rows.get(numbers.index(found.rows.len())) else {
        return Ok(None);
    };
    let (transaction, token_id) = (row.int(0)?, row.int(1)?);
    let account_id = row.int(if numbers.below(2) == 0 { 2 } else { 3 })?;
    let account = address(reader, account_id).await?;
    // The zero address mints and burns, and has no balance itself.
    if account.is_zero() {
        return Ok(None);
    }
    let of = (&EVM_TRANSACTIONS, "block_height = $1 AND tx_index = $2");
    let hash = one(reader, of, ("hash", ""), params![height, transaction], |row| {
        Ok(B256::try_from(&row.blob(0)?[..])?)
    });
    let hash = hash.await?.context("no transaction of a transfer")?;
    let token = address(reader, token_id).await?;
    Ok(Some(DrawnTransfer { account, account_id, token, token_id, block, hash }))
}

/// Reads the expected values from the tables.
pub async fn facts(reader: &Reader, drawn: &DrawnTransfer) -> anyhow::Result<Facts> {
    let (account, token) = (drawn.account_id, drawn.token_id);
    let holding = (&FT_HOLDINGS, "address = $1 AND contract_address = $2");
    let holders = (&FT_HOLDINGS, "contract_address = $1");
    let stats = (&ACCOUNT_STATS, "address = $1");
    let tokens = (&FT_TOKENS, "contract_address = $1");
    let balance = one(reader, holding, ("balance", ""), params![account, token], amount);
    let most = one(reader, holders, ("balance", "balance DESC"), params![token], amount);
    let transactions = one(reader, stats, ("tx_count", ""), params![account], count);
    let transfers = one(reader, tokens, ("transfer_count", ""), params![token], count);
    Ok(Facts {
        balance: balance.await?.context("an account of a transfer that holds nothing")?,
        transactions: transactions.await?.context("an account without a transaction")?,
        transfers: transfers.await?.context("a token without a transfer")?,
        most: most.await?.context("a token without holders")?,
    })
}

fn amount(row: &Row) -> anyhow::Result<Amount> {
    Ok(row.amount(0)?)
}

fn count(row: &Row) -> anyhow::Result<u64> {
    Ok(row.count(0)?)
}

/// The first value of a column with a key, in the given order.
async fn one<T>(
    reader: &Reader,
    (table, key): (&'static Table, &str),
    (column, order): (&str, &str),
    params: Vec<Value>,
    read: fn(&Row) -> anyhow::Result<T>,
) -> anyhow::Result<Option<T>> {
    let text = |source: Source<'_>| {
        let select = Select { key, order, limit: Some(1), ..Select::default() };
        format!("SELECT {column} FROM {} AS s", source(table, &select))
    };
    let found = reader.query(text, params).await?;
    found.rows.first().map(read).transpose()
}

async fn address(reader: &Reader, id: i64) -> anyhow::Result<Address> {
    let text = "SELECT address FROM address WHERE id = $1";
    let found = reader.tables().sql().query(text, params![id]).await?;
    Ok(Address::try_from(&found.row()?.blob(0)?[..])?)
}

/// Pseudorandom numbers (SplitMix64), the same for the same seed.
#[derive(Clone, Copy, Debug)]
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The modulo bias is negligible here.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }
}
