//! `Ingest`: the work of one process for one chain.
//!
//! ```text
//!   no lease: follow the writer ──▶ lease acquired: forward, seal, collect garbage, repair, audit, resolve
//!      ▲                                       │
//!      └── lease lost, or an error stops it ◀──┘
//! ```
//!
//! Cell jobs of history run in both states.
//!
//! The writing process publishes the head that it sees, so that followers know how far they lag.
//!
//! Guarantees: at most one process writes. An error that stops the writer is shown and does not stop readers, unless a
//! store has failed permanently: then [`Ingest::run`] returns that error. Leaves to others: opening stores and sources,
//! and restarting.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{GcMode, Writer};
use logmill_chain::{BlockSource, ChainSource};
use logmill_io::sql::PRESENCE_LOOK;
use logmill_io::{Clock, ErrorKind};
use logmill_work::{Queue, Runner, RunnerSettings};

use crate::audit::Auditor;
use crate::chain::Chain;
use crate::error::{Error, Result};
use crate::ingest::backward::CellHandler;
use crate::ingest::{Backward, Forward, IngestSettings, Progress, Role};
use crate::recheck::{self, DamageReports, RecheckHandler};
use crate::repair::{self, RepairHandler};
use crate::resolve::{self, ResolveHandler};
use crate::sighting::Sighting;
use crate::uncompared;

/// How often a follower reads what the writer has stored.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How often per lease term a follower tries to acquire the lease.
const ASKS_PER_LEASE: u32 = 6;
/// Maximum number of reads between two such attempts.
const LOOKS_MAX: u32 = 10;
const PUBLISH_EVERY: Duration = Duration::from_secs(2);
const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// The ingesters that a process runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// `ENABLE_FORWARD_INGESTER`.
    pub forward: bool,
    /// `ENABLE_HISTORY_INGESTER`.
    pub history: bool,
}

#[derive(Debug)]
pub struct Ingest {
    pub chain: Chain,
    /// Source of new blocks.
    pub source: Arc<dyn ChainSource>,
    /// Source of history.
    pub historic: Arc<dyn BlockSource>,
    pub queue: Queue,
    pub settings: IngestSettings,
    /// Settings of the job runners; `kind` and `slots` are overwritten.
    pub runner: RunnerSettings,
    pub roles: Roles,
    /// Lease owner, unique for every run of every process.
    pub owner: String,
    pub progress: Arc<Progress>,
    pub auditor: Arc<Auditor>,
    pub clock: Arc<dyn Clock>,
}

impl Ingest {
    /// Works until `stop` completes, then releases the writer lease.
    pub async fn run<S>(&self, stop: impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let backward = Arc::new(Backward::new(
            self.chain.clone(),
            Arc::clone(&self.historic),
            self.queue.clone(),
            self.settings.clone(),
            Arc::clone(&self.progress),
            Arc::clone(&self.clock),
        ));
        // Both on the heap: the futures are too large for a thread's stack.
        let history = Box::pin(self.history(&backward, &stop));
        let writing = Box::pin(self.lead_or_follow(&backward, &stop));
        let reporting = self.report_damage(&stop);
        futures::future::try_join3(writing, history, reporting).await.map(|_| ())
    }

    /// Plans and runs cell jobs.
    async fn history<S>(&self, backward: &Arc<Backward>, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        if !self.roles.history {
            return Ok(());
        }
        let settings = RunnerSettings {
            kind: backward.kind(),
            slots: self.settings.history_workers.max(1),
            ..self.runner.clone()
        };
        let handler = Arc::new(CellHandler(Arc::clone(backward)));
        let runner = Runner::new(self.queue.clone(), handler, settings)?;
        let plan = async {
            tokio::select! {
                biased;
                () = stop() => Ok(()),
                error = backward.run() => Err(error),
            }
        };
        let run = async { runner.run(stop()).await.map_err(Error::from) };
        futures::future::try_join(plan, run).await.map(|_| ())
    }

    /// While another process writes, reports to it the damage that this one comes upon.
    async fn report_damage<S>(&self, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let (chain, queue, clock) = (self.chain.clone(), self.queue.clone(), &self.clock);
        let reports = DamageReports::new(chain, queue, Arc::clone(clock), &self.owner);
        tokio::select! {
            biased;
            () = stop() => Ok(()),
            never = reports.run(|| self.progress.report().role == Role::Writer) => match never {},
        }
    }

    async fn lead_or_follow<S>(&self, backward: &Arc<Backward>, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let mut stopped = std::pin::pin!(stop());
        loop {
            if self.roles.forward {
                let led = self.lead(backward, stop).await;
                self.progress.set_role(Role::Follower);
                led?;
            }
            let ttl = self.chain.index().settings().lease_ttl;
            let ask = (ttl / ASKS_PER_LEASE).min(PRESENCE_LOOK);
            let looks = ask.as_millis() / FOLLOW_EVERY.as_millis();
            let looks = u32::try_from(looks).unwrap_or(LOOKS_MAX).clamp(1, LOOKS_MAX);
            let wait = async {
                for _ in 0..looks {
                    follow(&self.chain, &self.progress).await?;
                    self.clock.sleep(FOLLOW_EVERY).await;
                }
                Ok::<(), Error>(())
            };
            tokio::select! {
                biased;
                () = &mut stopped => return Ok(()),
                waited = wait => waited?,
            }
        }
    }

    /// Acquires the writer lease and writes for as long as possible. The error is one after which nothing can be
    /// written or read.
    async fn lead<S>(&self, backward: &Arc<Backward>, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let writer = match self.chain.index().writer(&self.owner).await {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                // Another process writes, so the chain progresses whatever stopped this one.
                self.progress.set_stalled(None);
                return Ok(());
            }
            Err(error) => return self.stopped(error.into()),
            Ok(writer) => Arc::new(writer),
        };
        self.progress.set_role(Role::Writer);
        tracing::info!(chain = self.chain.chain_id(), epoch = writer.epoch(), "became the writer");
        let ended = tokio::select! {
            biased;
            () = stop() => Ok(()),
            ended = self.write(&writer, backward) => ended,
        };
        // A repair in progress may hold the writer for a moment longer; it can write nothing from here on.
        if let Err(error) = writer.release().await {
            tracing::warn!(
                error = logmill_io::error_chain(&error),
                "cannot release the writer lease"
            );
        }
        match ended {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                tracing::info!(chain = self.chain.chain_id(), "another process became the writer");
                Ok(())
            }
            Err(error) => self.stopped(error),
            Ok(()) => Ok(()),
        }
    }

    /// Records why nothing is written, so that it is tried again later; returns the error if it is fatal.
    fn stopped(&self, error: Error) -> Result<()> {
        if error.is_fatal() {
            return Err(error);
        }
        self.note_stopped(&error);
        Ok(())
    }

    fn note_stopped(&self, error: &Error) {
        let text = logmill_io::error_chain(error);
        tracing::error!(chain = self.chain.chain_id(), error = text, "ingest stopped, retrying");
        self.progress.set_stalled(Some(text));
    }

    /// Writes, and applies operators' decisions about a degraded index, even while nothing else can be done.
    async fn write(&self, writer: &Arc<Writer>, backward: &Arc<Backward>) -> Result<()> {
        let settings = RunnerSettings {
            kind: resolve::kind(self.chain.chain_id()),
            slots: 1,
            ..self.runner.clone()
        };
        let handler = Arc::new(ResolveHandler::new(Arc::clone(writer)));
        let resolves = Runner::new(self.queue.clone(), handler, settings)?;
        tokio::select! {
            biased;
            lost = writer.keep_lease(log_missed_renewal) => Err(lost.into()),
            ended = resolves.run(std::future::pending()) => Ok(ended?),
            ended = Box::pin(self.write_blocks(writer, backward)) => ended,
        }
    }

    /// Reads what another process may have written, waiting while the index is degraded.
    async fn catch_up(&self) -> Result<()> {
        loop {
            match self.chain.follow().await {
                Err(error @ Error::Index(finalized_log_index::Error::Degraded { .. })) => {
                    self.note_stopped(&error);
                    self.clock.sleep(self.settings.error_wait).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn write_blocks(&self, writer: &Arc<Writer>, backward: &Arc<Backward>) -> Result<()> {
        self.catch_up().await?;
        uncompared::at_start(&self.chain, writer).await?;
        let forward = Forward::new(
            self.chain.clone(),
            Arc::clone(&self.source),
            Arc::clone(writer),
            self.settings.clone(),
            Arc::clone(&self.progress),
            Arc::clone(&self.clock),
        );
        let settings = RunnerSettings {
            kind: repair::kind(self.chain.chain_id()),
            slots: 1,
            ..self.runner.clone()
        };
        let handler = Arc::new(RepairHandler::new(Arc::clone(writer), Arc::clone(backward)));
        let repairs = Runner::new(self.queue.clone(), handler.clone(), settings)?;
        let settings = RunnerSettings {
            kind: recheck::kind(self.chain.chain_id()),
            slots: 1,
            ..self.runner.clone()
        };
        let rechecks = Arc::new(RecheckHandler::new(Arc::clone(writer)));
        let rechecks = Runner::new(self.queue.clone(), rechecks, settings)?;
        let refetch = uncompared::refetch(&self.chain, &handler, &self.progress, &*self.clock);
        let ended = tokio::select! {
            biased;
            ended = self.publish_head(writer) => ended,
            ended = self.follow_head(&forward) => ended,
            ended = self.maintain(writer) => ended,
            ended = self.auditor.run(Some(&handler)) => ended,
            ended = self.collect(writer) => ended,
            ended = refetch => ended,
            ended = repairs.run(std::future::pending()) => return Ok(ended?),
            ended = rechecks.run(std::future::pending()) => return Ok(ended?),
        };
        ended.map(|never| match never {})
    }

    /// Follows the head. If the nodes contradict finalized blocks, that is reported and tried again. The writer lease
    /// is kept, because repairs and decisions about a degraded index go on meanwhile.
    async fn follow_head(&self, forward: &Forward) -> Result<std::convert::Infallible> {
        loop {
            let error = match forward.run().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if error.kind() != ErrorKind::Conflict {
                return Err(error);
            }
            self.note_stopped(&error);
            self.clock.sleep(self.settings.error_wait).await;
        }
    }

    /// Publishes the reported head and the number of damaged blocks for the followers.
    async fn publish_head(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        let (sightings, since) = (self.chain.sightings(), self.clock.monotonic());
        let mut published = None;
        loop {
            self.clock.sleep(PUBLISH_EVERY).await;
            // Sightings read from another process are not published as our own.
            let seen = self.progress.last_report().filter(|(_, at, _)| *at >= since);
            let Some((head, at, stored)) = seen else {
                continue;
            };
            let (damaged, uncompared) = (self.auditor.damaged(), self.progress.report().uncompared);
            let now = Some((at, damaged, uncompared.clone()));
            if published == now {
                continue;
            }
            let age = self.clock.monotonic().saturating_sub(at);
            let owner = self.owner.clone();
            let sighting = Sighting { head, stored, age, owner, damaged, uncompared };
            match sightings.publish(&sighting, writer.fence()).await {
                Err(error) if error.kind() == ErrorKind::Fenced || error.is_fatal() => {
                    return Err(error);
                }
                Err(error) => {
                    let (chain, text) = (self.chain.chain_id(), logmill_io::error_chain(&error));
                    tracing::warn!(chain, error = text, "cannot publish the chain's head");
                }
                Ok(()) => published = now,
            }
        }
    }

    /// Seals and merges. Damaged blocks wait for a repair, which runs concurrently.
    async fn maintain(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        loop {
            let error = match writer.maintain_always().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if ends(&error) {
                return Err(error.into());
            }
            tracing::warn!(
                error = logmill_io::error_chain(&error),
                "cannot seal or merge chunks, retrying"
            );
            self.clock.sleep(self.settings.error_wait).await;
        }
    }

    async fn collect(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        loop {
            self.clock.sleep(COLLECT_EVERY).await;
            match writer.collect_garbage(GcMode::Delete).await {
                Err(error) if ends(&error) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(
                        error = logmill_io::error_chain(&error),
                        "cannot collect garbage, retrying"
                    );
                }
                Ok(report) => tracing::debug!(?report, "collected garbage"),
            }
        }
    }
}

/// Reads what the writer has stored and seen. Errors are recorded and logged; the returned error is one after which
/// nothing can be read.
pub async fn follow(chain: &Chain, progress: &Progress) -> Result<()> {
    let followed = async {
        chain.follow().await?;
        let head = chain.view().await?.head().map(|head| head.number);
        let sighting = chain.sightings().read().await?;
        progress.take_over(head, sighting.as_ref());
        Ok(())
    };
    match followed.await {
        Err(error) if Error::is_fatal(&error) => Err(error),
        Err(error) => {
            let text = logmill_io::error_chain(&error);
            tracing::warn!(chain = chain.chain_id(), error = text, "cannot follow the writer");
            progress.set_last_error(text);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

fn log_missed_renewal(error: &finalized_log_index::Error) {
    let error = logmill_io::error_chain(error);
    tracing::warn!(error, "cannot renew the writer lease, retrying");
}

/// Whether the writer must stop: another process took over, or its store has failed permanently.
fn ends(error: &finalized_log_index::Error) -> bool {
    error.kind() == ErrorKind::Fenced || error.is_fatal()
}
