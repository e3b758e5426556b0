//! Queries in memory over 2 000 blocks of 120 logs: filtered, OR-lists of 4, 32 and 128, and a mix.
//!
//! ```text
//! cargo bench -p finalized-log-index --bench query
//! ```

#![expect(clippy::expect_used, reason = "a benchmark stops at the first error")]

#[path = "support/index.rs"]
mod support;

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use finalized_log_index::workload::{Terms, Workload, WorkloadSettings};
use finalized_log_index::{Filter, Writer};
use support::{blocks, runtime, writer};

const BLOCKS: usize = 2_000;
const LOGS_PER_BLOCK: u32 = 120;
const LAST: u64 = 1_999;

async fn filled() -> (Writer, Terms) {
    let writer = writer().await;
    for some in blocks(LOGS_PER_BLOCK, BLOCKS).chunks(64) {
        writer.ingest_finalized_blocks(some).await.expect("they follow");
    }
    writer.maintain().await.expect("it works");
    let settings = WorkloadSettings { seed: 1, first_block: 0, logs_per_block: LOGS_PER_BLOCK };
    let mut chain = Workload::new(settings);
    chain.by_ref().take(BLOCKS).for_each(drop);
    (writer, chain.terms())
}

fn any_of(terms: &Terms, count: u64) -> Filter {
    let all = Filter::range(0..=LAST).limit(10_000);
    (0..count).fold(all, |filter, n| filter.address(terms.mid_address(n)))
}

fn mix(terms: &Terms) -> Vec<Filter> {
    let wallet = |n| terms.rare_wallet(n).unwrap_or_default();
    vec![
        Filter::range(0..=LAST).topic(2, wallet(7)),
        Filter::range(500..=1_499).address(terms.mid_address(3)).topic(0, terms.transfer_topic()),
        Filter::range(900..=999).topic(0, terms.transfer_topic()),
        Filter::range(0..=LAST).topic(1, terms.absent_topic(5)),
        Filter::range(LAST - 9..=LAST),
        any_of(terms, 20),
    ]
}

fn query(criterion: &mut Criterion) {
    let runtime = runtime();
    let (writer, terms) = runtime.block_on(filled());
    let ask = |filter: &Filter| {
        let page = runtime.block_on(writer.index().query_finalized(filter));
        black_box(page.expect("it is covered").logs.len())
    };
    let mut group = criterion.benchmark_group("query");
    let address = terms.mid_address(3);
    let filtered = Filter::range(0..=LAST).address(address).topic(0, terms.transfer_topic());
    group.bench_function("filtered", |bencher| bencher.iter(|| ask(&filtered)));
    for count in [4, 32, 128] {
        let filter = any_of(&terms, count);
        group.bench_with_input(BenchmarkId::new("or", count), &filter, |bencher, filter| {
            bencher.iter(|| ask(filter));
        });
    }
    let mix = mix(&terms);
    group.bench_function("mixed", |bencher| {
        bencher.iter(|| mix.iter().map(&ask).sum::<usize>());
    });
    group.finish();
}

criterion_group!(benches, query);
criterion_main!(benches);
