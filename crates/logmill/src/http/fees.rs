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
//! time are bounded. While the tables hold rows of replaced blocks or of changed settings, or no row at all although
//! the contract of the chain is only assumed, an answer also has `"complete": false` and the `reason`. Leaves to
//! others: collecting ([`logmill_pipeline::ingest::collect`]).

mod answer;
pub(super) mod query;
mod tokens;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as FromState};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use logmill_pipeline::Chain;
use logmill_pipeline::derive::{Reader, Select};
use logmill_pipeline::processors::fees::FEE_EVENTS;
use serde_json::Value;

use super::csv::{self, Format};
use super::{ServerState, problem};
use crate::output;
use answer::Fees;
use query::{InvalidParam, LIMIT_MAX, PageQuery, SummaryQuery};

/// Query parameters as a handler receives them: the last value of every name.
pub(super) type QueryParams = Result<Query<BTreeMap<String, String>>, QueryRejection>;

/// CSV columns of a page.
const PAGE: &[&str] = &[
    "chainId",
    "blockNumber",
    "logIndex",
    "transactionHash",
    "createdAt",
    "final",
    "eventIntegrator",
    "token",
    "symbol",
    "decimals",
    "integratorFee",
    "lifiFee",
];

/// CSV columns of sums.
const SUMS: &[&str] = &[
    "chainId",
    "period",
    "eventIntegrator",
    "token",
    "symbol",
    "decimals",
    "events",
    "integratorFee",
    "lifiFee",
];

/// One page of fees, newest first.
pub(super) async fn page(
    FromState(shared): FromState<Arc<ServerState>>,
    headers: HeaderMap,
    params: QueryParams,
) -> Response {
    let parsed = parse_query(params, &headers)
        .and_then(|(params, format)| Ok((PageQuery::parse(&params, limit_max(format))?, format)));
    let (query, format) = match parsed {
        Ok(parsed) => parsed,
        Err(invalid) => return bad_request(&invalid),
    };
    let answer = answer_fees(&shared, |fees| async move { fees.page(&query).await }).await;
    answer.map_or_else(|problem| problem, |answer| format.response(&answer, PAGE))
}

/// Sums of fees per integrator and token.
pub(super) async fn summary(
    FromState(shared): FromState<Arc<ServerState>>,
    headers: HeaderMap,
    params: QueryParams,
) -> Response {
    let parsed = parse_query(params, &headers)
        .and_then(|(params, format)| Ok((SummaryQuery::parse(&params)?, format)));
    let (query, format) = match parsed {
        Ok(parsed) => parsed,
        Err(invalid) => return bad_request(&invalid),
    };
    let answer = answer_fees(&shared, |fees| async move { fees.summary(&query).await }).await;
    answer.map_or_else(|problem| problem, |answer| format.response(&answer, SUMS))
}

/// The parameters and the response format.
pub(super) fn parse_query(
    params: QueryParams,
    headers: &HeaderMap,
) -> Result<(BTreeMap<String, String>, Format), InvalidParam> {
    let Query(params) =
        params.map_err(|_| InvalidParam::other("the query string cannot be parsed"))?;
    let format = Format::choose(params.get("format").map(String::as_str), headers);
    let format = format.ok_or_else(|| InvalidParam::value("format", "csv or json"))?;
    Ok((params, format))
}

/// Maximum number of rows of a page.
pub(super) fn limit_max(format: Format) -> u64 {
    match format {
        Format::Json => LIMIT_MAX,
        Format::Csv => csv::ROWS_MAX,
    }
}

pub(super) fn bad_request(invalid: &InvalidParam) -> Response {
    problem(StatusCode::BAD_REQUEST, &invalid.0)
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

/// Runs a query on the tables once a request slot is free, within the time limit of all requests.
pub(super) async fn run_within_limits(
    shared: &ServerState,
    answer: impl Future<Output = Result<Value, RowsError>>,
) -> Result<Value, Response> {
    let work = async {
        // The semaphore is never closed.
        let _permit = shared.requests.acquire().await;
        answer.await
    };
    let answer = tokio::select! {
        biased;
        answer = work => answer,
        () = shared.clock.sleep(shared.rpc.limits().timeout) => {
            return Err(problem(StatusCode::SERVICE_UNAVAILABLE, "the answer took too long"));
        }
    };
    answer.map_err(|error| match error {
        RowsError::Invalid(why) => problem(StatusCode::BAD_REQUEST, &why),
        RowsError::NotFound(why) => problem(StatusCode::NOT_FOUND, &why),
        RowsError::Failed(error) => {
            let error = output::brief(&logmill_io::error_chain(&error));
            tracing::warn!(error, "cannot read collected rows");
            problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
        }
    })
}

pub(super) enum RowsError {
    /// The request is invalid or its answer would be too large.
    Invalid(String),
    NotFound(String),
    /// The tables cannot be read.
    Failed(logmill_pipeline::Error),
}

impl<E: Into<logmill_pipeline::Error>> From<E> for RowsError {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
