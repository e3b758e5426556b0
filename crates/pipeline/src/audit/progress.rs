//! Progress of the audit, kept in the store so that a restart continues the round.
//!
//! The position is a block number, not a chunk: chunks are merged, replaced and pruned while a round is under way, and
//! blocks that are gone are passed over.
//!
//! Guarantees: only the holder of the index's writer lease can change the record, which its fence enforces; its size is
//! bounded; a record that cannot be read is an error of the kind `Corrupt`, and the audit starts over. Leaves to
//! others: when it is written.
//!
//! Stored form, at `PREFIX/audit`: an [`AuditProgress`] in the encoding of [`crate::record`].

use std::sync::Arc;

use logmill_io::{Batch, Condition, Fence, Key, MetaStore};
use serde::{Deserialize, Serialize};

use super::{AuditReport, Finding};
use crate::error::Result;
use crate::record;
use crate::tip::Tip;

/// Longer descriptions of findings are cut in the record.
const WHAT_BYTES_MAX: usize = 200;

/// Position and findings of the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AuditProgress {
    /// The first block that this round has not checked; 0 between two rounds.
    pub(super) next: u64,
    /// Number of finished rounds.
    pub(super) rounds: u64,
    /// End of the last finished round.
    pub(super) round_ended_ms: Option<i64>,
    /// Figures and findings of this round; between two rounds, those of the finished one.
    pub(super) report: AuditReport,
    /// Findings of the previous round.
    pub(super) before: Vec<Finding>,
}

impl AuditProgress {
    /// All that is known: findings of this round and, for blocks that it has not reached, of the previous one.
    pub(super) fn known(&self) -> AuditReport {
        let mut known = self.report.clone();
        for finding in self.before.iter().filter(|finding| finding.number >= self.next) {
            known.add(finding.number, finding.what.clone());
        }
        known
    }

    /// Starts a round, unless one is under way.
    pub(super) fn begin(self) -> Self {
        if self.next > 0 {
            return self;
        }
        Self { before: self.known().findings, report: AuditReport::default(), ..self }
    }

    /// Ends the round.
    pub(super) fn end(&mut self, now_ms: i64) {
        self.next = 0;
        self.rounds += 1;
        self.round_ended_ms = Some(now_ms);
        self.before.clear();
    }

    fn cut(mut self) -> Self {
        for finding in self.report.findings.iter_mut().chain(&mut self.before) {
            finding.what.truncate(finding.what.floor_char_boundary(WHAT_BYTES_MAX));
        }
        self
    }
}

/// The record of one chain.
#[derive(Clone, Debug)]
pub(super) struct AuditRecord {
    meta: Arc<dyn MetaStore>,
    key: Key,
}

impl AuditRecord {
    /// The record of the chain that has this tip.
    pub(super) fn beside(tip: &Tip) -> Self {
        let (meta, key) = tip.sibling("audit");
        Self { meta, key }
    }

    pub(super) async fn read(&self) -> Result<Option<AuditProgress>> {
        let record = self.meta.get(&self.key).await?;
        record.map(|record| record::decode(&record.value, "the progress of the audit")).transpose()
    }

    /// Replaces the record; a writer that has lost its lease is fenced.
    pub(super) async fn put(&self, progress: AuditProgress, fence: Fence) -> Result<()> {
        let value = record::encode(&progress.cut());
        let batch = Batch::new().put(self.key.clone(), value, Condition::Any).fenced(fence);
        self.meta.commit(batch).await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn findings() -> impl Strategy<Value = Vec<Finding>> {
        prop::collection::vec(
            (any::<u64>(), ".{0,300}").prop_map(|(number, what)| Finding { number, what }),
            0..5,
        )
    }

    proptest! {
        #[test]
        fn progress_comes_back_as_it_was_stored_except_for_long_descriptions(
            (next, rounds, round_ended_ms) in any::<(u64, u64, Option<i64>)>(),
            (verified, less_verified, logs_only) in any::<(u64, u64, u64)>(),
            (damaged, refilled) in any::<(u64, u64)>(),
            (found, before) in (findings(), findings()),
        ) {
            let findings = found;
            let report =
                AuditReport { verified, less_verified, logs_only, damaged, refilled, findings };
            let progress = AuditProgress { next, rounds, round_ended_ms, report, before }.cut();
            let all = progress.report.findings.iter().chain(&progress.before);
            prop_assert!(all.clone().all(|finding| finding.what.len() <= WHAT_BYTES_MAX));
            let stored = record::encode(&progress);
            let read: AuditProgress = record::decode(&stored, "it").expect("read");
            prop_assert_eq!(read, progress);
        }
    }

    #[test]
    fn a_round_keeps_the_findings_of_the_previous_one_until_it_has_passed_them() {
        let finding = |number| Finding { number, what: "damaged".to_owned() };
        let mut report = AuditReport::default();
        report.add(10, "damaged".to_owned());
        report.add(20, "damaged".to_owned());
        let ended = AuditProgress { report, ..AuditProgress::default() };
        let mut round = ended.begin();
        assert_eq!(round.report, AuditReport::default());
        assert_eq!(round.known().findings, [finding(10), finding(20)]);
        // A round that failed at its first block begins again.
        assert_eq!(round.clone().begin().known(), round.known());
        round.next = 11;
        assert_eq!(round.known().findings, [finding(20)]);
        assert_eq!(round.clone().begin(), round, "it is under way");
        round.end(7);
        assert_eq!((round.next, round.rounds, round.round_ended_ms), (0, 1, Some(7)));
        assert!(round.known().is_clean());
    }
}
