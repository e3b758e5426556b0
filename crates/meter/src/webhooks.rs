//! Webhooks: endpoints, messages, and one delivery per endpoint and message.
//!
//! ```text
//!   publish ──▶ message ──▶ delivery per endpoint, each with a job in the queue of the same database
//!                                             │ claim, many at a time
//!                                             ▼
//!                  queue per endpoint ──▶ request, signed ──▶ attempt, delivery and job in one transaction
//! ```
//!
//! | module | role |
//! |---|---|
//! | `settings` | times and limits |
//! | `tables` | SQL schema |
//! | `secret` | secrets and signatures |
//! | `message` | messages and their bodies |
//! | `endpoint`, `admin`, `configured_endpoints` | endpoints, the operations on them, and those of the config |
//! | `targets` | endpoints and secrets cached in memory |
//! | `vault` | encryption of secrets at rest |
//! | `publish` | creates the deliveries of a message |
//! | `ordering`, `orphaned` | deliveries that wait for others, and pending deliveries without a job |
//! | `endpoint_queues`, `verdict` | which delivery is sent next, and what a response means: pure |
//! | `deliver`, `claims`, `load`, `in_flight`, `send`, `record` | the path of a delivery |
//! | `complaints` | log lines about failing endpoints |
//! | `replay`, `status` | sending again, and queries |
//! | `retention`, `delivery_summary` | removal, and the summaries kept after removal |
//!
//! Guarantees:
//! - A message is published in the transaction of the change that it reports, once per id. It is then sent at least
//!   once to every subscribed endpoint, even if processes crash: always with the same `webhook-id`, so that receivers
//!   can deduplicate. A request that was sent but not recorded is sent again.
//! - Claims, leases, tokens and due times are those of [`logmill_work::Queue`]: a result that comes too late is fenced.
//! - A dead or slow endpoint holds its own few slots, and none that others need for their first attempts.
//! - Secrets are returned once, by [`Webhooks::create`] and [`Webhooks::rotate`]; they appear in no job, log or error.
//!   They are stored encrypted if a key is configured (`vault`).
//!
//! Leaves to others: the content of messages, authorization, and which addresses may be reached ([`GuardedClient`]).

use std::sync::Arc;

use logmill_io::wire::GuardedClient;
use logmill_io::{Sql, Timestamp};
use logmill_work::Queue;

use crate::error::Result;

mod admin;
mod claims;
mod complaints;
mod configured_endpoints;
mod deliver;
mod delivery_summary;
mod endpoint;
mod endpoint_queues;
mod in_flight;
mod load;
mod message;
mod ordering;
mod orphaned;
mod publish;
mod record;
mod replay;
mod retention;
mod secret;
mod send;
mod settings;
mod status;
mod tables;
mod targets;
#[cfg(test)]
mod tests;
mod vault;
mod verdict;

pub use admin::CreatedEndpoint;
pub use configured_endpoints::ConfiguredEndpoint;
pub use deliver::Deliverer;
pub use delivery_summary::DeliverySummary;
pub use endpoint::{Endpoint, EndpointChange, NewEndpoint};
pub(crate) use message::message_id;
pub use message::{MESSAGE_KINDS, NewMessage, check_kind};
pub use publish::PublishResult;
pub use replay::ReplayResult;
pub use retention::PurgeResult;
pub use secret::Secret;
pub use settings::WebhookSettings;
pub use status::{AttemptView, DeliveryCursor, DeliveryView, EndpointStatus};
pub use tables::DeliveryState;
use tables::MIGRATIONS;
pub use vault::{RekeyResult, SecretKeys};

use endpoint_queues::Class;
use targets::Targets;

/// Webhooks of one database. Clones share state.
#[derive(Clone, Debug)]
pub struct Webhooks {
    queue: Queue,
    client: GuardedClient,
    settings: Arc<WebhookSettings>,
    targets: Targets,
    keys: SecretKeys,
}

impl Webhooks {
    /// Opens the webhooks in the database of the queue; creates their tables if needed. Secrets are stored in plain
    /// text: see [`Webhooks::open_with_keys`].
    pub async fn open(
        queue: Queue,
        client: GuardedClient,
        settings: WebhookSettings,
    ) -> Result<Self> {
        Self::open_with_keys(queue, client, settings, SecretKeys::default()).await
    }

    /// Like [`Webhooks::open`], with keys that encrypt secrets at rest. A server calls [`Webhooks::secure_secrets`]
    /// next.
    pub async fn open_with_keys(
        queue: Queue,
        client: GuardedClient,
        settings: WebhookSettings,
        keys: SecretKeys,
    ) -> Result<Self> {
        settings.check()?;
        queue.sql().migrate(&MIGRATIONS).await?;
        let (settings, targets) = (Arc::new(settings), Targets::default());
        Ok(Self { queue, client, settings, targets, keys })
    }

    /// Whether any endpoint secret is stored.
    pub async fn has_secrets(queue: &Queue) -> Result<bool> {
        let found = queue.sql().query("SELECT 1 FROM webhook_secret LIMIT 1", Vec::new()).await;
        match found {
            Ok(found) => Ok(!found.rows.is_empty()),
            Err(error) if error.is_missing_table() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The same webhooks on another queue handle; for tests that inject faults.
    #[must_use]
    pub fn through(&self, queue: Queue) -> Self {
        Self { queue, targets: Targets::default(), ..self.clone() }
    }

    pub fn settings(&self) -> &WebhookSettings {
        &self.settings
    }

    /// Wakes the deliverers, in this process and in others. Call it after a commit that published messages.
    pub fn wake(&self) {
        for class in Class::ALL {
            self.queue.wakes().wake(class.kind());
        }
    }

    fn sql(&self) -> &Sql {
        self.queue.sql()
    }

    fn now(&self) -> Timestamp {
        self.sql().clock().now()
    }
}

/// Truncates a text to `bytes_max` bytes and replaces NUL, so that both engines can store it.
fn storable(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].replace('\0', "\u{fffd}")
}
