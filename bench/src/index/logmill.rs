//! Logmill's log index, with its records in SQLite and its chunks in files.
//!
//! Sealing and merging run beside each commit, and a commit counts as done when both are: nothing of it happens while
//! the clock stands.

use std::path::{Path, PathBuf};
use std::time::Instant;

use async_trait::async_trait;
use finalized_log_index::{Filter, FinalizedBlock, GcMode, LogIndex, Settings, Stores, Writer};
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};

use super::engine::{Answer, Cost, Engine, Found, IndexSize, Want, Watch, folder_bytes};

/// The index, open.
pub struct Logmill {
    index: LogIndex,
    writer: Writer,
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
        let writer = index.writer("bench").await?;
        Ok(Self { index, writer, folder: folder.to_owned() })
    }
}

#[async_trait]
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
        let watch = Watch::start();
        let (ingested, maintained) =
            tokio::join!(self.writer.ingest_finalized_blocks(&blocks), self.writer.maintain());
        (ingested?, maintained?);
        Ok(watch.stop())
    }

    async fn settle(&mut self) -> anyhow::Result<Cost> {
        let watch = Watch::start();
        self.writer.maintain().await?;
        self.writer.collect_garbage(GcMode::Delete).await?;
        Ok(watch.stop())
    }

    async fn prepare_queries(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn query(&mut self, filter: &Filter, want: Want) -> anyhow::Result<Answer> {
        let start = Instant::now();
        let logs = self.index.query_finalized(filter).await?.logs;
        let elapsed = start.elapsed();
        let results = logs.len();
        Ok(Answer { elapsed, results, found: (want == Want::Logs).then_some(Found::Logs(logs)) })
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
