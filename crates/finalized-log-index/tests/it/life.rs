//! A scenario of an index, in steps: ingest, seal, merge, history, pruning, garbage collection; and an image of its
//! result.
//!
//! The same scenario runs undisturbed and with a fault at every store operation, on every kind of store.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;

use finalized_log_index::{
    Error, Filter, FinalizedBlock, GcMode, LogIndex, Result, Settings, Stores, Writer,
};
use futures::stream::iter;
use logmill_io::KeyRange;

use super::chain::{Skew, address, chain, check_bodies, scan, word};

/// Number of blocks of history, built by workers.
const HISTORY: usize = 20;
/// The last step prunes below this block.
const PRUNED_BELOW: u64 = 8;
/// Parts in which history is built: neither in order nor aligned.
const PARTS: [Range<usize>; 3] = [12..HISTORY, 0..5, 5..12];
/// Time between a crash and the next process: by then all attempts of the crashed one have expired.
pub(crate) const PAUSE: Duration = Duration::from_secs(3_600);

/// Bounds so small that 56 blocks have several cells, chunks and pieces.
pub(crate) fn settings() -> Settings {
    Settings {
        cell_blocks: 16,
        chunk_logs: 300,
        piece_logs: 70,
        merge_cpu_percent: 100,
        lease_ttl: Duration::from_secs(600),
        ..Settings::default()
    }
}

pub(crate) fn blocks() -> Vec<FinalizedBlock> {
    let mut blocks = chain(11, Skew::Even, 0, 56);
    for block in &mut blocks {
        block.logs.truncate(45);
    }
    blocks
}

/// Opens the index as its writer.
pub(crate) async fn write(stores: &Stores) -> Result<Writer> {
    LogIndex::open(stores.clone(), settings()).await?.writer("one").await
}

/// Builds a part of history, unless it was pruned.
async fn build(index: &LogIndex, blocks: &[FinalizedBlock]) -> Result<()> {
    index.refresh().await?;
    if blocks[0].number < index.pruned_below() {
        return Ok(());
    }
    let range = blocks[0].number..blocks[blocks.len() - 1].number + 1;
    index.build_chunk(range, iter(blocks.iter().cloned().map(Ok))).await.map(drop)
}

/// Number of steps of the scenario.
pub(crate) const STEPS: usize = 12;

/// Runs one step; each step is idempotent.
pub(crate) async fn step(writer: &Writer, blocks: &[FinalizedBlock], number: usize) -> Result<()> {
    let live = &blocks[HISTORY..];
    match number {
        0 => {
            for block in &live[..2] {
                writer.ingest_finalized_block(block.clone()).await?;
            }
        }
        1 => drop(writer.ingest_finalized_blocks(&live[2..9]).await?),
        2 => drop(writer.seal_next().await?),
        3 => build(writer.index(), &blocks[PARTS[0].clone()]).await?,
        4 => drop(writer.ingest_finalized_blocks(&live[9..22]).await?),
        5 => drop(writer.maintain().await?),
        6 => build(writer.index(), &blocks[PARTS[1].clone()]).await?,
        7 => drop(writer.collect_garbage(GcMode::Delete).await?),
        8 => build(writer.index(), &blocks[PARTS[2].clone()]).await?,
        9 => {
            writer.ingest_finalized_block(live[22].clone()).await?;
            writer.ingest_finalized_blocks(&live[23..]).await?;
        }
        10 => drop(writer.maintain().await?),
        _ => {
            writer.prune_below(PRUNED_BELOW).await?;
            writer.collect_garbage(GcMode::Delete).await?;
        }
    }
    Ok(())
}

/// Runs the scenario until it is complete or the process has crashed; retries steps that fail for other reasons.
pub(crate) async fn live(
    stores: &Stores,
    blocks: &[FinalizedBlock],
    dead: impl Fn() -> bool,
    mut after_step: impl AsyncFnMut(),
) {
    let mut writer = None;
    let mut next = 0;
    for _ in 0..STEPS * 3 {
        if writer.is_none() {
            writer = write(stores).await.ok();
        }
        if let Some(writer) = &writer
            && step(writer, blocks, next).await.is_ok()
        {
            next += 1;
        }
        after_step().await;
        if dead() || next == STEPS {
            return;
        }
    }
    panic!("step {next} does not come to an end");
}

/// A new process does all steps that are missing, and repeats those that are done.
pub(crate) async fn finish(stores: &Stores, blocks: &[FinalizedBlock]) {
    let writer = write(stores).await.expect("it opens");
    for block in &blocks[HISTORY..HISTORY + 3] {
        writer.ingest_finalized_block(block.clone()).await.expect("it follows or is known");
    }
    writer.ingest_finalized_blocks(&blocks[HISTORY..]).await.expect("they follow or are known");
    writer.maintain().await.expect("it works");
    for part in PARTS {
        build(writer.index(), &blocks[part]).await.expect("it is free or the same");
    }
    writer.prune_below(PRUNED_BELOW).await.expect("it works");
}

/// Collects the garbage of attempts that have expired.
pub(crate) async fn collect(stores: &Stores) {
    let writer = write(stores).await.expect("it opens");
    writer.collect_garbage(GcMode::Delete).await.expect("it works");
}

/// Filters of every shape, within a range of blocks.
pub(crate) fn filters(blocks: &[FinalizedBlock], first: u64, last: u64) -> Vec<Filter> {
    let all = || Filter::range(first..=last);
    let middle = first + (last - first) / 2;
    let hash = blocks.iter().find(|block| block.number == middle).expect("it is known").hash;
    vec![
        all(),
        all().address(address(1)),
        all().address(address(2)).address(address(5)).topic(1, word(3)),
        all().topic(0, word(7)),
        all().topic(0, word(7)).topic(0, word(9)).topic(2, word(2)),
        all().topic(3, word(4)),
        all().topic(0, word(77_777)),
        Filter::range(middle..=middle),
        Filter::range(middle..=last).topic(1, word(6)),
        Filter::block_hash(hash),
    ]
}

/// Compares the answers for every covered range with the scan.
pub(crate) async fn check_answers(index: &LogIndex, blocks: &[FinalizedBlock]) -> Result<usize> {
    let mut logs = 0;
    for range in index.coverage() {
        let covered = blocks.iter().filter(|block| range.contains(&block.number));
        check_bodies(index, covered).await?;
        for filter in filters(blocks, range.start, range.end - 1) {
            let page = index.query_finalized(&filter).await?;
            assert_eq!(page.logs, scan(blocks, &filter), "{filter:?}");
            logs += page.logs.len();
        }
    }
    Ok(logs)
}

/// Checks a reader in another process, first with its old snapshot, then with a current one.
pub(crate) async fn look(reader: &LogIndex, blocks: &[FinalizedBlock]) {
    let allowed = |error: &Error| matches!(error, Error::NotCovered { .. } | Error::Pruned { .. });
    match check_answers(reader, blocks).await {
        Err(error) if !allowed(&error) => panic!("a reader that was behind: {error:?}"),
        _ => {}
    }
    reader.refresh().await.expect("it can be followed");
    check_answers(reader, blocks).await.expect("all is there");
    let covered = reader.coverage();
    assert!(covered.windows(2).all(|pair| pair[0].end < pair[1].start), "{covered:?}");
}

/// The observable result, regardless of the writer: coverage, answers, and the content of chunks by their blocks.
pub(crate) async fn image(stores: &Stores, blocks: &[FinalizedBlock]) -> String {
    let index = LogIndex::open(stores.clone(), settings()).await.expect("it opens");
    let logs = check_answers(&index, blocks).await.expect("all is there");
    let health = index.health();
    assert_eq!(health.degraded, None);
    let chunks = index.chunks();
    let mut contents = BTreeMap::new();
    for chunk in &chunks {
        let blake3 = blake3::Hash::from(chunk.blake3).to_hex();
        contents.insert(
            (chunk.blocks.start, chunk.blocks.end),
            (blake3, chunk.chunk_start, chunk.ends_chunk, chunk.anchored),
        );
    }
    let bodies = || chunks.iter().flat_map(|chunk| &chunk.bodies);
    let tokens = chunks.iter().map(|chunk| chunk.token).chain(bodies().map(|b| b.token));
    let names: BTreeSet<String> = tokens.map(|token| format!("{token:016x}")).collect();
    let blobs = stores.blobs.list("", None, 1_000).await.expect("it lists");
    for blob in &blobs {
        let token = blob.name.as_str().rsplit('-').next().expect("a name");
        assert!(names.contains(token), "the orphan {} is left", blob.name);
    }
    assert_eq!(blobs.len(), chunks.len() + bodies().count(), "every chunk has its blobs");
    let attempts = KeyRange::prefix(format!("{}/build/", settings().prefix).as_str());
    let attempts = stores.meta.scan(&attempts, 10).await.expect("it scans");
    assert!(attempts.is_empty(), "{attempts:?}");
    let (head, tail) = (health.head, health.tail_blocks);
    let (covered, pruned) = (health.coverage, health.pruned_below);
    format!("{covered:?} {pruned} {head:?} {tail} {logs} {contents:#?}")
}
