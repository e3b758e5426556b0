//! The server's work for the chains it follows: sources, stored chains, and ingest.
//!
//! Guarantees: a wrong chain, or one without finality, is refused before anything is written. A chain whose id is known
//! (because it is configured or stored) is served even while its nodes are unreachable. A chain whose id is not known
//! is opened as soon as a node has reported it ([`OpenChains::identify_again`]). Leaves to others: ingest itself
//! ([`logmill_pipeline`]), serving.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use logmill_chain::era1::{Era1, Era1Settings, Era1Source};
use logmill_chain::evm::{EvmSettings, EvmSource, NodeSettings};
use logmill_chain::{BlockSource, ChainInfo, Finality, NodeSource};
use logmill_io::wire::HttpClient;
use logmill_io::{Clock, ErrorKind, OsEntropy, SystemClock};
use logmill_pipeline::Chain;
use logmill_pipeline::audit::Auditor;
use logmill_pipeline::derive::Tables;
use logmill_pipeline::ingest::{LayeredSource, Progress};
use logmill_pipeline::process::{Ingest, follow};
use logmill_pipeline::recheck::DamageReports;
use logmill_serve::rpc::{ChainStatus, ServedChain};
use logmill_work::{Backoff, Queue, RunnerSettings};

use crate::config::Settings;
use crate::error::{Error, Result};
use crate::stores::index::IndexStores;
use derive::DeriveTasks;
use status::{damaged, log_progress};

pub(crate) mod checks;
pub(crate) mod derive;
mod status;
mod workers;

/// Poll interval for a chain without ingest in this process.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How long a start waits for a node before it continues without one.
const IDENTIFY_MAX: Duration = Duration::from_secs(5);
/// Number of retries within that time if the nodes fail, and the delays between them: a node that failed once is no
/// reason to start without its chain.
const IDENTIFY_RETRIES_MAX: i64 = 2;
const IDENTIFY_WAITS: Backoff = Backoff::Exponential {
    first: Duration::from_millis(250),
    max: IDENTIFY_MAX,
    jitter_percent: 0,
};

/// A chain of this server.
#[derive(Debug)]
pub(crate) struct OpenChain {
    /// The settings that apply to it.
    pub(crate) settings: Arc<Settings>,
    pub(crate) chain: Chain,
    /// Its nodes or files; `None` if this process does not follow it.
    pub(crate) source: Option<Source>,
    pub(crate) ingest: Option<Ingest>,
    /// Progress of this process, or of the one that it follows.
    pub(crate) progress: Arc<Progress>,
    /// `None` if nothing is derived.
    pub(crate) derive: Option<DeriveTasks>,
    /// Whether the same chain was opened again, to be followed.
    handed_over: AtomicBool,
    /// Reports damage to the process that writes; `None` if ingest does.
    reports: Option<DamageReports>,
}

/// Dependencies for opening chains.
#[derive(Clone)]
pub(crate) struct OpenChains {
    pub(crate) settings: Arc<Settings>,
    pub(crate) queue: Queue,
    pub(crate) stores: Arc<IndexStores>,
    pub(crate) tables: Option<Tables>,
    pub(crate) owner: String,
}

/// A chain id, with the sources of new blocks and of history.
pub(crate) struct ChainSources {
    pub(crate) chain_id: u64,
    source: Source,
    historic: Arc<dyn BlockSource>,
    /// Why no node has answered yet, if none has.
    error: Option<String>,
}

/// What is known of a configured chain.
enum FoundChain {
    Known(ChainSources),
    /// A node has yet to report its id: why none has.
    Unknown(String),
}

impl OpenChains {
    /// Opens the configured chains whose id is known, and all stored ones. If a node has yet to report the id of a
    /// configured chain, also returns why none has.
    pub(crate) async fn open(&self) -> Result<(Vec<OpenChain>, Option<String>)> {
        let stored = self.stores.chains().await?;
        let configured = self.settings.followed();
        // Concurrently: each may wait for nodes that do not answer.
        let searches = configured.iter().map(|settings| self.find(settings, &stored));
        let found = futures::future::try_join_all(searches).await?;
        let mut open = Vec::new();
        let mut unknown = None;
        for (settings, found) in configured.iter().zip(found) {
            match found {
                FoundChain::Known(found) => open.push(self.open_followed(settings, found).await?),
                FoundChain::Unknown(error) => unknown = Some(error),
            }
        }
        let followed: Vec<u64> = open.iter().map(|open| open.chain.chain_id()).collect();
        for chain_id in stored.into_iter().filter(|id| !followed.contains(id)) {
            let (chain, settings) = (self.stores.chain(chain_id).await?, &self.settings);
            let derive = self.derive(settings, &chain, None).await?;
            let progress = Arc::new(Progress::new(SystemClock::shared(), chain_id));
            let settings = Arc::clone(settings);
            let handed_over = AtomicBool::new(false);
            let reports = Some(self.reports(&chain));
            let (source, ingest) = (None, None);
            let opened = OpenChain {
                settings,
                chain,
                source,
                ingest,
                progress,
                derive,
                handed_over,
                reports,
            };
            open.push(opened);
        }
        Ok((open, unknown))
    }

    /// Asks the nodes for their chain id; falls back to the configured or stored one if they do not answer.
    async fn find(&self, settings: &Settings, stored: &[u64]) -> Result<FoundChain> {
        let clock = SystemClock::shared();
        let error = match identify(settings, &clock, settings.chain.id()).await {
            Ok((found, info)) => {
                log_chain_info(&info);
                return Ok(FoundChain::Known(found));
            }
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        let known = match (settings.chain.id(), stored) {
            (Some(id), _) => Some(id),
            (None, [id]) => Some(*id),
            _ => None,
        };
        let error = crate::output::brief(&logmill_io::error_chain(&error));
        tracing::warn!(chain = known, error, "no node answers; ingest starts as soon as one does");
        let Some(chain_id) = known else { return Ok(FoundChain::Unknown(error)) };
        // A node that answers later must be of this chain.
        let (source, historic) = sources(settings, &clock, Some(chain_id)).await?;
        Ok(FoundChain::Known(ChainSources { chain_id, source, historic, error: Some(error) }))
    }

    /// Asks the nodes of `[chain]` again for their chain id.
    pub(crate) async fn identify_again(&self) -> Result<ChainSources> {
        let (clock, settings) = (SystemClock::shared(), &self.settings);
        let (found, info) = identify(settings, &clock, settings.chain.id()).await?;
        log_chain_info(&info);
        Ok(found)
    }

    /// Opens a chain to be followed, with the settings that apply to it.
    pub(crate) async fn open_followed(
        &self,
        settings: &Arc<Settings>,
        found: ChainSources,
    ) -> Result<OpenChain> {
        let ChainSources { chain_id, source, historic, error } = found;
        let chain = self.stores.chain(chain_id).await?;
        let derive = self.derive(settings, &chain, Some(&source)).await?;
        let ingest = self.ingest(settings, chain.clone(), Arc::clone(&source), historic);
        let progress = Arc::clone(&ingest.progress);
        // Ingest asks the nodes again, which may take seconds; until then this is the last error.
        if let Some(error) = error {
            progress.set_last_error(error);
        }
        let (settings, handed_over) = (Arc::clone(settings), AtomicBool::new(false));
        let (source, ingest, reports) = (Some(source), Some(ingest), None);
        Ok(OpenChain { settings, chain, source, ingest, progress, derive, handed_over, reports })
    }

    fn reports(&self, chain: &Chain) -> DamageReports {
        let queue = self.queue.in_lane(chain.chain_id());
        DamageReports::new(chain.clone(), queue, SystemClock::shared(), &self.owner)
    }

    fn ingest(
        &self,
        settings: &Settings,
        chain: Chain,
        source: Source,
        historic: Arc<dyn BlockSource>,
    ) -> Ingest {
        let clock = SystemClock::shared();
        let rate = settings.ingest.audit_blocks_per_second;
        // Each chain's jobs wait for the writer thread in a lane of their own.
        let queue = self.queue.in_lane(chain.chain_id());
        Ingest {
            auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(&clock), rate)),
            progress: Arc::new(Progress::new(Arc::clone(&clock), chain.chain_id())),
            chain,
            source,
            historic,
            queue,
            settings: settings.ingest(),
            runner: runner(settings, &self.owner),
            roles: settings.ingest.roles(),
            owner: self.owner.clone(),
            clock,
        }
    }

    async fn derive(
        &self,
        settings: &Settings,
        chain: &Chain,
        source: Option<&Source>,
    ) -> Result<Option<DeriveTasks>> {
        let Some(tables) = self.tables.as_ref().filter(|_| !settings.ingest.raw_only) else {
            return Ok(None);
        };
        // Each chain waits for the writer thread in a lane of its own.
        let tables = tables.through(tables.sql().in_lane(chain.chain_id()));
        let runner = runner(settings, &self.owner);
        let queue = self.queue.in_lane(chain.chain_id());
        Ok(Some(DeriveTasks::open(settings, chain, &tables, &queue, source, runner).await?))
    }
}

/// Asks the nodes for their chain id, for a short time.
pub(crate) async fn identify(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    chain_id: Option<u64>,
) -> Result<(ChainSources, ChainInfo)> {
    let identifying = async {
        let (source, historic) = sources(settings, clock, chain_id).await?;
        let info = fetch_info(&source, &**clock).await?;
        Ok((ChainSources { chain_id: info.chain_id, source, historic, error: None }, info))
    };
    tokio::select! {
        biased;
        identified = identifying => identified,
        () = clock.sleep(IDENTIFY_MAX) => {
            let limit_ms = logmill_io::millis(IDENTIFY_MAX).unsigned_abs();
            let doing = "ask the nodes for their chain id";
            Err(logmill_io::Error::TooSlow { doing, limit_ms }.into())
        }
    }
}

/// Asks for the chain info; retries transient failures.
async fn fetch_info(source: &Source, clock: &dyn Clock) -> logmill_chain::Result<ChainInfo> {
    for failed in 1..=IDENTIFY_RETRIES_MAX {
        match source.info().await {
            Err(error) if error.kind() == ErrorKind::Transient => {
                clock.sleep(IDENTIFY_WAITS.wait(failed, &OsEntropy)).await;
            }
            info => return info,
        }
    }
    source.info().await
}

fn log_chain_info(info: &ChainInfo) {
    let finality = match info.finality {
        Finality::Tags => "by tag".to_owned(),
        Finality::Depth(depth) => format!("{depth} confirmations"),
    };
    tracing::info!(
        chain = info.chain_id,
        client = info.client,
        finality,
        "connected to a node of the chain"
    );
}

pub(crate) type Source = Arc<dyn NodeSource>;

/// Sources of new blocks and of history. Nodes must be of the chain with this id, if one is given.
async fn sources(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    chain_id: Option<u64>,
) -> Result<(Source, Arc<dyn BlockSource>)> {
    let given = &settings.chain;
    let key = |key: &str| {
        let key = key.to_owned();
        move |why| Error::BadValue { origin: "the configuration".to_owned(), key, why }
    };
    let nodes = given.nodes().map_err(key("chain.rpc_urls"))?;
    let historic = given.historic_nodes().map_err(key("chain.historic_rpc_urls"))?;
    let live: Option<Source> = match nodes.is_empty() {
        true => None,
        false => Some(evm(settings, nodes, clock, chain_id)?),
    };
    let historic: Option<Source> = match historic.is_empty() {
        true => live.clone(),
        false => Some(evm(settings, historic, clock, chain_id)?),
    };
    let Some(folder) = given.era1() else {
        let live = live.ok_or_else(|| Error::Internal { what: "no source".to_owned() })?;
        let historic = historic.unwrap_or_else(|| Arc::clone(&live));
        return Ok((live, historic));
    };
    let chain_id = match (chain_id, &live) {
        (Some(id), _) => id,
        (None, Some(live)) => live.info().await?.chain_id,
        (None, None) => 0,
    };
    let era1 = Era1::open_folder(Era1Settings::new(folder, chain_id)).await?;
    let ranges = era1.ranges();
    let files: Source = Era1Source::new(era1, Arc::clone(clock));
    match (live, historic) {
        (Some(live), Some(historic)) => {
            Ok((live, Arc::new(LayeredSource::new(vec![(ranges, files)], historic))))
        }
        _ => Ok((Arc::clone(&files), files)),
    }
}

/// The nodes through which the head is followed, as a source.
pub(crate) fn head_source(settings: &Settings, clock: &Arc<dyn Clock>) -> Result<Source> {
    let wrong = |why| Error::BadValue {
        origin: "the configuration".to_owned(),
        key: "chain.rpc_urls".to_owned(),
        why,
    };
    evm(settings, settings.chain.nodes().map_err(wrong)?, clock, settings.chain.id())
}

fn evm(
    settings: &Settings,
    nodes: Vec<NodeSettings>,
    clock: &Arc<dyn Clock>,
    chain_id: Option<u64>,
) -> Result<Source> {
    let http = HttpClient::new(Arc::clone(clock))?;
    let evm = EvmSettings { chain_id, ..settings.chain.evm() };
    let entropy = OsEntropy::shared();
    Ok(Arc::new(EvmSource::new(nodes, evm, &http, Arc::clone(clock), &entropy)?))
}

/// Runner settings; the caller sets kind and slots.
fn runner(settings: &Settings, owner: &str) -> RunnerSettings {
    let work = &settings.work;
    RunnerSettings {
        lease: work.lease(),
        slow_poll: work.slow_poll(),
        stop_deadline: work.job_stop_deadline(),
        ..RunnerSettings::new("", owner, 1)
    }
}

impl OpenChain {
    /// The handle through which HTTP serves it.
    pub(crate) fn served(self: &Arc<Self>) -> ServedChain {
        ServedChain {
            chain: self.chain.clone(),
            source: self.source.clone(),
            status: Arc::clone(self) as Arc<dyn ChainStatus>,
            reader: self.derive.as_ref().map(|derive| derive.reader.clone()),
        }
    }

    /// Marks this handle as superseded by another handle to the same chain.
    pub(crate) fn hand_over(&self) {
        self.handed_over.store(true, Ordering::SeqCst);
    }

    /// Whether another handle to the same chain has superseded this one.
    pub(crate) fn is_handed_over(&self) -> bool {
        self.handed_over.load(Ordering::SeqCst)
    }

    /// Number of damaged stored blocks, as far as this process or the writer has found out.
    pub(crate) fn damaged(&self) -> u64 {
        let own = self.ingest.as_ref().map(|ingest| ingest.auditor.damaged());
        damaged(&self.progress.report(), own)
    }

    /// Works for the chain until `stop` completes; an error means that this process must end.
    pub(crate) async fn run<S>(&self, stop: impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let derived = async {
            match &self.derive {
                Some(derive) => derive.run(&stop).await,
                None => Ok(()),
            }
        };
        // If one of the two fails, both end: the other must not linger.
        let stored = Box::pin(self.store(&stop));
        futures::future::try_join(stored, Box::pin(derived)).await.map(|_| ())
    }

    /// Ingests, or follows the ingest of another process.
    async fn store<S>(&self, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let clock = SystemClock::shared();
        let Some(ingest) = &self.ingest else {
            let following = async {
                loop {
                    if let Err(error) = follow(&self.chain, &self.progress).await {
                        return Err(Error::from(error));
                    }
                    clock.sleep(FOLLOW_EVERY).await;
                }
            };
            let reporting = async {
                match &self.reports {
                    Some(reports) => reports.run(|| false).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = stop() => return Ok(()),
                ended = following => return ended,
                never = reporting => match never {},
            }
        };
        let logging = log_progress(self.chain.chain_id(), &ingest.progress, &*clock);
        tokio::select! {
            biased;
            ended = ingest.run(stop) => Ok(ended?),
            () = logging => Ok(()),
        }
    }
}
