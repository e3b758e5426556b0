//! What the server does for the chain it follows: sources, what is stored, and ingest.
//!
//! Guarantees: a wrong chain, or one without finality, is refused before anything is written; a chain whose id is known
//! (because it is set, or stored) is served also while its nodes are away, and one whose id is not is opened as soon as
//! a node has told it ([`OpenChains::meet`]). Leaves to others: ingest itself ([`logmill_pipeline`]), serving.

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::era1::{Era1, Era1Settings, Era1Source};
use logmill_chain::evm::{EvmSettings, EvmSource, NodeSettings};
use logmill_chain::{ChainInfo, ChainSource, Finality};
use logmill_io::wire::HttpClient;
use logmill_io::{Clock, OsEntropy, SystemClock};
use logmill_pipeline::Chain;
use logmill_pipeline::audit::Auditor;
use logmill_pipeline::derive::Tables;
use logmill_pipeline::ingest::process::follow;
use logmill_pipeline::ingest::{Ingest, Layered, Progress, ProgressReport, Role};
use logmill_work::{Queue, RunnerSettings};

use crate::config::Settings;
use crate::derive::Derive;
use crate::error::{Error, Result};
use crate::rpc::{ChainStatus, Served};
use crate::stores::index::IndexStores;

/// How often progress is told.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// How often a chain without ingest in this process is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How long a node is waited for before a start goes on without it.
const ASK_MAX: Duration = Duration::from_secs(5);

/// A chain of this server.
#[derive(Debug)]
pub(crate) struct OpenChain {
    pub(crate) chain: Chain,
    pub(crate) ingest: Option<Ingest>,
    /// How far this process is, or the one that it follows.
    pub(crate) progress: Arc<Progress>,
    /// What is derived of it; none if nothing is.
    pub(crate) derive: Option<Derive>,
}

/// What chains are opened with.
#[derive(Clone)]
pub(crate) struct OpenChains {
    pub(crate) settings: Arc<Settings>,
    pub(crate) queue: Queue,
    pub(crate) stores: Arc<IndexStores>,
    pub(crate) tables: Option<Tables>,
    pub(crate) owner: String,
}

/// Where the blocks of a chain come from.
pub(crate) struct Followed {
    chain_id: u64,
    source: Source,
    historic: Source,
}

impl OpenChains {
    /// Opens the chain that is configured, if it is known which one it is, and those that are stored. True if a node
    /// has yet to tell which one is meant.
    pub(crate) async fn open(&self) -> Result<(Vec<OpenChain>, bool)> {
        let mut open = Vec::new();
        let stored = self.stores.chains().await?;
        let (mut followed, mut is_unknown) = (None, false);
        if self.settings.chain.is_given() {
            match self.find(&stored).await? {
                Some(found) => {
                    followed = Some(found.chain_id);
                    open.push(self.open_followed(found).await?);
                }
                None => is_unknown = true,
            }
        }
        for chain_id in stored.into_iter().filter(|id| Some(*id) != followed) {
            let chain = self.stores.chain(chain_id).await?;
            let derive = self.derive(&chain, None).await?;
            let progress = Arc::new(Progress::new(SystemClock::shared()));
            open.push(OpenChain { chain, ingest: None, progress, derive });
        }
        Ok((open, is_unknown))
    }

    /// Asks the nodes which chain they are of; what is known counts if they do not answer. None if nothing is known.
    async fn find(&self, stored: &[u64]) -> Result<Option<Followed>> {
        let clock = SystemClock::shared();
        let error = match ask(&self.settings, &clock, self.settings.chain.id()).await {
            Ok((found, info)) => {
                introduce(&info);
                return Ok(Some(found));
            }
            Err(error) if error.is_transient() => error,
            Err(error) => return Err(error),
        };
        let known = match (self.settings.chain.id(), stored) {
            (Some(id), _) => Some(id),
            (None, [id]) => Some(*id),
            _ => None,
        };
        let error = crate::output::brief(&logmill_io::chain(&error));
        tracing::warn!(chain = known, error, "no node answers; ingest waits for one");
        let Some(chain_id) = known else { return Ok(None) };
        // When a node answers, it must be of this chain.
        let (source, historic) = sources(&self.settings, &clock, Some(chain_id)).await?;
        Ok(Some(Followed { chain_id, source, historic }))
    }

    /// Asks once more which chain is meant, and opens it.
    pub(crate) async fn meet(&self) -> Result<OpenChain> {
        let clock = SystemClock::shared();
        let (found, info) = ask(&self.settings, &clock, self.settings.chain.id()).await?;
        introduce(&info);
        self.open_followed(found).await
    }

    async fn open_followed(&self, found: Followed) -> Result<OpenChain> {
        let Followed { chain_id, source, historic } = found;
        let chain = self.stores.chain(chain_id).await?;
        let derive = self.derive(&chain, Some(&source)).await?;
        let ingest = self.ingest(chain.clone(), source, historic);
        let progress = Arc::clone(&ingest.progress);
        Ok(OpenChain { chain, ingest: Some(ingest), progress, derive })
    }

    fn ingest(&self, chain: Chain, source: Source, historic: Source) -> Ingest {
        let clock = SystemClock::shared();
        let rate = self.settings.ingest.audit_blocks_per_second;
        Ingest {
            auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(&clock), rate)),
            chain,
            source,
            historic,
            queue: self.queue.clone(),
            settings: self.settings.ingest(),
            runner: runner(&self.settings, &self.owner),
            roles: self.settings.ingest.roles(),
            owner: self.owner.clone(),
            progress: Arc::new(Progress::new(Arc::clone(&clock))),
            clock,
        }
    }

    async fn derive(&self, chain: &Chain, source: Option<&Source>) -> Result<Option<Derive>> {
        let Some(tables) = &self.tables else {
            return Ok(None);
        };
        let (settings, runner) = (&self.settings, runner(&self.settings, &self.owner));
        Ok(Some(Derive::open(settings, chain, tables, &self.queue, source, runner).await?))
    }
}

/// Asks the nodes which chain they are of, for a short time.
pub(crate) async fn ask(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    chain_id: Option<u64>,
) -> Result<(Followed, ChainInfo)> {
    let asked = async {
        let (source, historic) = sources(settings, clock, chain_id).await?;
        let info = source.info().await?;
        Ok((Followed { chain_id: info.chain_id, source, historic }, info))
    };
    tokio::select! {
        biased;
        answered = asked => answered,
        () = clock.sleep(ASK_MAX) => {
            let limit_ms = logmill_io::millis(ASK_MAX).unsigned_abs();
            let doing = "ask the nodes for their chain";
            Err(logmill_io::Error::TooSlow { doing, limit_ms }.into())
        }
    }
}

fn introduce(info: &ChainInfo) {
    let finality = match info.finality {
        Finality::Tags => "by tag".to_owned(),
        Finality::Depth(depth) => format!("{depth} confirmations"),
    };
    tracing::info!(chain = info.chain_id, client = info.client, finality, "found the chain");
}

/// Where blocks come from.
pub(crate) type Source = Arc<dyn ChainSource>;

/// Where new blocks come from, and where history does. Nodes must be of the chain with this id, if one is given.
async fn sources(
    settings: &Settings,
    clock: &Arc<dyn Clock>,
    chain_id: Option<u64>,
) -> Result<(Source, Source)> {
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
            Ok((live, Arc::new(Layered::new(vec![(ranges, files)], historic))))
        }
        _ => Ok((Arc::clone(&files), files)),
    }
}

/// The nodes that the head is followed by.
pub(crate) fn live(settings: &Settings, clock: &Arc<dyn Clock>) -> Result<Source> {
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

/// How jobs are run; who runs them sets kind and slots.
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
    /// The chain as it is served.
    pub(crate) fn served(self: &Arc<Self>) -> Served {
        Served {
            chain: self.chain.clone(),
            source: self.ingest.as_ref().map(|ingest| Arc::clone(&ingest.source)),
            status: Arc::clone(self) as Arc<dyn ChainStatus>,
            reader: self.derive.as_ref().map(|derive| derive.reader.clone()),
        }
    }

    /// How many stored blocks are damaged, as far as this process or the one that writes has found out.
    pub(crate) fn damaged(&self) -> u64 {
        let report = self.progress.report();
        match &self.ingest {
            Some(ingest) if report.role == Role::Writer => ingest.auditor.damaged(),
            _ => report.damaged,
        }
    }

    /// Works for the chain until `stop` completes; the error is one after which this process must end.
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
        // One that cannot go on ends both: what is left must not linger.
        let stored = Box::pin(self.store(&stop));
        futures::future::try_join(stored, Box::pin(derived)).await.map(|_| ())
    }

    /// Ingests, or follows what another process ingests.
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
            tokio::select! {
                biased;
                () = stop() => return Ok(()),
                ended = following => return ended,
            }
        };
        let told = tell(self.chain.chain_id(), &ingest.progress, &*clock);
        tokio::select! {
            biased;
            ended = ingest.run(stop) => Ok(ended?),
            () = told => Ok(()),
        }
    }
}

impl ChainStatus for OpenChain {
    fn status_json(&self) -> serde_json::Value {
        let derive = self.derive.as_ref().map(Derive::shown);
        let Some(ingest) = &self.ingest else {
            return serde_json::json!({ "derive": derive, "ingest": self.progress.report() });
        };
        serde_json::json!({
            "derive": derive,
            "ingest": ingest.progress.report(),
            "audit": ingest.auditor.report(),
            "main_ingester": { "enabled": ingest.roles.forward },
            "history_ingester": {
                "enabled": ingest.roles.history,
                "nodes": ingest.historic.nodes(),
            },
        })
    }
}

/// Tells the person at the terminal how far ingest is, whenever it has moved.
async fn tell(chain: u64, progress: &Progress, clock: &dyn Clock) {
    let mut before = ProgressReport::default();
    loop {
        clock.sleep(TOLD_EVERY).await;
        let now = progress.report();
        let moved = now.forward_blocks != before.forward_blocks
            || now.history_blocks != before.history_blocks;
        if moved {
            tracing::info!(
                chain,
                head = now.head,
                behind = now.behind,
                blocks_per_second = now.forward_blocks_per_second,
                history_missing = now.history_missing,
                history_blocks_per_second = now.history_blocks_per_second,
                history_logs_per_second = now.history_logs_per_second,
                eta = now.history_eta_seconds.map(eta),
                "progress"
            );
        }
        before = now;
    }
}

/// A time as people say it.
fn eta(seconds: u64) -> String {
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds} s"),
        (0, 0, minutes) => format!("{minutes} min"),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}
