//! `/meters/stream`: a WebSocket that sends a customer's values of the current periods, at once and whenever they
//! change.
//!
//! ```text
//!   recorded here ──▶ watched ──┐
//!                               ├──▶ read, at most once a second ──▶ changed? ──▶ sent
//!   slow poll ──────────────────┘
//! ```
//!
//! Guarantees: the first message is sent at once; usage recorded by other processes shows within [`POLL`]; unchanged
//! values are not sent again. Leaves to others: how a socket ends ([`crate::http::socket`]).

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

use super::params::{Params, QueryParams, bad_request};
use super::query_params::STREAM_PARAMS;
use super::usage;
use crate::http::socket::{Session, run_session};
use crate::http::{ServerState, Upgrade, limited, problem};
use crate::one_line::brief;
use crate::rpc::subscriptions::SocketAction;
use crate::usage::CustomerWatcher;

/// Minimum time between two reads.
const EVERY: Duration = Duration::from_secs(1);
/// Poll interval while this process records nothing.
const POLL: Duration = Duration::from_secs(15);

/// Sends live values until either side ends the stream.
pub(super) async fn stream(
    State(shared): State<Arc<ServerState>>,
    params: QueryParams,
    upgrade: Upgrade,
) -> Response {
    let (usage, params) = match usage(&shared)
        .and_then(|usage| Ok((usage.clone(), Params::read(params, STREAM_PARAMS)?)))
    {
        Ok(both) => both,
        Err(answer) => return answer,
    };
    let Some(customer) = params.owned("customerId") else {
        return bad_request("customerId: this parameter is required");
    };
    let event_type = params.owned("eventType");
    let settings = usage.meter.settings();
    if let Some(name) = event_type.as_ref().filter(|name| !settings.events.contains_key(*name)) {
        return bad_request(&unknown_type(settings, name));
    }
    let upgrade = match upgrade {
        Ok(upgrade) => limited(upgrade, &shared),
        Err(rejection) => {
            return problem(
                rejection.status(),
                "this path is a WebSocket: send an upgrade request",
            );
        }
    };
    let (clock, stop) = (Arc::clone(&shared.clock), shared.stop.clone());
    let session = LiveSession {
        watcher: usage.watches.watch(&customer),
        meter: usage.meter,
        clock: Arc::clone(&clock),
        requests: Arc::clone(&shared.requests),
        customer,
        event_type,
        is_due: true,
        last_read: None,
        last_sent: Value::Null,
    };
    upgrade.on_upgrade(move |socket| run_session(socket, session, clock, stop))
}

struct LiveSession {
    meter: Meter,
    clock: Arc<dyn Clock>,
    requests: Arc<Semaphore>,
    customer: String,
    event_type: Option<String>,
    watcher: CustomerWatcher,
    /// Whether values may have changed since the last read.
    is_due: bool,
    /// Time of the last read, on the monotonic clock.
    last_read: Option<Duration>,
    /// Last values sent.
    last_sent: Value,
}

impl Session for LiveSession {
    async fn receive(&mut self, _: Bytes) -> Option<Utf8Bytes> {
        None
    }

    async fn next(&mut self) -> SocketAction {
        loop {
            self.wait().await;
            let periods = match self.read().await {
                Ok(periods) => periods,
                Err(error) => {
                    let error = brief(&error.chain());
                    tracing::warn!(error, "cannot read live values");
                    return SocketAction::Close("live values cannot be read at the moment");
                }
            };
            self.last_read = Some(self.clock.monotonic());
            self.is_due = false;
            if periods != self.last_sent {
                self.last_sent = periods;
                return SocketAction::Send(vec![self.message().into()]);
            }
        }
    }
}

impl LiveSession {
    /// Waits until a read is worthwhile. Cancellation safe: what is due stays due.
    async fn wait(&mut self) {
        let Some(last_read) = self.last_read else { return };
        let passed = || self.clock.monotonic().saturating_sub(last_read);
        if !self.is_due {
            let poll = self.clock.sleep(POLL.saturating_sub(passed()));
            tokio::select! {
                biased;
                () = self.watcher.changed() => {}
                () = poll => {}
            }
            self.is_due = true;
        }
        let passed = self.clock.monotonic().saturating_sub(last_read);
        self.clock.sleep(EVERY.saturating_sub(passed)).await;
    }

    async fn read(&self) -> logmill_meter::Result<Value> {
        // The semaphore is never closed.
        let _room = self.requests.acquire().await;
        let now = self.clock.now();
        let live = self.meter.live(&self.customer, self.event_type.as_deref(), now).await?;
        Ok(live.into_iter().map(period_json).collect())
    }

    fn message(&self) -> String {
        let payload = json!({
            "customerId": self.customer,
            "timestamp": format_time(self.clock.now()),
            "periods": self.last_sent,
        });
        json!({"type": "meters", "payload": payload}).to_string()
    }
}

fn period_json(live: LivePeriod) -> Value {
    let LivePeriod { period, figures: mut json } = live;
    json["period"] = period.kind.name().into();
    json["periodKey"] = period.key.as_str().into();
    json["periodStart"] = format_time(period.start).into();
    json["periodEnd"] = format_time(period.end_inclusive()).into();
    json
}
