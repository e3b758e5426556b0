//! `/webhooks/…`: create, change, test, rotate and delete endpoints; list deliveries and send them again.
//!
//! Guarantees: a secret is returned once, to the caller that creates or rotates it; all routes need the scope `admin`,
//! because URLs may contain secrets. Leaves to others: delivering ([`logmill_meter::webhooks`]).

mod json;
mod routes;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode, Uri};
use axum::response::{IntoResponse, Json, Response};
use logmill_meter::period::parse_time;
use logmill_meter::requests::KeyedRequest;
use logmill_meter::webhooks::{
    DeliveryCursor, DeliveryState, EndpointChange, NewEndpoint, ReplayResult, Secret, check_kind,
};
use logmill_meter::{Meter, Result as MeterResult};
use serde::Deserialize;
use serde_json::{Value, json};

use json::{AttemptJson, CreatedEndpointJson, DeliveryJson, EndpointJson, EndpointStatusJson};
use routes::DELIVERY_PARAMS;
pub(super) use routes::ROUTES;

use super::creation::{self, CreationRequest};
use super::list::{json_response, with_meter};
use super::params::{Params, QueryParams, bad_request, next_page};
use crate::http::{ServerState, problem, read_body};

/// Name of the list of deliveries in cursors.
const DELIVERIES: &str = "deliveries";

/// Body of a request that creates or changes an endpoint.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct EndpointBody {
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
struct RotationBody {
    secret: Option<String>,
    overlap_seconds: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
struct ReplayBody {
    message_id: Option<String>,
    since: Option<String>,
}

impl EndpointBody {
    const NAMES: &[&str] =
        &["url", "description", "events", "customers", "ordered", "enabled", "secret"];
}

impl RotationBody {
    const NAMES: &[&str] = &["secret", "overlapSeconds"];
}

impl ReplayBody {
    const NAMES: &[&str] = &["messageId", "since"];
}

type PathId = Result<Path<String>, PathRejection>;

async fn list_endpoints(State(shared): State<Arc<ServerState>>) -> Response {
    with_meter(&shared, Ok(()), async |meter: &Meter, ()| {
        let all = meter.webhooks().statuses().await?;
        let all: Vec<EndpointStatusJson> = all.into_iter().map(EndpointStatusJson::from).collect();
        Ok(json_response(HeaderMap::new(), &all))
    })
    .await
}

async fn create(State(shared): State<Arc<ServerState>>, creation: CreationRequest) -> Response {
    let request = creation.and_then(|creation| {
        let (fields, keyed) = creation.with_fields::<EndpointBody>(EndpointBody::NAMES)?;
        Ok((new_endpoint(fields)?, keyed))
    });
    with_meter(
        &shared,
        request,
        async |meter: &Meter, (new, keyed): (NewEndpoint, Option<KeyedRequest>)| {
            let created = Box::pin(meter.webhooks().create_once(&new, keyed.as_ref())).await?;
            let status = if created.is_new { StatusCode::CREATED } else { StatusCode::OK };
            let secret = created.secret.map(|secret| secret.expose().to_owned());
            let made = CreatedEndpointJson { endpoint: created.endpoint.into(), secret };
            Ok((status, json_response(HeaderMap::new(), &made)).into_response())
        },
    )
    .await
}

fn new_endpoint(fields: EndpointBody) -> Result<NewEndpoint, Response> {
    let url = fields.url.ok_or_else(|| bad_request("url is required"))?;
    check_events(fields.events.as_deref())?;
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

async fn read_endpoint(State(shared): State<Arc<ServerState>>, id: PathId) -> Response {
    with_meter(&shared, path_id(id), async |meter: &Meter, id: String| {
        let endpoint = meter.webhooks().get(&id).await?;
        Ok(json_response(HeaderMap::new(), &EndpointJson::from(endpoint)))
    })
    .await
}

async fn update(State(shared): State<Arc<ServerState>>, id: PathId, body: Body) -> Response {
    let body = read_body(&shared, body).await;
    let fields = body.and_then(|body| creation::fields::<EndpointBody>(&body, EndpointBody::NAMES));
    let request = fields.and_then(|fields| match fields.secret {
        Some(_) => Err(bad_request("secret: cannot be changed here; rotate it")),
        None => Ok(EndpointChange {
            url: fields.url,
            description: fields.description,
            kinds: fields.events,
            customers: fields.customers,
            ordered: fields.ordered,
            enabled: fields.enabled,
        }),
    });
    let request = request.and_then(|change| {
        check_events(change.kinds.as_deref())?;
        Ok((path_id(id)?, change))
    });
    with_meter(&shared, request, async |meter: &Meter, (id, change): (String, EndpointChange)| {
        let endpoint = meter.webhooks().update(&id, &change).await?;
        Ok(json_response(HeaderMap::new(), &EndpointJson::from(endpoint)))
    })
    .await
}

async fn delete(State(shared): State<Arc<ServerState>>, id: PathId) -> Response {
    with_meter(&shared, path_id(id), async |meter: &Meter, id: String| {
        meter.webhooks().delete(&id).await?;
        Ok(StatusCode::NO_CONTENT.into_response())
    })
    .await
}

async fn test(
    State(shared): State<Arc<ServerState>>,
    id: PathId,
    creation: CreationRequest,
) -> Response {
    let request = creation.and_then(|creation| {
        let keyed = creation.without_fields()?;
        Ok((path_id(id)?, keyed))
    });
    with_meter(
        &shared,
        request,
        async |meter: &Meter, (id, keyed): (String, Option<KeyedRequest>)| {
            let message = Box::pin(meter.webhooks().test_once(&id, keyed.as_ref())).await?;
            Ok((StatusCode::ACCEPTED, Json(json!({"messageId": message}))).into_response())
        },
    )
    .await
}

async fn rotate(
    State(shared): State<Arc<ServerState>>,
    id: PathId,
    creation: CreationRequest,
) -> Response {
    let request = creation.and_then(|creation| {
        let (body, keyed) = creation.with_fields::<RotationBody>(RotationBody::NAMES)?;
        let secret = body.secret.as_deref().map(secret).transpose()?;
        let overlap = body.overlap_seconds.map(Duration::from_secs);
        Ok((path_id(id)?, secret, overlap, keyed))
    });
    with_meter(
        &shared,
        request,
        async |meter: &Meter, (id, secret, overlap, keyed): (String, _, _, _)| {
            let keyed: Option<KeyedRequest> = keyed;
            let rotate = meter.webhooks().rotate_once(&id, secret, overlap, keyed.as_ref());
            let secret = Box::pin(rotate).await?;
            Ok(Json(json!({"secret": secret.expose()})).into_response())
        },
    )
    .await
}

async fn replay(
    State(shared): State<Arc<ServerState>>,
    id: PathId,
    creation: CreationRequest,
) -> Response {
    let request = creation.and_then(|creation| {
        let (body, keyed) = creation.with_fields::<ReplayBody>(ReplayBody::NAMES)?;
        Ok((path_id(id)?, body, keyed))
    });
    with_meter(
        &shared,
        request,
        async |meter: &Meter, (id, body, keyed): (String, ReplayBody, _)| {
            let keyed: Option<KeyedRequest> = keyed;
            replay_messages(meter, &id, body, keyed.as_ref()).await
        },
    )
    .await
}

async fn replay_messages(
    meter: &Meter,
    id: &str,
    body: ReplayBody,
    keyed: Option<&KeyedRequest>,
) -> MeterResult<Response> {
    let hooks = meter.webhooks();
    let replayed = match (body.message_id, body.since) {
        (Some(message), None) => {
            Box::pin(hooks.replay_once(&message, id, keyed)).await?;
            json!({"deliveries": 1, "more": false})
        }
        (None, Some(since)) => {
            let since = parse_time(&since)?;
            // Boxed, because nested futures grow too large for the stack.
            let replay = async { Ok(replay_json(Box::pin(hooks.replay_since(id, since)).await?)) };
            Box::pin(meter.once(keyed, replay)).await?
        }
        _ => return Ok(bad_request("either messageId or since is required")),
    };
    Ok((StatusCode::ACCEPTED, Json(replayed)).into_response())
}

/// Makes deliveries due now that wait for their next attempt.
async fn retry(
    State(shared): State<Arc<ServerState>>,
    id: PathId,
    creation: CreationRequest,
) -> Response {
    let request = creation.and_then(|creation| {
        let keyed = creation.without_fields()?;
        Ok((path_id(id)?, keyed))
    });
    with_meter(
        &shared,
        request,
        async |meter: &Meter, (id, keyed): (String, Option<KeyedRequest>)| {
            let retry = async { Ok(replay_json(Box::pin(meter.webhooks().retry_now(&id)).await?)) };
            let retried = Box::pin(meter.once(keyed.as_ref(), retry)).await?;
            Ok((StatusCode::ACCEPTED, Json(retried)).into_response())
        },
    )
    .await
}

fn replay_json(replayed: ReplayResult) -> Value {
    json!({"deliveries": replayed.deliveries, "more": replayed.more})
}

async fn deliveries(
    State(shared): State<Arc<ServerState>>,
    uri: Uri,
    params: QueryParams,
) -> Response {
    let request = Params::read(params, DELIVERY_PARAMS).and_then(|params| {
        let state = params.text("state").map(|name| {
            DeliveryState::from_name(name).ok_or_else(|| {
                let names = DeliveryState::ALL.map(DeliveryState::name);
                bad_request(&format!("state: must be one of {}", names.join(", ")))
            })
        });
        let after = params.cursor(DELIVERIES)?.map(|(message, endpoint)| {
            let endpoint =
                endpoint.parse().map_err(|_| bad_request("cursor: not a cursor of this list"));
            endpoint.map(|endpoint| DeliveryCursor { message, endpoint })
        });
        let after = after.transpose()?;
        Ok((params.owned("endpointId"), state.transpose()?, after, params.limit()?))
    });
    with_meter(
        &shared,
        request,
        async |meter: &Meter, (endpoint, state, after, limit): (Option<String>, _, _, usize)| {
            let found =
                meter.webhooks().deliveries(endpoint.as_deref(), state, after, limit).await?;
            let next = found.last().filter(|_| found.len() == limit);
            let next = next.map(|last| (last.cursor.message, last.cursor.endpoint.to_string()));
            let found: Vec<DeliveryJson> = found.into_iter().map(DeliveryJson::from).collect();
            Ok(json_response(next_page(&uri, DELIVERIES, next), &found))
        },
    )
    .await
}

async fn attempts(
    State(shared): State<Arc<ServerState>>,
    ids: Result<Path<(String, String)>, PathRejection>,
) -> Response {
    let ids =
        ids.map(|Path(ids)| ids).map_err(|_| bad_request("the ids must be percent-encoded UTF-8"));
    with_meter(&shared, ids, async |meter: &Meter, (message, endpoint): (String, String)| {
        let found = meter.webhooks().attempts(&message, &endpoint).await?;
        let found: Vec<AttemptJson> = found.into_iter().map(AttemptJson::from).collect();
        Ok(json_response(HeaderMap::new(), &found))
    })
    .await
}

fn path_id(id: PathId) -> Result<String, Response> {
    id.map(|Path(id)| id).map_err(|_| bad_request("the id must be percent-encoded UTF-8"))
}

/// Refuses a kind of message that is never sent, by its position in the list.
fn check_events(kinds: Option<&[String]>) -> Result<(), Response> {
    for (position, kind) in kinds.into_iter().flatten().enumerate() {
        check_kind(kind).map_err(|error| {
            let why = format!("events: entry {}: {error}", position + 1);
            problem(StatusCode::UNPROCESSABLE_ENTITY, &why)
        })?;
    }
    Ok(())
}

fn secret(text: &str) -> Result<Secret, Response> {
    Secret::parse(text).map_err(|error| bad_request(&format!("secret: {error}")))
}
