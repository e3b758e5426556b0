//! `/webhooks/…`: endpoints made, changed, tested, rotated, deleted; deliveries looked at and sent again.
//!
//! Guarantees: a secret is given to who makes or rotates it, once; everything needs the scope `admin`, as addresses
//! may be secrets themselves. Leaves to others: delivering ([`logmill_meter::webhooks`]).

mod routes;
mod show;

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use logmill_meter::period::parse_time;
use logmill_meter::requests::KeyedRequest;
use logmill_meter::webhooks::{
    DeliveryCursor, DeliveryState, EndpointChange, NewEndpoint, Replayed, Secret,
};
use logmill_meter::{Meter, Result as MeterResult};
use serde::Deserialize;
use serde_json::{Value, json};

use routes::DELIVERY_PARAMS;
pub(super) use routes::ROUTES;
use show::{Made, ShownAttempt, ShownDelivery, ShownEndpoint, ShownStatus};

use super::Caller;
use super::ask::{Asked, Params, next_page, wrong};
use super::list::{answer, ask};
use super::once::{self, Creation};
use crate::http::{Shared, read_body};

/// The list of deliveries, in cursors.
const DELIVERIES: &str = "deliveries";

/// An endpoint to be made, or what is to be changed of one.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Fields {
    url: Option<String>,
    description: Option<String>,
    events: Option<Vec<String>>,
    customers: Option<Vec<String>>,
    ordered: Option<bool>,
    enabled: Option<bool>,
    secret: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Rotation {
    secret: Option<String>,
    overlap_seconds: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct Replay {
    message_id: Option<String>,
    since: Option<String>,
}

impl Fields {
    const NAMES: &[&str] =
        &["url", "description", "events", "customers", "ordered", "enabled", "secret"];
}

impl Rotation {
    const NAMES: &[&str] = &["secret", "overlapSeconds"];
}

impl Replay {
    const NAMES: &[&str] = &["messageId", "since"];
}

type Id = Result<Path<String>, PathRejection>;

async fn list_endpoints(State(shared): State<Arc<Shared>>) -> Response {
    ask(&shared, Ok(()), async |meter: &Meter, ()| {
        let all = meter.webhooks().statuses().await?;
        let all: Vec<ShownStatus> = all.into_iter().map(ShownStatus::from).collect();
        Ok(answer(HeaderMap::new(), &all))
    })
    .await
}

async fn create(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        let new = creation.fields::<Fields>(Fields::NAMES).and_then(new_endpoint)?;
        Ok((new, creation.keyed))
    });
    ask(&shared, asked, async |meter: &Meter, (new, keyed): (NewEndpoint, Option<KeyedRequest>)| {
        let created = Box::pin(meter.webhooks().create_once(&new, keyed.as_ref())).await?;
        let status = if created.is_new { StatusCode::CREATED } else { StatusCode::OK };
        let secret = created.secret.map(|secret| secret.expose().to_owned());
        let made = Made { endpoint: created.endpoint.into(), secret };
        Ok((status, answer(HeaderMap::new(), &made)).into_response())
    })
    .await
}

fn new_endpoint(fields: Fields) -> Result<NewEndpoint, Response> {
    let url = fields.url.ok_or_else(|| wrong("url is required"))?;
    Ok(NewEndpoint {
        url,
        description: fields.description.unwrap_or_default(),
        kinds: fields.events.unwrap_or_default(),
        customers: fields.customers.unwrap_or_default(),
        ordered: fields.ordered.unwrap_or(false),
        enabled: fields.enabled.unwrap_or(true),
        secret: fields.secret.as_deref().map(secret).transpose()?,
    })
}

async fn read_endpoint(State(shared): State<Arc<Shared>>, id: Id) -> Response {
    ask(&shared, path_id(id), async |meter: &Meter, id: String| {
        let endpoint = meter.webhooks().get(&id).await?;
        Ok(answer(HeaderMap::new(), &ShownEndpoint::from(endpoint)))
    })
    .await
}

async fn update(State(shared): State<Arc<Shared>>, id: Id, body: Body) -> Response {
    let body = read_body(&shared, body).await;
    let fields = body.and_then(|body| once::fields::<Fields>(&body, Fields::NAMES));
    let asked = fields.and_then(|fields| match fields.secret {
        Some(_) => Err(wrong("secret: it is changed by rotating it")),
        None => Ok(EndpointChange {
            url: fields.url,
            description: fields.description,
            kinds: fields.events,
            customers: fields.customers,
            ordered: fields.ordered,
            enabled: fields.enabled,
        }),
    });
    let asked = asked.and_then(|change| Ok((path_id(id)?, change)));
    ask(&shared, asked, async |meter: &Meter, (id, change): (String, EndpointChange)| {
        let endpoint = meter.webhooks().update(&id, &change).await?;
        Ok(answer(HeaderMap::new(), &ShownEndpoint::from(endpoint)))
    })
    .await
}

async fn delete(State(shared): State<Arc<Shared>>, id: Id) -> Response {
    ask(&shared, path_id(id), async |meter: &Meter, id: String| {
        meter.webhooks().delete(&id).await?;
        Ok(StatusCode::NO_CONTENT.into_response())
    })
    .await
}

async fn test(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    id: Id,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        creation.expect_no_fields()?;
        Ok((path_id(id)?, creation.keyed))
    });
    ask(&shared, asked, async |meter: &Meter, (id, keyed): (String, Option<KeyedRequest>)| {
        let message = Box::pin(meter.webhooks().test_once(&id, keyed.as_ref())).await?;
        Ok((StatusCode::ACCEPTED, Json(json!({"messageId": message}))).into_response())
    })
    .await
}

async fn rotate(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    id: Id,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        let asked = creation.fields::<Rotation>(Rotation::NAMES)?;
        let secret = asked.secret.as_deref().map(secret).transpose()?;
        let overlap = asked.overlap_seconds.map(Duration::from_secs);
        Ok((path_id(id)?, secret, overlap, creation.keyed))
    });
    ask(&shared, asked, async |meter: &Meter, (id, secret, overlap, keyed): (String, _, _, _)| {
        let keyed: Option<KeyedRequest> = keyed;
        let rotate = meter.webhooks().rotate_once(&id, secret, overlap, keyed.as_ref());
        let secret = Box::pin(rotate).await?;
        Ok(Json(json!({"secret": secret.expose()})).into_response())
    })
    .await
}

async fn replay(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    id: Id,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        Ok((path_id(id)?, creation.fields::<Replay>(Replay::NAMES)?, creation.keyed))
    });
    ask(&shared, asked, async |meter: &Meter, (id, asked, keyed): (String, Replay, _)| {
        let keyed: Option<KeyedRequest> = keyed;
        again(meter, &id, asked, keyed.as_ref()).await
    })
    .await
}

async fn again(
    meter: &Meter,
    id: &str,
    asked: Replay,
    keyed: Option<&KeyedRequest>,
) -> MeterResult<Response> {
    let hooks = meter.webhooks();
    let replayed = match (asked.message_id, asked.since) {
        (Some(message), None) => {
            Box::pin(hooks.replay_once(&message, id, keyed)).await?;
            json!({"deliveries": 1, "more": false})
        }
        (None, Some(since)) => {
            let since = parse_time(&since)?;
            // On the heap: futures within futures grow beyond what a stack has room for.
            let replay = async { Ok(shown(Box::pin(hooks.replay_since(id, since)).await?)) };
            Box::pin(meter.once(keyed, replay)).await?
        }
        _ => return Ok(wrong("either messageId or since is required")),
    };
    Ok((StatusCode::ACCEPTED, Json(replayed)).into_response())
}

/// Has what waits for its next attempt sent now.
async fn retry(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    id: Id,
    (method, uri): (Method, Uri),
    headers: HeaderMap,
    body: Body,
) -> Response {
    let read = Creation::read(&shared, &caller, (&method, &uri, &headers), body).await;
    let asked = read.and_then(|creation| {
        creation.expect_no_fields()?;
        Ok((path_id(id)?, creation.keyed))
    });
    ask(&shared, asked, async |meter: &Meter, (id, keyed): (String, Option<KeyedRequest>)| {
        let retry = async { Ok(shown(Box::pin(meter.webhooks().retry_now(&id)).await?)) };
        let retried = Box::pin(meter.once(keyed.as_ref(), retry)).await?;
        Ok((StatusCode::ACCEPTED, Json(retried)).into_response())
    })
    .await
}

fn shown(replayed: Replayed) -> Value {
    json!({"deliveries": replayed.deliveries, "more": replayed.more})
}

async fn deliveries(State(shared): State<Arc<Shared>>, uri: Uri, asked: Asked) -> Response {
    let question = Params::read(asked, DELIVERY_PARAMS).and_then(|params| {
        let state = params.text("state").map(|name| {
            DeliveryState::from_name(name).ok_or_else(|| {
                let names = DeliveryState::ALL.map(DeliveryState::name);
                wrong(&format!("state: it is one of {}", names.join(", ")))
            })
        });
        let after = params.cursor(DELIVERIES)?.map(|(message, endpoint)| {
            let endpoint =
                endpoint.parse().map_err(|_| wrong("cursor: it is not one of this list"));
            endpoint.map(|endpoint| DeliveryCursor { message, endpoint })
        });
        let after = after.transpose()?;
        Ok((params.owned("endpointId"), state.transpose()?, after, params.limit()?))
    });
    ask(
        &shared,
        question,
        async |meter: &Meter, (endpoint, state, after, limit): (Option<String>, _, _, usize)| {
            let found =
                meter.webhooks().deliveries(endpoint.as_deref(), state, after, limit).await?;
            let next = found.last().filter(|_| found.len() == limit);
            let next = next.map(|last| (last.cursor.message, last.cursor.endpoint.to_string()));
            let found: Vec<ShownDelivery> = found.into_iter().map(ShownDelivery::from).collect();
            Ok(answer(next_page(&uri, DELIVERIES, next), &found))
        },
    )
    .await
}

async fn attempts(
    State(shared): State<Arc<Shared>>,
    ids: Result<Path<(String, String)>, PathRejection>,
) -> Response {
    let ids = ids.map(|Path(ids)| ids).map_err(|_| wrong("the ids are to be text in UTF-8"));
    ask(&shared, ids, async |meter: &Meter, (message, endpoint): (String, String)| {
        let found = meter.webhooks().attempts(&message, &endpoint).await?;
        let found: Vec<ShownAttempt> = found.into_iter().map(ShownAttempt::from).collect();
        Ok(answer(HeaderMap::new(), &found))
    })
    .await
}

fn path_id(id: Id) -> Result<String, Response> {
    id.map(|Path(id)| id).map_err(|_| wrong("the id is to be text in UTF-8"))
}

fn secret(text: &str) -> Result<Secret, Response> {
    Secret::parse(text).map_err(|error| wrong(&format!("secret: {error}")))
}
