//! Symbols and decimals of the tokens in rows.
//!
//! Guarantees: values that no worker has fetched are `null`; the native asset has 18 decimals. Leaves to others:
//! fetching them ([`logmill_pipeline::async_workers::token_metadata`]).

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::Address;
use logmill_io::Value as Param;
use logmill_pipeline::derive::Tables;

use super::rows::FeeShares;
use crate::http::event_rows::RowsError;

/// Maximum number of tokens of one statement.
const TOKENS_MAX: usize = 500;
const NATIVE_DECIMALS: i64 = 18;

/// Sets `symbol` and `decimals` of the token of each row.
pub(super) async fn add<'a>(
    tables: &Tables,
    chain_id: u64,
    rows: impl Iterator<Item = &'a mut FeeShares>,
) -> Result<(), RowsError> {
    let rows: Vec<_> = rows.collect();
    let tokens: BTreeSet<Address> = rows.iter().map(|row| row.token).collect();
    let known = token_facts(tables, chain_id, &tokens.into_iter().collect::<Vec<_>>()).await?;
    for row in rows {
        let (symbol, decimals) = known.get(&row.token).cloned().unwrap_or_default();
        let is_native = row.token == Address::ZERO;
        row.symbol = symbol;
        row.decimals = if is_native { Some(NATIVE_DECIMALS) } else { decimals };
    }
    Ok(())
}

type TokenFacts = BTreeMap<Address, (Option<String>, Option<i64>)>;

async fn token_facts(
    tables: &Tables,
    chain_id: u64,
    tokens: &[Address],
) -> Result<TokenFacts, RowsError> {
    let mut known = TokenFacts::new();
    for tokens in tokens.chunks(TOKENS_MAX) {
        let mut params: Vec<Param> = vec![i64::try_from(chain_id).unwrap_or(i64::MAX).into()];
        params.extend(tokens.iter().map(|token| Param::from(token.as_slice())));
        let places: Vec<String> = (2..=params.len()).map(|place| format!("${place}")).collect();
        let text = format!(
            "SELECT contract_address, symbol, decimals FROM token_metadata
             WHERE chain_id = $1 AND contract_address IN ({})",
            places.join(", ")
        );
        let found = match tables.sql().query(&text, params).await {
            // The token metadata worker has never run.
            Err(error) if error.is_missing_table() => return Ok(known),
            found => found?,
        };
        for row in &found.rows {
            let token = Address::try_from(&row.blob(0)?[..]).unwrap_or_default();
            let symbol = row.opt_text(1)?.map(str::to_owned);
            known.insert(token, (symbol, row.opt_int(2)?));
        }
    }
    Ok(known)
}
