//! What the server does for the chain it follows: sources, what is stored, and ingest.
//!
//! Guarantees: a wrong chain, or one without finality, is refused before anything is written; a chain that is stored
//! already is served also while its nodes are away. Leaves to others: ingest itself ([`logmill_pipeline`]), serving.

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::era1::{Era1, Era1Settings, Era1Source};
use logmill_chain::evm::{EvmSource, NodeSettings};
use logmill_chain::{ChainSource, Finality};
use logmill_io::wire::HttpClient;
use logmill_io::{Clock, OsEntropy, SystemClock};
use logmill_pipeline::Chain;
use logmill_pipeline::audit::Auditor;
use logmill_pipeline::derive::Tables;
use logmill_pipeline::ingest::{Ingest, Layered, Progress, ProgressReport};
use logmill_work::{Queue, RunnerSettings};

use crate::config::Settings;
use crate::derive::Derive;
use crate::error::{Error, Result};
use crate::rpc::{Progress as Shown, Served};
use crate::stores::index::IndexStores;

/// How often progress is told.
const TOLD_EVERY: Duration = Duration::from_secs(10);
/// How often a chain without ingest in this process is looked at.
const FOLLOW_EVERY: Duration = Duration::from_millis(500);
/// How far behind the head a chain may be and still be called caught up.
const CAUGHT_UP_WITHIN: u64 = 2;

/// A chain of this server.
#[derive(Debug)]
pub(crate) struct OpenChain {
    pub(crate) chain: Chain,
    pub(crate) ingest: Option<Ingest>,
    /// What is derived of it; none if nothing is.
    pub(crate) derive: Option<Derive>,
}

/// Opens the chain that is configured, and those that are stored.
pub(crate) async fn open(
    settings: &Settings,
    queue: &Queue,
    stores: &IndexStores,
    tables: Option<&Tables>,
    owner: &str,
) -> Result<Vec<OpenChain>> {
    let mut open = Vec::new();
    let stored = stores.chains().await?;
    let mut followed = None;
    if settings.chain.is_given() {
        let clock = SystemClock::shared();
        let (source, historic) = sources(settings, &clock).await?;
        let chain_id = chain_id(settings, &*source, &stored).await?;
        let chain = stores.chain(chain_id).await?;
        followed = Some(chain_id);
        let node = Some(&source);
        let derive = derive(settings, queue, tables, &chain, node, owner).await?;
        let ingest = ingest(settings, queue, chain.clone(), source, historic, owner);
        open.push(OpenChain { chain, ingest: Some(ingest), derive });
    }
    for chain_id in stored.into_iter().filter(|id| Some(*id) != followed) {
        let chain = stores.chain(chain_id).await?;
        let derive = derive(settings, queue, tables, &chain, None, owner).await?;
        open.push(OpenChain { chain, ingest: None, derive });
    }
    Ok(open)
}

/// Where blocks come from.
pub(crate) type Source = Arc<dyn ChainSource>;

/// Where new blocks come from, and where history does.
async fn sources(settings: &Settings, clock: &Arc<dyn Clock>) -> Result<(Source, Source)> {
    let given = &settings.chain;
    let key = |key: &str| {
        let key = key.to_owned();
        move |why| Error::BadValue { origin: "the configuration".to_owned(), key, why }
    };
    let nodes = given.nodes().map_err(key("chain.rpc_urls"))?;
    let historic = given.historic_nodes().map_err(key("chain.historic_rpc_urls"))?;
    let live: Option<Source> = match nodes.is_empty() {
        true => None,
        false => Some(evm(settings, nodes, clock)?),
    };
    let historic: Option<Source> = match historic.is_empty() {
        true => live.clone(),
        false => Some(evm(settings, historic, clock)?),
    };
    let Some(folder) = given.era1() else {
        let live = live.ok_or_else(|| Error::Internal { what: "no source".to_owned() })?;
        let historic = historic.unwrap_or_else(|| Arc::clone(&live));
        return Ok((live, historic));
    };
    let chain_id = match (given.id(), &live) {
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
    evm(settings, settings.chain.nodes().map_err(wrong)?, clock)
}

fn evm(settings: &Settings, nodes: Vec<NodeSettings>, clock: &Arc<dyn Clock>) -> Result<Source> {
    let http = HttpClient::new(Arc::clone(clock))?;
    let (evm, entropy) = (settings.chain.evm(), OsEntropy::shared());
    Ok(Arc::new(EvmSource::new(nodes, evm, &http, Arc::clone(clock), &entropy)?))
}

/// Which chain it is: what the source says, or what is known if it does not answer.
async fn chain_id(settings: &Settings, source: &dyn ChainSource, stored: &[u64]) -> Result<u64> {
    let given = settings.chain.id();
    match source.info().await {
        Ok(info) => {
            let finality = match info.finality {
                Finality::Tags => "by tag".to_owned(),
                Finality::Depth(depth) => format!("{depth} confirmations"),
            };
            tracing::info!(
                chain = info.chain_id,
                client = info.client,
                finality,
                "found the chain"
            );
            Ok(info.chain_id)
        }
        Err(error) if error.kind() == logmill_io::ErrorKind::Transient => {
            let known = match (given, stored) {
                (Some(id), _) => Some(id),
                (None, [id]) => Some(*id),
                _ => None,
            };
            let Some(known) = known else {
                return Err(error.into());
            };
            let said = logmill_io::chain(&error);
            tracing::warn!(chain = known, error = said, "no node answers: serves what is stored");
            Ok(known)
        }
        Err(error) => Err(error.into()),
    }
}

fn ingest(
    settings: &Settings,
    queue: &Queue,
    chain: Chain,
    source: Source,
    historic: Source,
    owner: &str,
) -> Ingest {
    let clock = SystemClock::shared();
    let runner = runner(settings, owner);
    let rate = settings.ingest.audit_blocks_per_second;
    Ingest {
        auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(&clock), rate)),
        chain,
        source,
        historic,
        queue: queue.clone(),
        settings: settings.ingest(),
        runner,
        roles: settings.ingest.roles(),
        owner: owner.to_owned(),
        progress: Arc::new(Progress::new(Arc::clone(&clock))),
        clock,
    }
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

async fn derive(
    settings: &Settings,
    queue: &Queue,
    tables: Option<&Tables>,
    chain: &Chain,
    source: Option<&Source>,
    owner: &str,
) -> Result<Option<Derive>> {
    let Some(tables) = tables else {
        return Ok(None);
    };
    let runner = runner(settings, owner);
    Ok(Some(Derive::open(settings, chain, tables, queue, source, runner).await?))
}

impl OpenChain {
    /// The chain as it is served.
    pub(crate) fn served(self: &Arc<Self>) -> Served {
        Served {
            chain: self.chain.clone(),
            source: self.ingest.as_ref().map(|ingest| Arc::clone(&ingest.source)),
            progress: Arc::clone(self) as Arc<dyn Shown>,
            reader: self.derive.as_ref().map(|derive| derive.reader.clone()),
        }
    }

    /// Works for the chain until `stop` completes.
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
        let (stored, derived) = futures::future::join(self.store(&stop), derived).await;
        stored.and(derived)
    }

    /// Ingests, or follows what another process ingests.
    async fn store<S>(&self, stop: &impl Fn() -> S) -> Result<()>
    where
        S: Future<Output = ()> + Send,
    {
        let clock = SystemClock::shared();
        let Some(ingest) = &self.ingest else {
            let follow = async {
                loop {
                    if let Err(error) = self.chain.follow().await {
                        tracing::warn!(error = logmill_io::chain(&error), "follow the writer");
                    }
                    clock.sleep(FOLLOW_EVERY).await;
                }
            };
            tokio::select! {
                biased;
                () = stop() => return Ok(()),
                () = follow => return Ok(()),
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

impl Shown for OpenChain {
    fn behind(&self) -> Option<String> {
        let report = self.ingest.as_ref()?.progress.report();
        if let Some(why) = report.stalled {
            return Some(why);
        }
        match report.behind {
            None => Some("the chain has not been reached yet".to_owned()),
            Some(blocks) if blocks > CAUGHT_UP_WITHIN => Some(format!("{blocks} blocks behind")),
            Some(_) => None,
        }
    }

    fn shown(&self) -> serde_json::Value {
        let derive = self.derive.as_ref().map(Derive::shown);
        let Some(ingest) = &self.ingest else {
            return serde_json::json!({ "derive": derive });
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
