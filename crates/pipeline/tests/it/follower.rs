//! Several processes: a follower of the writer, and a writer that lost its lease without knowing.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use logmill_chain::ChainSource;
use logmill_io::{ErrorKind, Faults};
use logmill_pipeline::Chain;
use logmill_sim::chain_world::World;

use crate::life::{STEPS, chains, check, look, step};
use crate::listener::Listener;
use crate::stages::Stages;

#[tokio::test(start_paused = true)]
async fn a_follower_is_right_between_any_two_operations_of_the_writer() {
    for every in [1, 3, 17] {
        let chains = chains();
        let stages = Stages::new(&chains);
        let world = World::of(4, chains[3].clone()).await;
        let reader = world.open().await;
        let listener = Arc::new(tokio::sync::Mutex::new(Listener::of(&reader).await));
        let hook = {
            let reader = reader.clone();
            Faults::before_each(move |number| {
                let (reader, listener) = (reader.clone(), Arc::clone(&listener));
                Box::pin(async move {
                    look(&reader).await;
                    if number % every == 0 {
                        reader.follow().await.expect("it can be followed");
                        look(&reader).await;
                        listener.lock().await.receive(&reader).await;
                    }
                })
            })
        };
        let source: Arc<dyn ChainSource> = stages.clone();
        let stores = world.stores.with_faults(&hook);
        let process = world.write_as("one", &stores, &source).await.expect("it opens");
        for number in 0..STEPS {
            step(&process, &stages, number).await.expect("nothing is in the way");
        }
        reader.follow().await.expect("it can be followed");
        check(stages.chain(), &reader).await;
        assert!(hook.operations() > 80, "{hook:?}");
    }
}

/// The writer does two steps just before operation `at` of a follower. Returns the follower's number of operations.
async fn follow_while(chains: &[logmill_chain::sim::SimChain], first: usize, at: u64) -> u64 {
    let stages = Stages::new(chains);
    let world = World::of(4, chains[3].clone()).await;
    let source: Arc<dyn ChainSource> = stages.clone();
    let process = Arc::new(world.write_as("one", &world.stores, &source).await.expect("it opens"));
    for number in 0..first {
        step(&process, &stages, number).await.expect("nothing is in the way");
    }
    let start = Arc::new(AtomicU64::new(u64::MAX));
    let hook = {
        let (start, stages, process) = (Arc::clone(&start), Arc::clone(&stages), process.clone());
        Faults::before_each(move |number| {
            let now = start.load(Ordering::SeqCst).checked_add(at) == Some(number);
            let (stages, process) = (Arc::clone(&stages), Arc::clone(&process));
            Box::pin(async move {
                if now {
                    for number in first..STEPS.min(first + 2) {
                        step(&process, &stages, number).await.expect("nothing is in the way");
                    }
                }
            })
        })
    };
    let mut hooked = World::of(4, chains[3].clone()).await;
    hooked.stores = world.stores.with_faults(&hook);
    let reader = hooked.open().await;
    let mut listener = Listener::of(&reader).await;
    start.store(hook.operations(), Ordering::SeqCst);
    let before = hook.operations();
    reader.follow().await.expect("it can be followed");
    let operations = hook.operations() - before;
    start.store(u64::MAX, Ordering::SeqCst);
    look(&reader).await;
    reader.follow().await.expect("it can be followed");
    look(&reader).await;
    listener.receive(&reader).await;
    // Another process opens the chain meanwhile.
    start.store(hook.operations(), Ordering::SeqCst);
    let late = hooked.open().await;
    start.store(u64::MAX, Ordering::SeqCst);
    late.follow().await.expect("it can be followed");
    look(&late).await;
    operations
}

#[tokio::test(start_paused = true)]
async fn a_follower_that_looks_while_the_writer_moves_on_sees_one_chain() {
    let chains = chains();
    for first in 0..STEPS {
        let mut at = 0;
        // At least as many operations as opening takes, including reads of the tip's blocks.
        while at < follow_while(&chains, first, at).await.max(24) {
            at += 1;
        }
    }
}

/// Requests are answered while the process follows the writer.
#[tokio::test(start_paused = true)]
async fn readers_of_a_follower_see_one_chain_while_it_follows() {
    let chains = chains();
    let stages = Stages::new(&chains);
    let world = World::of(4, chains[3].clone()).await;
    let source: Arc<dyn ChainSource> = stages.clone();
    let process = world.write_as("one", &world.stores, &source).await.expect("it opens");
    let follower: Arc<OnceLock<Chain>> = Arc::default();
    let looks = Arc::new(AtomicU64::new(0));
    let hook = {
        let (follower, looks) = (Arc::clone(&follower), Arc::clone(&looks));
        let looking = Arc::new(AtomicBool::new(false));
        Faults::before_each(move |_| {
            let (follower, looking) = (Arc::clone(&follower), Arc::clone(&looking));
            let looks = Arc::clone(&looks);
            Box::pin(async move {
                // Not during the reads of a look itself.
                if let Some(follower) = follower.get()
                    && !looking.swap(true, Ordering::SeqCst)
                {
                    look(follower).await;
                    looking.store(false, Ordering::SeqCst);
                    looks.fetch_add(1, Ordering::SeqCst);
                }
            })
        })
    };
    let mut hooked = World::of(4, chains[3].clone()).await;
    hooked.stores = world.stores.with_faults(&hook);
    follower.set(hooked.open().await).expect("once");
    let reader = follower.get().expect("set");
    for number in 0..STEPS {
        step(&process, &stages, number).await.expect("nothing is in the way");
        reader.follow().await.expect("it can be followed");
        look(reader).await;
    }
    check(stages.chain(), reader).await;
    assert!(looks.load(Ordering::SeqCst) > 30, "{looks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_follower_sends_the_changes_that_the_writer_sends() {
    for lag in [0, 1, 12] {
        let world = World::new(12, Some(lag)).await;
        world.sim.grow(30);
        let process = world.write().await;
        process.catch_up().await.expect("nothing is in the way");
        let follower = world.open().await;
        let mut listeners = [Listener::of(&process.chain).await, Listener::of(&follower).await];
        let seldom = world.open().await;
        let mut slow_listener = Listener::of(&seldom).await;
        for round in 0..20_u64 {
            if round % 4 == 3 && lag > 0 {
                let depth = (1 + round % 7).min(lag);
                world.sim.reorg(depth, depth + round % 3).expect("not final");
            } else {
                world.sim.grow(1 + round % 3);
            }
            process.catch_up().await.expect("nothing is in the way");
            follower.follow().await.expect("it can be followed");
            listeners[0].receive(&process.chain).await;
            listeners[1].receive(&follower).await;
            let [ours, theirs] = &listeners;
            assert_eq!(ours.blocks, theirs.blocks, "lag {lag}, round {round}");
            // Covers blocks that were added and then removed or finalized between two looks.
            if round % 9 == 8 {
                seldom.follow().await.expect("it can be followed");
                slow_listener.receive(&seldom).await;
                assert_eq!(slow_listener.blocks, ours.blocks, "lag {lag}, round {round}");
            }
        }
        assert!(!listeners[0].blocks.is_empty());
        world.check(&follower, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_was_replaced_can_change_neither_tip_nor_index() {
    let world = World::new(13, Some(12)).await;
    world.sim.grow(40);
    let old = world.write().await;
    old.catch_up().await.expect("nothing is in the way");
    world.pause();
    let new = world.write_as("two", &world.stores, &world.source()).await.expect("it is free");
    // Whatever the old writer tries now is refused: a reorganization, growth, finality.
    for (depth, length) in [(3, 4), (0, 1), (0, 9)] {
        let before = new.chain.view().await.expect("read");
        if depth > 0 {
            world.sim.reorg(depth, length).expect("not final");
        } else {
            world.sim.grow(length);
        }
        let error = old.catch_up().await.expect_err("it was replaced");
        assert_eq!(error.kind(), ErrorKind::Fenced, "{error:?}");
        let reader = world.open().await.view().await.expect("read");
        assert_eq!(reader.head(), before.head());
        assert_eq!(reader.finalized(), before.finalized());
        new.catch_up().await.expect("it writes");
        world.check(&new.chain, 3).await;
    }
    // The old process reads correctly once it follows.
    old.chain.follow().await.expect("it can be followed");
    world.check(&old.chain, 4).await;
    let renewed = old.writer.renew().await.expect_err("its lease is lost");
    assert_eq!(renewed.kind(), ErrorKind::Fenced);
}

#[tokio::test(start_paused = true)]
async fn a_returning_writer_continues_from_the_blocks_of_the_other() {
    let world = World::new(14, Some(12)).await;
    world.sim.grow(40);
    let one = world.write().await;
    one.catch_up().await.expect("nothing is in the way");
    let mut listener = Listener::of(&one.chain).await;
    world.sim.grow(2);
    one.catch_up().await.expect("nothing is in the way");
    listener.receive(&one.chain).await;
    world.pause();
    let two = world.write_as("two", &world.stores, &world.source()).await.expect("it is free");
    world.sim.reorg(5, 9).expect("not final");
    two.catch_up().await.expect("it writes");
    world.sim.grow(20);
    two.catch_up().await.expect("it writes");
    drop(two);
    world.pause();
    let chain = one.chain.clone();
    drop(one);
    // The same process, with its state in memory.
    let writer = Arc::new(chain.index().writer("three").await.expect("it is free"));
    chain.follow().await.expect("it can be followed");
    listener.receive(&chain).await;
    world.check(&chain, 2).await;
    drop(writer);
}
