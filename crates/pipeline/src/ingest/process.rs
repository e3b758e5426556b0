//! `Ingest`: what one process does for one chain.
//!
//! ```text
//!   no lease ── follows what another process writes ──▶ lease free ──▶ writes: forward, seal, collect, repair, audit
//!      ▲                                                                      │
//!      └───────────────── lease lost, or an error that stops it ◀─────────────┘
//! ```
//!
//! Cell jobs of history run beside both.
//!
//! The process that writes publishes the head that it sees, so that those that follow know how far they lag.
//!
//! Guarantees: at most one process writes; an error that stops the writer is shown and does not stop readers, unless a
//! store can never work again: then [`Ingest::run`] ends with that error. Leaves to others: opening stores and sources,
//! and starting again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{GcMode, Writer};
use logmill_chain::ChainSource;
use logmill_io::sql::PRESENCE_LOOK;
use logmill_io::{Clock, ErrorKind};
use logmill_work::{Queue, Runner, RunnerSettings};

use super::backward::CellHandler;
use super::{Backward, Forward, IngestSettings, Progress, Role};
use crate::audit::Auditor;
use crate::chain::Chain;
use crate::error::{Error, Result};
use crate::repair::{self, RepairHandler};
use crate::sighting::Sighting;

/// How often a process that does not write looks at what another has written.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How often, in the time of a lease, it asks for the lease.
const ASKS_PER_LEASE: u32 = 6;
/// The most looks between two times that it asks.
const LOOKS_MAX: u32 = 10;
/// How often the process that writes publishes the head that it sees.
const PUBLISH_EVERY: Duration = Duration::from_secs(2);
/// How long repairs may go on after the log index was degraded.
const REPAIRS_WITHIN: Duration = Duration::from_secs(10);
/// How often garbage is collected.
const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// What a process is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Roles {
    /// `ENABLE_FORWARD_INGESTER`.
    pub forward: bool,
    /// `ENABLE_HISTORY_INGESTER`.
    pub history: bool,
}

/// What one process does for one chain.
#[derive(Debug)]
pub struct Ingest {
    /// What is stored.
    pub chain: Chain,
    /// Where new blocks come from.
    pub source: Arc<dyn ChainSource>,
    /// Where history comes from.
    pub historic: Arc<dyn ChainSource>,
    /// Where jobs are.
    pub queue: Queue,
    /// How it works.
    pub settings: IngestSettings,
    /// How jobs are run; kind and slots are set by us.
    pub runner: RunnerSettings,
    /// What it is to do.
    pub roles: Roles,
    /// Who it is: different in every process and every run.
    pub owner: String,
    /// How far it is.
    pub progress: Arc<Progress>,
    /// Checks what is stored.
    pub auditor: Arc<Auditor>,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

impl Ingest {
    /// Works until `stop` completes, then gives the lease back.
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
        // On the heap, both: what they hold is too much for a thread's stack.
        let history = Box::pin(self.history(&backward, &stop));
        let writing = Box::pin(self.lead_or_follow(&backward, &stop));
        futures::future::try_join(writing, history).await.map(|_| ())
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
                ended = backward.run() => ended.map(|never| match never {}),
            }
        };
        let run = async { runner.run(stop()).await.map_err(Error::from) };
        futures::future::try_join(plan, run).await.map(|_| ())
    }

    async fn lead_or_follow<S>(&self, backward: &Arc<Backward>, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let mut stopped = std::pin::pin!(stop());
        loop {
            if self.roles.forward {
                let led = self.lead(backward, stop).await;
                self.progress.role(Role::Follower);
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

    /// Writes for as long as it can; the error is one after which nothing can be written or read.
    async fn lead<S>(&self, backward: &Arc<Backward>, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let writer = match self.chain.index().writer(&self.owner).await {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                // Another process writes: whatever stopped this one, the chain goes on.
                self.progress.stalled(None);
                return Ok(());
            }
            Err(error) => return self.stopped(error.into()),
            Ok(writer) => Arc::new(writer),
        };
        self.progress.role(Role::Writer);
        tracing::info!(chain = self.chain.chain_id(), epoch = writer.epoch(), "writes");
        let ended = tokio::select! {
            biased;
            () = stop() => Ok(()),
            ended = self.write(&writer, backward) => ended,
        };
        // A repair that was under way may hold the writer for a moment yet; it can write nothing from here on.
        if let Err(error) = writer.release().await {
            tracing::warn!(error = logmill_io::chain(&error), "give the writer lease back");
        }
        match ended {
            Err(error) if error.kind() == ErrorKind::Fenced => {
                tracing::info!(chain = self.chain.chain_id(), "another process writes now");
                Ok(())
            }
            Err(error) => self.stopped(error),
            Ok(()) => Ok(()),
        }
    }

    /// Notes why nothing is written, to be tried again later; gives the error back if that is of no use.
    fn stopped(&self, error: Error) -> Result<()> {
        if error.is_fatal() {
            return Err(error);
        }
        self.note_stopped(&error);
        Ok(())
    }

    fn note_stopped(&self, error: &Error) {
        let said = logmill_io::chain(error);
        tracing::error!(chain = self.chain.chain_id(), error = said, "ingest has stopped");
        self.progress.stalled(Some(said));
    }

    async fn write(&self, writer: &Arc<Writer>, backward: &Arc<Backward>) -> Result<()> {
        // Another may have written since.
        self.chain.follow().await?;
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
        let ended = tokio::select! {
            biased;
            ended = self.keep_lease(writer) => ended,
            ended = self.publish_head(writer) => ended,
            ended = self.follow_head(&forward) => ended,
            ended = self.maintain(writer) => ended,
            ended = self.auditor.run(Some(&handler)) => ended,
            ended = self.collect(writer) => ended,
            ended = repairs.run(std::future::pending()) => return Ok(ended?),
        };
        ended.map(|never| match never {})
    }

    /// Follows the head. What the nodes say may contradict what is final: that is reported and asked again, and repairs
    /// go on meanwhile. An index that is degraded ends it, after the repairs that were asked for were answered, so that
    /// an operator can have the writer lease.
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
            if self.chain.index().health().degraded.is_some() {
                self.clock.sleep(REPAIRS_WITHIN).await;
                return Err(error);
            }
            self.clock.sleep(self.settings.error_wait).await;
        }
    }

    async fn keep_lease(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        let ttl = self.chain.index().settings().lease_ttl;
        loop {
            self.clock.sleep(ttl / 3).await;
            match writer.renew().await {
                Err(error) if ends(&error) => return Err(error.into()),
                // It holds for a while yet; a commit finds out if it does not.
                Err(error) => {
                    tracing::warn!(error = logmill_io::chain(&error), "renew the writer lease");
                }
                Ok(()) => {}
            }
        }
    }

    /// Publishes the head that the nodes report, and how many blocks are damaged, for the processes that follow.
    async fn publish_head(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        let (sightings, since) = (self.chain.sightings(), self.clock.monotonic());
        let mut published = None;
        loop {
            self.clock.sleep(PUBLISH_EVERY).await;
            // What this process read of another's sightings is not its own.
            let Some((head, at)) = self.progress.seen().filter(|(_, at)| *at >= since) else {
                continue;
            };
            let damaged = self.auditor.damaged();
            if published == Some((at, damaged)) {
                continue;
            }
            let age = self.clock.monotonic().saturating_sub(at);
            let sighting = Sighting { head, age, owner: self.owner.clone(), damaged };
            match sightings.publish(&sighting, writer.fence()).await {
                Err(error) if error.kind() == ErrorKind::Fenced || error.is_fatal() => {
                    return Err(error);
                }
                Err(error) => {
                    let (chain, said) = (self.chain.chain_id(), logmill_io::chain(&error));
                    tracing::warn!(chain, error = said, "cannot publish the chain's head");
                }
                Ok(()) => published = Some((at, damaged)),
            }
        }
    }

    /// Seals and merges. What is damaged waits for a repair, which runs beside it.
    async fn maintain(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        loop {
            let error = match writer.maintain_always().await {
                Ok(never) => match never {},
                Err(error) => error,
            };
            if ends(&error) {
                return Err(error.into());
            }
            tracing::warn!(error = logmill_io::chain(&error), "seal and merge");
            self.clock.sleep(self.settings.error_wait).await;
        }
    }

    async fn collect(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        loop {
            self.clock.sleep(COLLECT_EVERY).await;
            match writer.collect_garbage(GcMode::Delete).await {
                Err(error) if ends(&error) => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(error = logmill_io::chain(&error), "collect garbage");
                }
                Ok(report) => tracing::debug!(?report, "collected garbage"),
            }
        }
    }
}

/// Reads what another process has written and seen. Trouble is noted and logged; the error is one after which nothing
/// can be read.
pub async fn follow(chain: &Chain, progress: &Progress) -> Result<()> {
    let followed = async {
        chain.follow().await?;
        let head = chain.view().await?.head().map(|head| head.number);
        let sighting = chain.sightings().read().await?;
        progress.followed(head, sighting.as_ref());
        Ok(())
    };
    match followed.await {
        Err(error) if Error::is_fatal(&error) => Err(error),
        Err(error) => {
            let said = logmill_io::chain(&error);
            tracing::warn!(chain = chain.chain_id(), error = said, "cannot follow the writer");
            progress.failed(said);
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

/// Whether the writer must stop: it was replaced, or its store can never work again.
fn ends(error: &finalized_log_index::Error) -> bool {
    error.kind() == ErrorKind::Fenced || error.is_fatal()
}
