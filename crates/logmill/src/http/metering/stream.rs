//! `/meters/stream`: a WebSocket that tells what the periods under way say of a customer, now and whenever it changes.
//!
//! ```text
//!   recorded here ──▶ watched ──┐
//!                               ├──▶ look, at most once a second ──▶ other than before? ──▶ told
//!   slow poll ──────────────────┘
//! ```
//!
//! Guarantees: the first message comes at once; what other processes record shows within [`POLL`]; values that did not
//! change are not told again. Leaves to others: how a socket ends ([`crate::http::socket`]).

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::extract::ws::Utf8Bytes;
use axum::response::Response;
use bytes::Bytes;
use logmill_io::Clock;
use logmill_meter::Meter;
use logmill_meter::event::unknown_type;
use logmill_meter::live::LivePeriod;
use logmill_meter::period::format_time;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::ask::{Asked, Params, wrong};
use super::route::STREAM_PARAMS;
use super::usage;
use crate::http::socket::{Session, talk};
use crate::http::{Shared, Upgrade, limited, problem};
use crate::meter::Watching;
use crate::output;
use crate::rpc::subscriptions::Next;

/// The shortest time between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// How often to look though this process has recorded nothing.
const POLL: Duration = Duration::from_secs(15);

/// Tells live values until one side ends it.
pub(super) async fn stream(
    State(shared): State<Arc<Shared>>,
    asked: Asked,
    upgrade: Upgrade,
) -> Response {
    let (usage, params) = match usage(&shared)
        .and_then(|usage| Ok((usage.clone(), Params::read(asked, STREAM_PARAMS)?)))
    {
        Ok(both) => both,
        Err(answer) => return answer,
    };
    let Some(customer) = params.owned("customerId") else {
        return wrong("customerId: it is missing");
    };
    let event_type = params.owned("eventType");
    let settings = usage.meter.settings();
    if let Some(name) = event_type.as_ref().filter(|name| !settings.events.contains_key(*name)) {
        return wrong(&unknown_type(settings, name));
    }
    let upgrade = match upgrade {
        Ok(upgrade) => limited(upgrade, &shared),
        Err(rejection) => return problem(rejection.status(), "this is a WebSocket"),
    };
    let (clock, stop) = (Arc::clone(&shared.clock), shared.stop.clone());
    let session = LiveSession {
        watching: usage.watched.watch(&customer),
        meter: usage.meter,
        clock: Arc::clone(&clock),
        requests: Arc::clone(&shared.requests),
        customer,
        event_type,
        is_due: true,
        looked: None,
        told: Value::Null,
    };
    upgrade.on_upgrade(move |socket| talk(socket, session, clock, stop))
}

/// A client of the stream.
struct LiveSession {
    meter: Meter,
    clock: Arc<dyn Clock>,
    requests: Arc<Semaphore>,
    customer: String,
    event_type: Option<String>,
    watching: Watching,
    /// Whether there may be something new.
    is_due: bool,
    /// When it was looked, on the monotonic clock.
    looked: Option<Duration>,
    /// What was told.
    told: Value,
}

impl Session for LiveSession {
    async fn hear(&mut self, _: Bytes) -> Option<Utf8Bytes> {
        None
    }

    async fn next(&mut self) -> Next {
        loop {
            self.wait().await;
            let periods = match self.look().await {
                Ok(periods) => periods,
                Err(error) => {
                    let error = output::brief(&error.chain());
                    tracing::warn!(error, "live values can not be read");
                    return Next::Close("live values can not be read at the moment");
                }
            };
            self.looked = Some(self.clock.monotonic());
            self.is_due = false;
            if periods != self.told {
                self.told = periods;
                return Next::Send(vec![self.message().into()]);
            }
        }
    }
}

impl LiveSession {
    /// Waits until it is worth looking. Nothing is lost if it is given up: what is due stays due.
    async fn wait(&mut self) {
        let Some(looked) = self.looked else { return };
        let passed = || self.clock.monotonic().saturating_sub(looked);
        if !self.is_due {
            let poll = self.clock.sleep(POLL.saturating_sub(passed()));
            tokio::select! {
                biased;
                () = self.watching.changed() => {}
                () = poll => {}
            }
            self.is_due = true;
        }
        let passed = self.clock.monotonic().saturating_sub(looked);
        self.clock.sleep(EVERY.saturating_sub(passed)).await;
    }

    async fn look(&self) -> logmill_meter::Result<Value> {
        // The semaphore is never closed.
        let _room = self.requests.acquire().await;
        let now = self.clock.now();
        let live = self.meter.live(&self.customer, self.event_type.as_deref(), now).await?;
        Ok(live.into_iter().map(shown).collect())
    }

    fn message(&self) -> String {
        let payload = json!({
            "customerId": self.customer,
            "timestamp": format_time(self.clock.now()),
            "periods": self.told,
        });
        json!({"type": "meters", "payload": payload}).to_string()
    }
}

fn shown(live: LivePeriod) -> Value {
    let LivePeriod { period, said: mut shown } = live;
    shown["period"] = period.kind.name().into();
    shown["periodKey"] = period.key.as_str().into();
    shown["periodStart"] = format_time(period.start).into();
    shown["periodEnd"] = format_time(period.end_inclusive()).into();
    shown
}
