//! Stored comparisons, newest first, page by page.
//!
//! Guarantees: the pages together are all comparisons of a chain, or those with one verdict; the cost of a page depends
//! only on its size. Leaves to others: acting on them.

use alloy_primitives::{Address, U256};
use bytes::Bytes;
use logmill_io::{Row, Sql, Value, params};

use super::Verdict;
use crate::derive::store::chain_param;
use crate::error::{Error, Result};
use crate::observe::height;

/// Kinds of comparisons in ascending order: ERC-20 balances, ERC-1155 quantities, ERC-721 owners.
pub const KINDS: [&str; 3] = ["ft_balance", "nft_balance", "nft_owner"];

/// A comparison of derived tables with a contract's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Position in the list.
    pub position: ComparisonPosition,
    pub contract: Address,
    /// The item in question, if any.
    pub item: Option<U256>,
    /// The account in question, if any.
    pub account: Option<Address>,
    /// Last block before the counted ones; none if they were counted from the first block on, or if the comparison
    /// needs no earlier block.
    pub since: Option<u64>,
    /// The expected answer; none if it is not known.
    pub expected: Option<String>,
    /// The contract's answer; none if it cannot be compared.
    pub observed: Option<String>,
    /// Name of the [`Verdict`].
    pub verdict: String,
}

/// Position of a comparison in the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComparisonPosition {
    /// Block at which the contract was asked.
    pub block: u64,
    /// One of [`KINDS`].
    pub kind: &'static str,
    pub subject: Bytes,
}

/// Comparisons of a chain after a position, newest first, optionally with one verdict; none if the table does not
/// exist.
pub async fn list(
    sql: &Sql,
    chain_id: u64,
    verdict: Option<Verdict>,
    behind: Option<&ComparisonPosition>,
    limit: usize,
) -> Result<Option<Vec<Comparison>>> {
    let mut params: Vec<Value> = params![chain_param(chain_id)?];
    let mut conditions = "chain_id = $1".to_owned();
    if let Some(verdict) = verdict {
        params.push(verdict.name().into());
        conditions.push_str(&format!(" AND verdict = ${}", params.len()));
    }
    if let Some(ComparisonPosition { block, kind, subject }) = behind {
        let first = params.len() + 1;
        params.extend(params![height(*block)?, *kind, subject.clone()]);
        let (second, third) = (first + 1, first + 2);
        let behind = format!(" AND (block, kind, subject) < (${first}, ${second}, ${third})");
        conditions.push_str(&behind);
    }
    let text = format!(
        "SELECT block, kind, subject, since, expected, observed, verdict FROM reconciliation
         WHERE {conditions} ORDER BY block DESC, kind DESC, subject DESC LIMIT {limit}"
    );
    match sql.query(&text, params).await {
        Err(error) if error.is_missing_table() => Ok(None),
        found => found?.rows.iter().map(comparison).collect::<Result<_>>().map(Some),
    }
}

fn comparison(row: &Row) -> Result<Comparison> {
    let (stored, subject) = (row.text(1)?, row.blob(2)?);
    let unknown = || Error::corrupt(format!("a stored comparison of kind {stored}"));
    let kind = KINDS.into_iter().find(|kind| *kind == stored).ok_or_else(unknown)?;
    let (contract, item, account) = parts(kind, &subject).ok_or_else(unknown)?;
    let since = row.opt_int(3)?.map(u64::try_from).transpose();
    Ok(Comparison {
        position: ComparisonPosition { block: row.count(0)?, kind, subject },
        contract,
        item,
        account,
        since: since.map_err(|_| unknown())?,
        expected: row.opt_text(4)?.map(str::to_owned),
        observed: row.opt_text(5)?.map(str::to_owned),
        verdict: row.text(6)?.to_owned(),
    })
}

/// The contract, item and account of a subject.
fn parts(kind: &str, subject: &[u8]) -> Option<(Address, Option<U256>, Option<Address>)> {
    let (contract, rest) = subject.split_at_checked(20)?;
    let (item, account) = match kind {
        "ft_balance" => (None, Some(rest)),
        "nft_balance" => rest.split_at_checked(32).map(|(item, rest)| (Some(item), Some(rest)))?,
        _ => (Some(rest), None),
    };
    let account = account.map(Address::try_from).transpose().ok()?;
    let item = item.map(<[u8; 32]>::try_from).transpose().ok()?;
    Some((Address::try_from(contract).ok()?, item.map(U256::from_be_bytes), account))
}
