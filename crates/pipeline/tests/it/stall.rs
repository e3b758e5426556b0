//! Finality that stalls: the tip is bounded, the stall is shown, and clears.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alloy_primitives::B256;
use async_trait::async_trait;
use logmill_chain::{Block, BlockSource, ChainInfo, ChainSource, Heads, NodeStatus};
use logmill_pipeline::ingest::IngestSettings;
use logmill_sim::chain_world::{World, check_blocks};

use crate::listener::Listener;

#[tokio::test(start_paused = true)]
async fn a_full_tip_is_reported_and_continues_when_finality_does() {
    for most in [1, 7, 30] {
        let mut world = World::new(1, None).await;
        world.settings = IngestSettings { max_unfinal_blocks: most, ..world.settings };
        world.sim.grow(40);
        world.sim.set_finalized(40).expect("it exists");
        let process = world.write().await;
        let mut listener = Listener::of(&process.chain).await;
        process.catch_up().await.expect("nothing is in the way");
        assert_eq!(process.progress.report().stalled, None);
        world.sim.grow(60);
        for _ in 0..3 {
            process.catch_up().await.expect("it waits");
            listener.receive(&process.chain).await;
            let view = process.chain.view().await.expect("read");
            assert_eq!(view.head(), world.sim.at(40 + most as u64), "as many as fit");
            let report = process.progress.report();
            assert!(report.stalled.is_some_and(|why| why.contains(&format!("{most} blocks"))));
            assert_eq!(report.behind, Some(60 - most as u64));
        }
        // Finality moves a little, and then to the end.
        world.sim.set_finalized(50).expect("it exists");
        process.catch_up().await.expect("it goes on");
        listener.receive(&process.chain).await;
        let head = process.chain.view().await.expect("read").head();
        assert_eq!(head, world.sim.at(50 + most as u64));
        world.sim.set_finalized(98).expect("it exists");
        process.catch_up().await.expect("it goes on");
        listener.receive(&process.chain).await;
        if most > 1 {
            assert_eq!(process.progress.report().stalled, None);
            world.check(&process.chain, 1).await;
        }
        world.sim.set_finalized(100).expect("it exists");
        process.catch_up().await.expect("it goes on");
        assert_eq!(process.progress.report().stalled, None, "{most}");
        world.check(&process.chain, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_stall_clears_when_the_chain_becomes_shorter() {
    let mut world = World::new(2, None).await;
    world.settings = IngestSettings { max_unfinal_blocks: 10, ..world.settings };
    world.sim.grow(20);
    world.sim.set_finalized(20).expect("it exists");
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    world.sim.grow(15);
    process.catch_up().await.expect("it waits");
    assert!(process.progress.report().stalled.is_some());
    world.sim.reorg(12, 6).expect("not final");
    process.catch_up().await.expect("it fits now");
    assert_eq!(process.progress.report().stalled, None);
    let view = process.chain.view().await.expect("read");
    assert_eq!(view.head(), Some(world.sim.latest()));
    check_blocks(&world.sim, &view).await;
}

#[tokio::test(start_paused = true)]
async fn a_process_catches_up_after_a_long_absence_even_with_a_small_tip() {
    let mut world = World::new(3, Some(5)).await;
    world.settings =
        IngestSettings { max_unfinal_blocks: 6, latest_batch_max: 64, ..world.settings };
    world.sim.grow(20);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    process.die();
    world.sim.grow(300);
    world.pause();
    let process = world.write_as("two", &world.stores, &world.source()).await.expect("it is free");
    process.catch_up().await.expect("nothing is in the way");
    assert_eq!(process.progress.report().stalled, None);
    world.check(&process.chain, 1).await;
}

/// A source that counts the blocks it returns.
#[derive(Debug)]
struct CountingSource {
    source: Arc<dyn ChainSource>,
    served: AtomicU64,
}

#[async_trait]
impl BlockSource for CountingSource {
    async fn info(&self) -> logmill_chain::Result<ChainInfo> {
        self.source.info().await
    }

    async fn blocks(&self, range: Range<u64>) -> logmill_chain::Result<Vec<Block>> {
        let blocks = self.source.blocks(range).await?;
        self.served.fetch_add(blocks.len() as u64, Ordering::SeqCst);
        Ok(blocks)
    }

    async fn block_by_hash(&self, hash: B256) -> logmill_chain::Result<Option<Block>> {
        self.source.block_by_hash(hash).await
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        self.source.nodes()
    }
}

#[async_trait]
impl ChainSource for CountingSource {
    async fn heads(&self) -> logmill_chain::Result<Heads> {
        self.source.heads().await
    }

    async fn changed(&self, at_most: Duration) {
        self.source.changed(at_most).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_full_tip_fetches_one_block_per_look_and_follows_another_branch() {
    let mut world = World::new(4, None).await;
    world.settings = IngestSettings { max_unfinal_blocks: 10, ..world.settings };
    world.sim.grow(20);
    world.sim.set_finalized(20).expect("it exists");
    let counted = Arc::new(CountingSource { source: world.source(), served: AtomicU64::new(0) });
    let source: Arc<dyn ChainSource> = counted.clone();
    let process = world.write_as("one", &world.stores, &source).await.expect("it is free");
    process.catch_up().await.expect("nothing is in the way");
    world.sim.grow(200);
    process.catch_up().await.expect("it waits");
    let before = counted.served.load(Ordering::SeqCst);
    for _ in 0..5 {
        process.forward.step().await.expect("it waits");
    }
    assert_eq!(counted.served.load(Ordering::SeqCst) - before, 5, "one block a look");
    world.sim.reorg(195, 196).expect("not final");
    process.catch_up().await.expect("it waits");
    let view = process.chain.view().await.expect("read");
    assert_eq!(view.head(), world.sim.at(30), "of the other branch");
    assert!(process.progress.report().stalled.is_some());
    check_blocks(&world.sim, &view).await;
}
