//! The collector (seed 000): one event of some contracts over `eth_getLogs`, in leased ranges, by many workers,
//! straight into tables; for who wants one event and no archive.
//!
//! ```text
//!   test_connection ─▶ seed_cursor ─▶ ┌ plan: missing ranges up to the newest final block become jobs
//!                                     ├ workers: job ─▶ logs ─▶ rows + coverage + end of the job, in one transaction
//!                                     └ watch: progress, and ranges that nobody could collect
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`event`] | which event, decoded into which table |
//! | `plan` | what is collected next |
//! | `scan` | a range, collected |
//! | `mode` | history or head, and how long to wait |
//! | `place` | where it began, and the last final block it has seen |
//! | `retry` | operations of the database, tried again |
//! | [`status`] | what is told of it |
//!
//! Guarantees: every event of a final block from the start on is in the tables once, whatever dies or lies on the
//! way, or its range is reported as missing. Any number of processes work together over one database. Leaves to
//! others: reading the tables, and blocks that are not final yet.

pub mod event;
mod mode;
mod place;
mod plan;
mod retry;
mod scan;
pub mod status;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logmill_chain::{Address, BlockRef, ChainSource, Finality};
use logmill_io::ErrorKind;
use logmill_work::{Backoff, Runner, RunnerSettings};
use tokio::sync::{Notify, watch};

use crate::derive::{Line, Tables};
use crate::error::{Error, Result};
use event::LogProcessor;
use place::Place;
use retry::with_retry;
use scan::Scanner;
use status::Counts;

pub use mode::Mode;
pub use status::{Missing, Status};

/// The longest wait before a range that failed is tried again.
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(600);
/// How often a connection is tested again, so that one bad answer does not end a start.
const TESTS_MAX: i64 = 3;
const TEST_WAITS: Backoff = Backoff::Linear { step: Duration::from_millis(300) };
/// How often an idle worker looks for jobs, in case a wake-up was lost.
const SLOW_POLL: Duration = Duration::from_secs(15);

/// How a collector works.
#[derive(Clone, Debug)]
pub struct CollectSettings {
    /// `CONTRACT_ADDRESS`: the contracts that must be there.
    pub contracts: Vec<Address>,
    /// `START_POINT`: the first block that is wanted.
    pub start: u64,
    /// `BATCH_SIZE`: blocks of one job.
    pub batch: u64,
    /// Jobs that this process does at a time.
    pub workers: usize,
    /// `JOB_LEASE_TTL_MS`: how long a job stays with a process that is silent.
    pub lease: Duration,
    /// `HISTORICAL_POLL_INTERVAL_MS`: the wait after a failure, behind the head.
    pub historical_poll: Duration,
    /// `REALTIME_POLL_INTERVAL_MS`: the wait for news, and after a failure, at the head.
    pub realtime_poll: Duration,
}

impl Default for CollectSettings {
    fn default() -> Self {
        Self {
            contracts: Vec::new(),
            start: 0,
            batch: 100,
            workers: 1,
            lease: Duration::from_secs(120),
            historical_poll: Duration::from_secs(5),
            realtime_poll: Duration::from_secs(60),
        }
    }
}

/// Collects one event of some contracts of one chain.
#[derive(Debug)]
pub struct Collector {
    chain_id: u64,
    source: Arc<dyn ChainSource>,
    tables: Tables,
    event: Arc<dyn LogProcessor>,
    settings: CollectSettings,
    /// Different in every process and every run.
    owner: String,
    place: Place,
    state: Mutex<State>,
    /// A job has ended.
    ended: Notify,
    counts: Counts,
}

#[derive(Debug)]
struct State {
    start: u64,
    mode: Mode,
    head: Option<Head>,
    lines: Vec<Line>,
    /// Why nothing new is claimed.
    halted: Option<String>,
    /// When it last tidied up, on the monotonic clock.
    tidied_at: Option<Duration>,
}

/// Where the chain is, as last seen.
#[derive(Clone, Copy, Debug)]
struct Head {
    finalized: BlockRef,
    latest: u64,
    /// On the monotonic clock.
    at: Duration,
}

impl Collector {
    /// A collector that has done nothing yet. `owner` is different in every process and every run.
    pub fn new(
        chain_id: u64,
        source: Arc<dyn ChainSource>,
        tables: Tables,
        event: Arc<dyn LogProcessor>,
        settings: CollectSettings,
        owner: impl Into<String>,
    ) -> Self {
        let place = Place::new(tables.sql().clone(), chain_id, event.name());
        let state = State {
            start: settings.start,
            mode: Mode::Historical,
            head: None,
            lines: Vec::new(),
            halted: None,
            tidied_at: None,
        };
        Self {
            chain_id,
            source,
            tables,
            event,
            settings,
            owner: owner.into(),
            place,
            state: Mutex::new(state),
            ended: Notify::new(),
            counts: Counts::default(),
        }
    }

    /// The kind of its jobs.
    pub fn kind(&self) -> String {
        kind(self.chain_id, self.event.name())
    }

    /// Checks that the nodes are of the chain, and that the contracts are there.
    pub async fn test_connection(&self) -> Result<()> {
        let sql = self.tables.sql();
        let mut failed = 0;
        loop {
            match self.test_once().await {
                Err(error) if error.kind() == ErrorKind::Transient && failed < TESTS_MAX => {
                    failed += 1;
                    let said = logmill_io::chain(&error);
                    tracing::warn!(attempt = failed, error = said, "the chain does not answer");
                    sql.clock().sleep(TEST_WAITS.wait(failed, &**sql.entropy())).await;
                }
                tested => return tested,
            }
        }
    }

    async fn test_once(&self) -> Result<()> {
        let info = self.source.info().await?;
        if info.chain_id != self.chain_id {
            let what = format!("the RPC is of chain {}, not {}", info.chain_id, self.chain_id);
            return Err(Error::Invalid { what });
        }
        for contract in &self.settings.contracts {
            if !self.has_code(*contract).await? {
                let chain = self.chain_id;
                let what = format!("no contract is deployed at {contract} on chain {chain}");
                return Err(Error::Invalid { what });
            }
        }
        let finality = match info.finality {
            Finality::Tags => "by tag".to_owned(),
            Finality::Depth(depth) => format!("{depth} confirmations"),
        };
        tracing::info!(
            chain = info.chain_id,
            client = info.client,
            finality,
            "the connection is fine"
        );
        Ok(())
    }

    async fn has_code(&self, contract: Address) -> Result<bool> {
        let answer = self.source.pass("eth_getCode", &format!(r#"["{contract}","latest"]"#)).await;
        let code = serde_json::from_str::<String>(&answer?).unwrap_or_default();
        Ok(code.strip_prefix("0x").is_some_and(|code| !code.is_empty()))
    }

    /// Sets where collecting begins, once for all processes, and opens the tables. Gives where it begins.
    pub async fn seed_cursor(&self) -> Result<u64> {
        let (sql, asked) = (self.tables.sql(), self.settings.start);
        let start = with_retry(sql, "set the start", || self.place.seed(asked)).await?;
        if start < asked {
            tracing::warn!(
                start,
                asked,
                "collecting began below START_POINT, and leaves nothing out from there on"
            );
        }
        self.state().start = start;
        self.reload().await?;
        Ok(start)
    }

    /// Works until `stop` completes, or the database fails for good. Jobs that run then are given back at once.
    pub async fn run<S>(self: &Arc<Self>, stop: impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let settings = RunnerSettings {
            lease: self.settings.lease,
            slow_poll: SLOW_POLL.min(self.settings.lease),
            stop_deadline: Duration::ZERO,
            ..RunnerSettings::new(&self.kind(), &self.owner, self.settings.workers)
        };
        let handler = Arc::new(Scanner(Arc::clone(self)));
        let runner = Runner::new(self.tables.queue().clone(), handler, settings)?;
        let (stopping, stopped) = watch::channel(false);
        let told = || {
            let (mut stopped, stop) = (stopped.clone(), stop());
            async move {
                tokio::select! {
                    biased;
                    () = stop => {}
                    // A sender that is gone has stopped too.
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            }
        };
        let working = async {
            let ran = runner.run(told()).await;
            // The other half may have ended.
            let _ = stopping.send(true);
            ran
        };
        let planning = async {
            let planned = tokio::select! {
                biased;
                () = told() => Ok(()),
                Err(error) = self.plan() => Err(error),
                () = self.watch() => Ok(()),
            };
            let _ = stopping.send(true);
            planned
        };
        let (worked, planned) = futures::join!(working, planning);
        planned?;
        Ok(worked?)
    }

    /// Takes note of the generations that there are.
    async fn reload(&self) -> Result<()> {
        let processors = [Arc::clone(&self.event).as_processor()];
        let lines = || self.tables.lines(self.chain_id, &processors);
        let lines = with_retry(self.tables.sql(), "open the tables", lines).await?;
        self.state().lines = lines;
        Ok(())
    }

    /// The generation of this number, if it is still there.
    async fn line(&self, generation: u32) -> Result<Option<Line>> {
        let of_number =
            || self.lines().into_iter().find(|line: &Line| line.generation == generation);
        if let Some(line) = of_number() {
            return Ok(Some(line));
        }
        self.reload().await?;
        Ok(of_number())
    }

    fn lines(&self) -> Vec<Line> {
        self.state().lines.clone()
    }

    fn start(&self) -> u64 {
        self.state().start
    }

    fn mode(&self) -> Mode {
        self.state().mode
    }

    /// How long to wait when there is nothing to do, or after a failure.
    fn poll(&self) -> Duration {
        match self.mode() {
            Mode::Historical => self.settings.historical_poll,
            Mode::Realtime => self.settings.realtime_poll,
        }
    }

    fn set_mode(&self, mode: Mode) {
        let mut state = self.state();
        if state.mode != mode {
            tracing::info!(chain = self.chain_id, mode = mode.name(), "changed the mode");
        }
        state.mode = mode;
    }

    fn set_halted(&self, halted: Option<String>) {
        self.state().halted = halted;
    }

    /// Where the chain is, unless that is old news.
    fn known_head(&self) -> Option<Head> {
        let now = self.tables.sql().clock().monotonic();
        let head = self.state().head?;
        (now.saturating_sub(head.at) < self.settings.historical_poll).then_some(head)
    }

    /// Takes note of where the chain is; what is final stays so, whatever a node that lags says.
    fn saw_head(&self, finalized: BlockRef, latest: u64) -> Head {
        let at = self.tables.sql().clock().monotonic();
        let mut state = self.state();
        let known = state.head.filter(|known| known.finalized.number > finalized.number);
        let finalized = known.map_or(finalized, |known| known.finalized);
        let head = Head { finalized, latest, at };
        state.head = Some(head);
        head
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The kind of the jobs of a collector.
pub fn kind(chain_id: u64, consumer: &str) -> String {
    format!("collect-{chain_id}-{consumer}")
}

#[cfg(test)]
mod tests;
