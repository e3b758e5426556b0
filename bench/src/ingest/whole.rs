//! The whole pipeline as the server runs it: forward and backward ingester, jobs and records in SQLite, chunks and
//! bodies in files, everything durable, default settings.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use finalized_log_index::{LogIndex, Settings as IndexSettings, Stores};
use logmill_chain::ChainSource;
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::audit::Auditor;
use logmill_pipeline::ingest::{IngestSettings, Progress};
use logmill_pipeline::process::{Ingest, Roles};
use logmill_pipeline::{Chain, Tip};
use logmill_work::{Queue, RunnerSettings};
use tokio::sync::watch;

use super::{Cost, Stopwatch};
use crate::index::engine::folder_bytes;

/// Owner of the leases.
const OWNER: &str = "bench";
/// How often it is checked whether everything is stored.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// Maximum time without progress.
const STUCK_AFTER: Duration = Duration::from_secs(60);
/// The server's default.
const AUDIT_BLOCKS_PER_SECOND: u64 = 20;

/// Result of an ingest.
#[derive(Clone, Copy, Debug)]
pub struct IngestResult {
    pub blocks: u64,
    pub logs: u64,
    pub transactions: Option<u64>,
    /// Until everything was stored and could be queried.
    pub covered: Cost,
    /// Until everything was also sealed and merged.
    pub sealed: Cost,
    /// Size of the chunks: logs and their index.
    pub chunk_bytes: u64,
    /// Logs in chunks; the others are in the tail.
    pub chunk_logs: u64,
    /// Size of the bodies of blocks.
    pub body_bytes: u64,
    /// Number of blocks with bodies.
    pub body_blocks: u64,
    pub folder_bytes: u64,
}

/// Ingests all blocks of a source up to and including `last` into an empty folder, with or without senders.
pub async fn ingest(
    source: Arc<dyn ChainSource>,
    folder: &Path,
    last: u64,
    store_senders: bool,
) -> anyhow::Result<IngestResult> {
    let chain_id = source.info().await?.chain_id;
    let chain = open(folder, chain_id).await?;
    let queue = Queue::open(sqlite(&folder.join("work.db")).await?).await?;
    let clock = SystemClock::shared();
    let ingest = Ingest {
        auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(&clock), AUDIT_BLOCKS_PER_SECOND)),
        chain: chain.clone(),
        historic: source.clone(),
        source,
        queue,
        settings: IngestSettings { store_senders, ..IngestSettings::default() },
        runner: RunnerSettings::new("", OWNER, 1),
        roles: Roles { forward: true, history: true },
        owner: OWNER.to_owned(),
        progress: Arc::new(Progress::new(Arc::clone(&clock), chain_id)),
        clock,
    };
    let watch = Stopwatch::start()?;
    let (stop, stopped) = watch::channel(false);
    let running = async {
        let stop_requested = || {
            let mut stopped = stopped.clone();
            async move {
                let _ = stopped.wait_for(|stopped| *stopped).await;
            }
        };
        ingest.run(stop_requested).await
    };
    let covering = async {
        let covered = cover(&chain, &ingest.progress, last).await;
        let cost = watch.cost();
        let _ = stop.send(true);
        covered.and(cost)
    };
    let (ran, covered) = tokio::join!(running, covering);
    let covered = covered?;
    ran?;
    let writer = chain.index().writer(OWNER).await?;
    writer.maintain().await?;
    let sealed = watch.cost()?;
    writer.release().await?;
    let report = ingest.progress.report();
    let chunks = chain.index().chunks();
    let bodies = || chunks.iter().flat_map(|chunk| &chunk.bodies);
    Ok(IngestResult {
        blocks: last + 1,
        logs: report.forward_logs + report.history_logs,
        transactions: None,
        covered,
        sealed,
        chunk_bytes: chunks.iter().map(|chunk| chunk.bytes).sum(),
        chunk_logs: chunks.iter().map(|chunk| u64::from(chunk.logs)).sum(),
        body_bytes: bodies().map(|bodies| bodies.bytes).sum(),
        body_blocks: bodies().map(|bodies| bodies.blocks.end - bodies.blocks.start).sum(),
        folder_bytes: folder_bytes(folder)?,
    })
}

/// Opens the stored chain in a folder, as the server does.
pub async fn open(folder: &Path, chain_id: u64) -> anyhow::Result<Chain> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let meta = SqlMeta::shared(sqlite(&folder.join("index.db")).await?);
    let blobs = FileBlobs::open(folder.join("blobs"))?;
    let stores = Stores { meta: meta.clone(), blobs, clock, entropy };
    let prefix = format!("log-index/{chain_id}");
    let index = LogIndex::open(stores, IndexSettings { prefix, ..IndexSettings::default() });
    let tip = Tip::open(meta, format!("chain/{chain_id}")).await?;
    Ok(Chain::new(chain_id, index.await?, tip))
}

async fn sqlite(file: &Path) -> anyhow::Result<Sql> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    Ok(Sql::sqlite(&SqliteSettings::file(file), clock, entropy).await?)
}

/// Waits until all blocks up to `last` are stored.
async fn cover(chain: &Chain, progress: &Progress, last: u64) -> anyhow::Result<()> {
    let mut before = (0, std::time::Instant::now());
    loop {
        let covered = chain.covered();
        if matches!(&covered[..], [all] if all.start == 0 && all.end > last) {
            return Ok(());
        }
        let report = progress.report();
        ensure!(report.stalled.is_none(), "ingest has stopped: {:?}", report.stalled);
        let done = report.forward_blocks + report.history_blocks;
        if done != before.0 {
            before = (done, std::time::Instant::now());
        }
        if before.1.elapsed() > STUCK_AFTER {
            let error = report.last_error;
            return Err(error.map_or_else(|| anyhow::anyhow!("unknown reason"), anyhow::Error::msg))
                .with_context(|| format!("no progress; stored blocks: {covered:?}"));
        }
        if done > 4 * (last + 1) {
            bail!("the same blocks are ingested repeatedly");
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
