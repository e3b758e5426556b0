//! `GET /events…` and `GET /aggregations…`: by the page, with the next page's cursor in a header.
//!
//! Guarantees: an answer is a bare array as the seed's is, of at most `limit` entries; while there is a next page,
//! `Link` and `x-next-cursor` tell of it. Leaves to others: what is on a page ([`logmill_meter::list`]).

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use logmill_io::Timestamp;
use logmill_meter::Meter;
use logmill_meter::list::{AggregateFilter, EventCursor, EventFilter, ListedEvent, Page};
use serde::Serialize;

use super::ask::{Asked, Params, next_page, wrong};
use super::route::{AGGREGATION_PARAMS, BEHIND_PARAMS, EVENT_PARAMS, NO_PARAMS};
use super::show::{ShownAggregate, ShownEvent};
use super::{answered, failed, usage};
use crate::http::{Shared, problem};

const EVENTS: &str = "events";
const AGGREGATIONS: &str = "aggregations";
const BEHIND: &str = "behind";

/// One page of events.
pub(super) async fn events(State(shared): State<Arc<Shared>>, uri: Uri, asked: Asked) -> Response {
    let question = Params::read(asked, EVENT_PARAMS).and_then(|params| event_filter(&params));
    ask(&shared, question, async |meter: &Meter, filter: EventFilter| {
        let page = meter.events(&filter).await?;
        event_page(page, &uri, EVENTS)
    })
    .await
}

/// One page of aggregates.
pub(super) async fn aggregations(
    State(shared): State<Arc<Shared>>,
    uri: Uri,
    asked: Asked,
) -> Response {
    let params = Params::read(asked, AGGREGATION_PARAMS);
    let question = params.and_then(|params| aggregate_filter(&params));
    ask(&shared, question, async |meter: &Meter, filter: AggregateFilter| {
        let page = meter.aggregates(&filter).await?;
        let next = page.next.map(|(start, id)| (start.millis(), id));
        let items = ShownAggregate::all(meter, page.items).await?;
        Ok(answer(next_page(&uri, AGGREGATIONS, next), &items))
    })
    .await
}

type Id = Result<Path<String>, PathRejection>;

/// One aggregate with all that it said.
pub(super) async fn aggregation(
    State(shared): State<Arc<Shared>>,
    id: Id,
    asked: Asked,
) -> Response {
    let question = Params::read(asked, NO_PARAMS).and_then(|_| read_id(id));
    ask(&shared, question, async |meter: &Meter, id: String| {
        let Some(aggregate) = meter.get_aggregate(&id).await? else { return Ok(no_aggregate()) };
        let shown = ShownAggregate::all(meter, vec![aggregate]).await?;
        let Some(shown) = shown.into_iter().next() else { return Ok(no_aggregate()) };
        Ok(answer(HeaderMap::new(), &shown.with(meter.revisions(&id).await?)?))
    })
    .await
}

/// One page of the events behind an aggregate.
pub(super) async fn behind(
    State(shared): State<Arc<Shared>>,
    id: Id,
    uri: Uri,
    asked: Asked,
) -> Response {
    let question = Params::read(asked, BEHIND_PARAMS).and_then(|params| {
        let after = params.cursor(BEHIND)?.map(event_cursor).transpose()?;
        Ok((read_id(id)?, params.limit()?, after))
    });
    ask(&shared, question, async |meter: &Meter, (id, limit, after): (String, usize, _)| {
        let Some(aggregate) = meter.get_aggregate(&id).await? else { return Ok(no_aggregate()) };
        event_page(meter.events_behind(&aggregate, limit, after).await?, &uri, BEHIND)
    })
    .await
}

/// Asks the meter, unless the question makes no sense.
pub(super) async fn ask<Q>(
    shared: &Shared,
    question: Result<Q, Response>,
    look: impl AsyncFnOnce(&Meter, Q) -> logmill_meter::Result<Response>,
) -> Response {
    let (usage, question) = match usage(shared).and_then(|usage| Ok((usage, question?))) {
        Ok(both) => both,
        Err(answer) => return answer,
    };
    let work = async {
        match look(&usage.meter, question).await {
            Ok(answer) => answer,
            Err(error) => failed(&error),
        }
    };
    answered(shared, work).await
}

/// An answer in JSON.
pub(super) fn answer(headers: HeaderMap, shown: &impl Serialize) -> Response {
    match serde_json::to_string(shown) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], headers, text).into_response(),
        Err(error) => {
            tracing::warn!(%error, "an answer could not be written");
            problem(StatusCode::INTERNAL_SERVER_ERROR, "Internal server error")
        }
    }
}

fn event_page(
    page: Page<ListedEvent, EventCursor>,
    uri: &Uri,
    list: &str,
) -> logmill_meter::Result<Response> {
    let next = page.next.map(|next| (next.time.millis(), next.seq.to_string()));
    let items = page.items.into_iter().map(ShownEvent::of);
    let items: Vec<ShownEvent> = items.collect::<logmill_meter::Result<_>>()?;
    Ok(answer(next_page(uri, list, next), &items))
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
    let seq = seq.parse().map_err(|_| wrong("cursor: it is not one that this list gave"))?;
    Ok(EventCursor { time: Timestamp(time), seq })
}

fn read_id(id: Id) -> Result<String, Response> {
    let unreadable = |_| wrong("the id is to be text in UTF-8, percent-encoded");
    id.map(|Path(id)| id).map_err(unreadable)
}

fn no_aggregate() -> Response {
    problem(StatusCode::NOT_FOUND, "there is no such aggregation")
}
