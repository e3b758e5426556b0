//! Changes to jobs: one type each, which is its request, its answer, its endpoint, and what it does.
//!
//! Guarantees: the command line and the server make a change by the same code. Every change may be made again without
//! harm. Leaves to others: the ways a change can go ([`super::Jobs`], [`crate::control`]).

use std::future::Future;
use std::time::Duration;

use logmill_work::{NewJob, Queue, Result, State};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::Error;

/// Something that is done to jobs.
pub(crate) trait Change: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Its endpoint.
    const PATH: &'static str;
    /// What came of it.
    type Answer: Serialize + DeserializeOwned + Send;

    /// The kind of the jobs that it is about.
    fn kind(&self) -> &str;

    /// Does it.
    fn apply(&self, queue: &Queue) -> impl Future<Output = Result<Self::Answer>> + Send;
}

/// Enqueues one job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Enqueue {
    kind: String,
    key: String,
    /// Passed on as it was written.
    payload: Box<RawValue>,
    #[serde(default)]
    priority: i32,
}

/// What became of an enqueued job.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum Enqueued {
    Created,
    Revived,
    Exists { state: String },
}

impl Enqueue {
    /// A job with a payload from the command line, which must be JSON.
    pub(crate) fn new(
        kind: String,
        key: String,
        payload: String,
        priority: i32,
    ) -> Result<Self, Error> {
        let payload = RawValue::from_string(payload).map_err(|error| Error::BadValue {
            origin: "the command line".to_owned(),
            key: "--payload".to_owned(),
            why: format!("not JSON: {error}"),
        })?;
        Ok(Self { kind, key, payload, priority })
    }
}

impl Change for Enqueue {
    const PATH: &'static str = "/api/v1/jobs/enqueue";
    type Answer = Enqueued;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<Enqueued> {
        let mut job = NewJob::new(self.kind.as_str(), self.key.as_str(), self.payload.get());
        job.priority = self.priority;
        Ok(match queue.enqueue(&job).await? {
            logmill_work::Enqueued::Created => Enqueued::Created,
            logmill_work::Enqueued::Revived => Enqueued::Revived,
            logmill_work::Enqueued::Exists(state) => {
                Enqueued::Exists { state: state.name().to_owned() }
            }
        })
    }
}

/// Takes a job out of the queue.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    pub(crate) kind: String,
    pub(crate) key: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cancelled {
    /// False if it had finished before.
    pub(crate) cancelled: bool,
}

impl Change for Cancel {
    const PATH: &'static str = "/api/v1/jobs/cancel";
    type Answer = Cancelled;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<Cancelled> {
        Ok(Cancelled { cancelled: queue.cancel(&self.kind, &self.key).await? })
    }
}

/// Gives one finished job, or all dead letters of a kind, their attempts again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redrive {
    pub(crate) kind: String,
    pub(crate) key: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Redriven {
    pub(crate) redriven: u64,
}

impl Change for Redrive {
    const PATH: &'static str = "/api/v1/jobs/redrive";
    type Answer = Redriven;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<Redriven> {
        let redriven = match &self.key {
            Some(key) => u64::from(queue.redrive(&self.kind, key).await?),
            None => queue.redrive_dead(&self.kind).await?,
        };
        Ok(Redriven { redriven })
    }
}

/// Removes finished jobs.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Purge {
    kind: String,
    state: String,
    older_than_ms: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Purged {
    pub(crate) removed: u64,
}

impl Purge {
    pub(crate) fn new(kind: String, state: State, older_than: Duration) -> Self {
        let older_than_ms = u64::try_from(older_than.as_millis()).unwrap_or(u64::MAX);
        Self { kind, state: state.name().to_owned(), older_than_ms }
    }
}

impl Change for Purge {
    const PATH: &'static str = "/api/v1/jobs/purge";
    type Answer = Purged;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<Purged> {
        let invalid =
            || logmill_work::Error::Invalid { what: format!("no state {:?}", self.state) };
        let state = State::from_name(&self.state).ok_or_else(invalid)?;
        let age = Duration::from_millis(self.older_than_ms);
        Ok(Purged { removed: queue.purge(&self.kind, state, age).await? })
    }
}

/// Stops claims of a kind.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pause {
    pub(crate) kind: String,
}

/// Allows claims of a kind again.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Resume {
    pub(crate) kind: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Paused {
    paused: bool,
}

impl Change for Pause {
    const PATH: &'static str = "/api/v1/jobs/pause";
    type Answer = Paused;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<Paused> {
        queue.set_paused(&self.kind, true).await?;
        Ok(Paused { paused: true })
    }
}

impl Change for Resume {
    const PATH: &'static str = "/api/v1/jobs/resume";
    type Answer = Paused;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<Paused> {
        queue.set_paused(&self.kind, false).await?;
        Ok(Paused { paused: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_travels_as_it_was_written() {
        let written = r#"{"b": 1.50, "a": "ü"}"#;
        let enqueue = Enqueue::new("k".into(), "1".into(), written.into(), -3).expect("JSON");
        let sent = serde_json::to_string(&enqueue).expect("serialised");
        let received: Enqueue = serde_json::from_str(&sent).expect("parsed");
        assert_eq!((received.payload.get(), received.priority), (written, -3));
        let refused = Enqueue::new("k".into(), "1".into(), "{".into(), 0).expect_err("not JSON");
        assert_eq!(refused.exit_code(), 2);
    }
}
