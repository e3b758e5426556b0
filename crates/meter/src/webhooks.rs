//! Webhooks: endpoints, messages, and one delivery per endpoint and message.
//!
//! ```text
//!   publish ──▶ message ──▶ delivery per endpoint, each with a job in the queue of the same database
//!                                             │ claim, many at a time
//!                                             ▼
//!                  lanes, one per endpoint ──▶ request, signed ──▶ attempt, delivery and job in one transaction
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`settings`] | times and limits |
//! | `tables` | what is stored |
//! | `secret` | secrets and signatures |
//! | `message` | messages and their bodies |
//! | `endpoint`, `admin` | endpoints, and what is done to them |
//! | `targets` | endpoints and secrets in memory |
//! | `vault` | secrets at rest: encrypted |
//! | `publish` | from a message to its deliveries |
//! | `turns`, `lost` | deliveries that wait for others, and those that nobody would send |
//! | `lanes`, `verdict` | what is sent next, and what an answer means: pure |
//! | `deliver`, `claims`, `load`, `flight`, `send`, `record` | the way of a delivery |
//! | `complaints` | the log lines of endpoints that fail |
//! | `replay`, `status`, `retention`, `summary` | sending again, looking, forgetting, and what is kept then |
//!
//! Guarantees:
//! - A message is published in the transaction of what it tells of, once by its id, and is then sent at least once to
//!   every endpoint that wants it, whoever dies in the middle: with the same `webhook-id` each time, so that receivers
//!   can tell. What was sent and not recorded is sent again.
//! - Claims, leases, tokens and due times are those of [`logmill_work::Queue`]: a result that comes too late is fenced.
//! - A dead or slow endpoint holds its own few slots, and none that others need for their first attempts.
//! - Secrets are given out once, by [`Webhooks::create`] and [`Webhooks::rotate`]; they are in no job, log or error.
//!   They are stored as they are: whoever can read the database can sign.
//!
//! Leaves to others: what messages say, who may call this, and which addresses may be reached ([`GuardedClient`]).

use std::sync::Arc;

use logmill_io::wire::GuardedClient;
use logmill_io::{Sql, Timestamp};
use logmill_work::Queue;

use crate::error::Result;

mod admin;
mod claims;
mod complaints;
mod configured;
mod deliver;
mod endpoint;
mod flight;
mod lanes;
mod load;
mod lost;
mod message;
mod publish;
mod record;
mod replay;
mod retention;
mod secret;
mod send;
pub mod settings;
mod status;
mod summary;
mod tables;
mod targets;
#[cfg(test)]
mod tests;
mod turns;
mod vault;
mod verdict;

pub use admin::CreatedEndpoint;
pub use configured::ConfiguredEndpoint;
pub use deliver::Deliverer;
pub use endpoint::{ENDPOINTS_MAX, Endpoint, EndpointChange, NewEndpoint};
pub use message::{BODY_BYTES_MAX, MESSAGE_ID_BYTES_MAX, NewMessage, message_id};
pub use publish::Published;
pub use replay::{REPLAY_MAX, Replayed};
pub use retention::Purged;
pub use secret::Secret;
pub use settings::WebhookSettings;
pub use status::{AttemptView, DeliveryCursor, DeliveryView, EndpointStatus, LIST_MAX};
pub use summary::DeliverySummary;
pub use tables::{DeliveryState, MIGRATIONS};
pub use vault::{Rekeyed, SecretKeys};

use lanes::Class;
use targets::Targets;

/// Webhooks of one database. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Webhooks {
    queue: Queue,
    client: GuardedClient,
    settings: Arc<WebhookSettings>,
    targets: Targets,
    keys: SecretKeys,
}

impl Webhooks {
    /// The webhooks of the database of a queue; makes their tables if need be. Secrets are stored as they are: see
    /// [`Webhooks::open_with_keys`].
    pub async fn open(
        queue: Queue,
        client: GuardedClient,
        settings: WebhookSettings,
    ) -> Result<Self> {
        Self::open_with_keys(queue, client, settings, SecretKeys::default()).await
    }

    /// The same, with keys that encrypt secrets at rest. Those that are plain are encrypted now.
    pub async fn open_with_keys(
        queue: Queue,
        client: GuardedClient,
        settings: WebhookSettings,
        keys: SecretKeys,
    ) -> Result<Self> {
        settings.check()?;
        queue.sql().migrate(&MIGRATIONS).await?;
        let (settings, targets) = (Arc::new(settings), Targets::default());
        let webhooks = Self { queue, client, settings, targets, keys };
        webhooks.secure_secrets().await?;
        Ok(webhooks)
    }

    /// Whether there are endpoints, or were any whose secrets are kept.
    pub async fn has_secrets(queue: &Queue) -> Result<bool> {
        let found = queue.sql().query("SELECT 1 FROM webhook_secret LIMIT 1", Vec::new()).await;
        match found {
            Ok(found) => Ok(!found.rows.is_empty()),
            Err(error) if error.is_missing_table() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The same webhooks through another handle to their queue; for tests that put faults before it.
    #[must_use]
    pub fn through(&self, queue: Queue) -> Self {
        Self { queue, targets: Targets::default(), ..self.clone() }
    }

    /// How they are delivered.
    pub fn settings(&self) -> &WebhookSettings {
        &self.settings
    }

    /// Wakes whoever delivers, in this process and in others; to be called after a commit that published something.
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

/// A text of at most so many bytes that both engines can store.
fn storable(text: &str, bytes_max: usize) -> String {
    text[..text.floor_char_boundary(bytes_max)].replace('\0', "\u{fffd}")
}
