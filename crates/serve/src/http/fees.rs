//! `/fees` and `/fees/summary`: pages and sums of collected fees.
//!
//! | parameter | path | meaning |
//! |---|---|---|
//! | `integrator`, `chainId` | both | the chain id (`integrator` is the seed's name for the same) |
//! | `page`, `limit` | `/fees` | page number, and page size (20, at most 100) |
//! | `cursor` | `/fees` | end of the previous page, instead of `page`; empty for the first |
//! | `integratorAddress` (`eventIntegrator`), `token` | both | filter by integrator and by token |
//! | `fromBlock`, `toBlock` | both | block range, both ends included |
//! | `fromTime`, `toTime` | both | seconds since 1970 or a date; `toTime` is excluded |
//! | `period` | `/fees/summary` | `day`, `month` or `all` |
//! | `format` | both | `csv` or `json`; without it the type in the `Accept` header, else JSON |
//!
//! Guarantees: the seed's own parameters behave exactly as the seed specifies, response bodies included; any other
//! invalid parameter is a 400 with `{"error": …}` that names it; no client input causes a 500. The rows read and the
//! time are bounded. A chain without collected fees has an empty answer. For such a chain, while the tables hold rows
//! of replaced blocks or of changed settings, or no row at all although the contract of the chain is only assumed, the
//! answer also has `"complete": false` and the `reason`. Leaves to others: collecting
//! ([`logmill_pipeline::ingest::collect`]).

mod answer;
pub(super) mod rows;
mod tokens;

use std::sync::Arc;

use axum::extract::State as FromState;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use logmill_pipeline::Chain;
use logmill_pipeline::derive::{Reader, Select};
use logmill_pipeline::processors::fees::FEE_EVENTS;
use serde_json::Value;

use super::event_rows::query::{PageQuery, SummaryQuery, allow_only};
use super::event_rows::{
    QueryParams, RowsError, bad_request, limit_max, parse_query, run_within_limits,
};
use super::{ServerState, problem};
use answer::Fees;
use rows::{FeeRow, FeeSum};

/// Parameters of both paths. `/fees/summary` ignores those of pages.
const PARAMS: &[&str] = &[
    "chainId",
    "integrator",
    "integratorAddress",
    "eventIntegrator",
    "token",
    "fromBlock",
    "toBlock",
    "fromTime",
    "toTime",
    "page",
    "limit",
    "cursor",
    "format",
];

/// One page of fees, newest first.
pub(super) async fn page(
    FromState(shared): FromState<Arc<ServerState>>,
    headers: HeaderMap,
    params: QueryParams,
) -> Response {
    let parsed = parse_query(params, &headers).and_then(|(params, format)| {
        allow_only(&params, PARAMS)?;
        Ok((PageQuery::parse(&params, limit_max(format))?, format))
    });
    let (query, format) = match parsed {
        Ok(parsed) => parsed,
        Err(invalid) => return bad_request(&invalid),
    };
    let answer = answer_fees(&shared, |fees| async move { fees.page(&query).await }).await;
    answer.map_or_else(|problem| problem, |answer| format.response(&answer, FeeRow::COLUMNS))
}

/// Sums of fees per integrator and token.
pub(super) async fn summary(
    FromState(shared): FromState<Arc<ServerState>>,
    headers: HeaderMap,
    params: QueryParams,
) -> Response {
    let parsed = parse_query(params, &headers).and_then(|(params, format)| {
        allow_only(&params, &[PARAMS, &["period"]].concat())?;
        Ok((SummaryQuery::parse(&params)?, format))
    });
    let (query, format) = match parsed {
        Ok(parsed) => parsed,
        Err(invalid) => return bad_request(&invalid),
    };
    let answer = answer_fees(&shared, |fees| async move { fees.summary(&query).await }).await;
    answer.map_or_else(|problem| problem, |answer| format.response(&answer, FeeSum::COLUMNS))
}

/// Answers once a request slot is free, within the time limit of all requests.
async fn answer_fees<F>(
    shared: &ServerState,
    ask: impl FnOnce(Fees) -> F,
) -> Result<Value, Response>
where
    F: Future<Output = Result<Value, RowsError>>,
{
    let Some(tables) = &shared.tables else {
        return Err(problem(StatusCode::NOT_FOUND, "no fees are collected or derived here"));
    };
    let chains = shared.chains.all();
    let last = |chain: &Chain| (chain.chain_id(), chain.index().replacement_position());
    let replacements = chains.iter().map(|(served, _)| last(&served.chain)).collect();
    let assumed = chains
        .iter()
        .filter_map(|(served, _)| Some((served.chain.chain_id(), served.status.assumed_fees()?)));
    run_within_limits(shared, ask(Fees::new(tables.clone(), replacements, assumed.collect()))).await
}

/// Whether a chain has no fee event at all.
pub(super) async fn is_empty(reader: &Reader) -> Result<bool, logmill_pipeline::Error> {
    let any = Select { key: "", filter: "", order: "", limit: Some(1) };
    let text = |source: &dyn Fn(&'static _, &Select<'_>) -> String| {
        format!("SELECT 1 FROM {} AS e LIMIT 1", source(&FEE_EVENTS, &any))
    };
    Ok(reader.query(text, Vec::new()).await?.rows.is_empty())
}
