//! `Writer`: adds finalized blocks, under a lease whose epoch every commit carries.
//!
//! ```text
//!   block ──▶ checked against the head ──▶ tail in memory ──▶ tail/FIRST and `tail` in one fenced commit ──▶ snapshot
//! ```
//!
//! A block that contradicts the head is not skipped: the index becomes degraded, refuses writes and reads, and
//! reports why, until an operator resolves it ([`Writer::resolve`]).
//!
//! Guarantees: blocks are indexed in strict order, each once; when the call returns, the block is indexed and
//! survives a crash; a failed call can be retried. A writer that lost its lease cannot commit. Leaves to others:
//! canonical order and finality (the caller's promise), and running [`Writer::maintain`].

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use logmill_io::group_commit::{GroupCommit, GroupWriter};
use logmill_io::{Batch, Condition, ErrorKind, Fence};
use logmill_work::{Lease, LeaseKeeper, LeaseSettings};
use tokio::sync::Semaphore;

use crate::body_keys::BodyKeys;
use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::follow::version_at;
use crate::index::LogIndex;
use crate::pressure::Pressure;
use crate::records::body;
use crate::records::degraded::{Cause, Degradation};
use crate::records::tail_state::TailState;
use crate::state::{IndexState, SharedIndex};
use crate::tail::Tail;
use crate::types::FinalizedBlock;

/// Maximum number of blocks that wait for a commit.
const QUEUE_BLOCKS_MAX: usize = 4_096;
/// If the tail holds more logs than this many pieces, ingest waits for sealing, or seals.
const TAIL_PIECES_MAX: u64 = 4;

/// Result of adding a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngestOutcome {
    /// The call added it.
    Indexed,
    /// It was indexed before the call.
    AlreadyIndexed,
}

/// Handle that writes an index; there is one per index, across all processes.
#[derive(Debug)]
pub struct Writer {
    pub(crate) index: LogIndex,
    lease: LeaseKeeper,
    queue: GroupCommit<FinalizedBlock, IngestOutcome, Error>,
    queue_room: Semaphore,
    pub(crate) backlog: std::sync::Mutex<Pressure>,
    /// Held while sealing, so that no section is sealed twice.
    pub(crate) sealing: tokio::sync::Mutex<()>,
    /// Held while merging.
    pub(crate) merging: tokio::sync::Mutex<()>,
    /// Notified when a section is complete.
    pub(crate) sealable: tokio::sync::Notify,
}

impl LogIndex {
    /// Takes the writer lease; returns [`Error::Standby`] while another process holds it. `owner` must be unique for
    /// every process and run.
    pub async fn writer(&self, owner: &str) -> Result<Writer> {
        let shared = &self.shared;
        let settings =
            LeaseSettings { ttl: shared.settings.lease_ttl, margin: shared.settings.lease_margin };
        let (meta, clock) = (Arc::clone(&shared.stores.meta), Arc::clone(&shared.stores.clock));
        let lease = Lease::new(meta, clock, &shared.keys.lease(), owner, settings);
        let Some(lease) = LeaseKeeper::acquire(lease).await? else {
            return Err(Error::Standby);
        };
        shared.ensure_identity().await?;
        let mut followed = shared.followed.lock().await;
        followed.tail_known = false;
        shared.follow(&mut followed).await?;
        shared.forget_stale_damage(&followed);
        shared.install_snapshot(&followed);
        shared.writes.store(true, Ordering::SeqCst);
        Ok(Writer {
            index: self.clone(),
            lease,
            queue: GroupCommit::default(),
            queue_room: Semaphore::new(QUEUE_BLOCKS_MAX),
            backlog: std::sync::Mutex::default(),
            sealing: tokio::sync::Mutex::default(),
            merging: tokio::sync::Mutex::default(),
            sealable: tokio::sync::Notify::new(),
        })
    }
}

/// Commits blocks of concurrent callers together.
struct BlockWriter<'a>(&'a Writer);

impl GroupWriter for BlockWriter<'_> {
    type Item = FinalizedBlock;
    type Outcome = IngestOutcome;
    type Error = Error;
    type State = IndexState;

    async fn commit(
        &self,
        followed: &mut IndexState,
        blocks: &mut Vec<FinalizedBlock>,
    ) -> Result<Vec<IngestOutcome>> {
        self.0.commit(followed, blocks).await
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared().writes.store(false, Ordering::SeqCst);
    }
}

impl Writer {
    pub(crate) fn shared(&self) -> &Arc<SharedIndex> {
        &self.index.shared
    }

    /// The index it writes to.
    pub fn index(&self) -> &LogIndex {
        &self.index
    }

    /// The lease's epoch, logged as `writer_epoch`.
    pub fn epoch(&self) -> i64 {
        self.lease.epoch()
    }

    /// Add this fence to other writes that may succeed only while this writer holds its lease.
    pub fn fence(&self) -> Fence {
        self.lease.fence()
    }

    /// Renews the lease. Ingest and maintenance renew it themselves; an idle writer must call this, or
    /// [`Writer::keep_lease`].
    pub async fn renew(&self) -> Result<()> {
        self.lease.renew().await.map_err(|error| self.lease_error(error))
    }

    /// Renews the lease until it is lost or its store has failed for good; returns that error, and passes any other
    /// to `note`.
    pub async fn keep_lease(&self, note: impl Fn(&Error)) -> Error {
        self.lease_error(self.lease.keep(|error| note(&error.into())).await)
    }

    /// Releases the lease: nothing can be written afterwards.
    pub async fn release(&self) -> Result<()> {
        Ok(self.lease.release().await?)
    }

    /// Renews the lease if that is due.
    pub(crate) async fn renew_if_due(&self) -> Result<()> {
        self.lease.renew_if_due().await.map_err(|error| self.lease_error(error))
    }

    fn lease_error(&self, error: logmill_work::Error) -> Error {
        if error.kind() == ErrorKind::Fenced { self.lost() } else { error.into() }
    }

    /// Records that another process now holds the lease.
    pub(crate) fn lost(&self) -> Error {
        self.shared().metrics.lease_lost();
        self.shared().writes.store(false, Ordering::SeqCst);
        Error::Standby
    }

    /// Adds one block. Concurrent calls share a commit, which starts when enough blocks wait, after `commit_wait`, or
    /// when no more calls are waiting.
    pub async fn ingest_finalized_block(&self, block: FinalizedBlock) -> Result<IngestOutcome> {
        let _room = self.queue_room.acquire().await.map_err(|_| Error::Standby)?;
        self.make_room().await?;
        let pending = self.queue.add(block);
        let (wait, most) =
            (self.shared().settings.commit_wait, self.shared().settings.commit_blocks);
        if !wait.is_zero() && self.queue.waiting() < most {
            self.shared().stores.clock.sleep(wait).await;
        }
        let outcome = pending.commit(&BlockWriter(self), &self.shared().followed, most).await;
        outcome.unwrap_or_else(|| Err(interrupted()))
    }

    /// Adds consecutive blocks in one commit: all or none.
    pub async fn ingest_finalized_blocks(
        &self,
        blocks: &[FinalizedBlock],
    ) -> Result<Vec<IngestOutcome>> {
        self.make_room().await?;
        let mut followed = self.shared().followed.lock().await;
        self.commit(&mut followed, blocks).await
    }

    async fn commit(
        &self,
        followed: &mut IndexState,
        blocks: &[FinalizedBlock],
    ) -> Result<Vec<IngestOutcome>> {
        let started = self.shared().stores.clock.monotonic();
        self.ready(followed).await?;
        let outcomes = match self.check(followed, blocks).await {
            Err(Error::FinalityViolation { what }) => {
                let degraded = Degradation::new(Cause::FinalityViolation, what.clone());
                self.degrade(followed, degraded).await?;
                return Err(Error::FinalityViolation { what });
            }
            outcomes => outcomes?,
        };
        let known = outcomes.iter().filter(|o| **o == IngestOutcome::AlreadyIndexed).count();
        let fresh = &blocks[known..];
        let Some(first) = fresh.first() else {
            return Ok(outcomes);
        };
        // Taken out: if the commit fails or is cancelled, the stored state is unknown, and the tail is loaded again.
        let tail = followed.tail.take();
        followed.tail_known = false;
        let is_first = tail.is_none();
        let mut tail = tail.unwrap_or_else(|| self.first_tail(first));
        tail.state.epoch = self.epoch().cast_unsigned();
        let appended = tail.append(fresh);
        let body_keys = BodyKeys::of(fresh);
        tail.note_batch(first.number);
        let condition = followed.tail_version.map_or(Condition::Absent, Condition::Version);
        let key = self.shared().keys.tail_batch(tail.state.generation, first.number);
        // The visibility barrier: the head moves together with the batch of its blocks, or not at all.
        let mut batch = Batch::new()
            .put(self.shared().keys.tail_state(), tail.state.encode(), condition)
            .put(key, appended.encode(&body_keys), Condition::Absent)
            .fenced(self.fence());
        for (number, record) in body::encode_all(fresh).await {
            let key = self.shared().keys.body(tail.state.generation, number);
            batch = batch.put(key, record, Condition::Absent);
        }
        tail.note_bodies(body_keys);
        if is_first {
            // A chunk of these blocks that was published in the meantime would lie beside the tail, not below it.
            let condition = followed.list_version.map_or(Condition::Absent, Condition::Version);
            batch = batch.check(self.shared().keys.chunks(), condition);
        }
        let versions = match self.shared().stores.meta.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
            versions => versions?,
        };
        followed.tail_version = Some(version_at(&versions, 0)?);
        let logs: usize = fresh.iter().map(|block| block.logs.len()).sum();
        tail.measure(&self.shared().metrics);
        if tail.sealable().is_some() {
            self.sealable.notify_one();
        }
        followed.tail = Some(tail);
        followed.tail_known = true;
        self.shared().install_snapshot(followed);
        let took = self.shared().stores.clock.monotonic().saturating_sub(started);
        self.shared().metrics.ingested(as_u64(fresh.len()), as_u64(logs), took);
        tracing::debug!(
            block_num = blocks[blocks.len() - 1].number,
            writer_epoch = self.epoch(),
            state_version = followed.tail_version.map(|version| version.0),
            logs,
            "indexed blocks"
        );
        Ok(outcomes)
    }

    fn first_tail(&self, first: &FinalizedBlock) -> Tail {
        let state = TailState::empty(first.number, first.parent_hash);
        Tail::new(self.shared().settings.bounds(), &state)
    }

    /// Renews the lease and reloads the tail if necessary; fails if the index is degraded.
    pub(crate) async fn ready(&self, followed: &mut IndexState) -> Result<()> {
        self.renew_if_due().await?;
        if !followed.tail_known {
            let outcome = self.shared().follow(followed).await;
            self.store_corruption(followed, outcome).await?;
        }
        self.refuse_degraded(followed).await
    }

    /// Refuses to write to a degraded index; stores damage that has only been noted so far.
    pub(crate) async fn refuse_degraded(&self, followed: &mut IndexState) -> Result<()> {
        let known = self.shared().known_degradation(followed);
        if known != followed.degraded
            && let Some(known) = known
        {
            self.degrade(followed, known).await?;
        }
        if let Some(degraded) = &followed.degraded {
            return Err(Error::Degraded { reason: degraded.reason.clone() });
        }
        Ok(())
    }

    /// Stores corruption as the cause of a degradation; returns the original error.
    async fn store_corruption(&self, followed: &mut IndexState, outcome: Result<()>) -> Result<()> {
        let Err(error) = outcome else {
            return Ok(());
        };
        if error.kind() == ErrorKind::Corrupt {
            let reason = logmill_io::error_chain(&error);
            self.degrade(followed, Degradation::new(Cause::Corruption, reason)).await?;
        }
        Err(error)
    }

    /// Delays ingest while there is too much garbage, and waits for sealing, or seals, while the tail is too long.
    async fn make_room(&self) -> Result<()> {
        let pressure = *self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        if pressure.is_high() {
            let throttle = self.shared().settings.guardrails.throttle;
            self.shared().stores.clock.sleep(throttle).await;
        }
        let logs_max = u64::from(self.shared().settings.piece_logs) * TAIL_PIECES_MAX;
        loop {
            let snapshot = self.shared().snapshot();
            let logs: u64 = snapshot.tail.iter().map(|section| u64::from(section.logs)).sum();
            let can_seal = snapshot.tail.first().is_some_and(|section| section.end.is_some());
            if !can_seal || logs <= logs_max || !self.seal_next().await? {
                return Ok(());
            }
        }
    }

    /// Checks blocks against the head and each other: blocks that are already indexed must come first.
    async fn check(
        &self,
        followed: &IndexState,
        blocks: &[FinalizedBlock],
    ) -> Result<Vec<IngestOutcome>> {
        let max = crate::records::tail_batch::BATCH_BLOCKS_MAX;
        if blocks.len() > max {
            return Err(Error::Invalid {
                what: format!("{} blocks in one commit, at most {max}", blocks.len()),
            });
        }
        let mut head = followed.tail.as_ref().map(|tail| (tail.state.end, tail.state.head_hash));
        let mut outcomes = Vec::with_capacity(blocks.len());
        for block in blocks {
            block.validate()?;
            match head {
                None => self.check_first(followed, block)?,
                Some((end, _)) if block.number < end => {
                    if outcomes.contains(&IngestOutcome::Indexed) {
                        return Err(Error::InvalidSequence { expected: end, got: block.number });
                    }
                    self.check_known(block, end).await?;
                    outcomes.push(IngestOutcome::AlreadyIndexed);
                    continue;
                }
                Some((end, _)) if block.number > end => {
                    return Err(Error::InvalidSequence { expected: end, got: block.number });
                }
                Some((_, hash)) if block.parent_hash != hash => {
                    return Err(Error::FinalityViolation {
                        what: format!(
                            "block {} has the parent {}, but the indexed head is {hash}",
                            block.number, block.parent_hash
                        ),
                    });
                }
                Some(_) => {}
            }
            head = Some((block.number + 1, block.hash));
            outcomes.push(IngestOutcome::Indexed);
        }
        Ok(outcomes)
    }

    /// The first block may have any number that no chunk reaches beyond.
    fn check_first(&self, followed: &IndexState, block: &FinalizedBlock) -> Result<()> {
        let Some(highest) = followed.list.iter().next_back() else {
            return Ok(());
        };
        let end = highest.blocks.end;
        if end > block.number {
            return Err(Error::InvalidSequence { expected: end, got: block.number });
        }
        let anchored = followed.list.coverage(None).last().is_some_and(|last| last.end == end);
        if end == block.number && anchored && highest.last_hash != block.parent_hash {
            return Err(Error::FinalityViolation {
                what: format!(
                    "block {} has the parent {}, but the anchored block is {}",
                    block.number, block.parent_hash, highest.last_hash
                ),
            });
        }
        Ok(())
    }

    /// A block at or below the head must have the indexed hash.
    async fn check_known(&self, block: &FinalizedBlock, end: u64) -> Result<()> {
        let shared = self.shared();
        // Not by a lookup of the index: that would wait for what this commit holds.
        let snapshot = shared.snapshot();
        let known = shared.block_at(&snapshot, block.number).await;
        if let Err(error) = &known
            && error.kind() == ErrorKind::Corrupt
        {
            shared.note_corruption(&snapshot, error, None, Some(block.number));
        }
        match known? {
            Some(known) if known.hash == block.hash => Ok(()),
            Some(known) => Err(Error::FinalityViolation {
                what: format!(
                    "block {} is indexed as {}, but {} was to replace it",
                    block.number, known.hash, block.hash
                ),
            }),
            None => Err(Error::InvalidSequence { expected: end, got: block.number }),
        }
    }

    /// Stores why the index refuses to continue.
    pub(crate) async fn degrade(
        &self,
        followed: &mut IndexState,
        degraded: Degradation,
    ) -> Result<()> {
        let reason = &degraded.reason;
        tracing::error!(reason, writer_epoch = self.epoch(), "the log index is degraded");
        let before = followed.degraded.replace(degraded.clone());
        self.shared().install_snapshot(followed);
        let key = self.shared().keys.degraded();
        let batch = Batch::new().put(key, degraded.encode(), Condition::Any).fenced(self.fence());
        match self.shared().stores.meta.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                // The judgement was based on an outdated head, so it says nothing about the index.
                followed.degraded = before;
                self.shared().install_snapshot(followed);
                Err(self.lost())
            }
            stored => Ok(stored.map(|_| ())?),
        }
    }
}

/// Error for a caller whose block was in a commit that another, cancelled caller was running.
fn interrupted() -> Error {
    let what = "the commit of this block was cancelled; try again".to_owned();
    Error::Throttled { what }
}
