//! The status of a chain for operators, and the log lines of its progress.
//!
//! Guarantees: only reads what the parts of a chain report. Leaves to others: serving it ([`logmill_serve::http`]).

use std::time::Duration;

use logmill_io::{Clock, Timestamp};
use logmill_meter::period::format_time;
use logmill_pipeline::audit::AuditStatus;
use logmill_pipeline::ingest::{Progress, ProgressReport, Role};
use logmill_serve::rpc::ChainStatus;

use super::OpenChain;
use super::derive::DeriveTasks;

/// Interval between progress log lines.
const PROGRESS_EVERY: Duration = Duration::from_secs(10);

impl ChainStatus for OpenChain {
    fn reported_head(&self) -> Option<u64> {
        self.progress.report().target
    }

    fn assumed_fees(&self) -> Option<String> {
        self.settings.collect.assumed_fees(&self.settings, self.chain.chain_id())
    }

    fn progress(&self) -> Option<&Progress> {
        Some(&self.progress)
    }

    fn status_json(&self) -> serde_json::Value {
        let derive = self.derive.as_ref().map(DeriveTasks::status_json);
        let Some(ingest) = &self.ingest else {
            return serde_json::json!({ "derive": derive, "ingest": self.progress.report() });
        };
        serde_json::json!({
            "derive": derive,
            "checks": self.source.as_ref().and_then(|source| source.checks()),
            "ingest": ingest.progress.report(),
            "audit": audit_json(ingest.auditor.status()),
            "main_ingester": { "enabled": ingest.roles.forward },
            "history_ingester": {
                "enabled": ingest.roles.history,
                "nodes": ingest.historic.nodes(),
            },
        })
    }
}

/// The audit of stored blocks, with the field names of the audit of usage.
fn audit_json(status: AuditStatus) -> serde_json::Value {
    let AuditStatus { report, next, rounds, round_ended_ms } = status;
    let mut shown = serde_json::json!(report);
    shown["next"] = next.into();
    shown["rounds"] = rounds.into();
    shown["last_round_ended"] = round_ended_ms.map(|at| format_time(Timestamp(at))).into();
    shown
}

/// Number of damaged blocks. Only the writer's auditor runs; those of other processes do not.
pub(super) fn damaged(report: &ProgressReport, own: Option<u64>) -> u64 {
    own.filter(|_| report.role == Role::Writer).unwrap_or(report.damaged)
}

/// Logs the progress of ingest whenever it has moved.
pub(super) async fn log_progress(chain: u64, progress: &Progress, clock: &dyn Clock) {
    let mut before = ProgressReport::default();
    loop {
        clock.sleep(PROGRESS_EVERY).await;
        let now = progress.report();
        let moved = now.forward_blocks != before.forward_blocks
            || now.history_blocks != before.history_blocks;
        if moved {
            tracing::info!(
                chain,
                head = now.head,
                behind = now.behind,
                blocks_per_second = now.forward_blocks_per_second,
                history_missing = now.history_missing,
                history_blocks_per_second = now.history_blocks_per_second,
                history_logs_per_second = now.history_logs_per_second,
                eta = now.history_eta_seconds.map(eta),
                "ingest progress"
            );
        }
        before = now;
    }
}

/// A duration in human-readable form.
fn eta(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_audit_shows_how_far_it_is_and_when_the_last_round_ended() {
        let status = AuditStatus { next: 7, rounds: 2, ..AuditStatus::default() };
        let shown = audit_json(AuditStatus { round_ended_ms: Some(0), ..status.clone() });
        assert_eq!(
            (&shown["next"], &shown["rounds"], &shown["damaged"]),
            (&7.into(), &2.into(), &0.into())
        );
        assert_eq!(shown["last_round_ended"], "1970-01-01T00:00:00.000Z");
        assert!(audit_json(status)["last_round_ended"].is_null());
    }

    #[test]
    fn a_process_that_does_not_write_reports_the_damage_that_the_writer_found() {
        let report = |role| ProgressReport { role, damaged: 3, ..ProgressReport::default() };
        assert_eq!(damaged(&report(Role::Writer), Some(1)), 1, "its own auditor runs");
        assert_eq!(damaged(&report(Role::Follower), Some(0)), 3, "its own auditor does not run");
        assert_eq!(damaged(&report(Role::Follower), None), 3);
    }
}
