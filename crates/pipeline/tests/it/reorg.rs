//! Reorganizations: at any depth, to any length, during a fetch, and where they are not allowed.

use std::sync::Arc;

use logmill_chain::ChainSource;
use logmill_chain::sim::{SimChain, SimFaults};
use logmill_io::{Entropy, ErrorKind, SeededEntropy};
use logmill_pipeline::ingest::IngestSettings;
use logmill_pipeline::ingest::forward::Step;
use logmill_pipeline::{Chain, Error};
use logmill_sim::chain_world::{World, check_blocks, check_heads, check_logs, sim};

use crate::listener::Listener;
use crate::stages::Stages;

/// Checks that the stored blocks are those of an undisturbed run over this chain.
async fn as_if_undisturbed(world: &World, chain: &Chain) {
    let stored = chain.view().await.expect("read");
    check_heads(&world.sim, &stored);
    check_blocks(&world.sim, &stored).await;
    check_logs(&world.sim, &stored, 5).await;
    let mut fresh = World::of(9, world.sim.clone()).await;
    // From the same first block.
    fresh.settings.history_stop = stored.covered()[0].start;
    let process = fresh.write().await;
    process.catch_up().await.expect("nothing is in the way");
    let undisturbed = process.chain.view().await.expect("read");
    let start = |view: &logmill_pipeline::View| view.covered()[0].start;
    assert!(start(&stored) <= start(&undisturbed));
    assert_eq!(stored.head(), undisturbed.head());
    assert_eq!(stored.safe(), undisturbed.safe());
    assert_eq!(stored.finalized(), undisturbed.finalized());
    for number in start(&undisturbed)..=stored.head().expect("stored").number {
        let block = stored.block(number).await.expect("read");
        assert_eq!(block, undisturbed.block(number).await.expect("read"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reorg_of_any_depth_and_length_leaves_what_an_undisturbed_run_would() {
    for depth in [1, 2, 3, 5, 8, 13, 20, 29, 30] {
        for length in [0, 1, depth - 1, depth, depth + 1, depth + 12] {
            let world = World::new(4, Some(30)).await;
            world.sim.grow(80);
            let process = world.write().await;
            let mut listener = Listener::of(&process.chain).await;
            process.catch_up().await.expect("nothing is in the way");
            listener.receive(&process.chain).await;
            world.sim.reorg(depth, length).expect("not final");
            process.catch_up().await.expect("nothing is in the way");
            listener.receive(&process.chain).await;
            let view = process.chain.view().await.expect("read");
            assert_eq!(view.head(), Some(world.sim.latest()), "{depth} by {length}");
            check_blocks(&world.sim, &view).await;
            world.sim.grow(1);
            process.catch_up().await.expect("nothing is in the way");
            listener.receive(&process.chain).await;
            world.sim.grow(depth + 2);
            process.catch_up().await.expect("nothing is in the way");
            listener.receive(&process.chain).await;
            as_if_undisturbed(&world, &process.chain).await;
            assert!(process.progress.report().reorgs > 0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_goes_back_is_followed_and_a_node_that_lags_for_some_looks_is_not() {
    let world = World::new(4, Some(30)).await;
    world.sim.grow(80);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    let mut listener = Listener::of(&process.chain).await;
    let head = async || process.chain.view().await.expect("read").head().expect("one").number;
    // Four looks at a lagging node, then one at a node that does not lag, again and again.
    for _ in 0..5 {
        world.source.set_faults(SimFaults { behind: 2, ..SimFaults::default() });
        for _ in 0..4 {
            assert_eq!(process.forward.step().await.expect("a look"), Step::Soon);
        }
        world.source.set_faults(SimFaults::default());
        assert_eq!(process.forward.step().await.expect("a look"), Step::CaughtUp);
        assert_eq!(head().await, 80);
    }
    assert_eq!(process.progress.report().reorgs, 0);
    // The blocks are gone.
    world.sim.reorg(2, 0).expect("not final");
    process.catch_up().await.expect("nothing is in the way");
    assert_eq!((head().await, process.progress.report().reorgs), (78, 1));
    listener.receive(&process.chain).await;
    assert_eq!(listener.blocks.last_key_value().expect("some").0, &78, "listeners know");
}

#[tokio::test(start_paused = true)]
async fn a_head_below_final_blocks_removes_only_the_others_and_is_reported_until_it_is_back() {
    let world = World::new(4, Some(30)).await;
    world.sim.grow(80);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    let mut listener = Listener::of(&process.chain).await;
    let head = async || process.chain.view().await.expect("read").head().expect("one").number;
    // By fewer blocks than a view may lag.
    for behind in [31, 32] {
        world.source.set_faults(SimFaults { behind, ..SimFaults::default() });
        for _ in 0..4 {
            assert_eq!(process.forward.step().await.expect("a look"), Step::Soon);
            assert_eq!(head().await, 80, "a node may lag");
        }
        process.catch_up().await.expect("nothing is in the way");
        assert_eq!(head().await, 50, "final blocks stay");
        listener.receive(&process.chain).await;
        assert!(listener.blocks.keys().all(|number| *number <= 50), "listeners know");
        for _ in 0..20 {
            process.forward.step().await.expect("a look");
            assert_eq!(process.progress.report().lost_final, Some(50));
        }
        world.source.set_faults(SimFaults::default());
        process.catch_up().await.expect("nothing is in the way");
        assert_eq!((head().await, process.progress.report().lost_final), (80, None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_reorg_is_followed_up_to_the_allowed_depth_and_refused_beyond() {
    for (depth, longer, allowed) in
        [(9, 1, true), (10, 1, true), (10, 0, true), (11, 1, false), (11, 0, false), (40, 3, false)]
    {
        let mut world = World::new(5, None).await;
        world.settings = IngestSettings { max_reorg_depth: 10, ..world.settings };
        world.sim.grow(50);
        let process = world.write().await;
        process.catch_up().await.expect("nothing is in the way");
        world.sim.reorg(depth, depth + longer).expect("not final");
        let before = process.chain.view().await.expect("read").head();
        match process.catch_up().await {
            Ok(()) => {
                assert!(allowed, "{depth}");
                as_if_undisturbed(&world, &process.chain).await;
            }
            Err(error) => {
                assert!(!allowed, "{depth}: {error}");
                assert!(matches!(error, Error::ReorgTooDeep { max: 10, .. }), "{error:?}");
                assert_eq!(error.kind(), ErrorKind::Conflict);
                let view = process.chain.view().await.expect("read");
                assert_eq!(view.head(), before, "nothing has changed");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_becomes_much_shorter_is_refused_and_not_a_panic() {
    let mut world = World::new(5, None).await;
    world.settings = IngestSettings { max_reorg_depth: 10, ..world.settings };
    world.sim.grow(50);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    for length in [1, 20, 29] {
        world.sim.reorg(world.sim.latest().number - 10, length).expect("not final");
        let error = process.catch_up().await.expect_err("too deep");
        assert!(matches!(error, Error::ReorgTooDeep { .. }), "{length}: {error:?}");
    }
}

/// Two chains of one seed that diverge above `common`; the first is final up to `finalized`.
fn parted(common: u64, finalized: u64) -> [SimChain; 2] {
    let ours = sim(6, None);
    ours.grow(60);
    ours.set_finalized(finalized).expect("it exists");
    let theirs = sim(6, None);
    theirs.grow(60);
    theirs.reorg(60 - common, 62 - common).expect("not final");
    theirs.set_finalized(finalized).expect("it exists");
    [ours, theirs]
}

#[tokio::test(start_paused = true)]
async fn a_fork_below_the_finalized_block_is_refused_and_one_just_above_is_followed() {
    for (common, allowed) in [(40, true), (41, true), (39, false), (38, false), (20, false)] {
        let chains = parted(common, 40);
        let stages = Stages::new(&chains);
        let world = World::of(6, chains[1].clone()).await;
        let source: Arc<dyn ChainSource> = stages.clone();
        let process = world.write_as("one", &world.stores, &source).await.expect("it opens");
        process.catch_up().await.expect("nothing is in the way");
        stages.switch(1);
        match process.catch_up().await {
            Ok(()) => {
                assert!(allowed, "{common}");
                as_if_undisturbed(&world, &process.chain).await;
            }
            Err(error) => {
                assert!(!allowed, "{common}: {error}");
                assert!(matches!(error, Error::FinalityReverted { number: 40, .. }), "{error:?}");
                let view = process.chain.view().await.expect("read");
                check_blocks(&chains[0], &view).await;
                assert_eq!(process.chain.index().health().degraded, None);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_chain_that_ends_below_the_finalized_block_is_refused() {
    let ours = sim(6, Some(5));
    ours.grow(60);
    let theirs = sim(6, None);
    theirs.grow(52);
    theirs.reorg(10, 8).expect("not final");
    let stages = Stages::new(&[ours.clone(), theirs]);
    let world = World::of(6, ours.clone()).await;
    let source: Arc<dyn ChainSource> = stages.clone();
    let process = world.write_as("one", &world.stores, &source).await.expect("it opens");
    process.catch_up().await.expect("nothing is in the way");
    stages.switch(1);
    let error = process.catch_up().await.expect_err("it was final");
    assert!(matches!(error, Error::FinalityReverted { number: 55, .. }), "{error:?}");
    world.check(&process.chain, 1).await;
    assert_eq!(process.chain.index().health().degraded, None);
}

#[tokio::test(start_paused = true)]
async fn no_block_of_a_dead_branch_becomes_final_however_the_chain_changes_while_it_is_read() {
    for seed in 0..u64::from(logmill_io::proof_cases(12)) {
        let world = World::new(seed, Some(12)).await;
        let dice: Arc<dyn Entropy> = SeededEntropy::shared(seed);
        world.sim.grow(40);
        let process = world.write().await;
        let mut listener = Listener::of(&process.chain).await;
        for round in 0..12 {
            world.source.set_faults(SimFaults {
                reorg_every: 2 + dice.below(4),
                reorg_depth: 1 + dice.below(12),
                fail_every: [0, 5, 7][usize::try_from(dice.below(3)).expect("small")],
                ..SimFaults::default()
            });
            for _ in 0..6 {
                match process.forward.step().await {
                    Ok(_) | Err(Error::Chain(_)) => {}
                    Err(error) => panic!("seed {seed}, round {round}: {error:?}"),
                }
                listener.receive(&process.chain).await;
                let view = process.chain.view().await.expect("read");
                if let Some(at) = view.finalized() {
                    assert_eq!(world.sim.at(at.number), Some(at), "seed {seed}, round {round}");
                }
            }
            if dice.below(2) == 0 {
                world.sim.grow(dice.below(9));
            }
        }
        world.source.set_faults(SimFaults::default());
        process.catch_up().await.expect("nothing is in the way");
        listener.receive(&process.chain).await;
        as_if_undisturbed(&world, &process.chain).await;
    }
}

/// The tip is on a branch that died unobserved, the other branch was finalized beyond the end of the tip, and a block
/// on the way to the common ancestor cannot be fetched.
#[tokio::test(start_paused = true)]
async fn a_dead_tip_does_not_become_final_during_the_search_for_its_ancestor() {
    for missing in 22..=40 {
        let world = World::new(7, None).await;
        world.sim.grow(40);
        world.sim.set_finalized(20).expect("it exists");
        let process = world.write().await;
        process.catch_up().await.expect("nothing is in the way");
        world.sim.reorg(19, 60).expect("not final");
        world.sim.set_finalized(70).expect("it exists");
        let faults = SimFaults { missing: [(missing, u64::MAX)].into(), ..SimFaults::default() };
        world.source.set_faults(faults);
        for _ in 0..3 {
            let step = process.forward.step().await;
            // The branch may still be found by its hashes.
            assert!(matches!(step, Ok(_) | Err(Error::Chain(_))), "{step:?}");
            let view = process.chain.view().await.expect("read");
            let at = view.finalized().expect("some are");
            assert_eq!(world.sim.at(at.number), Some(at), "block {missing} can not be had");
        }
        world.source.set_faults(SimFaults::default());
        process.catch_up().await.expect("nothing is in the way");
        as_if_undisturbed(&world, &process.chain).await;
    }
}

/// The tip is on a branch that died unobserved; meanwhile the other one was finalized beyond the end of the tip. The
/// chain changes at each look for the common ancestor.
#[tokio::test(start_paused = true)]
async fn a_dead_tip_is_not_final_although_finality_has_passed_it() {
    for reorg_every in [2, 3, 4] {
        let world = World::new(7, None).await;
        world.sim.grow(40);
        world.sim.set_finalized(20).expect("it exists");
        let process = world.write().await;
        process.catch_up().await.expect("nothing is in the way");
        world.sim.reorg(15, 60).expect("not final");
        world.sim.set_finalized(70).expect("it exists");
        world.source.set_faults(SimFaults { reorg_every, reorg_depth: 10, ..SimFaults::default() });
        for _ in 0..40 {
            let step = process.forward.step().await;
            assert!(matches!(step, Ok(_) | Err(Error::Chain(_))), "{step:?}");
            let view = process.chain.view().await.expect("read");
            let at = view.finalized().expect("some are");
            assert_eq!(world.sim.at(at.number), Some(at), "it is of the chain");
        }
        world.source.set_faults(SimFaults::default());
        process.catch_up().await.expect("nothing is in the way");
        as_if_undisturbed(&world, &process.chain).await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_reorgs_in_a_row_are_two_changes_or_one() {
    for between in [false, true] {
        let world = World::new(8, Some(30)).await;
        world.sim.grow(60);
        let process = world.write().await;
        let mut listener = Listener::of(&process.chain).await;
        process.catch_up().await.expect("nothing is in the way");
        listener.receive(&process.chain).await;
        world.sim.reorg(6, 8).expect("not final");
        if between {
            assert_eq!(process.forward.step().await.expect("fine"), Step::Behind);
            listener.receive(&process.chain).await;
        }
        world.sim.reorg(12, 12).expect("not final");
        process.catch_up().await.expect("nothing is in the way");
        listener.receive(&process.chain).await;
        as_if_undisturbed(&world, &process.chain).await;
        let report = process.progress.report();
        assert_eq!(report.reorgs, if between { 2 } else { 1 });
    }
}

#[tokio::test(start_paused = true)]
async fn a_tip_over_an_empty_index_keeps_its_first_block() {
    let mut world = World::new(9, None).await;
    world.settings.history_stop = 48;
    world.sim.grow(60);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    assert_eq!(process.chain.covered(), [48..61]);
    world.sim.reorg(30, 31).expect("not final");
    process.catch_up().await.expect("nothing is in the way");
    assert_eq!(process.chain.covered(), [48..62]);
    as_if_undisturbed(&world, &process.chain).await;
}
