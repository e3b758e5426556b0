//! The backward ingester: any number of workers, any order, sources that fail, lie or have pruned blocks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use finalized_log_index::Resolution;
use logmill_chain::BlockSource;
use logmill_chain::sim::{Lie, SimFaults};
use logmill_io::Clock;
use logmill_pipeline::ingest::IngestSettings;
use logmill_pipeline::ingest::backward::CellHandler;
use logmill_sim::chain_world::{Process, World};
use logmill_work::{Handler, Runner, RunnerSettings, State};
use tokio::sync::broadcast::error::TryRecvError;
use tokio::sync::watch;

/// A chain whose tail begins at 96.
async fn world(seed: u64) -> (World, Process) {
    let world = World::new(seed, Some(20)).await;
    world.sim.grow(130);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    assert_eq!(process.chain.covered(), [96..131]);
    (world, process)
}

fn runner(process: &Process, owner: &str, slots: usize) -> Runner {
    let settings = RunnerSettings::new(&process.backward.kind(), owner, slots);
    let handler = Arc::new(CellHandler(Arc::clone(&process.backward))) as Arc<dyn Handler>;
    Runner::new(process.queue.clone(), handler, settings).expect("it can be")
}

/// Plans and runs a process's jobs until nothing is missing or the time is up. Returns the number of missing blocks.
async fn run(world: &World, process: &Process, owner: &str, at_most: Duration) -> u64 {
    let (stop, stopped) = watch::channel(false);
    let mut stopped = stopped.clone();
    let runs = runner(process, owner, 2).run(async move {
        let _ = stopped.wait_for(|stop| *stop).await;
    });
    let until = world.clock.monotonic() + at_most;
    let plans = async {
        loop {
            let missing = process.backward.plan().await.expect("it plans");
            if missing == 0 || world.clock.monotonic() > until {
                stop.send_replace(true);
                return missing;
            }
            world.clock.sleep(Duration::from_secs(2)).await;
        }
    };
    let (missing, ran) = futures::future::join(plans, runs).await;
    ran.expect("it runs");
    missing
}

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn several_processes_fill_everything_below() {
    let (world, one) = world(1).await;
    let source = SimFaults {
        delay: Duration::from_millis(10),
        delay_more: Duration::from_millis(400),
        fail_every: 9,
        ..SimFaults::default()
    };
    world.source.set_faults(source);
    let two = world.write_as("one", &world.stores, &world.source()).await.expect("it opens");
    let three = world.write_as("one", &world.stores, &world.source()).await.expect("it opens");
    let all = futures::future::join3(
        run(&world, &one, "one", HOUR),
        run(&world, &two, "two", HOUR),
        run(&world, &three, "three", HOUR),
    );
    assert_eq!(all.await, (0, 0, 0));
    for process in [&one, &two, &three] {
        process.chain.follow().await.expect("it can be followed");
        assert!(process.chain.view().await.expect("read").is_complete());
        world.check(&process.chain, 3).await;
        let report = process.progress.report();
        assert_eq!((report.history_missing, report.history_floor), (Some(0), 0));
    }
}

#[tokio::test(start_paused = true)]
async fn history_is_filled_without_notifying_listeners() {
    let (world, one) = world(1).await;
    // The feed of WebSocket subscriptions.
    let mut changes = one.chain.changes();
    assert_eq!(run(&world, &one, "one", HOUR).await, 0);
    assert!(one.chain.view().await.expect("read").is_complete());
    let received = changes.try_recv();
    assert!(matches!(received, Err(TryRecvError::Empty)), "{received:?}");
}

#[tokio::test(start_paused = true)]
async fn another_worker_finishes_what_a_dead_one_began() {
    let (world, one) = world(2).await;
    let delay = Duration::from_secs(3);
    world.source.set_faults(SimFaults { delay, ..SimFaults::default() });
    one.backward.plan().await.expect("it plans");
    // Crashes with two cells half fetched.
    tokio::select! {
        biased;
        ended = runner(&one, "dead", 2).run(std::future::pending()) => panic!("{ended:?}"),
        () = world.clock.sleep(Duration::from_secs(4)) => {}
    }
    let held = world.queue.list(&one.backward.kind(), State::Running, None, 10).await;
    assert_eq!(held.expect("listed").len(), 2, "they are leased");
    assert_eq!(world.open().await.covered(), [96..131]);
    world.source.set_faults(SimFaults::default());
    let two = world.write().await;
    assert_eq!(run(&world, &two, "two", HOUR).await, 0);
    assert!(two.chain.view().await.expect("read").is_complete());
    world.check(&two.chain, 3).await;
}

#[tokio::test(start_paused = true)]
async fn the_floor_of_pruned_nodes_is_found_exactly_and_not_requested_again() {
    for floor in [1, 15, 16, 17, 50, 63, 64, 95, 96, 110] {
        let (world, process) = world(3).await;
        world.source.set_faults(SimFaults { floor, ..SimFaults::default() });
        assert_eq!(run(&world, &process, "one", HOUR).await, 0, "floor {floor}");
        let first = floor.min(96);
        assert_eq!(process.chain.covered(), [first..131], "floor {floor}");
        world.check(&process.chain, floor).await;
        let report = process.progress.report();
        assert_eq!((report.history_missing, report.history_floor), (Some(0), first));
        let before = world.source.nodes()[0].requests;
        assert_eq!(run(&world, &process, "one", HOUR).await, 0);
        assert_eq!(world.source.nodes()[0].requests, before, "floor {floor}: requested again");
        // A node with more history appears, and a process that does not know the floor.
        world.source.set_faults(SimFaults::default());
        let next = world.write().await;
        assert_eq!(run(&world, &next, "two", HOUR).await, 0, "floor {floor}");
        assert!(next.chain.view().await.expect("read").is_complete(), "floor {floor}");
        world.check(&next.chain, floor).await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_history_is_fetched_below_the_configured_stop() {
    for stop in [0, 1, 16, 37, 96] {
        let mut world = World::new(4, Some(20)).await;
        world.settings = IngestSettings { history_stop: stop, ..world.settings };
        world.sim.grow(130);
        let process = world.write().await;
        process.catch_up().await.expect("nothing is in the way");
        assert_eq!(run(&world, &process, "one", HOUR).await, 0);
        assert_eq!(process.chain.covered(), [stop..131]);
        world.check(&process.chain, stop).await;
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_that_cannot_be_fetched_are_not_skipped_while_other_cells_go_on() {
    let (mut world, process) = world(5).await;
    drop(process);
    // One worker, so the queue has fewer places than there are failing cells.
    world.settings = IngestSettings { history_workers: 1, ..world.settings };
    let process = world.write().await;
    let missing = [95, 80, 66, 48].map(|number| (number, u64::MAX));
    let missing = BTreeMap::from(missing);
    world.source.set_faults(SimFaults { missing, ..SimFaults::default() });
    let left = run(&world, &process, "one", HOUR).await;
    // Each missing block affects only its own cell.
    let covered = process.chain.index().chunks();
    for number in [95, 80, 66, 48] {
        assert!(!covered.iter().any(|chunk| chunk.blocks.contains(&number)), "block {number}");
    }
    let held: u64 =
        covered.iter().map(|chunk| chunk.blocks.end.min(96) - chunk.blocks.start.min(96)).sum();
    assert!(held >= 96 - 4 * 16, "other cells went on: {held} blocks, {left} are missing");
    assert!(left > 0 && process.progress.report().last_error.is_some());
    // They are fetched in the end, without an operator.
    world.source.set_faults(SimFaults::default());
    assert_eq!(run(&world, &process, "one", 3 * HOUR).await, 0);
    assert!(process.chain.view().await.expect("read").is_complete());
    world.check(&process.chain, 5).await;
}

#[tokio::test(start_paused = true)]
async fn nothing_from_a_lying_source_is_stored() {
    for lie in Lie::ALL {
        let (world, process) = world(6).await;
        let faults = |every| SimFaults { lie: Some(lie), lie_every: every, ..SimFaults::default() };
        world.source.set_faults(faults(1));
        let before = process.chain.index().chunks().len();
        let error = process.fill().await.expect_err("it lies").to_string();
        assert!(error.contains("from sim"), "{lie:?}: {error}");
        assert_eq!(process.chain.covered(), [96..131], "{lie:?}");
        // Blocks that the lie does not affect may have filled a chunk.
        let listed = process.chain.index().chunks();
        for chunk in &listed[..listed.len() - before] {
            assert!(
                lie != Lie::WrongHash && lie != Lie::WrongParent && lie != Lie::WrongTime,
                "{chunk:?}"
            );
        }
        world.sim.grow(3);
        let stepped = process.forward.step().await.map_err(|error| error.to_string());
        assert!(stepped.is_err() || !matches!(lie, Lie::WrongHash), "{stepped:?}");
        // The source lies only now and then: no lie is ever stored.
        world.source.set_faults(faults(7));
        run(&world, &process, "one", HOUR).await;
        world.source.set_faults(SimFaults::default());
        assert_eq!(run(&world, &process, "one", 3 * HOUR).await, 0);
        process.catch_up().await.expect("nothing is in the way");
        world.check(&process.chain, 6).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_discarded_chunk_is_filled_again_although_its_job_is_done() {
    let (world, process) = world(7).await;
    assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
    for round in 0..3 {
        let chunks = process.chain.index().chunks();
        let chunk = chunks.iter().find(|chunk| chunk.blocks.start >= 32).expect("there are some");
        process.writer.resolve(Resolution::Discard(chunk.token)).await.expect("it goes");
        let view = process.chain.view().await.expect("read");
        assert!(!view.is_complete(), "round {round}");
        let report = process.backward.plan().await.expect("it plans");
        assert!(report > 0 && report == chunk.blocks.end - chunk.blocks.start);
        assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
        assert!(process.chain.view().await.expect("read").is_complete(), "round {round}");
    }
    world.check(&process.chain, 7).await;
}
