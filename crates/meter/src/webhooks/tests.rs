//! Tests of webhooks against a real receiver, with time controlled by the test.

mod answers;
mod clock;
mod complaints;
mod endpoints;
mod order;
mod orphaned;
mod plans;
mod receiver;
mod record;
mod retry;
mod secrets;
mod statements;
mod vault;

use std::sync::Arc;
use std::time::Duration;

use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::wire::GuardedClient;
use logmill_io::wire::guarded::{AllowedTarget, NameResolver, Net};
use logmill_io::{Clock, SeededEntropy, SimClock, Sql, Timestamp, millis, params};
use logmill_work::Queue;
use serde_json::json;

use super::*;
use receiver::{Receiver, Request};

const START: Timestamp = Timestamp(1_790_000_000_000);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

struct World {
    clock: Arc<SimClock>,
    hooks: Webhooks,
    receiver: Receiver,
}

/// Settings for tests: a stalled endpoint costs little time.
fn quick() -> WebhookSettings {
    WebhookSettings { timeout: Duration::from_millis(250), ..WebhookSettings::default() }
}

fn client(
    clock: &Arc<SimClock>,
    allowed: &[&str],
    names: Option<Arc<dyn NameResolver>>,
) -> GuardedClient {
    let allowed = allowed.iter().map(|net| AllowedTarget::Net(Net::parse(net).expect("a network")));
    let settings = WebhookSettings::default().guard(allowed.collect());
    let clock = Arc::clone(clock) as Arc<dyn Clock>;
    match names {
        Some(names) => GuardedClient::with_names(clock, settings, names).expect("a client"),
        None => GuardedClient::new(clock, settings).expect("a client"),
    }
}

impl World {
    async fn new(settings: WebhookSettings) -> Self {
        let clock = SimClock::at(START);
        let client = client(&clock, &["127.0.0.1"], None);
        Self::with(clock, client, settings).await
    }

    async fn with(clock: Arc<SimClock>, client: GuardedClient, settings: WebhookSettings) -> Self {
        let shared = Arc::clone(&clock) as Arc<dyn Clock>;
        let entropy = SeededEntropy::shared(1);
        let sql = Sql::sqlite(&SqliteSettings::memory(), shared, entropy).await.expect("it opens");
        let queue = Queue::open(sql).await.expect("a queue");
        let hooks = Webhooks::open(queue, client, settings).await.expect("webhooks");
        Self { clock, hooks, receiver: Receiver::start().await }
    }

    fn advance(&self, by: Duration) {
        self.clock.jump(millis(by));
    }

    /// Creates an endpoint at the receiver; returns its id and its secret.
    async fn endpoint(&self, path: &str) -> (String, String) {
        self.endpoint_as(NewEndpoint::new(self.receiver.url(path))).await
    }

    async fn endpoint_as(&self, new: NewEndpoint) -> (String, String) {
        let (endpoint, secret) = self.hooks.create(&new).await.expect("an endpoint");
        (endpoint.id, secret.expose().to_owned())
    }

    async fn publish(&self, id: &str) -> PublishResult {
        self.hooks.publish(&message(id)).await.expect("published")
    }

    /// Delivers everything due, like a process that has just started; returns the number of requests.
    async fn deliver(&self) -> u64 {
        let mut deliverer = self.hooks.deliverer("test").expect("a deliverer");
        deliverer.drain().await.expect("the database works")
    }

    async fn delivery(&self, message: &str, endpoint: &str) -> DeliveryView {
        let all = self.hooks.deliveries_of(message).await.expect("works");
        let found = all.into_iter().find(|delivery| delivery.endpoint_id == endpoint);
        found.expect("there is such a delivery")
    }

    async fn state(&self, message: &str, endpoint: &str) -> &'static str {
        self.delivery(message, endpoint).await.state.name()
    }

    async fn count(&self, what: &str) -> u64 {
        let text = format!("SELECT count(*) FROM {what}");
        let found = self.hooks.sql().execute(&text, params![]);
        found.await.expect("works").row().and_then(|row| row.count(0)).expect("a count")
    }
}

fn message(id: &str) -> NewMessage {
    let mut message =
        NewMessage::new(id, "aggregation.completed", START, &json!({ "n": 1 })).expect("a message");
    message.customer = Some("acme".to_owned());
    message.period = Some("daily".to_owned());
    message
}

fn ids(requests: &[Request]) -> Vec<&str> {
    requests.iter().map(Request::id).collect()
}
