//! State of a chain: whether it can be read, whether its head is seen, and how far the view lags.
//!
//! Guarantees: a writer is judged by what its nodes report, any other process by what the writer published in the
//! shared store, so that all of them agree; a figure counts only while it is recent. Leaves to others: history that is
//! still missing, which is no reason not to serve the rest.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use logmill_pipeline::ingest::{ProgressReport, Role};

use super::{Cause, Check, Finding};
use crate::chains::OpenChain;
use crate::error::Result;

/// Limits for the lag of a view and the age of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeadLimits {
    /// Maximum number of blocks between the view and the head, in either direction.
    pub(crate) lag_blocks: u64,
    /// Maximum age of a node's last response.
    pub(crate) seen_within: Duration,
}

/// Whether the head of a chain is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadDuty {
    /// A process follows it.
    Followed,
    /// Judged if any process has ever followed it.
    PerhapsFollowed,
    /// Not judged: no more blocks are expected.
    Archive,
}

#[derive(Debug)]
pub(crate) struct ChainCheck {
    pub(crate) chain: Arc<OpenChain>,
    pub(crate) limits: HeadLimits,
    pub(crate) duty: HeadDuty,
}

#[async_trait]
impl Check for ChainCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        if self.chain.is_handed_over() {
            return Ok(Vec::new());
        }
        let chain = &self.chain.chain;
        let chain_id = Some(chain.chain_id());
        let mut found = Vec::new();
        let mut head = None;
        match chain.view().await {
            Ok(view) => head = view.head().map(|head| head.number),
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(error) => {
                let why = format!("the chain cannot be read: {}", logmill_io::error_chain(&error));
                found.push(Finding::new(Cause::ChainUnreadable, chain_id, why));
            }
        }
        if let Some(degraded) = chain.index().health().degraded {
            found.push(Finding::new(Cause::IndexDegraded, chain_id, degraded.reason));
        }
        let report = self.chain.progress.report();
        let damaged = self.chain.damaged();
        if damaged > 0 {
            let why = format!(
                "{damaged} stored blocks are damaged: `logmill verify` lists them, `logmill repair` \
                 fetches them again"
            );
            found.push(Finding::new(Cause::BlocksDamaged, chain_id, why));
        }
        if let Some(why) = &report.stalled {
            found.push(Finding::new(Cause::IngestStopped, chain_id, why.as_str()));
        }
        let is_judged = match self.duty {
            HeadDuty::Followed => true,
            HeadDuty::PerhapsFollowed => report.seen_ms_ago.is_some(),
            HeadDuty::Archive => false,
        };
        if is_judged {
            found.extend(judge_head(chain.chain_id(), head, &report, self.limits));
        }
        Ok(found)
    }

    fn silence(&self) -> Finding {
        let chain_id = Some(self.chain.chain.chain_id());
        Finding::new(Cause::IndexStoreSilent, chain_id, "reading the chain")
    }
}

/// Describes nodes that do not answer, with their last error unless the first request to them is still under way.
pub(crate) fn silence(long: &str, last_error: Option<&str>) -> String {
    match last_error {
        Some(error) => format!("no node has answered {long}; last error: {error}"),
        None => format!("no node has answered {long}; a request is under way"),
    }
}

/// The problem with the head, if any.
pub(crate) fn judge_head(
    chain_id: u64,
    head: Option<u64>,
    report: &ProgressReport,
    limits: HeadLimits,
) -> Option<Finding> {
    let finding = |cause, why: String| Some(Finding::new(cause, Some(chain_id), why));
    let seen_ago = report.seen_ms_ago.map(Duration::from_millis);
    let recent = seen_ago.filter(|ago| *ago <= limits.seen_within);
    let (Some(_), Some(target)) = (recent, report.target) else {
        let long = seen_ago.map_or("yet".to_owned(), |ago| format!("for {} s", ago.as_secs()));
        return match report.role {
            Role::Writer => {
                finding(Cause::NodeSilent, silence(&long, report.last_error.as_deref()))
            }
            Role::Follower => {
                let why = format!("no process has reported the chain's head {long}");
                finding(Cause::HeadNotSeen, why)
            }
        };
    };
    let Some(head) = head else {
        return finding(Cause::Behind, format!("no block is stored yet; the head is {target}"));
    };
    let behind = target.saturating_sub(head);
    if behind > limits.lag_blocks {
        let why = format!("{behind} blocks behind: block {head} is stored, the head is {target}");
        return finding(Cause::Behind, why);
    }
    // A view may be newer than what another process last published, so the two figures of that process are compared.
    let stored = match report.role {
        Role::Writer => head,
        Role::Follower => report.writer_head.unwrap_or(target),
    };
    let ahead = stored.saturating_sub(target);
    if ahead > limits.lag_blocks {
        let why = format!(
            "the head went back to block {target}, {ahead} blocks below the stored block {stored}, and no \
             reorganization explains it"
        );
        return finding(Cause::HeadWentBack, why);
    }
    None
}
