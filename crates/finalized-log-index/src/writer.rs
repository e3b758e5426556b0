//! `Writer`: the one who adds finalized blocks, under a lease whose epoch every commit carries.
//!
//! ```text
//!   block ──▶ checked against the head ──▶ tail in memory ──▶ tail/FIRST and `tail` in one fenced commit ──▶ shown
//! ```
//!
//! What contradicts the head is not skipped: the index is degraded, refuses writes and reads, and says why, until an
//! operator resolves it ([`Writer::resolve`]).
//!
//! Guarantees: blocks are indexed in strict order, each once; a block is indexed when the call has returned, and
//! survives a crash; a call that failed can be repeated. A writer that lost its lease can commit nothing. Leaves
//! to others: canonical order and finality (the caller's promise), and running [`Writer::maintain`].

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use logmill_io::{Batch, Condition, ErrorKind, Fence};
use logmill_work::{Held, Lease, LeaseSettings};
use tokio::sync::{MutexGuard, Semaphore, oneshot};

use crate::bodies::{self, BodyKeys};
use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::follow::version_at;
use crate::index::{Followed, LogIndex, Shared};
use crate::metric;
use crate::records::degraded::{Cause, Degraded};
use crate::records::tail_state::TailState;
use crate::section::Before;
use crate::tail::Tail;
use crate::types::FinalizedBlock;

/// The most blocks that wait for a commit at once.
const QUEUE_BLOCKS_MAX: usize = 4_096;
/// Ingest waits for sealing, or seals, when the tail holds so many pieces' worth of logs.
const TAIL_PIECES_MAX: u64 = 4;

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IngestOutcome {
    /// It is indexed now.
    Indexed,
    /// It was indexed before.
    AlreadyIndexed,
}

/// The one who writes an index.
#[derive(Debug)]
pub struct Writer {
    pub(crate) index: LogIndex,
    lease: Lease,
    held: std::sync::Mutex<(Held, Duration)>,
    queue: std::sync::Mutex<VecDeque<Waiting>>,
    queue_room: Semaphore,
    pub(crate) backlog: std::sync::Mutex<crate::gc::Pressure>,
    /// Held by whoever seals: the same section twice would be wasted work.
    pub(crate) sealing: tokio::sync::Mutex<()>,
    /// Held by whoever merges.
    pub(crate) merging: tokio::sync::Mutex<()>,
    /// Signalled when a section is complete.
    pub(crate) sealable: tokio::sync::Notify,
}

/// A block that waits for its commit.
#[derive(Debug)]
struct Waiting {
    block: FinalizedBlock,
    answer: oneshot::Sender<Result<IngestOutcome>>,
}

impl LogIndex {
    /// Takes the writer lease; [`Error::Standby`] while another process has it. `owner` must be different in every
    /// process and every run.
    pub async fn writer(&self, owner: &str) -> Result<Writer> {
        let shared = &self.shared;
        let settings =
            LeaseSettings { ttl: shared.settings.lease_ttl, margin: shared.settings.lease_margin };
        let (meta, clock) = (Arc::clone(&shared.stores.meta), Arc::clone(&shared.stores.clock));
        let lease = Lease::new(meta, clock, &shared.keys.lease(), owner, settings);
        let since = shared.stores.clock.monotonic();
        let Some(held) = lease.acquire().await? else {
            return Err(Error::Standby);
        };
        let mut followed = shared.followed.lock().await;
        followed.tail_known = false;
        shared.follow(&mut followed).await?;
        shared.writes.store(true, Ordering::SeqCst);
        Ok(Writer {
            index: self.clone(),
            lease,
            held: std::sync::Mutex::new((held, since)),
            queue: std::sync::Mutex::default(),
            queue_room: Semaphore::new(QUEUE_BLOCKS_MAX),
            backlog: std::sync::Mutex::default(),
            sealing: tokio::sync::Mutex::default(),
            merging: tokio::sync::Mutex::default(),
            sealable: tokio::sync::Notify::new(),
        })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared().writes.store(false, Ordering::SeqCst);
    }
}

impl Writer {
    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.index.shared
    }

    /// The index it writes.
    pub fn index(&self) -> &LogIndex {
        &self.index
    }

    /// The `writer_epoch`.
    pub fn epoch(&self) -> i64 {
        self.held().0.epoch()
    }

    fn held(&self) -> (Held, Duration) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a write of somebody else must carry to count only while this writer has its lease.
    pub fn fence(&self) -> Fence {
        self.held().0.fence()
    }

    /// Prolongs the lease. Ingest and maintenance do it by themselves; who is idle for long calls it.
    pub async fn renew(&self) -> Result<()> {
        let since = self.shared().stores.clock.monotonic();
        let renewed = self.lease.renew(&self.held().0).await;
        match renewed {
            Ok(held) => {
                *self.held.lock().unwrap_or_else(PoisonError::into_inner) = (held, since);
                Ok(())
            }
            Err(error) if error.kind() == ErrorKind::Fenced => Err(self.lost()),
            Err(error) => Err(error.into()),
        }
    }

    /// Gives the lease back: nothing can be written from here on.
    pub async fn release(&self) -> Result<()> {
        Ok(self.lease.release(&self.held().0).await?)
    }

    /// Renews the lease if a third of it has passed.
    pub(crate) async fn keep_lease(&self) -> Result<()> {
        let (held, since) = self.held();
        let now = self.shared().stores.clock.monotonic();
        if now.saturating_sub(since) < self.shared().settings.lease_ttl / 3 {
            return Ok(());
        }
        match self.renew().await {
            Err(error) if error.kind() == ErrorKind::Fenced => Err(error),
            // Unknown, but it holds for a while yet.
            Err(_) if self.lease.is_trusted(&held) => Ok(()),
            outcome => outcome,
        }
    }

    /// The lease is lost: somebody else writes now.
    pub(crate) fn lost(&self) -> Error {
        metric::lease_lost();
        self.shared().writes.store(false, Ordering::SeqCst);
        Error::Standby
    }

    /// Adds one block. Calls that overlap share a commit: by number of blocks, after a wait, or as soon as no more
    /// are waiting.
    pub async fn ingest_finalized_block(&self, block: FinalizedBlock) -> Result<IngestOutcome> {
        let _room = self.queue_room.acquire().await.map_err(|_| Error::Standby)?;
        self.make_room().await?;
        let (answer, mut waiting) = oneshot::channel();
        self.lock_queue().push_back(Waiting { block, answer });
        let wait = self.shared().settings.commit_wait;
        if !wait.is_zero() && self.lock_queue().len() < self.shared().settings.commit_blocks {
            self.shared().stores.clock.sleep(wait).await;
        }
        loop {
            let mut followed = self.shared().followed.lock().await;
            match waiting.try_recv() {
                Ok(outcome) => return outcome,
                Err(oneshot::error::TryRecvError::Closed) => return Err(interrupted()),
                Err(oneshot::error::TryRecvError::Empty) => {}
            }
            self.commit_waiting(&mut followed).await;
        }
    }

    fn lock_queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Waiting>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Commits what waits, and tells each what became of it.
    async fn commit_waiting(&self, followed: &mut MutexGuard<'_, Followed>) {
        let taken: Vec<Waiting> = {
            let mut queue = self.lock_queue();
            let count = queue.len().min(self.shared().settings.commit_blocks);
            queue.drain(..count).collect()
        };
        let mut blocks = Vec::with_capacity(taken.len());
        let mut answers = Vec::with_capacity(taken.len());
        for waiting in taken {
            blocks.push(waiting.block);
            answers.push(waiting.answer);
        }
        // Whoever gave up waiting does not hear of it.
        match self.commit(followed, &blocks).await {
            Ok(outcomes) => answers.into_iter().zip(outcomes).for_each(|(answer, outcome)| {
                let _ = answer.send(Ok(outcome));
            }),
            Err(_) if blocks.len() > 1 => {
                for (block, answer) in blocks.iter().zip(answers) {
                    let outcome = self.commit(followed, std::slice::from_ref(block)).await;
                    let _ = answer.send(outcome.map(|outcomes| outcomes[0]));
                }
            }
            Err(error) => {
                if let Some(answer) = answers.into_iter().next() {
                    let _ = answer.send(Err(error));
                }
            }
        }
    }

    /// Adds blocks that follow each other, in one commit: all or none.
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
        followed: &mut Followed,
        blocks: &[FinalizedBlock],
    ) -> Result<Vec<IngestOutcome>> {
        let started = self.shared().stores.clock.monotonic();
        self.ready(followed).await?;
        let outcomes = match self.check(followed, blocks).await {
            Err(Error::FinalityViolation { what }) => {
                self.degrade(followed, Cause::FinalityViolation, what.clone()).await?;
                return Err(Error::FinalityViolation { what });
            }
            outcomes => outcomes?,
        };
        let known = outcomes.iter().filter(|o| **o == IngestOutcome::AlreadyIndexed).count();
        let fresh = &blocks[known..];
        let Some(first) = fresh.first() else {
            return Ok(outcomes);
        };
        // Taken out: should anything go wrong or this be cancelled, what is stored is not known, and the tail is
        // loaded anew.
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
        // The visibility barrier: the head moves with the batch that it stands for, or not at all.
        let mut batch = Batch::new()
            .put(self.shared().keys.tail_state(), tail.state.encode(), condition)
            .put(key, appended.encode(&body_keys), Condition::Absent)
            .fenced(self.fence());
        for (number, record) in bodies::records_of(fresh).await {
            let key = self.shared().keys.body(tail.state.generation, number);
            batch = batch.put(key, record, Condition::Absent);
        }
        tail.note_bodies(body_keys);
        if is_first {
            // A chunk of these blocks that was published meanwhile would be beside the tail, not below it.
            let condition = followed.list_version.map_or(Condition::Absent, Condition::Version);
            batch = batch.check(self.shared().keys.chunks(), condition);
        }
        let versions = match self.shared().stores.meta.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Fenced => return Err(self.lost()),
            versions => versions?,
        };
        followed.tail_version = Some(version_at(&versions, 0)?);
        let logs: usize = fresh.iter().map(|block| block.logs.len()).sum();
        metric::tail(tail.logs(), tail.state.end - tail.state.start);
        if tail.sealable().is_some() {
            self.sealable.notify_one();
        }
        followed.tail = Some(tail);
        followed.tail_known = true;
        self.shared().show(followed);
        let took = self.shared().stores.clock.monotonic().saturating_sub(started);
        metric::ingested(as_u64(fresh.len()), as_u64(logs), took);
        tracing::debug!(
            block_num = blocks[blocks.len() - 1].number,
            writer_epoch = self.epoch(),
            state_version = followed.tail_version.map(|version| version.0),
            logs,
            "indexed"
        );
        Ok(outcomes)
    }

    fn first_tail(&self, first: &FinalizedBlock) -> Tail {
        let state = TailState {
            epoch: 0,
            generation: 0,
            start: first.number,
            start_parent: first.parent_hash,
            end: first.number,
            head_hash: first.parent_hash,
            chunk_start: first.number,
            before: Before::default(),
        };
        Tail::new(self.shared().settings.bounds(), &state)
    }

    /// Refuses, waits or reloads, until a commit can be made.
    pub(crate) async fn ready(&self, followed: &mut Followed) -> Result<()> {
        self.keep_lease().await?;
        if !followed.tail_known {
            let outcome = self.shared().follow(followed).await;
            self.store_corruption(followed, outcome).await?;
        }
        self.refuse_degraded(followed).await
    }

    /// Refuses to write to a degraded index; damage that was only noted so far is stored.
    pub(crate) async fn refuse_degraded(&self, followed: &mut Followed) -> Result<()> {
        let noted = self.shared().snapshot().degraded.clone();
        if followed.degraded.is_none()
            && let Some(noted) = noted
        {
            self.degrade(followed, noted.cause, noted.reason).await?;
        }
        if let Some(degraded) = &followed.degraded {
            return Err(Error::Degraded { reason: degraded.reason.clone() });
        }
        Ok(())
    }

    /// Turns damaged records into a stored reason.
    async fn store_corruption(&self, followed: &mut Followed, outcome: Result<()>) -> Result<()> {
        let Err(error) = outcome else {
            return Ok(());
        };
        if error.kind() == ErrorKind::Corrupt {
            let reason = logmill_io::chain(&error);
            self.degrade(followed, Cause::Corruption, reason).await?;
        }
        Err(error)
    }

    /// Slows ingest down while there is too much garbage, and waits for sealing, or seals, while the tail is too
    /// long.
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

    /// Checks blocks against the head and each other: first those that are indexed already, then those that follow.
    async fn check(
        &self,
        followed: &Followed,
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
                            "block {} has the parent {}, but {hash} is indexed",
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

    /// The first block may be any that no chunk reaches beyond.
    fn check_first(&self, followed: &Followed, block: &FinalizedBlock) -> Result<()> {
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
                    "block {} has the parent {}, but {} is anchored",
                    block.number, block.parent_hash, highest.last_hash
                ),
            });
        }
        Ok(())
    }

    /// A block at or below the head must be the one that is indexed.
    async fn check_known(&self, block: &FinalizedBlock, end: u64) -> Result<()> {
        match self.index.block_by_number(block.number).await? {
            Some(known) if known.hash == block.hash => Ok(()),
            Some(known) => Err(Error::FinalityViolation {
                what: format!(
                    "block {} is indexed as {}, and {} came to replace it",
                    block.number, known.hash, block.hash
                ),
            }),
            None => Err(Error::InvalidSequence { expected: end, got: block.number }),
        }
    }

    /// Stores why the index refuses to go on.
    pub(crate) async fn degrade(
        &self,
        followed: &mut Followed,
        cause: Cause,
        reason: String,
    ) -> Result<()> {
        tracing::error!(reason, writer_epoch = self.epoch(), "the log index is degraded");
        let degraded = Degraded { cause, reason };
        let before = followed.degraded.replace(degraded.clone());
        self.shared().show(followed);
        let key = self.shared().keys.degraded();
        let batch = Batch::new().put(key, degraded.encode(), Condition::Any).fenced(self.fence());
        match self.shared().stores.meta.commit(batch).await {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                // Judged by a head that is not the head any more: it says nothing about the index.
                followed.degraded = before;
                self.shared().show(followed);
                Err(self.lost())
            }
            stored => Ok(stored.map(|_| ())?),
        }
    }
}

/// The error of a caller whose commit was given up by the one who made it.
fn interrupted() -> Error {
    let what = "the commit that this block was part of was given up: try again".to_owned();
    Error::Throttled { what }
}
