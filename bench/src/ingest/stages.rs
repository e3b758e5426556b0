//! Only the first stages of the pipeline, over the same files: what each adds is its share.
//!
//! | stage | content |
//! |---|---|
//! | `read` | reads, decompresses, decodes and verifies blocks |
//! | `convert` | also converts them to the input of the index |
//! | `build` | also builds chunks and bodies, in memory |

use std::path::Path;
use std::sync::Arc;

use finalized_log_index::{LogIndex, Settings, Stores};
use futures::{StreamExt, TryStreamExt, stream};
use logmill_chain::Block;
use logmill_chain::era1::{Era1, Era1Settings};
use logmill_io::blob::MemoryBlobs;
use logmill_io::meta::MemoryMeta;
use logmill_io::{OsEntropy, SystemClock};
use logmill_pipeline::block::to_finalized;

use super::{Cost, Stopwatch};

/// Blocks converted at a time, as in the ingester.
const BATCH: usize = 20;
/// Batches converted concurrently.
const AHEAD: usize = 3;

/// Content of the files.
#[derive(Clone, Copy, Debug, Default)]
pub struct FileContents {
    pub blocks: u64,
    pub transactions: u64,
    pub logs: u64,
}

pub async fn open(folder: &Path) -> anyhow::Result<Era1> {
    Ok(Era1::open_folder(Era1Settings::new(folder, 1_337)).await?)
}

/// Reads all blocks.
pub async fn read(folder: &Path) -> anyhow::Result<(Cost, FileContents)> {
    let era1 = open(folder).await?;
    let watch = Stopwatch::start()?;
    let mut held = FileContents::default();
    let mut blocks = era1.blocks(all(&era1));
    while let Some(block) = blocks.try_next().await? {
        held.blocks += 1;
        held.transactions += block.transactions.len() as u64;
        held.logs += block.log_count() as u64;
    }
    Ok((watch.cost()?, held))
}

/// Reads and converts all blocks.
pub async fn convert(folder: &Path) -> anyhow::Result<Cost> {
    let era1 = open(folder).await?;
    let watch = Stopwatch::start()?;
    let mut converted = Box::pin(converted(&era1, all(&era1)));
    while converted.try_next().await?.is_some() {}
    watch.cost()
}

/// Reads and converts all blocks and builds chunks, cell by cell.
pub async fn build(folder: &Path) -> anyhow::Result<Cost> {
    let era1 = open(folder).await?;
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let meta = MemoryMeta::shared(Arc::clone(&clock), Arc::clone(&entropy));
    let stores = Stores { meta, blobs: MemoryBlobs::shared(), clock, entropy };
    let index = LogIndex::open(stores, Settings::default()).await?;
    let watch = Stopwatch::start()?;
    let range = all(&era1);
    let cell = index.settings().cell_blocks;
    let mut start = range.start;
    while start < range.end {
        let end = (start - start % cell + cell).min(range.end);
        index.build_chunk(start..end, converted(&era1, start..end)).await?;
        start = end;
    }
    watch.cost()
}

fn all(era1: &Era1) -> std::ops::Range<u64> {
    let ranges = era1.ranges();
    let end = ranges.last().map_or(0, |range| range.end);
    ranges.first().map_or(0, |range| range.start)..end
}

fn converted(
    era1: &Era1,
    range: std::ops::Range<u64>,
) -> impl futures::Stream<Item = finalized_log_index::Result<finalized_log_index::FinalizedBlock>> {
    let batches = era1.blocks(range).ready_chunks(BATCH);
    let converted = batches.map(|batch| async move {
        let blocks: Result<Vec<Block>, _> = batch.into_iter().collect();
        let work = move || blocks.map(|all| all.into_iter().map(to_finalized).collect::<Vec<_>>());
        logmill_io::compute(work).await
    });
    converted.buffered(AHEAD).flat_map(|batch| {
        stream::iter(match batch {
            Ok(blocks) => blocks.into_iter().map(Ok).collect(),
            Err(error) => {
                vec![Err(finalized_log_index::Error::Invalid { what: error.to_string() })]
            }
        })
    })
}
