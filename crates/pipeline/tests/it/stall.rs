//! Finality that stalls: the tip is bounded, the stall is shown, and clears.

use logmill_pipeline::ingest::IngestSettings;

use crate::listener::Listener;
use crate::world::{World, check_blocks};

#[tokio::test(start_paused = true)]
async fn a_tip_that_is_full_says_so_and_goes_on_when_finality_does() {
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
            listener.hear(&process.chain).await;
            let view = process.chain.view().await.expect("read");
            assert_eq!(view.head(), world.sim.at(40 + most as u64), "as many as fit");
            let report = process.progress.report();
            assert!(report.stalled.is_some_and(|why| why.contains(&format!("{most} blocks"))));
            assert_eq!(report.behind, Some(60 - most as u64));
        }
        // Finality moves a little, and then to the end.
        world.sim.set_finalized(50).expect("it exists");
        process.catch_up().await.expect("it goes on");
        listener.hear(&process.chain).await;
        let head = process.chain.view().await.expect("read").head();
        assert_eq!(head, world.sim.at(50 + most as u64));
        world.sim.set_finalized(98).expect("it exists");
        process.catch_up().await.expect("it goes on");
        listener.hear(&process.chain).await;
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
async fn a_process_that_was_away_for_long_catches_up_however_small_the_tip_may_be() {
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
