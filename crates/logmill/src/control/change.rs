//! Changes to jobs: one type each, with its request, outcome, endpoint and effect.
//!
//! Guarantees: the command line and the server apply a change by the same code. Every change can be repeated safely.
//! Leaves to others: the paths of a change ([`crate::commands::jobs::Jobs`], [`super`]).

use std::future::Future;
use std::time::Duration;

use logmill_work::{NewJob, Queue, Result, State};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::error::Error;

/// A change to jobs.
pub(crate) trait Change: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// Path of its endpoint.
    const PATH: &'static str;
    type Outcome: Serialize + DeserializeOwned + Send;

    /// The kind of the affected jobs.
    fn kind(&self) -> &str;

    fn apply(&self, queue: &Queue) -> impl Future<Output = Result<Self::Outcome>> + Send;
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Enqueue {
    kind: String,
    key: String,
    /// Kept as it was written.
    payload: Box<RawValue>,
    #[serde(default)]
    priority: i32,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub(crate) enum EnqueueOutcome {
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
    type Outcome = EnqueueOutcome;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<EnqueueOutcome> {
        let mut job = NewJob::new(self.kind.as_str(), self.key.as_str(), self.payload.get());
        job.priority = self.priority;
        Ok(match queue.enqueue(&job).await? {
            logmill_work::EnqueueResult::Created => EnqueueOutcome::Created,
            logmill_work::EnqueueResult::Revived => EnqueueOutcome::Revived,
            logmill_work::EnqueueResult::Exists(state) => {
                EnqueueOutcome::Exists { state: state.name().to_owned() }
            }
        })
    }
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Cancel {
    pub(crate) kind: String,
    pub(crate) key: String,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct CancelOutcome {
    /// False if the job had finished before.
    pub(crate) cancelled: bool,
}

impl Change for Cancel {
    const PATH: &'static str = "/api/v1/jobs/cancel";
    type Outcome = CancelOutcome;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<CancelOutcome> {
        Ok(CancelOutcome { cancelled: queue.cancel(&self.kind, &self.key).await? })
    }
}

/// Retries one finished job, or all dead letters of a kind, with fresh attempts.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Redrive {
    pub(crate) kind: String,
    pub(crate) key: Option<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RedriveOutcome {
    pub(crate) redriven: u64,
}

impl Change for Redrive {
    const PATH: &'static str = "/api/v1/jobs/redrive";
    type Outcome = RedriveOutcome;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<RedriveOutcome> {
        let redriven = match &self.key {
            Some(key) => u64::from(queue.redrive(&self.kind, key).await?),
            None => queue.redrive_dead(&self.kind).await?,
        };
        if redriven == 0 {
            expect_kind(queue, &self.kind).await?;
        }
        Ok(RedriveOutcome { redriven })
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
pub(crate) struct PurgeOutcome {
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
    type Outcome = PurgeOutcome;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<PurgeOutcome> {
        let invalid =
            || logmill_work::Error::Invalid { what: format!("unknown job state {:?}", self.state) };
        let state = State::from_name(&self.state).ok_or_else(invalid)?;
        let age = Duration::from_millis(self.older_than_ms);
        let removed = queue.purge(&self.kind, state, age).await?;
        if removed == 0 {
            expect_kind(queue, &self.kind).await?;
        }
        Ok(PurgeOutcome { removed })
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
pub(crate) struct PauseOutcome {
    paused: bool,
}

impl Change for Pause {
    const PATH: &'static str = "/api/v1/jobs/pause";
    type Outcome = PauseOutcome;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<PauseOutcome> {
        expect_kind(queue, &self.kind).await?;
        queue.set_paused(&self.kind, true).await?;
        Ok(PauseOutcome { paused: true })
    }
}

impl Change for Resume {
    const PATH: &'static str = "/api/v1/jobs/resume";
    type Outcome = PauseOutcome;

    fn kind(&self) -> &str {
        &self.kind
    }

    async fn apply(&self, queue: &Queue) -> Result<PauseOutcome> {
        expect_kind(queue, &self.kind).await?;
        queue.set_paused(&self.kind, false).await?;
        Ok(PauseOutcome { paused: false })
    }
}

/// Refuses an unknown kind: a mistyped name must not look like a successful change.
pub(crate) async fn expect_kind(queue: &Queue, kind: &str) -> Result<()> {
    if queue.knows(kind).await? {
        return Ok(());
    }
    let what = format!("there are no jobs of kind {kind:?}: `logmill jobs status` lists the kinds");
    Err(logmill_work::Error::Invalid { what })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_is_sent_as_it_was_written() {
        let written = r#"{"b": 1.50, "a": "ü"}"#;
        let enqueue = Enqueue::new("k".into(), "1".into(), written.into(), -3).expect("JSON");
        let sent = serde_json::to_string(&enqueue).expect("serialised");
        let received: Enqueue = serde_json::from_str(&sent).expect("parsed");
        assert_eq!((received.payload.get(), received.priority), (written, -3));
        let refused = Enqueue::new("k".into(), "1".into(), "{".into(), 0).expect_err("not JSON");
        assert_eq!(refused.exit_code(), 2);
    }
}
