//! Rows of tables of events, as `/fees` and `/collected` serve them: parameters, pages, limits and errors.
//!
//! | module | content |
//! |---|---|
//! | [`query`] | the query parameters, parsed |
//! | [`page`] | pages of a table, newest first |
//!
//! Guarantees: time and concurrency are bounded; every error has a body `{"error": …}`. Leaves to others: which tables
//! there are, and rendering rows.

pub(super) mod page;
pub(super) mod query;

use std::collections::BTreeMap;
use std::future::Future;

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use serde_json::Value;

use super::csv::{self, Format};
use super::{ServerState, problem};
use crate::one_line::brief;
use query::{InvalidParam, LIMIT_MAX};

/// Query parameters as a handler receives them: the last value of every name.
pub(super) type QueryParams = Result<Query<BTreeMap<String, String>>, QueryRejection>;

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

/// Runs a query on the tables once a request slot is free, within the time limit of all requests.
pub(super) async fn run_within_limits(
    shared: &ServerState,
    answer: impl Future<Output = Result<Value, RowsError>>,
) -> Result<Value, Response> {
    let Some(answer) = shared.within_limits(answer).await else {
        return Err(problem(StatusCode::SERVICE_UNAVAILABLE, "the answer took too long"));
    };
    answer.map_err(|error| match error {
        RowsError::Invalid(why) => problem(StatusCode::BAD_REQUEST, &why),
        RowsError::NotFound(why) => problem(StatusCode::NOT_FOUND, &why),
        RowsError::Failed(error) => {
            let error = brief(&logmill_io::error_chain(&error));
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
