//! `/webhooks/…`: endpoints made, changed, tested, rotated, deleted; deliveries looked at and sent again.
//!
//! Guarantees: a secret is given to who makes or rotates it, once; everything needs the scope `admin`, as addresses
//! may be secrets themselves. Leaves to others: delivering ([`logmill_meter::webhooks`]).

mod routes;
mod show;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use logmill_meter::period::parse_time;
use logmill_meter::webhooks::{
    DeliveryCursor, DeliveryState, EndpointChange, NewEndpoint, Secret, Webhooks as Hooks,
};
use logmill_meter::{Meter, Result as MeterResult};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use routes::DELIVERY_PARAMS;
pub(super) use routes::ROUTES;
use show::{Made, ShownAttempt, ShownDelivery, ShownEndpoint, ShownStatus};

use super::ask::{Asked, Params, next_page, wrong};
use super::list::{answer, ask};
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

type Id = Result<Path<String>, PathRejection>;

async fn list_endpoints(State(shared): State<Arc<Shared>>) -> Response {
    ask(&shared, Ok(()), async |meter: &Meter, ()| {
        let all = meter.webhooks().statuses().await?;
        let all: Vec<ShownStatus> = all.into_iter().map(ShownStatus::from).collect();
        Ok(answer(HeaderMap::new(), &all))
    })
    .await
}

async fn create(State(shared): State<Arc<Shared>>, body: Body) -> Response {
    let asked = read::<Fields>(&shared, body).await.and_then(new_endpoint);
    ask(&shared, asked, async |meter: &Meter, new: NewEndpoint| {
        let (endpoint, secret) = meter.webhooks().create(&new).await?;
        let made = Made { endpoint: endpoint.into(), secret: secret.expose().to_owned() };
        Ok((StatusCode::CREATED, answer(HeaderMap::new(), &made)).into_response())
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
    let asked = read::<Fields>(&shared, body).await.and_then(|fields| match fields.secret {
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

async fn test(State(shared): State<Arc<Shared>>, id: Id) -> Response {
    ask(&shared, path_id(id), async |meter: &Meter, id: String| {
        let message = meter.webhooks().test(&id).await?;
        Ok((StatusCode::ACCEPTED, Json(json!({"messageId": message}))).into_response())
    })
    .await
}

async fn rotate(State(shared): State<Arc<Shared>>, id: Id, body: Body) -> Response {
    let asked = read::<Rotation>(&shared, body).await.and_then(|asked| {
        let secret = asked.secret.as_deref().map(secret).transpose()?;
        Ok((path_id(id)?, secret, asked.overlap_seconds.map(Duration::from_secs)))
    });
    ask(&shared, asked, async |meter: &Meter, (id, secret, overlap): (String, _, _)| {
        let secret = meter.webhooks().rotate(&id, secret, overlap).await?;
        Ok(Json(json!({"secret": secret.expose()})).into_response())
    })
    .await
}

async fn replay(State(shared): State<Arc<Shared>>, id: Id, body: Body) -> Response {
    let asked = read::<Replay>(&shared, body).await.and_then(|asked| Ok((path_id(id)?, asked)));
    ask(&shared, asked, async |meter: &Meter, (id, asked): (String, Replay)| {
        again(meter.webhooks(), &id, asked).await
    })
    .await
}

async fn again(hooks: &Hooks, id: &str, asked: Replay) -> MeterResult<Response> {
    let (deliveries, more) = match (asked.message_id, asked.since) {
        (Some(message), None) => {
            hooks.replay(&message, id).await?;
            (1, false)
        }
        (None, Some(since)) => {
            let replayed = hooks.replay_since(id, parse_time(&since)?).await?;
            (replayed.deliveries, replayed.more)
        }
        _ => return Ok(wrong("either messageId or since is required")),
    };
    let body = json!({"deliveries": deliveries, "more": more});
    Ok((StatusCode::ACCEPTED, Json(body)).into_response())
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

/// A body of JSON; an empty one says nothing.
async fn read<T: DeserializeOwned + Default>(shared: &Shared, body: Body) -> Result<T, Response> {
    let body = read_body(shared, body).await?;
    if body.is_empty() {
        return Ok(T::default());
    }
    // What serde says of a wrong type may hold the value, and that a secret.
    serde_json::from_slice(&body).map_err(|error| {
        let (line, column) = (error.line(), error.column());
        let what = if error.is_data() {
            "a field is unknown or of the wrong type"
        } else {
            "it is no JSON"
        };
        wrong(&format!("the body, line {line}, column {column}: {what}"))
    })
}

fn path_id(id: Id) -> Result<String, Response> {
    id.map(|Path(id)| id).map_err(|_| wrong("the id is to be text in UTF-8"))
}

fn secret(text: &str) -> Result<Secret, Response> {
    Secret::parse(text).map_err(|error| wrong(&format!("secret: {error}")))
}
