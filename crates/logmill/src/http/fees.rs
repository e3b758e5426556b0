//! `/fees` and `/fees/summary`: collected fees, by the page and in sums.
//!
//! | parameter | of | what |
//! |---|---|---|
//! | `integrator`, `chainId` | both | the chain, by its id (the first name is the seed's, and means the same) |
//! | `page`, `limit` | `/fees` | which page, and how long (20, at most 100) |
//! | `cursor` | `/fees` | where the page before ended, instead of `page`; empty for the first |
//! | `integratorAddress` (`eventIntegrator`), `token` | both | of whom, in what |
//! | `fromBlock`, `toBlock` | both | blocks, both ends included |
//! | `fromTime`, `toTime` | both | seconds since 1970 or a date; up to and without the second |
//! | `period` | `/fees/summary` | `day`, `month` or `all` |
//!
//! Guarantees: what the seed says of its own parameters holds to the letter, its bodies included; every other parameter
//! that makes no sense is a 400 with `{"error": …}` that names it; nothing that is asked is a 500. What is read and how
//! long that takes is bounded. While stored blocks were replaced and the tables still hold rows of the old ones, an
//! answer also has `"complete": false` and the `reason`. Leaves to others: collecting
//! ([`logmill_pipeline::ingest::collect`]).

mod answer;
mod question;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State as FromState};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use logmill_pipeline::Chain;
use serde_json::Value;

use super::{Shared, problem};
use crate::output;
use answer::Fees;
use question::{PageQuestion, SummaryQuestion, Wrong};

/// What a handler gets of a query: the last of every name.
type Asked = Result<Query<BTreeMap<String, String>>, QueryRejection>;

/// One page of fees, the newest first.
pub(super) async fn page(FromState(shared): FromState<Arc<Shared>>, asked: Asked) -> Response {
    let question = match read(asked).and_then(|asked| PageQuestion::parse(&asked)) {
        Ok(question) => question,
        Err(wrong) => return refused(&wrong),
    };
    answered(&shared, |fees| async move { fees.page(&question).await }).await
}

/// Sums of fees for every integrator and token.
pub(super) async fn summary(FromState(shared): FromState<Arc<Shared>>, asked: Asked) -> Response {
    let question = match read(asked).and_then(|asked| SummaryQuestion::parse(&asked)) {
        Ok(question) => question,
        Err(wrong) => return refused(&wrong),
    };
    answered(&shared, |fees| async move { fees.summary(&question).await }).await
}

fn read(asked: Asked) -> Result<BTreeMap<String, String>, Wrong> {
    asked.map(|Query(asked)| asked).map_err(|_| Wrong::other("the query can not be read"))
}

fn refused(wrong: &Wrong) -> Response {
    problem(StatusCode::BAD_REQUEST, &wrong.0)
}

/// Answers when there is room for it, and within the time that any request has.
async fn answered<F>(shared: &Shared, ask: impl FnOnce(Fees) -> F) -> Response
where
    F: Future<Output = Result<Value, NoAnswer>>,
{
    let Some(tables) = &shared.tables else {
        return problem(StatusCode::NOT_FOUND, "no fees are collected or derived here");
    };
    let work = async {
        // The semaphore is never closed.
        let _permit = shared.requests.acquire().await;
        let chains = shared.chains.all();
        let last = |chain: &Chain| (chain.chain_id(), chain.index().last_replacement());
        let replacements = chains.iter().map(|(served, _)| last(&served.chain)).collect();
        ask(Fees::new(tables.clone(), replacements)).await
    };
    let answer = tokio::select! {
        biased;
        answer = work => answer,
        () = shared.clock.sleep(shared.rpc.limits().timeout) => {
            return problem(StatusCode::SERVICE_UNAVAILABLE, "the answer took too long");
        }
    };
    match answer {
        Ok(answer) => Json(answer).into_response(),
        Err(NoAnswer::TooMuch(why)) => problem(StatusCode::BAD_REQUEST, &why),
        Err(NoAnswer::Failed(error)) => {
            let error = output::brief(&logmill_io::chain(&error));
            tracing::warn!(error, "fees can not be read");
            problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
        }
    }
}

/// Why there is no answer.
enum NoAnswer {
    /// It would be too long: ask for less.
    TooMuch(String),
    /// The tables can not be read.
    Failed(logmill_pipeline::Error),
}

impl<E: Into<logmill_pipeline::Error>> From<E> for NoAnswer {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
