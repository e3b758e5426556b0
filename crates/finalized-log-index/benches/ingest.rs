//! Ingest in memory: 20 blocks of 10, 100 and 1 000 logs, with one commit per block and one for all.
//!
//! ```text
//! cargo bench -p finalized-log-index --bench ingest
//! ```

#![expect(clippy::expect_used, reason = "a benchmark stops at the first error")]

#[path = "support/index.rs"]
mod support;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use finalized_log_index::FinalizedBlock;
use support::{blocks, runtime, writer};

const BLOCKS: usize = 20;

fn ingest(criterion: &mut Criterion) {
    let runtime = runtime();
    let mut group = criterion.benchmark_group("ingest");
    for logs_per_block in [10, 100, 1_000] {
        let chain: Vec<FinalizedBlock> = blocks(logs_per_block, BLOCKS);
        let logs: usize = chain.iter().map(|block| block.logs.len()).sum();
        group.throughput(Throughput::Elements(u64::try_from(logs).expect("small")));
        for commit_blocks in [1, BLOCKS] {
            let id = BenchmarkId::new(format!("{logs_per_block} logs a block"), commit_blocks);
            group.bench_with_input(id, &commit_blocks, |bencher, commit_blocks| {
                bencher.iter_batched(
                    || runtime.block_on(writer()),
                    |writer| {
                        runtime.block_on(async {
                            for some in chain.chunks(*commit_blocks) {
                                writer.ingest_finalized_blocks(some).await.expect("they follow");
                            }
                            writer
                        })
                    },
                    BatchSize::PerIteration,
                );
            });
        }
    }
    group.finish();
}

criterion_group!(benches, ingest);
criterion_main!(benches);
