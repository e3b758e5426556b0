//! The log index: stores blocks of a chain like mainnet, and returns what a scan returns.
//!
//! Guarantees: results are compared with all stored logs. Leaves to others: real chains.

use std::path::Path;
use std::sync::Arc;

use finalized_log_index::workload::{Workload, WorkloadSettings};
use finalized_log_index::{Filter, FinalizedBlock, LogIndex, Settings, Stores};
use logmill_io::blob::FileBlobs;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};

use super::check;
use crate::error::{Error, Result};
use crate::output;

const BLOCKS: usize = 300;
const BLOCKS_PER_COMMIT: usize = 64;
/// The chain id in errors: the demo's chain is not a real one.
const CHAIN: u64 = 0;

pub(super) async fn show(folder: &Path) -> Result<String> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let sqlite = SqliteSettings::file(folder.join("index.db"));
    let sql = Sql::sqlite(&sqlite, Arc::clone(&clock), Arc::clone(&entropy)).await?;
    let blobs = FileBlobs::open(folder.join("blobs"))?;
    let stores = Stores { meta: SqlMeta::shared(sql), blobs, clock, entropy };
    let settings = WorkloadSettings { first_block: 0, ..WorkloadSettings::default() };
    let blocks: Vec<FinalizedBlock> = Workload::new(settings).take(BLOCKS).collect();
    fill_and_ask(stores, &blocks).await.map_err(Error::of_index(CHAIN))?
}

async fn fill_and_ask(
    stores: Stores,
    blocks: &[FinalizedBlock],
) -> finalized_log_index::Result<Result<String>> {
    let settings = Settings { cell_blocks: 256, ..Settings::default() };
    let index = LogIndex::open(stores, settings).await?;
    let writer = index.writer("demo").await?;
    for some in blocks.chunks(BLOCKS_PER_COMMIT) {
        writer.ingest_finalized_blocks(some).await?;
    }
    let maintained = writer.maintain().await?;
    let Some(wanted) = blocks.iter().flat_map(|block| &block.logs).next() else {
        return Ok(
            check(false, || "the demo's chain has no log".to_owned()).map(|()| String::new())
        );
    };
    let last = blocks[blocks.len() - 1].number;
    let filter = Filter::range(0..=last).address(wanted.address);
    let found = index.query_finalized(&filter).await?.logs;
    let refused = index.query_finalized(&Filter::range(0..=last + 1)).await.is_err();
    let all = || blocks.iter().flat_map(|block| &block.logs);
    let expected: Vec<_> = all().filter(|log| filter.matches(log)).collect();
    let same = found.iter().map(|log| &log.log).eq(expected.iter().copied());
    let logs = all().count();
    let text = format!(
        "index: {logs} logs of {} blocks, {} sealed into a chunk; a query finds the {} of one contract, the same as \
         a scan, and a query beyond the head is refused",
        blocks.len(),
        if maintained.sealed == 1 { "those of 256" } else { "none" },
        found.len()
    );
    output::note(&format!("demo: index: {logs} logs, {} found", found.len()));
    let sealed = check(maintained.sealed == 1, || format!("{maintained:?}"));
    let checked = sealed
        .and_then(|()| check(same, || "the index and a scan differ".to_owned()))
        .and_then(|()| check(refused, || "a query beyond the head was answered".to_owned()));
    Ok(checked.map(|()| text))
}
