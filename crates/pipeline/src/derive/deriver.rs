//! `Deriver`: what one process does for the tables of one chain.
//!
//! ```text
//!   no lease ── waits ──▶ lease ──▶ live forward: the tip, and what has become final near it
//!      ▲                            live history: what history ingest brings
//!      │                            history deriver: everything that is stored and not derived
//!      └── lease lost ◀─────────────┘
//! ```
//!
//! Guarantees: one process derives a chain at a time, by a lease that fences every write; what two would derive all the
//! same counts once. An error of one processor stops no other. Leaves to others: opening stores, following the chain.

use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logmill_io::meta::SqlMeta;
use logmill_io::{Clock, Entropy, ErrorKind, Fence};
use logmill_work::{Held, IntervalSet, Lease, LeaseSettings};

use super::board::{self, Board, LineWork, Task};
use super::chunk;
use super::decoded::TokenSettings;
use super::line::LineState;
use super::processor::Processor;
use super::store::{Part, Tables};
use crate::chain::Chain;
use crate::error::{Error, Result};

mod history;
mod live;
mod replacements;
mod status;

pub use status::{CheckpointStatus, DeriveStatus};

/// How a process derives.
#[derive(Clone, Debug)]
pub struct DeriveSettings {
    /// `ENABLE_LIVE_DERIVERS`.
    pub live: bool,
    /// `LIVE_DERIVERS_CHUNK`: blocks of one transaction near the head.
    pub live_chunk: u64,
    /// `LIVE_DERIVERS_HEAD_BACKFILL_BLOCKS`: final blocks below the head that come first.
    pub head_backfill: u64,
    /// `ENABLE_HISTORY_DERIVERS`.
    pub history: bool,
    /// `HISTORY_DERIVERS_CHUNK`: blocks of one transaction of history.
    pub history_chunk: u64,
    /// `HISTORY_DERIVERS_SLEEP_MS`: the pause after every chunk of history.
    pub history_sleep: Duration,
    /// About how many rows of one transaction, whatever the blocks.
    pub rows_max: usize,
    /// How often it looks for what nobody told of.
    pub poll: Duration,
    /// How long after an error it tries again.
    pub error_wait: Duration,
    /// How token transfers are read; the processors are made with the same.
    pub tokens: Arc<TokenSettings>,
    /// The lease.
    pub lease: LeaseSettings,
    /// The folder of the database, if it is a file: tables are derived a second time only where there is room for them.
    pub database_folder: Option<Arc<Path>>,
    /// Bytes of the disk that a second copy of the tables must leave free.
    pub disk_reserve_bytes: u64,
}

impl Default for DeriveSettings {
    fn default() -> Self {
        Self {
            live: true,
            live_chunk: 10,
            head_backfill: 100,
            history: true,
            history_chunk: 1_000,
            history_sleep: Duration::ZERO,
            rows_max: 200_000,
            poll: Duration::from_secs(1),
            error_wait: Duration::from_secs(1),
            tokens: Arc::default(),
            lease: LeaseSettings::default(),
            database_folder: None,
            disk_reserve_bytes: 256 << 20,
        }
    }
}

/// What one process does for the tables of one chain.
#[derive(Debug)]
pub struct Deriver {
    chain: Chain,
    tables: Tables,
    processors: Vec<Arc<dyn Processor>>,
    settings: DeriveSettings,
    owner: String,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    board: Mutex<Board>,
    leads: AtomicBool,
    last_error: Mutex<Option<String>>,
    /// The last replacement of stored blocks that was applied to all generations, or noted with them.
    replacements_seen: AtomicU64,
    /// Held while replacements are applied.
    replacing: tokio::sync::Mutex<()>,
    /// When to look again whether there is room for a new generation, on the monotonic clock.
    room_again: Mutex<Option<Duration>>,
}

impl Deriver {
    /// Derives a chain with these processors. `owner` is different in every process and every run.
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
            board: Mutex::default(),
            leads: AtomicBool::new(false),
            last_error: Mutex::default(),
            replacements_seen: AtomicU64::new(0),
            replacing: tokio::sync::Mutex::default(),
            room_again: Mutex::default(),
        }
    }

    /// The tables that it fills.
    pub fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Derives until `stop` completes, then gives the lease back.
    pub async fn run(&self, stop: impl Future<Output = ()> + Send) -> Result<()> {
        let meta = SqlMeta::shared(self.tables.sql().clone());
        let name = format!("derive/{}", self.chain.chain_id());
        let (clock, settings) = (Arc::clone(&self.clock), self.settings.lease.clone());
        let lease = Lease::new(meta, clock, &name, &self.owner, settings);
        let held = Mutex::new(None);
        tokio::select! {
            biased;
            () = stop => {}
            never = self.lead_always(&lease, &held) => match never {},
        }
        self.leads.store(false, Ordering::SeqCst);
        let held = held.into_inner().unwrap_or_else(PoisonError::into_inner);
        release(&lease, held.as_ref()).await;
        Ok(())
    }

    async fn lead_always(&self, lease: &Lease, now: &Mutex<Option<Held>>) -> Infallible {
        let note = |held| *now.lock().unwrap_or_else(PoisonError::into_inner) = held;
        loop {
            match lease.acquire().await {
                Ok(Some(held)) => {
                    note(Some(held.clone()));
                    // On the heap: what it holds is too much for a thread's stack.
                    if let Err(error) = Box::pin(self.lead(lease, &held)).await
                        && error.kind() != ErrorKind::Fenced
                    {
                        self.said(&error, "derived tables");
                    }
                    self.leads.store(false, Ordering::SeqCst);
                    release(lease, Some(&held)).await;
                    note(None);
                }
                Ok(None) => {}
                Err(error) => self.said(&error.into(), "the lease of the derivers"),
            }
            self.clock.sleep(self.settings.error_wait).await;
        }
    }

    /// Derives for as long as the lease holds.
    async fn lead(&self, lease: &Lease, held: &Held) -> Result<Infallible> {
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
        tokio::select! {
            biased;
            ended = self.keep(lease, held) => ended,
            ended = live => ended,
            ended = history => ended,
        }
    }

    async fn keep(&self, lease: &Lease, held: &Held) -> Result<Infallible> {
        let mut held = held.clone();
        loop {
            self.clock.sleep(self.settings.lease.ttl / 3).await;
            match lease.renew(&held).await {
                Ok(renewed) => held = renewed,
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error.into()),
                // Every write finds out for itself whether it is lost.
                Err(error) => self.said(&error.into(), "renew the lease of the derivers"),
            }
        }
    }

    /// Reads what is stored of every line; what is failing is forgotten.
    pub async fn load(&self) -> Result<()> {
        let lines = self.tables.lines(self.chain.chain_id(), &self.processors).await?;
        let mut works = Vec::new();
        for line in lines {
            let (done, tip) = (self.tables.covered(&line).await?, self.tables.tip(&line).await?);
            works.push(LineWork::new(line, done, tip));
        }
        *self.board() = Board { lines: works };
        // Another process may have led since.
        self.replacements_seen.store(0, Ordering::SeqCst);
        Ok(())
    }

    /// Reads what is stored of the lines again, because another has written; keeps what is taken and failing.
    async fn reload(&self) -> Result<()> {
        let lines = self.tables.lines(self.chain.chain_id(), &self.processors).await?;
        let mut fresh = Vec::new();
        for line in lines {
            let (done, tip) = (self.tables.covered(&line).await?, self.tables.tip(&line).await?);
            fresh.push((line, done, tip));
        }
        let mut board = self.board();
        board.lines.retain(|work| fresh.iter().any(|(line, ..)| board::is_same(line, &work.line)));
        for (line, done, tip) in fresh {
            match board.work(&line) {
                Some(work) => (work.line, work.done, work.tip) = (line, done, tip),
                None => board.lines.push(LineWork::new(line, done, tip)),
            }
        }
        Ok(())
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.board.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is stored of the chain and final.
    fn stored(&self) -> IntervalSet {
        self.chain.index().coverage().into_iter().collect()
    }

    /// Derives a range that was taken from the board, and stores it. What fails is noted on the board.
    async fn work(&self, fence: Option<&Fence>, task: Task) -> Result<()> {
        let ready = self.derived(task).await?;
        self.store(fence, ready).await
    }

    /// Derives a range that was taken from the board.
    async fn derived(&self, task: Task) -> Result<Ready> {
        let (range, lines) = (task.range.clone(), &task.lines);
        let deriving = Box::pin(chunk::derive(&self.chain, range, lines, &self.settings));
        let derived = match deriving.await {
            Ok(derived) => derived,
            Err(error) if matches!(error.kind(), ErrorKind::Transient | ErrorKind::Fenced) => {
                self.board().give_back(&task);
                return Err(error);
            }
            // A block that can not be read: it is looked for, and the others go on.
            Err(error) => {
                lines.iter().for_each(|line| self.failed(line, &task.range, &error));
                return Ok(Ready { task, parts: Vec::new() });
            }
        };
        let mut parts = Vec::new();
        for (line, rows) in lines.iter().zip(derived.rows) {
            match rows {
                Ok(rows) => {
                    let (line, range) = (line.clone(), derived.range.clone());
                    parts.push(Part { line, range, rows });
                }
                Err(error) => self.failed(line, &derived.range, &error),
            }
        }
        Ok(Ready { task, parts })
    }

    /// Stores what was derived; what the database refuses is noted on the board.
    async fn store(&self, fence: Option<&Fence>, ready: Ready) -> Result<()> {
        let Ready { task, parts } = ready;
        let stored = self.try_store(fence, parts).await;
        self.board().give_back(&task);
        match stored {
            Err(Error::Overtaken { processor }) => {
                tracing::debug!(processor, "another has derived the same");
                self.reload().await
            }
            stored => stored,
        }
    }

    async fn try_store(&self, fence: Option<&Fence>, parts: Vec<Part>) -> Result<()> {
        let mut prepared = Box::pin(self.tables.prepare_all(parts)).await?;
        while !prepared.is_empty() {
            match Box::pin(self.tables.commit_prepared(fence, &prepared)).await {
                Ok(()) => {
                    let mut board = self.board();
                    prepared.iter().for_each(|part| board.done(&part.line, &part.range));
                    return Ok(());
                }
                // The others go on without it.
                Err(error @ Error::Processor { processor, .. }) => {
                    for part in prepared.iter().filter(|part| part.line.is_of(processor)) {
                        self.failed(&part.line, &part.range, &error);
                    }
                    prepared.retain(|part| !part.line.is_of(processor));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn give_back(&self, ready: &Ready) {
        self.board().give_back(&ready.task);
    }

    fn failed(&self, line: &super::line::Line, range: &std::ops::Range<u64>, error: &Error) {
        let said = logmill_io::chain(error);
        let processor = line.processor.name();
        tracing::warn!(processor, start = range.start, end = range.end, error = said, "derive");
        let wait = |attempts: u32| board::retry().wait(attempts.into(), &*self.entropy);
        self.board().failed(line, range, &said, self.clock.now(), wait);
    }

    fn said(&self, error: &Error, doing: &'static str) {
        let said = logmill_io::chain(error);
        tracing::warn!(chain = self.chain.chain_id(), error = said, doing, "derive");
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
    }

    /// Derives everything that is stored, once, without a lease: for tools and tests.
    pub async fn catch_up(&self) -> Result<()> {
        self.load().await?;
        self.apply_replacements(None).await?;
        self.align_tip(None).await?;
        Box::pin(self.history_all(None)).await?;
        self.finish_lines(None).await?;
        self.align_tip(None).await
    }

    /// Whether some line is still being built beside the one that serves.
    pub fn is_building(&self) -> bool {
        self.board().lines.iter().any(|work| work.line.state == LineState::Building)
    }
}

/// A range that is derived and not yet stored.
struct Ready {
    task: Task,
    parts: Vec<Part>,
}

/// Gives a lease back, so that the next process need not wait for its end.
async fn release(lease: &Lease, held: Option<&Held>) {
    if let Some(held) = held
        && let Err(error) = lease.release(held).await
        && error.kind() != ErrorKind::Fenced
    {
        tracing::debug!(error = logmill_io::chain(&error), "give the derivers' lease back");
    }
}
