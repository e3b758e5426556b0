//! Logmill's log index, with its records in SQLite and its chunks in files.
//!
//! Sealing and merging run in the background, as in a server: a merge limits its share of a core by pauses, and no
//! commit waits for it. They also run while the next blocks are generated, when the clock is stopped; that is about a
//! seventh of the time. Their CPU is always counted, and their remaining work is waited for at the end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use finalized_log_index::{
    Filter, FinalizedBlock, GcMode, LogIndex, MaintenanceSummary, Settings, Stores, Writer,
};
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use tokio::task::JoinHandle;

use super::engine::{
    Cost, Engine, FoundLogs, IndexSize, QueryMode, QueryOutcome, Stopwatch, folder_bytes,
};

pub struct Logmill {
    index: LogIndex,
    writer: Arc<Writer>,
    maintaining: Option<JoinHandle<finalized_log_index::Result<MaintenanceSummary>>>,
    folder: PathBuf,
}

impl Logmill {
    pub async fn create(folder: &Path) -> anyhow::Result<Self> {
        let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
        let sqlite = SqliteSettings::file(folder.join("index.db"));
        let sql = Sql::sqlite(&sqlite, clock.clone(), entropy.clone()).await?;
        let blobs = FileBlobs::open(folder.join("blobs"))?;
        let stores = Stores { meta: SqlMeta::shared(sql), blobs, clock, entropy };
        let index = LogIndex::open(stores, Settings::default()).await?;
        let writer = Arc::new(index.writer("bench").await?);
        Ok(Self { index, writer, maintaining: None, folder: folder.to_owned() })
    }

    /// Starts maintenance unless it is already running.
    async fn keep_maintaining(&mut self) -> anyhow::Result<()> {
        if let Some(task) = self.maintaining.take_if(|task| task.is_finished()) {
            task.await??;
        }
        if self.maintaining.is_none() {
            let writer = Arc::clone(&self.writer);
            self.maintaining = Some(tokio::spawn(async move { writer.maintain().await }));
        }
        Ok(())
    }
}

#[async_trait(?Send)]
impl Engine for Logmill {
    fn name(&self) -> &'static str {
        "logmill"
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        vec![("logmill", env!("CARGO_PKG_VERSION").to_owned())]
    }

    fn tuning(&self) -> String {
        "none: the default settings, records in SQLite, chunks in files".to_owned()
    }

    async fn ingest(&mut self, blocks: Vec<FinalizedBlock>) -> anyhow::Result<Cost> {
        let watch = Stopwatch::start();
        self.writer.ingest_finalized_blocks(&blocks).await?;
        self.keep_maintaining().await?;
        Ok(watch.stop())
    }

    async fn settle(&mut self) -> anyhow::Result<Cost> {
        let watch = Stopwatch::start();
        if let Some(task) = self.maintaining.take() {
            task.await??;
        }
        self.writer.maintain().await?;
        self.writer.collect_garbage(GcMode::Delete).await?;
        Ok(watch.stop())
    }

    async fn prepare_queries(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn query(&mut self, filter: &Filter, mode: QueryMode) -> anyhow::Result<QueryOutcome> {
        let start = Instant::now();
        let logs = self.index.query_finalized(filter).await?.logs;
        let elapsed = start.elapsed();
        let results = logs.len();
        Ok(QueryOutcome {
            elapsed,
            results,
            found: (mode == QueryMode::Logs).then_some(FoundLogs::Logs(logs)),
        })
    }

    async fn disk_bytes(&mut self) -> anyhow::Result<u64> {
        folder_bytes(&self.folder)
    }

    async fn index_size(&mut self) -> anyhow::Result<Option<IndexSize>> {
        let chunks = self.index.chunks();
        Ok(Some(IndexSize {
            bytes: chunks.iter().map(|chunk| chunk.index_bytes).sum(),
            values: Some(chunks.iter().map(|chunk| chunk.values).sum()),
        }))
    }
}
