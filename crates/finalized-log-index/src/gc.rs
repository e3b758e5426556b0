//! Garbage collection: deletes blobs that nothing refers to, and obsolete records.
//!
//! A blob is deleted if no entry lists it and its attempt has no record: then it can never be listed. Expired
//! attempts lose their record first. Blobs are listed before attempts are read, and attempts before the chunk list,
//! so a concurrent publication is seen in one of them.
//!
//! Guarantees: a listed blob is never deleted; a dry run deletes nothing and reports what it would delete. Leaves to
//! others: when to run, and readers of merged pieces, which plan again.

use std::collections::BTreeSet;
use std::sync::PoisonError;

use logmill_io::{Batch, BlobName, Condition, ErrorKind, Key, KeyRange, Timestamp};

use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::pressure::Pressure;
use crate::publish::CHECKPOINT_EVERY;
use crate::records::chunks::token_of;
use crate::records::degraded::{Cause, Degradation};
use crate::records::tail_state::TailState;
use crate::records::{attempt, number_of};
use crate::writer::Writer;

/// Page size when listing blobs.
const BLOBS_PER_LIST: usize = 1_000;
/// Page size of scans; some of the records are bodies of blocks, which are large.
const RECORDS_PER_SCAN: usize = 64;
/// An attempt whose end is more than this many TTLs ahead was written by a wrong clock.
const TTLS_AHEAD_MAX: u32 = 2;
/// Maximum number of records deleted in one commit.
const RECORDS_PER_DELETE: usize = 1_000;

/// Whether garbage is deleted or only reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GcMode {
    /// Only report it.
    DryRun,
    /// Delete it.
    Delete,
}

/// Garbage that was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GcReport {
    /// Blobs that nothing refers to, left by crashed attempts and by pieces that were merged.
    pub orphan_chunks: Vec<BlobName>,
    /// Total size of those blobs.
    pub orphan_chunk_bytes: u64,
    /// Number of blobs whose attempts may still publish.
    pub chunks_in_flight: u64,
    /// Number of expired attempts.
    pub attempts_given_up: u64,
    /// Number of changes and checkpoints that no reader needs.
    pub stale_changes: u64,
    /// Number of records below the start of the tail, or of a discarded tail.
    pub stale_tail_records: u64,
    /// Whether the garbage was deleted.
    pub deleted: bool,
}

impl Writer {
    /// Finds garbage, and deletes it unless `mode` is a dry run. If too much is left, ingest is throttled; if that
    /// grew since the last call, ingest is stopped.
    pub async fn collect_garbage(&self, mode: GcMode) -> Result<GcReport> {
        // Deleting blobs cannot be fenced, so confirm the lease first.
        self.renew().await?;
        let mut report = self.orphans(mode).await?;
        let changes = self.stale_changes().await?;
        let tail_records = self.stale_tail_records().await?;
        report.stale_changes = as_u64(changes.len());
        report.stale_tail_records = as_u64(tail_records.len());
        if mode == GcMode::Delete {
            for name in &report.orphan_chunks {
                self.shared().stores.blobs.delete(name).await?;
            }
            self.delete_records(changes).await?;
            self.delete_records(tail_records).await?;
            report.deleted = true;
        }
        self.judge(&report).await?;
        Ok(report)
    }

    async fn orphans(&self, mode: GcMode) -> Result<GcReport> {
        let mut report = GcReport::default();
        let blobs = self.all_blobs().await?;
        let open = self.open_attempts(mode, &mut report).await?;
        let mut followed = self.shared().followed.lock().await;
        self.shared().follow_chunks(&mut followed).await?;
        let prefix = self.shared().keys.blobs();
        let mut listed = BTreeSet::new();
        for entry in followed.list.iter() {
            listed.insert(entry.blob_name(&prefix)?);
            for bodies in &entry.bodies {
                listed.insert(bodies.blob_name(&prefix)?);
            }
        }
        drop(followed);
        for (name, bytes) in blobs {
            // Skip blobs with foreign names.
            let Some(token) = token_of(&name).filter(|_| !listed.contains(&name)) else {
                continue;
            };
            if open.contains(&token) {
                report.chunks_in_flight += 1;
            } else {
                report.orphan_chunk_bytes += bytes;
                report.orphan_chunks.push(name);
            }
        }
        Ok(report)
    }

    async fn all_blobs(&self) -> Result<Vec<(BlobName, u64)>> {
        let (blobs, prefix) = (&self.shared().stores.blobs, self.shared().keys.blobs());
        let mut all: Vec<(BlobName, u64)> = Vec::new();
        loop {
            let after = all.last().map(|(name, _)| name.clone());
            let found = blobs.list(&prefix, after.as_ref(), BLOBS_PER_LIST).await?;
            if found.is_empty() {
                return Ok(all);
            }
            all.extend(found.into_iter().map(|blob| (blob.name, blob.bytes)));
        }
    }

    /// Returns the attempts that may still publish, and abandons the expired ones.
    async fn open_attempts(&self, mode: GcMode, report: &mut GcReport) -> Result<BTreeSet<u64>> {
        let meta = &self.shared().stores.meta;
        let now: Timestamp = meta.now().await?;
        // An attempt that ends later than this began while the clock was ahead.
        let latest = now.after(self.shared().settings.build_ttl.saturating_mul(TTLS_AHEAD_MAX));
        let mut open = BTreeSet::new();
        let mut range = self.shared().keys.attempts();
        loop {
            let records = meta.scan(&range, RECORDS_PER_SCAN).await?;
            let Some((last, _)) = records.last() else {
                return Ok(open);
            };
            range = range.after(last.clone());
            for (key, record) in &records {
                let until = attempt::decode(&record.value)?;
                if until > now && until <= latest {
                    open.insert(number_of(key)?);
                    continue;
                }
                report.attempts_given_up += 1;
                if mode == GcMode::DryRun {
                    continue;
                }
                let given_up = Batch::new().delete(key.clone(), Condition::Version(record.version));
                match meta.commit(given_up.fenced(self.fence())).await {
                    // It has just been published, which the list read afterwards shows, or it was renewed.
                    Err(error) if error.kind() == ErrorKind::Conflict => {
                        open.insert(number_of(key)?);
                    }
                    Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
                    outcome => drop(outcome?),
                }
            }
        }
    }

    /// Changes before the second-last checkpoint: a reader that far behind starts from a checkpoint.
    async fn stale_changes(&self) -> Result<Vec<Key>> {
        let keys = &self.shared().keys;
        let seq = self.shared().followed.lock().await.list.seq;
        let kept_from = (seq - seq % CHECKPOINT_EVERY).saturating_sub(CHECKPOINT_EVERY);
        let mut stale = self.keys_below(keys.changes(), kept_from.saturating_add(1)).await?;
        stale.extend(self.keys_below(keys.checkpoints(), kept_from).await?);
        Ok(stale)
    }

    /// Keys of a range whose number is below `end`.
    async fn keys_below(&self, mut range: KeyRange, end: u64) -> Result<Vec<Key>> {
        let mut found = Vec::new();
        loop {
            let records = self.shared().stores.meta.scan(&range, RECORDS_PER_SCAN).await?;
            let Some((last, _)) = records.last() else {
                return Ok(found);
            };
            range = range.after(last.clone());
            for (key, _) in records {
                if number_of(&key)? >= end {
                    return Ok(found);
                }
                found.push(key);
            }
        }
    }

    async fn stale_tail_records(&self) -> Result<Vec<Key>> {
        let shared = self.shared();
        let mut followed = shared.followed.lock().await;
        if !followed.tail_known {
            shared.follow(&mut followed).await?;
        }
        let state: Option<TailState> = followed.tail.as_ref().map(|tail| tail.state.clone());
        drop(followed);
        let Some(state) = state else {
            return Ok(Vec::new());
        };
        let current = shared.keys.tail_batch(state.generation, 0);
        let mut older = shared.keys.all_tail_batches();
        older.end = std::ops::Bound::Excluded(current);
        let mut stale = self.keys_below(older, u64::MAX).await?;
        // The last batch that starts below the start of the tail may reach beyond it.
        let mut below =
            self.keys_below(shared.keys.tail_batches(state.generation), state.start).await?;
        let exact = shared.keys.tail_batch(state.generation, state.start);
        if state.end > state.start && shared.stores.meta.get(&exact).await?.is_none() {
            below.pop();
        }
        stale.append(&mut below);
        let mut older = shared.keys.all_bodies();
        older.end = std::ops::Bound::Excluded(shared.keys.body(state.generation, 0));
        stale.append(&mut self.keys_below(older, u64::MAX).await?);
        let bodies = shared.keys.bodies_of(state.generation);
        stale.append(&mut self.keys_below(bodies, state.start).await?);
        Ok(stale)
    }

    async fn delete_records(&self, keys: Vec<Key>) -> Result<()> {
        for some in keys.chunks(RECORDS_PER_DELETE) {
            let mut batch = Batch::new().fenced(self.fence());
            for key in some {
                batch = batch.delete(key.clone(), Condition::Any);
            }
            match self.shared().stores.meta.commit(batch).await {
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    /// Compares the remaining garbage with the guardrails.
    async fn judge(&self, report: &GcReport) -> Result<()> {
        let (bytes, chunks) = (report.orphan_chunk_bytes, as_u64(report.orphan_chunks.len()));
        let (changes, tail_records) = (report.stale_changes, report.stale_tail_records);
        let left = if report.deleted { [0; 4] } else { [bytes, chunks, changes, tail_records] };
        self.shared().metrics.backlog(left[0], left[1], left[2], left[3]);
        let limits = &self.shared().settings.guardrails;
        let now = Pressure::of(limits, left[0], left[2], left[3]);
        let before = {
            let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *backlog, now)
        };
        if now.is_high() && before.is_high() && now.percent > before.percent {
            let what = format!("garbage is at {} % of its limit and grows: {left:?}", now.percent);
            let mut followed = self.shared().followed.lock().await;
            let degraded = Degradation::new(Cause::Backlog, what.clone());
            self.degrade(&mut followed, degraded).await?;
            return Err(Error::Degraded { reason: what });
        }
        Ok(())
    }
}
