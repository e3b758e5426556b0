//! An operator's decision about a degraded index, applied by the process that writes the index.
//!
//! Guarantees: a decision is a job, so it is applied under the writer's fence while servers run. It is one commit
//! ([`Writer::resolve`]) and applied once, however often the job runs: blocks ingested since are not discarded again. A
//! decision that does not fit the index fails permanently. Leaves to others: requesting it, and ingesting the discarded
//! blocks again.

use std::sync::Arc;

use async_trait::async_trait;
use finalized_log_index::{Error as IndexError, Resolution, Writer};
use logmill_work::{Failure, Handler, NewJob, Outcome, RunningJob};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const RESOLVE_JOB: &str = "resolve";

#[derive(Debug, Serialize, Deserialize)]
struct Decision {
    asked: RequestedResolution,
    /// Number of the last replacement of stored blocks when the decision was made.
    after: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RequestedResolution {
    Keep,
    RebuildFrom(u64),
    Discard(u64),
}

/// The kind of a chain's resolve jobs.
pub fn kind(chain_id: u64) -> String {
    format!("{RESOLVE_JOB}-{chain_id}")
}

/// The job of a decision that was made after replacement number `after`; `mark` makes its key unique.
pub fn job(chain_id: u64, resolution: Resolution, after: u64, mark: &str) -> Result<NewJob> {
    let asked = match resolution {
        Resolution::Keep => RequestedResolution::Keep,
        Resolution::RebuildFrom(block) => RequestedResolution::RebuildFrom(block),
        Resolution::Discard(token) => RequestedResolution::Discard(token),
    };
    let payload = serde_json::to_string(&Decision { asked, after });
    let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
    Ok(NewJob::new(kind(chain_id), mark, payload))
}

/// Applies decisions in the process that writes the index.
#[derive(Debug)]
pub struct ResolveHandler {
    writer: Arc<Writer>,
}

impl ResolveHandler {
    pub fn new(writer: Arc<Writer>) -> Self {
        Self { writer }
    }

    /// Applies a decision, unless the log of replacements shows that it already was.
    async fn resolve(&self, resolution: Resolution, after: u64) -> finalized_log_index::Result<()> {
        let index = self.writer.index();
        index.refresh().await?;
        let mut seq = after;
        loop {
            let since = index.replacements_after(seq).await?;
            if since.iter().any(|one| Some(&one.reason) == resolution.reason().as_ref()) {
                return Ok(());
            }
            let Some(last) = since.last() else { break };
            seq = last.seq;
        }
        self.writer.resolve(resolution).await
    }
}

#[async_trait]
impl Handler for ResolveHandler {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let Decision { asked, after } = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload is invalid: {error}")))?;
        let resolution = match asked {
            RequestedResolution::Keep => Resolution::Keep,
            RequestedResolution::RebuildFrom(block) => Resolution::RebuildFrom(block),
            RequestedResolution::Discard(token) => Resolution::Discard(token),
        };
        match self.resolve(resolution, after).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error @ IndexError::Invalid { .. }) => {
                Err(Failure::for_good(logmill_io::error_chain(&error)))
            }
            Err(error) => Err(Failure::again(logmill_io::error_chain(&error))),
        }
    }
}
