//! `GET /meters/query`: any operation over any window, zone and group, from what is known this moment.
//!
//! Guarantees: what is not final is told apart; what is read and given is bounded. Leaves to others: computing
//! ([`logmill_meter::query`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use logmill_io::Timestamp;
use logmill_meter::decimal::Mean;
use logmill_meter::partial::Answer as Figure;
use logmill_meter::period::{BUCKET_MS, PeriodKind, format_time};
use logmill_meter::query::{Group, Line, Query};
use logmill_meter::settings::Op;
use logmill_meter::{Meter, Settings};
use serde::de::IntoDeserializer;
use serde::de::value::{Error as ValueError, StrDeserializer};
use serde::{Deserialize, Serialize};
use serde_json::Number;

use super::ask::{Asked, Params, wrong};
use super::list::{answer, ask};
use super::route::{FROM, Param, Route, TO, param, repeated, required};
use super::usage;
use crate::http::{Scope, Shared};
use crate::meter::relay::Relays;

/// How often usage is read anew because some was recorded meanwhile.
const TRIES_MAX: usize = 3;
/// What the parameters of filters begin with.
const FILTER: &str = "filter.";

const PARAMS: &[Param] = &[
    required("eventType", "of which usage"),
    repeated("customerId", "of whom; of everybody together if none is given"),
    param(
        "op",
        "sum, avg, min, max, count, first, last, unique, percentile or time_weighted; as configured if not given",
    ),
    param("quantileMilli", "which quantile, in thousandths: 950 is the 95th percentile"),
    FROM,
    TO,
    param("window", "one line for each such period, such as daily; one for all if it is not given"),
    param(
        "zone",
        "the time zone of windows, by its IANA name; the configured one if it is not given",
    ),
    repeated("groupBy", "one line for each value of this dimension, or of customerId"),
    repeated(
        FILTER,
        "only usage with this value of a dimension, or one of these if given several times",
    ),
];

pub(super) const ROUTES: &[Route] = &[Route {
    id: "queryMeter",
    method: "get",
    path: "/meters/query",
    scope: Some(Scope::Read),
    summary: "Any operation over any window, zone and group, live. Both ends are on a quarter of an \
        hour; `to` is the end of the present one if it is not given.",
    params: PARAMS,
    bodies: &[],
    answers: &[("200", "MeterAnswer", "the figures")],
    failures: &[],
    handler: || get(query),
}];

/// The answer to a query.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    event_type: String,
    op: Option<Op>,
    from: String,
    to: String,
    window: Option<String>,
    zone: String,
    provisional_complete: bool,
    provisional_incomplete: Vec<String>,
    data: Vec<ShownLine>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ShownLine {
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
    provisional: Option<Provisional>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Provisional {
    value: Option<Number>,
    value_exact: String,
    count: u64,
}

async fn query(State(shared): State<Arc<Shared>>, asked: Asked) -> Response {
    let now = shared.clock.now();
    let question = usage(&shared).and_then(|usage| {
        let params = Params::read(asked, PARAMS)?;
        read(&params, usage.meter.settings(), now)
    });
    ask(&shared, question, async |meter: &Meter, query: Query| {
        let relays = usage(&shared).map(|usage| usage.relays.clone()).unwrap_or_default();
        let (lines, incomplete) = lines(meter, &relays, &query).await?;
        Ok(answer(HeaderMap::new(), &shown(meter, query, lines, incomplete)))
    })
    .await
}

/// What is recorded and what is not are read one after the other: what was recorded in between would be in both. Also
/// says why usage of chains is missing, if some is.
async fn lines(
    meter: &Meter,
    relays: &Relays,
    query: &Query,
) -> logmill_meter::Result<(Vec<Line>, Vec<String>)> {
    let name = query.event_type.as_str();
    for _ in 0..TRIES_MAX {
        let unrecorded = relays.unrecorded(meter, name).await?;
        let lines = meter.query(query, &unrecorded.events).await?;
        if relays.is_current(meter, name, &unrecorded).await? {
            return Ok((lines, unrecorded.incomplete));
        }
    }
    let why = "much usage of chains is being recorded at the moment".to_owned();
    Ok((meter.query(query, &[]).await?, vec![why]))
}

fn shown(meter: &Meter, query: Query, lines: Vec<Line>, incomplete: Vec<String>) -> Answer {
    let configured = meter.settings().events.get(&query.event_type).map(|known| known.op);
    Answer {
        op: query.op.or(configured),
        event_type: query.event_type,
        from: format_time(query.from),
        to: format_time(query.to),
        window: query.window.map(|kind| kind.name().to_owned()),
        zone: query.zone.unwrap_or_else(|| meter.calendar().zone().to_owned()),
        provisional_complete: incomplete.is_empty(),
        provisional_incomplete: incomplete,
        data: lines.into_iter().map(shown_line).collect(),
    }
}

fn shown_line(line: Line) -> ShownLine {
    let answer = line.answer;
    ShownLine {
        start: format_time(line.start),
        end: format_time(line.end),
        group: line.group,
        value: answer.and_then(|answer| answer.json_number()),
        value_exact: answer.map(|answer| answer.value.to_string()),
        mean: answer.and_then(|answer| answer.mean).map(Mean::to_json),
        exact: answer.is_none_or(|answer| answer.exact),
        count: line.count,
        is_final: line.is_final,
        provisional: line.provisional.map(provisional),
    }
}

fn provisional((answer, count): (Figure, u64)) -> Provisional {
    Provisional { value: answer.json_number(), value_exact: answer.value.to_string(), count }
}

fn read(params: &Params, settings: &Settings, now: Timestamp) -> Result<Query, Response> {
    let event_type = params.owned("eventType").ok_or_else(|| wrong("eventType: it is missing"))?;
    let from = params.time("from")?.ok_or_else(|| wrong("from: it is missing"))?;
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

/// The end of the quarter of an hour that is under way.
fn next_quarter(now: Timestamp) -> Timestamp {
    let quarter = now.millis().div_euclid(BUCKET_MS).saturating_add(1);
    Timestamp(quarter.saturating_mul(BUCKET_MS))
}

fn op(name: &str) -> Result<Op, Response> {
    let text: StrDeserializer<'_, ValueError> = name.into_deserializer();
    Op::deserialize(text).map_err(|_| {
        wrong(
            "op: it is sum, avg, min, max, count, first, last, unique, percentile or time_weighted",
        )
    })
}

fn quantile(text: &str) -> Result<u16, Response> {
    let quantile = text.parse().ok().filter(|quantile| (1..=1_000).contains(quantile));
    quantile.ok_or_else(|| wrong("quantileMilli: it is a number from 1 to 1000"))
}

/// A kind of period, one of the calendar or a configured billing cycle.
fn window(name: &str, settings: &Settings) -> Result<PeriodKind, Response> {
    if let Some(kind) = settings.periods.iter().find(|kind| kind.name() == name) {
        return Ok(kind.clone());
    }
    let text: StrDeserializer<'_, ValueError> = name.into_deserializer();
    PeriodKind::deserialize(text).map_err(|_| {
        wrong("window: it is hourly, daily, weekly, monthly, yearly, or a configured billing cycle")
    })
}
