//! `GET /events…` and `GET /aggregations…`: pages, with the cursor of the next page in a header.
//!
//! Guarantees: an answer is a bare array, as in the seed, of at most `limit` entries; if there is a next page, `Link`
//! and `x-next-cursor` point to it. Leaves to others: the content of a page ([`logmill_meter::list`]).

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use logmill_io::Timestamp;
use logmill_meter::Meter;
use logmill_meter::list::{AggregateFilter, EventCursor, EventFilter, EventPage};
use logmill_meter::period::PeriodKind;
use serde::Serialize;

use super::json::{AggregateJson, EventEntry, EventJson};
use super::params::{Params, QueryParams, bad_request, next_page};
use super::query_params::{AGGREGATION_PARAMS, BEHIND_PARAMS, EVENT_PARAMS};
use super::{failed, respond, usage};
use crate::http::{ServerState, problem};

const EVENTS: &str = "events";
const AGGREGATIONS: &str = "aggregations";
const BEHIND: &str = "behind";
/// Header with the number of damaged events on a page.
const DAMAGED: HeaderName = HeaderName::from_static("x-damaged-events");

pub(super) async fn events(
    State(shared): State<Arc<ServerState>>,
    uri: Uri,
    params: QueryParams,
) -> Response {
    let request = Params::read(params, EVENT_PARAMS).and_then(|params| event_filter(&params));
    with_meter(&shared, request, async |meter: &Meter, filter: EventFilter| {
        let page = meter.events(&filter).await?;
        event_page(page, &uri, EVENTS)
    })
    .await
}

pub(super) async fn aggregations(
    State(shared): State<Arc<ServerState>>,
    uri: Uri,
    params: QueryParams,
) -> Response {
    let params = Params::read(params, AGGREGATION_PARAMS);
    let request = params.and_then(|params| aggregate_filter(&params));
    with_meter(&shared, request, async |meter: &Meter, filter: AggregateFilter| {
        let page = meter.aggregates(&filter).await?;
        if page.items.is_empty()
            && let Some(refused) = unknown_period(meter, filter.period.as_deref())
        {
            return Ok(refused);
        }
        let next = page.next.map(|(start, id)| (start.millis(), id));
        let items = AggregateJson::all(meter, page.items).await?;
        Ok(json_response(next_page(&uri, AGGREGATIONS, next), &items))
    })
    .await
}

/// The error for a period that is neither a calendar period nor a configured one. Aggregates of a formerly configured
/// period are found before this check.
fn unknown_period(meter: &Meter, period: Option<&str>) -> Option<Response> {
    let period = period?;
    let calendar = [
        PeriodKind::Hourly,
        PeriodKind::Daily,
        PeriodKind::Weekly,
        PeriodKind::Monthly,
        PeriodKind::Yearly,
    ];
    let known = calendar.iter().chain(&meter.settings().periods).map(PeriodKind::name);
    let known: BTreeSet<&str> = known.collect();
    if known.contains(period) {
        return None;
    }
    let known: Vec<&str> = known.into_iter().collect();
    let why = format!("period: no such period; it must be one of {}", known.join(", "));
    Some(problem(StatusCode::UNPROCESSABLE_ENTITY, &why))
}

type PathId = Result<Path<String>, PathRejection>;

/// One aggregate with all its revisions.
pub(super) async fn aggregation(
    State(shared): State<Arc<ServerState>>,
    id: PathId,
    params: QueryParams,
) -> Response {
    let request = Params::read(params, &[]).and_then(|_| read_id(id));
    with_meter(&shared, request, async |meter: &Meter, id: String| {
        let Some(aggregate) = meter.get_aggregate(&id).await? else { return Ok(no_aggregate()) };
        let shown = AggregateJson::all(meter, vec![aggregate]).await?;
        let Some(shown) = shown.into_iter().next() else { return Ok(no_aggregate()) };
        Ok(json_response(HeaderMap::new(), &shown.with_revisions(meter.revisions(&id).await?)?))
    })
    .await
}

/// One page of the events behind an aggregate.
pub(super) async fn behind(
    State(shared): State<Arc<ServerState>>,
    id: PathId,
    uri: Uri,
    params: QueryParams,
) -> Response {
    let request = Params::read(params, BEHIND_PARAMS).and_then(|params| {
        let after = params.cursor(BEHIND)?.map(event_cursor).transpose()?;
        Ok((read_id(id)?, params.limit()?, after))
    });
    with_meter(&shared, request, async |meter: &Meter, (id, limit, after): (String, usize, _)| {
        let Some(aggregate) = meter.get_aggregate(&id).await? else { return Ok(no_aggregate()) };
        event_page(meter.events_behind(&aggregate, limit, after).await?, &uri, BEHIND)
    })
    .await
}

/// Queries the meter if the parameters are valid.
pub(super) async fn with_meter<Q>(
    shared: &ServerState,
    request: Result<Q, Response>,
    look: impl AsyncFnOnce(&Meter, Q) -> logmill_meter::Result<Response>,
) -> Response {
    let (usage, request) = match usage(shared).and_then(|usage| Ok((usage, request?))) {
        Ok(both) => both,
        Err(answer) => return answer,
    };
    let work = async {
        match look(&usage.meter, request).await {
            Ok(answer) => answer,
            Err(error) => failed(&error),
        }
    };
    respond(shared, work).await
}

pub(super) fn json_response(headers: HeaderMap, shown: &impl Serialize) -> Response {
    match serde_json::to_string(shown) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], headers, text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "cannot serialize a response");
            problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
        }
    }
}

/// The events of a page, followed by the damaged ones: these must neither be shown as valid nor silently omitted.
fn event_page(page: EventPage, uri: &Uri, list: &str) -> logmill_meter::Result<Response> {
    let next = page.next.map(|next| (next.time.millis(), next.seq.to_string()));
    let mut headers = next_page(uri, list, next);
    if !page.damaged.is_empty() {
        headers.insert(DAMAGED, page.damaged.len().into());
    }
    let whole =
        page.items.into_iter().map(|event| Ok(EventEntry::Whole(Box::new(EventJson::of(event)?))));
    let damaged = page.damaged.into_iter().map(|seq| Ok(EventEntry::damaged(seq)));
    let entries: Vec<EventEntry> = whole.chain(damaged).collect::<logmill_meter::Result<_>>()?;
    Ok(json_response(headers, &entries))
}

fn event_filter(params: &Params) -> Result<EventFilter, Response> {
    Ok(EventFilter {
        customer: params.owned("customerId"),
        event_type: params.owned("eventType"),
        from: params.time("from")?,
        to: params.time("to")?,
        limit: params.limit()?,
        after: params.cursor(EVENTS)?.map(event_cursor).transpose()?,
        counting: false,
    })
}

fn aggregate_filter(params: &Params) -> Result<AggregateFilter, Response> {
    let after = params.cursor(AGGREGATIONS)?;
    Ok(AggregateFilter {
        customer: params.owned("customerId"),
        period: params.owned("period"),
        from: params.time("from")?,
        to: params.time("to")?,
        limit: params.limit()?,
        after: after.map(|(start, id)| (Timestamp(start), id)),
    })
}

fn event_cursor((time, seq): (i64, String)) -> Result<EventCursor, Response> {
    let seq = seq.parse().map_err(|_| bad_request("cursor: not a cursor of this list"))?;
    Ok(EventCursor { time: Timestamp(time), seq })
}

fn read_id(id: PathId) -> Result<String, Response> {
    let unreadable = |_| bad_request("the id must be percent-encoded UTF-8");
    id.map(|Path(id)| id).map_err(unreadable)
}

fn no_aggregate() -> Response {
    problem(StatusCode::NOT_FOUND, "no such aggregation")
}
