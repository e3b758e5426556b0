//! `GET /meters/trend`: a straight line through the last final aggregates, and its forecast for the next period.
//!
//! Guarantees: the data read is bounded. Leaves to others: the line ([`logmill_meter::trend`]).

use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::routing::get;
use logmill_meter::Meter;
use logmill_meter::partial::OpResult;
use logmill_meter::period::{Period, format_time};
use logmill_meter::settings::Op;
use logmill_meter::trend::{POINTS_MAX, POINTS_MIN, Trend, TrendQuery};
use serde::Serialize;
use serde_json::Number;

use super::list::{json_response, with_meter};
use super::params::{Params, QueryParams, bad_request};
use crate::http::ServerState;
use crate::http::route::{Param, Route, json_answer, param, required};

/// Default number of periods.
const POINTS_DEFAULT: usize = 30;

const PARAMS: &[Param] = &[
    required("eventType", "event type"),
    required("customerId", "customer"),
    required("period", "a configured kind of period, such as daily"),
    param("points", "number of periods up to the newest final one: 2 to 366; 30 by default"),
];

pub(super) const ROUTES: &[Route] = &[Route {
    id: "trendOfMeter",
    path: "/meters/trend",
    summary: "The least-squares line through the last final aggregates of a customer, and its \
                 value at the next period as a forecast.",
    params: PARAMS,
    answers: &[json_answer("200", "MeterTrend", "the line and its points")],
    handler: || get(trend),
    ..Route::GET
}];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct TrendResponse {
    event_type: String,
    customer_id: String,
    period: String,
    op: Op,
    points: Vec<PeriodValueJson>,
    slope: Option<ValueJson>,
    forecast: Option<PeriodValueJson>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ValueJson {
    value: Option<Number>,
    value_exact: String,
    exact: bool,
}

#[derive(Serialize)]
struct PeriodValueJson {
    start: String,
    end: String,
    #[serde(flatten)]
    value: ValueJson,
}

async fn trend(State(shared): State<Arc<ServerState>>, params: QueryParams) -> Response {
    let request = Params::read(params, PARAMS).and_then(|params| read(&params));
    with_meter(&shared, request, async |meter: &Meter, query: TrendQuery| {
        let trend = meter.trend(&query).await?;
        Ok(json_response(HeaderMap::new(), &response(query, &trend)))
    })
    .await
}

fn read(params: &Params) -> Result<TrendQuery, Response> {
    let named = |name: &str| {
        params.owned(name).ok_or_else(|| bad_request(&format!("{name}: must not be empty")))
    };
    let points = params.text("points").map_or(Some(POINTS_DEFAULT), |text| text.parse().ok());
    let points = points.filter(|points| (POINTS_MIN..=POINTS_MAX).contains(points));
    let bounds =
        || bad_request(&format!("points: must be a number from {POINTS_MIN} to {POINTS_MAX}"));
    Ok(TrendQuery {
        event_type: named("eventType")?,
        customer: named("customerId")?,
        period: named("period")?,
        points: points.ok_or_else(bounds)?,
    })
}

fn response(query: TrendQuery, trend: &Trend) -> TrendResponse {
    let points = trend.points.iter().map(|point| period_value(&point.period, &point.result));
    let line = trend.line.as_ref();
    TrendResponse {
        event_type: query.event_type,
        customer_id: query.customer,
        period: query.period,
        op: trend.op,
        points: points.collect(),
        slope: line.map(|line| value(&line.slope)),
        forecast: line.map(|line| period_value(&line.next, &line.forecast)),
    }
}

fn period_value(period: &Period, result: &OpResult) -> PeriodValueJson {
    let (start, end) = (format_time(period.start), format_time(period.end));
    PeriodValueJson { start, end, value: value(result) }
}

fn value(result: &OpResult) -> ValueJson {
    ValueJson {
        value: result.json_number(),
        value_exact: result.value.to_string(),
        exact: result.exact,
    }
}
