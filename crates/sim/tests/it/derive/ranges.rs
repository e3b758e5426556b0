//! Ranges in any order, split anywhere, overlapping, twice: each block counts once.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use logmill_chain::sim::SimChain;
use logmill_io::{Entropy, SeededEntropy};
use logmill_pipeline::Error;
use logmill_pipeline::derive::{DecodedBlock, Generation, Processor, RangeRows, Rows, Tables};
use logmill_sim::Database;
use logmill_sim::chain_world::{World, sim};
use logmill_sim::postgres::PostgresServer;

use super::life::{all, check, deriver, tables};
use super::model;
use super::probe::Probe;

/// The rows of a range of blocks.
pub(crate) fn part(generation: &Generation, sim: &SimChain, range: Range<u64>) -> RangeRows {
    let mut rows = Rows::new(generation.processor.tables());
    for number in range.clone() {
        let block = sim.block(number).expect("it exists");
        let decoded = DecodedBlock::new(model::CHAIN, block).expect("a good block");
        rows.at_block(number);
        generation.processor.process(&decoded, &mut rows).expect("a good block");
    }
    rows.fold().expect("they fit");
    RangeRows { generation: generation.clone(), range, rows }
}

/// A range of up to `most` blocks somewhere below `end`.
fn draw(dice: &dyn Entropy, end: u64, most: u64) -> Range<u64> {
    let start = dice.below(end);
    start..(start + 1 + dice.below(most)).min(end)
}

async fn any_order(seed: u64, database: &Database) {
    let dice: Arc<dyn Entropy> = SeededEntropy::shared(seed);
    let sim = sim(seed, None);
    sim.grow(40);
    let tables = Tables::open(database.open().await).await.expect("tables");
    let processors = all();
    let generations = tables.generations(model::CHAIN, &processors).await.expect("generations");
    for generation in &generations {
        let mut done: BTreeSet<u64> = BTreeSet::new();
        for _ in 0..40 {
            let range = draw(&*dice, 40, 9);
            let outcome = tables.commit(None, vec![part(generation, &sim, range.clone())]).await;
            if range.clone().any(|number| done.contains(&number)) {
                assert!(matches!(outcome, Err(Error::Overtaken { .. })), "{range:?} again");
            } else {
                outcome.expect("nothing of it was done");
                done.extend(range);
            }
        }
        let covered: BTreeSet<u64> = {
            let covered = tables.covered(generation).await.expect("read");
            covered.ranges().flatten().collect()
        };
        assert_eq!(covered, done);
        model::check(&tables, &[Arc::clone(&generation.processor)], &sim, done).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_in_any_order_and_overlapping_count_once() {
    for seed in 0..u64::from(logmill_io::proof_cases(6)) {
        any_order(seed, &Database::memory().await).await;
    }
}

#[tokio::test]
async fn ranges_in_any_order_count_once_on_postgresql() {
    let server = PostgresServer::start();
    any_order(7, &Database::postgres(&server)).await;
}

#[tokio::test(start_paused = true)]
async fn tables_without_derived_blocks_are_empty_and_not_an_error() {
    let tables = tables().await;
    let processors = all();
    tables.generations(model::CHAIN, &processors).await.expect("generations");
    model::check(&tables, &processors, &sim(1, None), []).await;
}

#[tokio::test(start_paused = true)]
async fn deriving_all_again_changes_nothing() {
    let world = World::new(3, Some(5)).await;
    world.sim.grow(30);
    let process = world.stored().await;
    let tables = tables().await;
    let processors = all();
    for _ in 0..3 {
        deriver(&world, &process, &tables, &processors).catch_up().await.expect("derived");
        check(&world, &process, &tables, &processors).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_processor_that_fails_does_not_stop_others_and_keeps_its_position() {
    let world = World::new(4, Some(5)).await;
    world.sim.grow(40);
    let process = world.stored().await;
    let tables = tables().await;
    let (good, wrong) = (super::life::real(), [11, 30]);
    let bad: Arc<dyn Processor> =
        Probe { fails_at: vec![11], panics_at: vec![30], ..Probe::of_version(1) }.into();
    let both = [good.clone(), vec![Arc::clone(&bad)]].concat();
    let deriver = deriver(&world, &process, &tables, &both);
    deriver.catch_up().await.expect("what fails is noted");
    check(&world, &process, &tables, &good).await;
    let rest: Vec<u64> = (0..=40).filter(|number| !wrong.contains(number)).collect();
    model::check(&tables, &[Probe::shared()], &world.sim, rest).await;
    let status = deriver.status();
    let probe = status.checkpoints.iter().find(|row| row.name == "probe_worker").expect("a row");
    let failing: Vec<u64> = probe.failing.iter().map(|failing| failing.start).collect();
    assert_eq!((probe.missing, failing), (2, vec![11, 30]), "{probe:?}");
    assert!(probe.failing[1].error.contains("told to panic"), "{probe:?}");
    // Fixed: the version is the same, and so are the tables.
    let mended = [good, vec![Probe::shared()]].concat();
    let deriver = super::life::deriver(&world, &process, &tables, &mended);
    deriver.catch_up().await.expect("nothing fails");
    check(&world, &process, &tables, &mended).await;
}

#[tokio::test(start_paused = true)]
async fn a_new_version_is_built_beside_the_old_one_and_replaces_it() {
    let world = World::new(5, Some(5)).await;
    world.sim.grow(30);
    let process = world.stored().await;
    let tables = tables().await;
    let old = vec![Probe::shared()];
    deriver(&world, &process, &tables, &old).catch_up().await.expect("derived");
    let new: Vec<Arc<dyn Processor>> = vec![Probe::of_version(2).into()];
    let next = deriver(&world, &process, &tables, &new);
    next.load().await.expect("generations");
    next.align_tip(None).await.expect("derived");
    assert!(next.is_building());
    let finalized = world.sim.heads().finalized.expect("it has").number;
    model::check(&tables, &old, &world.sim, 0..=finalized).await;
    next.catch_up().await.expect("derived");
    assert!(!next.is_building());
    check(&world, &process, &tables, &new).await;
    let left = "SELECT count(*) FROM derive_line";
    let left = tables.sql().query(left, Vec::new()).await.expect("read");
    assert_eq!(left.row().expect("one").int(0).expect("a number"), 1, "the old one is gone");
}
