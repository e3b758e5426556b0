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
//! Guarantees: at most one process writes; an error that stops the writer is shown and does not stop readers. Leaves to
//! others: opening stores and sources.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{GcMode, Writer};
use logmill_chain::ChainSource;
use logmill_io::{Clock, ErrorKind};
use logmill_work::{Queue, Runner, RunnerSettings};

use super::backward::CellHandler;
use super::{Backward, Forward, IngestSettings, Progress};
use crate::audit::Auditor;
use crate::chain::Chain;
use crate::error::{Error, Result};
use crate::repair::{self, RepairHandler};

/// How often a process that does not write looks at what another has written.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How often, in the time of a lease, it asks for the lease.
const ASKS_PER_LEASE: u32 = 6;
/// The most looks between two times that it asks.
const LOOKS_MAX: u32 = 10;
/// How long repairs may go on after the head contradicts what is stored.
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
        let history = self.history(&backward, &stop);
        let writing = self.lead_or_follow(&backward, &stop);
        let ((), ended) = futures::future::join(writing, history).await;
        ended
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
        let (planned, ran) = futures::future::join(plan, runner.run(stop())).await;
        planned.and(ran.map_err(Error::from))
    }

    async fn lead_or_follow<S>(&self, backward: &Arc<Backward>, stop: &impl Fn() -> S)
    where
        S: Future<Output = ()> + Send,
    {
        let mut stopped = std::pin::pin!(stop());
        loop {
            if self.roles.forward {
                self.lead(backward, stop).await;
            }
            let ttl = self.chain.index().settings().lease_ttl;
            let looks = (ttl / ASKS_PER_LEASE).as_millis() / FOLLOW_EVERY.as_millis();
            let looks = u32::try_from(looks).unwrap_or(LOOKS_MAX).clamp(1, LOOKS_MAX);
            let wait = async {
                for _ in 0..looks {
                    self.follow().await;
                    self.clock.sleep(FOLLOW_EVERY).await;
                }
            };
            tokio::select! {
                biased;
                () = &mut stopped => return,
                () = wait => {}
            }
        }
    }

    async fn follow(&self) {
        if let Err(error) = self.chain.follow().await {
            let said = logmill_io::chain(&error);
            tracing::warn!(chain = self.chain.chain_id(), error = said, "follow the writer");
            self.progress.failed(said);
        }
    }

    /// Writes for as long as it can.
    async fn lead<S>(&self, backward: &Arc<Backward>, stop: &impl Fn() -> S)
    where
        S: Future<Output = ()> + Send,
    {
        let writer = match self.chain.index().writer(&self.owner).await {
            Err(error) if error.kind() == ErrorKind::Fenced => return,
            Err(error) => return self.stopped(&error.into()),
            Ok(writer) => Arc::new(writer),
        };
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
            }
            Err(error) => self.stopped(&error),
            Ok(()) => {}
        }
    }

    fn stopped(&self, error: &Error) {
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
            ended = self.follow_head(&forward) => ended,
            ended = self.maintain(writer) => ended,
            ended = self.auditor.run(Some(&handler)) => ended,
            ended = self.collect(writer) => ended,
            ended = repairs.run(std::future::pending()) => return Ok(ended?),
        };
        ended.map(|never| match never {})
    }

    /// Follows the head. A contradiction ends it, after a while: repairs that were asked for are answered first.
    async fn follow_head(&self, forward: &Forward) -> Result<std::convert::Infallible> {
        let error = match forward.run().await {
            Ok(never) => match never {},
            Err(error) => error,
        };
        if error.kind() == ErrorKind::Conflict {
            self.stopped(&error);
            self.clock.sleep(REPAIRS_WITHIN).await;
        }
        Err(error)
    }

    async fn keep_lease(&self, writer: &Writer) -> Result<std::convert::Infallible> {
        let ttl = self.chain.index().settings().lease_ttl;
        loop {
            self.clock.sleep(ttl / 3).await;
            match writer.renew().await {
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error.into()),
                // It holds for a while yet; a commit finds out if it does not.
                Err(error) => {
                    tracing::warn!(error = logmill_io::chain(&error), "renew the writer lease");
                }
                Ok(()) => {}
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
            if error.kind() == ErrorKind::Fenced {
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
                Err(error) if error.kind() == ErrorKind::Fenced => return Err(error.into()),
                Err(error) => {
                    tracing::warn!(error = logmill_io::chain(&error), "collect garbage");
                }
                Ok(report) => tracing::debug!(?report, "collected garbage"),
            }
        }
    }
}
