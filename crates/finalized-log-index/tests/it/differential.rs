//! After any sequence of operations, a query returns what a scan over all blocks would.

use finalized_log_index::{Filter, FinalizedBlock, GcMode, LogIndex, Writer};
use futures::TryStreamExt;
use futures::stream::iter;
use proptest::prelude::*;

use crate::chain::{Dice, SKEWS, chain, filter, scan};
use crate::fixture::MemoryStores;

/// Compares random queries with the scan.
pub(crate) async fn compare(
    index: &LogIndex,
    known: &[FinalizedBlock],
    dice: &mut Dice,
    queries: usize,
) {
    for _ in 0..queries {
        let mut filter = filter(dice, known);
        let expected = scan(known, &filter);
        let page = index.query_finalized(&filter).await.expect("it is covered");
        assert_eq!(page.logs, expected, "{filter:?}");
        assert_eq!(page.next, None);
        let streamed: Vec<_> =
            index.query_stream(filter.clone()).try_concat().await.expect("it is covered");
        assert_eq!(streamed, expected, "{filter:?}");
        if !expected.is_empty() {
            filter.max_results = Some(usize::try_from(1 + dice.below(40)).expect("small"));
            page_by_page(index, &filter, &expected).await;
        }
    }
}

/// Follows `next` from page to page.
async fn page_by_page(index: &LogIndex, filter: &Filter, expected: &[finalized_log_index::Log]) {
    let mut filter = filter.clone();
    let max = filter.max_results.expect("set");
    let mut all = Vec::new();
    for _ in 0..=expected.len() {
        let page = index.query_finalized(&filter).await.expect("it is covered");
        let first = page.logs.first().map(|log| log.block_number);
        let one_block = page.logs.iter().all(|log| Some(log.block_number) == first);
        assert!(page.logs.len() <= max || one_block, "a page of {}", page.logs.len());
        all.extend(page.logs);
        let Some(next) = page.next else {
            assert_eq!(all, expected);
            return;
        };
        use finalized_log_index::Blocks::{Covered, Hash, Range};
        filter.blocks = match filter.blocks {
            Range(range) => Range(next..=*range.end()),
            Covered(range) => Covered(next..=*range.end()),
            Hash(_) => panic!("one block is never split"),
        };
    }
    panic!("the pages do not end");
}

/// A random scenario: batches of all sizes, maintenance, garbage collection, restarts, history.
async fn live(seed: u64, skew: usize, count: u64, queries: usize) {
    let mut dice = Dice::new(seed);
    let first = if dice.one_in(2) { 0 } else { dice.below(100) };
    let blocks = chain(seed, SKEWS[skew], first, count);
    let fixture = MemoryStores::new(seed);
    // The writer starts at a random block; the blocks below are history.
    let start = usize::try_from(dice.below(count)).expect("small");
    let (history, live) = blocks.split_at(start);
    let mut writer = fixture.write().await;
    let mut done = 0;
    while done < live.len() {
        let batch = usize::try_from(1 + dice.below(9)).expect("small").min(live.len() - done);
        if batch == 1 {
            writer.ingest_finalized_block(live[done].clone()).await.expect("it follows");
        } else {
            writer.ingest_finalized_blocks(&live[done..done + batch]).await.expect("they follow");
        }
        done += batch;
        writer = disturb(&fixture, writer, &mut dice).await;
        if dice.one_in(4) {
            compare(writer.index(), &live[..done], &mut dice, 1).await;
        }
    }
    build_history(&writer, history, &mut dice).await;
    compare(writer.index(), &blocks, &mut dice, queries).await;
    let reader = fixture.open().await;
    compare(&reader, &blocks, &mut dice, queries).await;
    let whole = first..first + count;
    assert_eq!(reader.coverage(), std::slice::from_ref(&whole));
}

async fn disturb(fixture: &MemoryStores, writer: Writer, dice: &mut Dice) -> Writer {
    match dice.below(12) {
        0 | 1 => drop(writer.maintain().await.expect("it works")),
        2 => drop(writer.seal_next().await.expect("it works")),
        3 => drop(writer.merge_next().await.expect("it works")),
        4 => drop(writer.collect_garbage(GcMode::Delete).await.expect("it works")),
        5 => drop(writer.collect_garbage(GcMode::DryRun).await.expect("it works")),
        6 | 7 => return fixture.write().await,
        _ => {}
    }
    writer
}

/// Builds the blocks below the tail, in random parts and order.
async fn build_history(writer: &Writer, history: &[FinalizedBlock], dice: &mut Dice) {
    let mut parts: Vec<&[FinalizedBlock]> = Vec::new();
    let mut rest = history;
    while !rest.is_empty() {
        let length = usize::try_from(1 + dice.below(50)).expect("small").min(rest.len());
        let (part, after) = rest.split_at(length);
        parts.push(part);
        rest = after;
    }
    while !parts.is_empty() {
        let at = usize::try_from(dice.below(parts.len() as u64)).expect("small");
        let part = parts.swap_remove(at);
        let range = part[0].number..part[part.len() - 1].number + 1;
        let blocks = iter(part.iter().cloned().map(Ok));
        writer.index().build_chunk(range, blocks).await.expect("it is free");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(150)))]

    #[test]
    fn every_answer_equals_a_scan(seed: u64, skew in 0_usize..5, count in 1_u64..150) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.expect("a runtime").block_on(live(seed, skew, count, 12));
    }
}
