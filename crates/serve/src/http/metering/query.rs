//! `GET /meters/query`: any operation over any window, time zone and group, from the usage known now.
//!
//! Guarantees: figures that are not final are marked; the data read and returned is bounded. Leaves to others:
//! computing ([`logmill_meter::query`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use logmill_io::Timestamp;
use logmill_meter::decimal::Mean;
use logmill_meter::partial::OpResult;
use logmill_meter::period::{BUCKET_MS, PeriodKind, format_time};
use logmill_meter::query::{Group, Query, QueryLine};
use logmill_meter::settings::Op;
use logmill_meter::{Meter, Settings};
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::list::{json_response, with_meter};
use super::params::{Params, QueryParams, bad_request};
use super::query_params::{FROM, TO};
use super::usage;
use crate::http::ServerState;
use crate::http::route::{Param, Route, json_answer, param, repeated, required};
use crate::usage::relay::Relays;

/// Maximum number of reads, repeated because usage was recorded meanwhile.
const TRIES_MAX: usize = 3;
/// Prefix of filter parameters.
const FILTER: &str = "filter.";

const PARAMS: &[Param] = &[
    required("eventType", "event type"),
    repeated("customerId", "customers; all customers together by default"),
    param(
        "op",
        "sum, avg, min, max, count, first, last, unique, percentile or time_weighted; by \
            default that of the event type",
    ),
    param("quantileMilli", "quantile in thousandths: 950 is the 95th percentile"),
    FROM,
    TO,
    param("window", "one line per period of this kind, such as daily; one line in all by default"),
    param("zone", "IANA name of the time zone of windows; by default the configured one"),
    repeated("groupBy", "one line per value of this dimension, or of customerId"),
    repeated(
        FILTER,
        "only usage with this value of a dimension, or with one of these values if given \
            several times",
    ),
];

pub(super) const ROUTES: &[Route] = &[Route {
    id: "queryMeter",
    path: "/meters/query",
    summary: "Any operation over any window, time zone and group, from the usage known now. \
                 `from` and `to` must fall on :00, :15, :30 or :45; `to` is the end of the \
                 current quarter of an hour by default.",
    params: PARAMS,
    answers: &[json_answer("200", "MeterAnswer", "the figures")],
    handler: || get(query),
    ..Route::GET
}];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueryResponse {
    event_type: String,
    op: Option<Op>,
    from: String,
    to: String,
    window: Option<String>,
    zone: String,
    provisional_complete: bool,
    provisional_incomplete: Vec<String>,
    data: Vec<QueryLineJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct QueryLineJson {
    start: String,
    end: String,
    group: Group,
    value: Option<Number>,
    value_exact: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mean: Option<serde_json::Value>,
    exact: bool,
    count: u64,
    #[serde(rename = "final")]
    is_final: bool,
    provisional: Option<ProvisionalJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ProvisionalJson {
    value: Option<Number>,
    value_exact: String,
    count: u64,
}

async fn query(State(shared): State<Arc<ServerState>>, params: QueryParams) -> Response {
    let now = shared.clock.now();
    let request = usage(&shared).and_then(|usage| {
        let params = Params::read(params, PARAMS)?;
        read(&params, usage.meter.settings(), now)
    });
    with_meter(&shared, request, async |meter: &Meter, query: Query| {
        let relays = usage(&shared).map(|usage| usage.relays.clone()).unwrap_or_default();
        let (lines, incomplete) = lines(meter, &relays, &query).await?;
        Ok(json_response(HeaderMap::new(), &response(meter, query, lines, incomplete)))
    })
    .await
}

/// Recorded and unrecorded usage are read one after the other; usage recorded in between would be counted twice, so the
/// read is repeated. Also returns why usage of chains is missing, if some is.
async fn lines(
    meter: &Meter,
    relays: &Relays,
    query: &Query,
) -> logmill_meter::Result<(Vec<QueryLine>, Vec<String>)> {
    let name = query.event_type.as_str();
    for _ in 0..TRIES_MAX {
        let unrecorded = relays.unrecorded(meter, name).await?;
        let lines = meter.query(query, &unrecorded.events).await?;
        if relays.is_current(meter, name, &unrecorded).await? {
            return Ok((lines, unrecorded.incomplete));
        }
    }
    let why = "too much usage of chains is being recorded at the moment".to_owned();
    Ok((meter.query(query, &[]).await?, vec![why]))
}

fn response(
    meter: &Meter,
    query: Query,
    lines: Vec<QueryLine>,
    incomplete: Vec<String>,
) -> QueryResponse {
    let configured = meter.settings().events.get(&query.event_type).map(|known| known.op);
    QueryResponse {
        op: query.op.or(configured),
        event_type: query.event_type,
        from: format_time(query.from),
        to: format_time(query.to),
        window: query.window.map(|kind| kind.name().to_owned()),
        zone: query.zone.unwrap_or_else(|| meter.calendar().zone().to_owned()),
        provisional_complete: incomplete.is_empty(),
        provisional_incomplete: incomplete,
        data: lines.into_iter().map(line_json).collect(),
    }
}

fn line_json(line: QueryLine) -> QueryLineJson {
    let result = line.result;
    QueryLineJson {
        start: format_time(line.start),
        end: format_time(line.end),
        group: line.group,
        value: result.and_then(|result| result.json_number()),
        value_exact: result.map(|result| result.value.to_string()),
        mean: result.and_then(|result| result.mean).map(Mean::to_json),
        exact: result.is_none_or(|result| result.exact),
        count: line.count,
        is_final: line.is_final,
        provisional: line.provisional.map(provisional),
    }
}

fn provisional((result, count): (OpResult, u64)) -> ProvisionalJson {
    ProvisionalJson { value: result.json_number(), value_exact: result.value.to_string(), count }
}

fn read(params: &Params, settings: &Settings, now: Timestamp) -> Result<Query, Response> {
    let event_type = params
        .owned("eventType")
        .ok_or_else(|| bad_request("eventType: this parameter is required"))?;
    let from =
        params.time("from")?.ok_or_else(|| bad_request("from: this parameter is required"))?;
    let to = params.time("to")?.unwrap_or_else(|| next_quarter(now));
    let mut filter: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, value) in params.with_prefix(FILTER) {
        filter.entry(name.to_owned()).or_default().insert(value.to_owned());
    }
    Ok(Query {
        event_type,
        customers: params.all("customerId").map(str::to_owned).collect(),
        op: params.text("op").map(op).transpose()?,
        quantile_milli: params.text("quantileMilli").map(quantile).transpose()?,
        from,
        to,
        window: params.text("window").map(|name| window(name, settings)).transpose()?,
        zone: params.owned("zone"),
        group_by: params.all("groupBy").map(str::to_owned).collect(),
        filter,
    })
}

/// The end of the current quarter of an hour.
fn next_quarter(now: Timestamp) -> Timestamp {
    let quarter = now.millis().div_euclid(BUCKET_MS).saturating_add(1);
    Timestamp(quarter.saturating_mul(BUCKET_MS))
}

fn op(name: &str) -> Result<Op, Response> {
    let text: StrDeserializer<'_, ValueError> = name.into_deserializer();
    Op::deserialize(text).map_err(|_| {
        bad_request(
            "op: must be sum, avg, min, max, count, first, last, unique, percentile or time_weighted",
        )
    })
}

fn quantile(text: &str) -> Result<u16, Response> {
    let quantile = text.parse().ok().filter(|quantile| (1..=1_000).contains(quantile));
    quantile.ok_or_else(|| bad_request("quantileMilli: must be a number from 1 to 1000"))
}

/// A calendar period or a configured billing cycle.
fn window(name: &str, settings: &Settings) -> Result<PeriodKind, Response> {
    if let Some(kind) = settings.periods.iter().find(|kind| kind.name() == name) {
        return Ok(kind.clone());
    }
    let text: StrDeserializer<'_, ValueError> = name.into_deserializer();
    PeriodKind::deserialize(text).map_err(|_| {
        bad_request(
            "window: must be hourly, daily, weekly, monthly, yearly, or a configured billing cycle",
        )
    })
}
