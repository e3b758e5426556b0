//! A chain: followed, reorganized, filled backwards, queried, and verified.
//!
//! Guarantees: every answer is compared with a scan of the chain's own blocks. Leaves to others: real nodes; the
//! chain is generated from a seed, in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::{Filter, LogIndex, Settings, Stores};
use logmill_chain::sim::{FEE_COLLECTOR, Shape, SimChain, SimSource};
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::SqliteSettings;
use logmill_io::{Clock, OsEntropy, Sql, SystemClock};
use logmill_pipeline::audit::{Auditor, audit};
use logmill_pipeline::ingest::{IngestSettings, Progress};
use logmill_pipeline::process::{Ingest, Roles};
use logmill_pipeline::{Chain, Tip};
use logmill_work::{Queue, RunnerSettings};
use tokio::sync::watch;

use super::check;
use crate::error::{Error, Result};
use crate::output;

const BLOCKS: u64 = 1_500;
const REORG_DEPTH: u64 = 5;
/// Small, so that there is history to fill.
const CELL_BLOCKS: u64 = 256;
/// Time limit for each step.
const WAIT_MAX: Duration = Duration::from_secs(120);
const LOOK_WAIT: Duration = Duration::from_millis(20);

pub(super) async fn show(folder: &Path, queue: &Queue) -> Result<(Chain, SimChain, String)> {
    let clock = SystemClock::shared();
    let sim = SimChain::new(1, Shape::sparse());
    sim.grow(BLOCKS);
    let chain = open(folder, sim.settings().chain_id, &clock).await?;
    let ingest = ingest(&chain, &sim, queue, &clock);
    let (stop, stopped) = watch::channel(false);
    let stop_requested = || {
        let mut stopped = stopped.clone();
        async move {
            // A dropped sender means stop too.
            let _ = stopped.wait_for(|stopped| *stopped).await;
        }
    };
    let shown = async {
        let shown = follow_and_ask(&chain, &sim, &*clock).await;
        // Without a receiver ingest has ended.
        let _ = stop.send(true);
        shown
    };
    let (ran, shown) = futures::future::join(ingest.run(stop_requested), shown).await;
    ran?;
    Ok((chain, sim, shown?))
}

async fn open(folder: &Path, chain_id: u64, clock: &Arc<dyn Clock>) -> Result<Chain> {
    let entropy = OsEntropy::shared();
    let sqlite = SqliteSettings::file(folder.join("chain.db"));
    let sql = Sql::sqlite(&sqlite, Arc::clone(clock), Arc::clone(&entropy)).await?;
    let (meta, blobs) = (SqlMeta::shared(sql), FileBlobs::open(folder.join("chain"))?);
    let stores = Stores { meta: Arc::clone(&meta), blobs, clock: Arc::clone(clock), entropy };
    let settings = Settings { cell_blocks: CELL_BLOCKS, ..Settings::default() };
    let index = LogIndex::open(stores, settings).await.map_err(Error::of_index(chain_id))?;
    Ok(Chain::new(chain_id, index, Tip::open(meta, "chain/demo").await?))
}

fn ingest(chain: &Chain, sim: &SimChain, queue: &Queue, clock: &Arc<dyn Clock>) -> Ingest {
    let source = SimSource::new(sim.clone(), Arc::clone(clock), OsEntropy::shared());
    Ingest {
        chain: chain.clone(),
        source: source.clone(),
        historic: source,
        queue: queue.clone(),
        settings: IngestSettings::default(),
        runner: RunnerSettings::new("", "demo", 1),
        roles: Roles { forward: true, history: true },
        owner: "demo".to_owned(),
        progress: Arc::new(Progress::new(Arc::clone(clock), chain.chain_id())),
        auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(clock), 0)),
        clock: Arc::clone(clock),
    }
}

async fn follow_and_ask(chain: &Chain, sim: &SimChain, clock: &dyn Clock) -> Result<String> {
    let started = clock.monotonic();
    wait_for(chain, sim, clock, "followed and filled").await?;
    let filled = clock.monotonic().saturating_sub(started);
    sim.reorg(REORG_DEPTH, REORG_DEPTH + 1)?;
    wait_for(chain, sim, clock, "reorganized").await?;
    let head = sim.latest().number;
    let filter = Filter::range(0..=head).address(FEE_COLLECTOR);
    let found = chain.view().await?.logs(&filter).await?.logs;
    let blocks = (0..=head).filter_map(|number| sim.block(number));
    let (mut logs, mut expected) = (0, Vec::new());
    for block in blocks {
        logs += block.log_count();
        let wanted = block.logs().filter(|placed| placed.log.address == FEE_COLLECTOR);
        expected
            .extend(wanted.map(|placed| (block.at.number, placed.log_index, placed.log.clone())));
    }
    let same = found.len() == expected.len()
        && found.iter().zip(&expected).all(|(found, (number, index, log))| {
            found.block_number == *number
                && usize::try_from(found.log.log_index) == Ok(*index)
                && found.log.data == log.data
        });
    check(same, || format!("found {} fee logs, expected {}", found.len(), expected.len()))?;
    let report = audit(chain, 0..head, |_| {}).await?;
    check(report.is_clean() && report.verified > 0, || format!("the audit found {report:?}"))?;
    Ok(format!(
        "chain: {head} blocks and {logs} logs followed, verified and filled backwards in {}, a reorg of {REORG_DEPTH} \
         blocks survived; {} fee events found, the same as by a scan, {} stored blocks verified again",
        output::duration(filled),
        found.len(),
        report.verified,
    ))
}

/// Waits until everything is stored and the stored head is the chain's head.
async fn wait_for(chain: &Chain, sim: &SimChain, clock: &dyn Clock, what: &str) -> Result<()> {
    let end = clock.monotonic() + WAIT_MAX;
    loop {
        let view = chain.view().await?;
        if view.is_complete() && view.head().is_some_and(|head| head.hash == sim.latest().hash) {
            return Ok(());
        }
        check(clock.monotonic() < end, || {
            format!("the chain was not {what} within {} s", WAIT_MAX.as_secs())
        })?;
        clock.sleep(LOOK_WAIT).await;
    }
}
