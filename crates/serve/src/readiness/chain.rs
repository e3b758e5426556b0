//! State of a chain: whether it can be read, whether its head is seen, and how far the view lags.
//!
//! Guarantees: a writer is judged by what its nodes report, any other process by what the writer published in the
//! shared store, so that all of them agree; a figure counts only while it is recent. Leaves to others: history that is
//! still missing, which is no reason not to serve the rest.

use std::time::Duration;

use logmill_pipeline::ingest::{ProgressReport, Role};

use super::{Cause, Finding};

/// Limits for the lag of a view and the age of the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// Maximum number of blocks between the view and the head, in either direction.
    pub lag_blocks: u64,
    /// Maximum age of a node's last response.
    pub seen_within: Duration,
}

/// Describes nodes that do not answer, with their last error unless the first request to them is still under way.
pub fn silence(long: &str, last_error: Option<&str>) -> String {
    match last_error {
        Some(error) => format!("no node has answered {long}; last error: {error}"),
        None => format!("no node has answered {long}; a request is under way"),
    }
}

/// The problem with the head, if any.
pub fn judge_head(
    chain_id: u64,
    head: Option<u64>,
    report: &ProgressReport,
    limits: HeadLimits,
) -> Option<Finding> {
    let finding = |cause, why: String| Some(Finding::new(cause, Some(chain_id), why));
    let seen_ago = report.seen_ms_ago.map(Duration::from_millis);
    let recent = seen_ago.filter(|ago| *ago <= limits.seen_within);
    let (Some(ago), Some(target)) = (recent, report.target) else {
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
    let cause_of_delay =
        report.forward_error.as_ref().map(|error| format!("; last error: {error}"));
    let cause_of_delay = cause_of_delay.unwrap_or_default();
    let Some(head) = head else {
        let why = format!("no block is stored yet; the head is {target}{cause_of_delay}");
        return finding(Cause::Behind, why);
    };
    let behind = target.saturating_sub(head);
    if behind > limits.lag_blocks {
        let why = format!(
            "{behind} blocks behind: block {head} is stored, the head is {target}{cause_of_delay}"
        );
        return finding(Cause::Behind, why);
    }
    if let Some(finalized) = report.lost_final.filter(|finalized| *finalized > target) {
        let why = format!(
            "the head went back to block {target}, below the final block {finalized}, which no node has any more; \
             final blocks are kept and served"
        );
        return finding(Cause::HeadWentBack, why);
    }
    // A view may be newer than what another process last published, so the two figures of that process are compared.
    let stored = match report.role {
        Role::Writer => head,
        Role::Follower => report.writer_head.unwrap_or(target),
    };
    let ahead = stored.saturating_sub(target);
    if ahead > limits.lag_blocks {
        let why = format!(
            "the head went back to block {target}, as reported {} s ago: {ahead} blocks below the stored block \
             {stored}, and no reorganization explains it",
            ago.as_secs()
        );
        return finding(Cause::HeadWentBack, why);
    }
    None
}
