//! The forward ingester over a chain that grows, stalls and is reorganised.

use logmill_pipeline::ingest::IngestSettings;
use logmill_sim::chain_world::World;

use crate::listener::Listener;

#[tokio::test(start_paused = true)]
async fn the_first_block_is_the_boundary_of_the_cell_of_the_finalized_head() {
    for (blocks, first) in [(5, 0), (26, 0), (40, 16), (57, 32), (52, 32), (51, 16)] {
        let world = World::new(1, Some(20)).await;
        world.sim.grow(blocks);
        let process = world.write().await;
        process.catch_up().await.expect("nothing is in the way");
        let view = process.chain.view().await.expect("read");
        assert_eq!(view.covered(), [first..blocks + 1], "of {blocks}");
        world.check(&process.chain, blocks).await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_each_step_the_stored_blocks_equal_the_chain() {
    for lag in [Some(0), Some(1), Some(20)] {
        let world = World::new(2, lag).await;
        world.sim.grow(50);
        let process = world.write().await;
        let mut listener = Listener::of(&process.chain).await;
        for (step, more) in [0, 1, 1, 2, 3, 7, 30, 1, 0, 1].into_iter().enumerate() {
            if more > 0 {
                world.sim.grow(more);
            }
            process.catch_up().await.expect("nothing is in the way");
            listener.receive(&process.chain).await;
            let view = process.chain.view().await.expect("read");
            logmill_sim::chain_world::check_heads(&world.sim, &view);
            if step % 3 == 0 {
                process.writer.maintain().await.expect("it seals");
                world.check(&process.chain, step as u64).await;
                world.check(&world.open().await, step as u64).await;
            }
        }
        world.check(&process.chain, 77).await;
        assert_eq!(process.progress.report().behind, Some(0));
    }
}

#[tokio::test(start_paused = true)]
async fn history_stops_at_the_configured_block() {
    let mut world = World::new(3, Some(20)).await;
    world.settings = IngestSettings { history_stop: 37, ..world.settings };
    world.sim.grow(60);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    assert_eq!(process.chain.covered(), [37..61]);
    world.check(&process.chain, 1).await;
}
