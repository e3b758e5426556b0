//! `GET /corrections`: how usage of chains was corrected after stored blocks were replaced.
//!
//! Guarantees: one entry for each replacement that changed usage, newest first, bounded by `limit`. Leaves to others:
//! correcting ([`logmill_meter::chains`]), corrections of single events ([`super::correct`]).

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use logmill_meter::Meter;
use logmill_meter::chains::ChainCorrection;
use logmill_meter::period::format_time;
use serde::Serialize;

use super::list::{json_response, with_meter};
use super::params::{Params, QueryParams};
use super::query_params::LIMIT;
use crate::http::ServerState;
use crate::http::route::{Param, Route, json_answer};

const PARAMS: &[Param] = &[LIMIT];

pub(super) const ROUTES: &[Route] = &[Route {
    id: "listCorrections",
    path: "/corrections",
    summary: "Corrections of usage of chains after stored blocks were replaced, newest first.",
    params: PARAMS,
    answers: &[json_answer("200", "ChainCorrections", "the newest corrections")],
    handler: || get(corrections),
    ..Route::GET
}];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct CorrectionJson {
    chain: u64,
    replacement: u64,
    first_block: u64,
    last_block: u64,
    reason: String,
    blocks: u64,
    cancelled: u64,
    recorded: u64,
    begun_at: String,
    done_at: Option<String>,
}

impl From<ChainCorrection> for CorrectionJson {
    fn from(made: ChainCorrection) -> Self {
        Self {
            chain: made.chain,
            replacement: made.seq,
            first_block: made.first_block,
            last_block: made.last_block,
            reason: made.reason,
            blocks: made.blocks,
            cancelled: made.cancelled,
            recorded: made.recorded,
            begun_at: format_time(made.begun),
            done_at: made.done.map(format_time),
        }
    }
}

async fn corrections(State(shared): State<Arc<ServerState>>, params: QueryParams) -> Response {
    let request = Params::read(params, PARAMS).and_then(|params| params.limit());
    with_meter(&shared, request, async |meter: &Meter, limit: usize| {
        let made = meter.chain_corrections(u32::try_from(limit).unwrap_or(u32::MAX)).await?;
        let shown: Vec<CorrectionJson> = made.into_iter().map(CorrectionJson::from).collect();
        Ok(json_response(HeaderMap::new(), &shown))
    })
    .await
}
