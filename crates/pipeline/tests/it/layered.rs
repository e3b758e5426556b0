//! Tests of layered sources.

use std::sync::Arc;
use std::time::Duration;

use logmill_chain::sim::{SimChain, SimFaults, SimSource};
use logmill_chain::{BlockSource, ChainSource, Error};
use logmill_io::{SeededEntropy, SystemClock};
use logmill_pipeline::ingest::LayeredSource;
use logmill_sim::chain_world::{World, same, sim};

fn source(chain: &SimChain) -> Arc<SimSource> {
    SimSource::new(chain.clone(), SystemClock::shared(), SeededEntropy::shared(1))
}

fn requests(source: &SimSource) -> u64 {
    source.nodes()[0].requests
}

fn chain() -> SimChain {
    let chain = sim(3, Some(5));
    chain.grow(100);
    chain
}

/// Files with 0..20 and 40..60, others with 30..50, and a node.
fn layers(chain: &SimChain) -> (LayeredSource, [Arc<SimSource>; 3]) {
    let sources = [source(chain), source(chain), source(chain)];
    let [first, second, last] = sources.clone();
    let below: Vec<(_, Arc<dyn BlockSource>)> =
        vec![(vec![0..20, 40..60], first), (vec![30..50], second)];
    (LayeredSource::new(below, last), sources)
}

#[tokio::test(start_paused = true)]
async fn each_part_of_a_range_comes_from_the_first_source_that_has_it() {
    let chain = chain();
    let (layered, sources) = layers(&chain);
    for (range, expected) in [
        (0..100, [2, 1, 2]),
        (0..20, [1, 0, 0]),
        (10..25, [1, 0, 1]),
        (25..45, [1, 1, 1]),
        (45..61, [1, 0, 1]),
        (70..71, [0, 0, 1]),
        (40..41, [1, 0, 0]),
        (30..40, [0, 1, 0]),
        (5..5, [0, 0, 0]),
    ] {
        let before: Vec<u64> = sources.iter().map(|source| requests(source)).collect();
        let blocks = layered.blocks(range.clone()).await.expect("all is there");
        assert_eq!(blocks.len() as u64, range.end - range.start);
        for (block, number) in blocks.iter().zip(range.clone()) {
            same(block, &chain.block(number).expect("it exists"));
        }
        let after = sources.iter().zip(before).map(|(source, before)| requests(source) - before);
        assert_eq!(after.collect::<Vec<_>>(), expected, "{range:?}");
    }
    assert_eq!(layered.heads().await.expect("heads"), chain.heads());
    assert_eq!(layered.nodes().len(), 3);
    layered.changed(Duration::ZERO).await;
}

#[tokio::test(start_paused = true)]
async fn blocks_before_a_gap_are_returned_and_the_gap_is_an_error() {
    let chain = chain();
    let (layered, [_, _, last]) = layers(&chain);
    last.set_faults(SimFaults { floor: 60, ..SimFaults::default() });
    let blocks = layered.blocks(0..100).await.expect("those before the gap");
    assert_eq!(blocks.len(), 20);
    let error = layered.blocks(20..100).await.expect_err("no source has it");
    assert!(matches!(error, Error::Pruned { number: 20 }), "{error:?}");
    let blocks = layered.blocks(30..100).await.expect("all is there");
    assert_eq!(blocks.len(), 70);
}

#[tokio::test(start_paused = true)]
async fn blocks_of_sources_that_do_not_link_are_refused() {
    let (ours, theirs) = (chain(), sim(4, Some(5)));
    theirs.grow(100);
    let layered = LayeredSource::new(vec![(vec![0..20], source(&theirs) as Arc<_>)], source(&ours));
    let error = layered.blocks(15..25).await.expect_err("they are of two chains");
    assert!(matches!(error, Error::Unlinked { number: 20, .. }), "{error:?}");
    assert_eq!(layered.blocks(20..25).await.expect("one source").len(), 5);
}

/// Files of another chain below a node: no block of them is ever covered, whatever the order of requests.
#[tokio::test(start_paused = true)]
async fn history_of_another_chain_never_counts() {
    let theirs = sim(4, Some(5));
    theirs.grow(100);
    let mut world = World::of(3, chain()).await;
    // Aligned with cells, so that no single range crosses the border.
    let files: Vec<(_, Arc<dyn BlockSource>)> = vec![(vec![0..32], source(&theirs))];
    let layered: Arc<dyn ChainSource> = Arc::new(LayeredSource::new(files, source(&world.sim)));
    world.settings.history_batch = 16;
    let process = world.write_as("one", &world.stores, &layered).await.expect("it opens");
    process.catch_up().await.expect("nothing is in the way");
    let filled = process.fill().await;
    assert_eq!(process.chain.covered(), [32..101], "{filled:?}");
    world.check(&process.chain, 1).await;
}
