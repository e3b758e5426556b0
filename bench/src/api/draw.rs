//! What is asked about: the accounts, the token and the transaction of transfers that are drawn from all of the chain.
//!
//! So whoever takes part in much is asked about often, and pages of busy accounts and tokens are in the figures as
//! they are in those of a real server.

use anyhow::{Context, ensure};
use finalized_log_index::{Address, B256};
use logmill_io::{Amount, Row, Value, params};
use logmill_pipeline::derive::{Reader, Select, Table};
use logmill_pipeline::processors::evm::EVM_TRANSACTIONS;
use logmill_pipeline::processors::ft_holdings::FT_HOLDINGS;
use logmill_pipeline::processors::meta::ACCOUNT_STATS;
use logmill_pipeline::processors::token::{FT_TOKENS, FT_TRANSFERS};

/// Draws that may find nothing, for each that is wanted.
const EMPTY_MAX: usize = 20;

type Source<'a> = &'a dyn Fn(&'static Table, &Select<'_>) -> String;

/// A transfer that was drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Who sent or got it.
    pub account: Address,
    account_id: i64,
    pub token: Address,
    token_id: i64,
    pub block: u64,
    /// Of its transaction.
    pub hash: B256,
}

/// What the tables say of it.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What the account has of the token.
    pub balance: Amount,
    /// The transactions of the account.
    pub transactions: u64,
    /// The transfers of the token.
    pub transfers: u64,
    /// The most that anybody has of the token.
    pub most: Amount,
}

/// Draws transfers from the blocks below `end`.
pub async fn draw(
    reader: &Reader,
    end: u64,
    seed: u64,
    count: usize,
) -> anyhow::Result<Vec<Drawn>> {
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
) -> anyhow::Result<Option<Drawn>> {
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
    // It mints and burns, and has nothing itself.
    if account.is_zero() {
        return Ok(None);
    }
    let of = (&EVM_TRANSACTIONS, "block_height = $1 AND tx_index = $2");
    let hash = one(reader, of, ("hash", ""), params![height, transaction], |row| {
        Ok(B256::try_from(&row.blob(0)?[..])?)
    });
    let hash = hash.await?.context("no transaction of a transfer")?;
    let token = address(reader, token_id).await?;
    Ok(Some(Drawn { account, account_id, token, token_id, block, hash }))
}

/// What the tables say.
pub async fn facts(reader: &Reader, drawn: &Drawn) -> anyhow::Result<Facts> {
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
        most: most.await?.context("a token that nobody holds")?,
    })
}

fn amount(row: &Row) -> anyhow::Result<Amount> {
    Ok(row.amount(0)?)
}

fn count(row: &Row) -> anyhow::Result<u64> {
    Ok(row.count(0)?)
}

/// The first value of a column with a key, in some order.
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

/// Numbers as by chance, the same for the same seed: SplitMix64.
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

    /// The bias of the remainder is far below what can be seen here.
    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }
}
