//! `Deriver`: fills the derived tables of one chain, in one process.
//!
//! ```text
//!   no lease ── waits ──▶ lease ──▶ live forward: the tip, and blocks near it that became final
//!      ▲                            live history: blocks stored by history ingest
//!      │                            history deriver: every stored block that is not derived
//!      └── lease lost ◀─────────────┘
//! ```
//!
//! Guarantees: one process derives a chain at a time, by a lease that fences every write; a block that two processes
//! derive nevertheless counts once. An error of one processor stops no other. Leaves to others: opening stores,
//! following the chain.

use std::convert::Infallible;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use finalized_log_index::ReplacementPosition;
use logmill_io::meta::SqlMeta;
use logmill_io::{Clock, Entropy, ErrorKind, Fence};
use logmill_work::{IntervalSet, Lease, LeaseKeeper};

use super::backlog::{self, DeriveBacklog, GenerationWork, Task};
use super::generation::GenerationState;
use super::processor::Processor;
use super::store::{RangeRows, Tables};
use super::{DeriveSettings, chunk};
use crate::chain::Chain;
use crate::error::{Error, Result};

mod history;
mod live;
mod replacements;
mod status;

pub use status::{CheckpointStatus, DeriveStatus, FailingStatus};

/// Derives the tables of one chain.
#[derive(Debug)]
pub struct Deriver {
    chain: Chain,
    tables: Tables,
    processors: Vec<Arc<dyn Processor>>,
    settings: DeriveSettings,
    owner: String,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    backlog: Mutex<DeriveBacklog>,
    leads: AtomicBool,
    last_error: Mutex<Option<String>>,
    /// End of the replacement log when it was last applied to, or recorded with, all generations.
    replacements_seen: Mutex<Option<ReplacementPosition>>,
    /// Held while replacements are applied.
    replacing: tokio::sync::Mutex<()>,
    /// When to check again whether there is room for a new generation, on the monotonic clock.
    room_again: Mutex<Option<Duration>>,
}

impl Deriver {
    /// `owner` must be unique to each process and each run.
    pub fn new(
        chain: Chain,
        tables: Tables,
        processors: Vec<Arc<dyn Processor>>,
        settings: DeriveSettings,
        owner: impl Into<String>,
        clock: Arc<dyn Clock>,
    ) -> Self {
        let entropy = Arc::clone(tables.sql().entropy());
        Self {
            chain,
            tables,
            processors,
            settings,
            owner: owner.into(),
            clock,
            entropy,
            backlog: Mutex::default(),
            leads: AtomicBool::new(false),
            last_error: Mutex::default(),
            replacements_seen: Mutex::default(),
            replacing: tokio::sync::Mutex::default(),
            room_again: Mutex::default(),
        }
    }

    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Derives until `stop` completes, then releases the lease. Returns an error if a store has failed permanently.
    pub async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let meta = SqlMeta::shared(self.tables.sql().clone());
        let name = format!("derive/{}", self.chain.chain_id());
        let (clock, settings) = (Arc::clone(&self.clock), self.settings.lease.clone());
        let lease = Lease::new(meta, clock, &name, &self.owner, settings);
        let held = Mutex::new(None);
        tokio::select! {
            biased;
            () = stop => {}
            error = self.lead_always(&lease, &held) => return Err(error),
        }
        self.leads.store(false, Ordering::SeqCst);
        let held = held.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(held) = held {
            release(&held).await;
        }
        Ok(())
    }

    /// Derives whenever it holds the lease; returns only on an error after which nothing can be stored.
    async fn lead_always(&self, lease: &Lease, now: &Mutex<Option<Arc<LeaseKeeper>>>) -> Error {
        let note = |held| *now.lock().unwrap_or_else(PoisonError::into_inner) = held;
        loop {
            match LeaseKeeper::acquire(lease.clone()).await {
                Ok(Some(held)) => {
                    let held = Arc::new(held);
                    note(Some(Arc::clone(&held)));
                    // Boxed: the future is too large for a thread's stack.
                    if let Err(error) = Box::pin(self.lead(&held)).await
                        && error.kind() != ErrorKind::Fenced
                    {
                        if error.is_fatal() {
                            self.leads.store(false, Ordering::SeqCst);
                            return error;
                        }
                        self.log_error(&error, "deriving tables");
                    }
                    self.leads.store(false, Ordering::SeqCst);
                    release(&held).await;
                    note(None);
                }
                Ok(None) => {}
                Err(error) if error.is_fatal() => return error.into(),
                Err(error) => self.log_error(&error.into(), "acquiring the derivers' lease"),
            }
            self.clock.sleep(self.settings.error_wait).await;
        }
    }

    /// Derives for as long as the lease holds.
    async fn lead(&self, held: &LeaseKeeper) -> Result<Infallible> {
        let fence = held.fence();
        self.load().await?;
        self.apply_replacements(Some(&fence)).await?;
        self.leads.store(true, Ordering::SeqCst);
        let live = async {
            if !self.settings.live {
                return std::future::pending().await;
            }
            Box::pin(self.live(&fence)).await
        };
        let history = async {
            if !self.settings.history {
                return std::future::pending().await;
            }
            Box::pin(self.history(&fence)).await
        };
        let note = |error: logmill_work::Error| {
            self.log_error(&error.into(), "renewing the derivers' lease");
        };
        tokio::select! {
            biased;
            lost = held.keep(note) => Err(lost.into()),
            ended = live => ended,
            ended = history => ended,
            ended = self.note_checkpoints(&fence) => ended,
        }
    }

    /// Reads the stored state of every generation and forgets failures.
    pub async fn load(&self) -> Result<()> {
        let generations = self.tables.generations(self.chain.chain_id(), &self.processors).await?;
        let mut works = Vec::new();
        for generation in generations {
            let (done, tip) =
                (self.tables.covered(&generation).await?, self.tables.tip(&generation).await?);
            works.push(GenerationWork::new(generation, done, tip));
        }
        *self.backlog() = DeriveBacklog { generations: works };
        // Another process may have held the lease in between.
        self.set_replacements_seen(None);
        Ok(())
    }

    /// Reads the stored state of the generations again after another process wrote; keeps the taken and failing ranges.
    async fn reload(&self) -> Result<()> {
        let generations = self.tables.generations(self.chain.chain_id(), &self.processors).await?;
        let mut fresh = Vec::new();
        for generation in generations {
            let (done, tip) =
                (self.tables.covered(&generation).await?, self.tables.tip(&generation).await?);
            fresh.push((generation, done, tip));
        }
        let mut backlog = self.backlog();
        backlog.generations.retain(|work| {
            fresh.iter().any(|(generation, ..)| backlog::is_same(generation, &work.generation))
        });
        for (generation, done, tip) in fresh {
            match backlog.work(&generation) {
                Some(work) => {
                    (work.generation, work.ranges.done, work.tip) = (generation, done, tip);
                }
                None => backlog.generations.push(GenerationWork::new(generation, done, tip)),
            }
        }
        Ok(())
    }

    fn backlog(&self) -> MutexGuard<'_, DeriveBacklog> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The final blocks that are stored.
    fn stored_blocks(&self) -> IntervalSet {
        self.chain.index().coverage().into_iter().collect()
    }

    /// Derives a range that was taken from the backlog, and stores it. Records failures in the backlog.
    async fn work(&self, fence: Option<&Fence>, task: Task) -> Result<()> {
        let ready = self.derive_task(task).await?;
        self.store(fence, ready).await
    }

    /// Derives a range that was taken from the backlog.
    async fn derive_task(&self, task: Task) -> Result<DerivedTask> {
        let (range, generations) = (task.range.clone(), &task.generations);
        let deriving = Box::pin(chunk::derive(&self.chain, range, generations, &self.settings));
        let derived = match deriving.await {
            Ok(derived) => derived,
            Err(error)
                if error.is_fatal()
                    || matches!(error.kind(), ErrorKind::Transient | ErrorKind::Fenced) =>
            {
                self.backlog().give_back(&task);
                return Err(error);
            }
            // A block cannot be read: halving the range isolates it, and the other blocks go on.
            Err(error) => {
                generations
                    .iter()
                    .for_each(|generation| self.record_failure(generation, &task.range, &error));
                return Ok(DerivedTask { task, parts: Vec::new() });
            }
        };
        let mut parts = Vec::new();
        for (generation, rows) in generations.iter().zip(derived.rows) {
            match rows {
                Ok(rows) => {
                    let (generation, range) = (generation.clone(), derived.range.clone());
                    parts.push(RangeRows { generation, range, rows });
                }
                Err(error) => self.record_failure(generation, &derived.range, &error),
            }
        }
        Ok(DerivedTask { task, parts })
    }

    /// Stores derived rows; records in the backlog which generations the database refused.
    async fn store(&self, fence: Option<&Fence>, ready: DerivedTask) -> Result<()> {
        let DerivedTask { task, parts } = ready;
        let stored = self.try_store(fence, parts).await;
        self.backlog().give_back(&task);
        match stored {
            Err(Error::Overtaken { processor }) => {
                tracing::debug!(processor, "another process has derived the same range");
                self.reload().await
            }
            stored => stored,
        }
    }

    async fn try_store(&self, fence: Option<&Fence>, parts: Vec<RangeRows>) -> Result<()> {
        let mut prepared = Box::pin(self.tables.prepare_all(parts)).await?;
        while !prepared.is_empty() {
            match Box::pin(self.tables.commit_prepared(fence, &prepared)).await {
                Ok(()) => {
                    let mut backlog = self.backlog();
                    prepared
                        .iter()
                        .for_each(|part| backlog.mark_done(&part.generation, &part.range));
                    return Ok(());
                }
                // Retry with the other generations.
                Err(error @ Error::Processor { processor, .. }) => {
                    for part in prepared.iter().filter(|part| part.generation.is_of(processor)) {
                        self.record_failure(&part.generation, &part.range, &error);
                    }
                    prepared.retain(|part| !part.generation.is_of(processor));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn give_back(&self, ready: &DerivedTask) {
        self.backlog().give_back(&ready.task);
    }

    fn record_failure(
        &self,
        generation: &super::generation::Generation,
        range: &std::ops::Range<u64>,
        error: &Error,
    ) {
        let text = logmill_io::error_chain(error);
        let processor = generation.processor.name();
        tracing::warn!(
            processor,
            start = range.start,
            end = range.end,
            error = text,
            "cannot derive blocks, retrying"
        );
        let now = self.clock.now();
        self.backlog().record_failure(generation, range, &text, now, &*self.entropy);
    }

    fn log_error(&self, error: &Error, doing: &'static str) {
        let text = logmill_io::error_chain(error);
        tracing::warn!(
            chain = self.chain.chain_id(),
            error = text,
            doing,
            "the deriver failed, retrying"
        );
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
    }

    /// Derives all stored blocks once, without a lease; for tools and tests.
    pub async fn catch_up(&self) -> Result<()> {
        self.load().await?;
        self.apply_replacements(None).await?;
        self.align_tip(None).await?;
        Box::pin(self.history_all(None)).await?;
        self.finish_generations(None).await?;
        self.align_tip(None).await?;
        self.put_checkpoints(None).await
    }

    /// Whether a generation is being built beside the one that serves.
    pub fn is_building(&self) -> bool {
        self.backlog()
            .generations
            .iter()
            .any(|work| work.generation.state == GenerationState::Building)
    }
}

/// A range that is derived and not yet stored.
struct DerivedTask {
    task: Task,
    parts: Vec<RangeRows>,
}

/// Releases the lease, so that the next process need not wait until it expires.
async fn release(lease: &LeaseKeeper) {
    if let Err(error) = lease.release().await
        && error.kind() != ErrorKind::Fenced
    {
        tracing::debug!(
            error = logmill_io::error_chain(&error),
            "cannot release the derivers' lease"
        );
    }
}
