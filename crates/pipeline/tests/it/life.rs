//! A scenario in steps: a stored chain grows, is finalized, sealed, filled, reorganized and garbage-collected; and a
//! comparable image of the result.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;

use finalized_log_index::{Filter, GcMode, Stores};
use logmill_chain::sim::{Shape, SimChain, SimSettings};
use logmill_chain::stored;
use logmill_io::{ErrorKind, KeyRange};
use logmill_pipeline::{Chain, Result};
use logmill_sim::chain_world::{Process, World, check_blocks, check_heads, check_logs, shape};

use crate::stages::Stages;

/// The chains of the scenario: growth, a reorganization, and finality.
pub(crate) fn chains() -> Vec<SimChain> {
    let grown = |stage: usize| {
        let shape = Shape { transactions: 1, logs: 6, ..shape() };
        let settings =
            SimSettings { seed: 21, shape, finality_lag: None, ..SimSettings::default() };
        let chain = SimChain::with(settings);
        chain.grow(48);
        chain.set_finalized(37).expect("it exists");
        if stage > 0 {
            chain.grow(5);
            chain.set_finalized(41).expect("it exists");
        }
        if stage > 1 {
            chain.reorg(6, 7).expect("not final");
        }
        if stage > 2 {
            chain.grow(12);
            chain.set_finalized(58).expect("it exists");
        }
        chain
    };
    (0..4).map(grown).collect()
}

/// Number of steps of the scenario.
pub(crate) const STEPS: usize = 8;

/// Runs one step; each can be repeated.
pub(crate) async fn step(process: &Process, stages: &Stages, number: usize) -> Result<()> {
    stages.switch([0, 1, 1, 1, 2, 2, 3, 3][number]);
    match number {
        0 | 1 | 4 | 6 => process.catch_up().await,
        2 => Ok(process.writer.maintain().await.map(|_| ())?),
        3 => {
            assert_eq!(process.fill().await?, 0, "all is filled");
            Ok(())
        }
        5 => process.collect().await,
        _ => {
            process.writer.maintain().await?;
            process.collect().await
        }
    }
}

/// Runs the scenario until it is complete or the process has crashed; other failures are retried by the same process.
/// Returns the next step.
pub(crate) async fn live(
    world: &World,
    stages: &Arc<Stages>,
    stores: &Stores,
    dead: impl Fn() -> bool,
) -> usize {
    let source: Arc<dyn logmill_chain::ChainSource> = stages.clone();
    let mut process = None;
    let mut next = 0;
    for _ in 0..STEPS * 3 {
        stages.switch([0, 1, 1, 1, 2, 2, 3, 3][next]);
        if process.is_none() {
            process = world.write_as("one", stores, &source).await.ok();
        }
        if let Some(process) = &process {
            match step(process, stages, next).await {
                Ok(()) => next += 1,
                Err(error) if !dead() => {
                    let kind = error.kind();
                    let ends = [ErrorKind::Conflict, ErrorKind::Fenced, ErrorKind::Corrupt];
                    assert!(!ends.contains(&kind), "a fault of a store ended it: {error:?}");
                }
                Err(_) => {}
            }
        }
        if dead() || next == STEPS {
            return next;
        }
    }
    panic!("step {next} does not come to an end");
}

/// A new process does the remaining steps, repeating the one that may be half done.
pub(crate) async fn finish(world: &World, stages: &Arc<Stages>, next: usize) {
    let source: Arc<dyn logmill_chain::ChainSource> = stages.clone();
    let process = world.write_as("two", &world.stores, &source).await.expect("the lease is over");
    for number in next.min(STEPS - 1)..STEPS {
        step(&process, stages, number).await.expect("nothing is in the way");
    }
    drop(process);
    world.pause();
    let process = world.write_as("three", &world.stores, &source).await.expect("it opens");
    process.writer.collect_garbage(GcMode::Delete).await.expect("it works");
}

/// The final stored state, independent of which process wrote it.
pub(crate) async fn image(world: &World, sim: &SimChain) -> String {
    let chain = world.open().await;
    let view = chain.view().await.expect("read");
    check_heads(sim, &view);
    let mut image = format!("{:?} {:?}\n", view.covered(), view.head());
    let all = Filter::range(0..=view.head().expect("stored").number);
    writeln!(image, "{:?}", view.logs(&all).await.expect("all is there").logs).expect("text");
    for number in view.covered().into_iter().flatten() {
        let block = view.block(number).await.expect("read").expect("covered");
        writeln!(image, "{:?}", stored::encode(&block)).expect("text");
    }
    let tip = world.stores.meta.scan(&KeyRange::prefix("chain/tip"), 1_000).await.expect("scan");
    for (key, record) in tip {
        writeln!(image, "{key} {:?}", record.value).expect("text");
    }
    for chunk in chain.index().chunks() {
        let role = (chunk.chunk_start, chunk.ends_chunk, chunk.anchored);
        writeln!(image, "{:?} {:?} {role:?}", chunk.blocks, chunk.blake3).expect("text");
    }
    no_orphans(world, &chain).await;
    image
}

async fn no_orphans(world: &World, chain: &Chain) {
    assert_eq!(chain.index().health().degraded, None);
    let chunks = chain.index().chunks();
    let bodies = || chunks.iter().flat_map(|chunk| &chunk.bodies);
    let tokens = chunks.iter().map(|chunk| chunk.token).chain(bodies().map(|body| body.token));
    let names: BTreeSet<String> = tokens.map(|token| format!("{token:016x}")).collect();
    let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
    for blob in &blobs {
        let token = blob.name.as_str().rsplit('-').next().expect("a name");
        assert!(names.contains(token), "the orphan {} is left", blob.name);
    }
    assert_eq!(blobs.len(), chunks.len() + bodies().count(), "every chunk has its blobs");
}

/// Checks that a reader in another process, in any state, sees one chain without gaps.
pub(crate) async fn look(reader: &Chain) {
    let view = reader.view().await.expect("read");
    let Some(head) = view.head() else {
        return;
    };
    let covered = view.covered();
    let last = covered.last().expect("there is a head");
    assert_eq!(last.end, head.number + 1, "{covered:?}: no gap between index and tip");
    assert!(view.finalized().is_none_or(|at| last.contains(&at.number)), "{covered:?}");
    let mut parent = None;
    for number in last.clone() {
        let block = view.block(number).await.expect("read").expect("covered");
        assert!(parent.is_none_or(|hash| hash == block.at.parent_hash), "block {number} links");
        parent = Some(block.at.hash);
    }
    assert_eq!(parent, Some(head.hash));
    let page = view.logs(&Filter::range(last.start..=head.number)).await.expect("covered");
    assert!(page.logs.is_sorted_by_key(|log| (log.block_number, log.log.log_index)));
}

/// Checks that all stored blocks are those of the chain.
pub(crate) async fn check(sim: &SimChain, chain: &Chain) {
    let view = chain.view().await.expect("read");
    check_heads(sim, &view);
    check_blocks(sim, &view).await;
    check_logs(sim, &view, 3).await;
}
