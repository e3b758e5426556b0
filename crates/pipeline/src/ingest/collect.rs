//! The collector (seed 000): collects one event of some contracts over `eth_getLogs`, in leased ranges, with many
//! workers, straight into tables; for users who need one event and no archive.
//!
//! ```text
//!   test_connection ─▶ seed_cursor ─▶ ┌ plan: missing ranges up to the newest final block become jobs
//!                                     ├ workers: job ─▶ logs ─▶ rows + coverage + end of the job, in one transaction
//!                                     └ watch: progress, and ranges that could not be collected
//! ```
//!
//! | module | what |
//! |---|---|
//! | [`event`] | the event, and the table that it is decoded into |
//! | `plan` | the ranges to collect next |
//! | `scan` | collecting one range |
//! | `mode` | history or head, and how long to wait |
//! | `records` | the start, and the last final block seen |
//! | `retry` | retries of database operations |
//! | [`status`] | status and progress |
//! | [`stored`] | all events that were ever collected |
//!
//! Guarantees: every event of a final block from the start on is in the tables once, whatever crashes or sends false
//! data, or its range is reported as missing. Any number of processes work together over one database. Leaves to
//! others: reading the tables, and blocks that are not final yet.

pub mod event;
mod mode;
mod plan;
mod records;
mod retry;
mod scan;
pub mod status;
pub mod stored;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logmill_chain::{Address, BlockRef, Finality, NodeSource};
use logmill_io::ErrorKind;
use logmill_work::{Attempts, Backoff, Runner, RunnerSettings};
use tokio::sync::{Notify, watch};

use crate::derive::{Generation, Tables};
use crate::error::{Error, Result};
use event::LogProcessor;
use records::CollectorRecords;
use retry::with_retry;
use scan::Scanner;
use status::Counts;

pub use mode::Mode;
pub use status::{CollectStatus, MissingRange};

/// Attempts of a range before it needs an operator.
const ATTEMPTS_MAX: u32 = 10;
/// Maximum wait before a failed range is retried.
const FAILURE_WAIT_MAX: Duration = Duration::from_secs(600);
/// The connection test is retried, so that one bad answer does not abort a start.
const TESTS: Attempts =
    Attempts { most: 4, waits: Backoff::Linear { step: Duration::from_millis(300) } };
/// How often an idle worker looks for jobs, in case a wake-up was lost.
const SLOW_POLL: Duration = Duration::from_secs(15);

#[derive(Clone, Debug)]
pub struct CollectSettings {
    /// `CONTRACT_ADDRESS`: contracts, which must have code.
    pub contracts: Vec<Address>,
    /// `START_POINT`: first block to collect.
    pub start: u64,
    /// `BATCH_SIZE`: blocks per job.
    pub batch: u64,
    /// Jobs that this process runs concurrently.
    pub workers: usize,
    /// `JOB_LEASE_TTL_MS`: lease of a job without a heartbeat.
    pub lease: Duration,
    /// `HISTORICAL_POLL_INTERVAL_MS`: wait after a failure, behind the head.
    pub historical_poll: Duration,
    /// `REALTIME_POLL_INTERVAL_MS`: wait for new blocks, and after a failure, at the head.
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
    source: Arc<dyn NodeSource>,
    tables: Tables,
    event: Arc<dyn LogProcessor>,
    settings: CollectSettings,
    /// Unique for every run of every process.
    owner: String,
    records: CollectorRecords,
    state: Mutex<State>,
    /// Notified when a job has ended.
    ended: Notify,
    counts: Counts,
}

#[derive(Debug)]
struct State {
    start: u64,
    mode: Mode,
    head: Option<Head>,
    generations: Vec<Generation>,
    /// Why no new ranges are claimed, if so.
    halted: Option<String>,
    /// When `tidy` last ran, on the monotonic clock.
    tidied_at: Option<Duration>,
    /// Whether the last step found nothing missing.
    idles: bool,
}

/// The chain's heads as last seen.
#[derive(Clone, Copy, Debug)]
struct Head {
    finalized: BlockRef,
    latest: u64,
    /// When it was seen, on the monotonic clock.
    at: Duration,
}

impl Collector {
    /// `owner` must be unique for every run of every process.
    pub fn new(
        chain_id: u64,
        source: Arc<dyn NodeSource>,
        tables: Tables,
        event: Arc<dyn LogProcessor>,
        settings: CollectSettings,
        owner: impl Into<String>,
    ) -> Self {
        let records = CollectorRecords::new(tables.sql().clone(), chain_id, event.name());
        let state = State {
            start: settings.start,
            mode: Mode::Historical,
            head: None,
            generations: Vec::new(),
            halted: None,
            tidied_at: None,
            idles: false,
        };
        Self {
            chain_id,
            source,
            tables,
            event,
            settings,
            owner: owner.into(),
            records,
            state: Mutex::new(state),
            ended: Notify::new(),
            counts: Counts::default(),
        }
    }

    pub fn kind(&self) -> String {
        kind(self.chain_id, self.event.name())
    }

    /// Checks that the nodes serve this chain and that the contracts have code.
    pub async fn test_connection(&self) -> Result<()> {
        let sql = self.tables.sql();
        let is_retried = |error: &Error| error.kind() == ErrorKind::Transient;
        let note = |attempt: i64, error: &Error| {
            let error = logmill_io::error_chain(error);
            tracing::warn!(attempt, error, "no node answers, retrying");
        };
        let context = (&**sql.clock(), &**sql.entropy());
        TESTS.run(context, |_| self.test_once(), is_retried, note).await
    }

    async fn test_once(&self) -> Result<()> {
        let info = self.source.info().await?;
        if info.chain_id != self.chain_id {
            let what = format!(
                "wrong RPC chain id: the node serves chain {}, not {}",
                info.chain_id, self.chain_id
            );
            return Err(Error::Invalid { what });
        }
        for contract in &self.settings.contracts {
            if !self.has_code(*contract).await? {
                let chain = self.chain_id;
                let what = format!("no contract deployed at {contract} on chain {chain}");
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
            "connected to the chain"
        );
        Ok(())
    }

    async fn has_code(&self, contract: Address) -> Result<bool> {
        let answer = self.source.pass("eth_getCode", &format!(r#"["{contract}","latest"]"#)).await;
        let code = serde_json::from_str::<String>(&answer?).unwrap_or_default();
        Ok(code.strip_prefix("0x").is_some_and(|code| !code.is_empty()))
    }

    /// Sets the start, once for all processes, and opens the tables. Returns the start that applies.
    pub async fn seed_cursor(&self) -> Result<u64> {
        let (sql, asked) = (self.tables.sql(), self.settings.start);
        let start = with_retry(sql, "set the start", || self.records.seed(asked)).await?;
        if start < asked {
            tracing::warn!(
                start,
                asked,
                "collecting began below START_POINT and continues from there"
            );
        }
        self.state().start = start;
        self.reload().await?;
        Ok(start)
    }

    /// Works until `stop` completes or the database fails permanently. Jobs that are running then are released at once.
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
        let stop_requested = || {
            let (mut stopped, stop) = (stopped.clone(), stop());
            async move {
                tokio::select! {
                    biased;
                    () = stop => {}
                    // A dropped sender has stopped too.
                    _ = stopped.wait_for(|stopped| *stopped) => {}
                }
            }
        };
        let working = async {
            let ran = runner.run(stop_requested()).await;
            // The other half may have ended already.
            let _ = stopping.send(true);
            ran
        };
        let planning = async {
            let planned = tokio::select! {
                biased;
                () = stop_requested() => Ok(()),
                error = self.plan() => Err(error),
                () = self.watch() => Ok(()),
                () = self.publish_progress() => Ok(()),
            };
            let _ = stopping.send(true);
            planned
        };
        let (worked, planned) = futures::join!(working, planning);
        planned?;
        Ok(worked?)
    }

    /// Reads which generations of the tables exist.
    async fn reload(&self) -> Result<()> {
        let processors = [Arc::clone(&self.event).as_processor()];
        let generations = || self.tables.generations(self.chain_id, &processors);
        let generations = with_retry(self.tables.sql(), "open the tables", generations).await?;
        self.state().generations = generations;
        Ok(())
    }

    /// The generation with this number, if it still exists.
    async fn generation(&self, number: u32) -> Result<Option<Generation>> {
        let of_number = || {
            self.generations()
                .into_iter()
                .find(|generation: &Generation| generation.number == number)
        };
        if let Some(generation) = of_number() {
            return Ok(Some(generation));
        }
        self.reload().await?;
        Ok(of_number())
    }

    fn generations(&self) -> Vec<Generation> {
        self.state().generations.clone()
    }

    fn start(&self) -> u64 {
        self.state().start
    }

    fn mode(&self) -> Mode {
        self.state().mode
    }

    /// Wait when there is nothing to do, or after a failure.
    fn poll(&self) -> Duration {
        match self.mode() {
            Mode::Historical => self.settings.historical_poll,
            Mode::Realtime => self.settings.realtime_poll,
        }
    }

    fn set_mode(&self, mode: Mode) {
        let mut state = self.state();
        if state.mode != mode {
            tracing::info!(
                chain = self.chain_id,
                mode = mode.name(),
                "the collector changed its mode"
            );
        }
        state.mode = mode;
    }

    fn set_halted(&self, halted: Option<String>) {
        self.state().halted = halted;
    }

    /// The last seen heads, unless they are outdated.
    fn known_head(&self) -> Option<Head> {
        let now = self.tables.sql().clock().monotonic();
        let head = self.state().head?;
        (now.saturating_sub(head.at) < self.settings.historical_poll).then_some(head)
    }

    /// Records the heads. The finalized block never moves down, whatever a lagging node reports.
    fn record_head(&self, finalized: BlockRef, latest: u64) -> Head {
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

pub fn kind(chain_id: u64, consumer: &str) -> String {
    format!("collect-{chain_id}-{consumer}")
}

#[cfg(test)]
mod tests;
