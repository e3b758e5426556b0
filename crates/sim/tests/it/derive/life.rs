//! Random histories of derived tables: blocks arrive, branches die, derivers stop and race, generations are replaced.
//! At the end the tables equal those of a model without the processors.

use std::collections::BTreeMap;
use std::sync::Arc;

use logmill_io::{Entropy, SeededEntropy};
use logmill_pipeline::derive::store::Permit;
use logmill_pipeline::derive::{DeriveSettings, Deriver, Processor, Tables};
use logmill_pipeline::processors::usage::{UsageRule, UsageWorker};
use logmill_pipeline::{Error, processors};
use logmill_sim::Database;
use logmill_sim::chain_world::{Process, World};
use logmill_work::intervals::SearchOrder;

use super::model;
use super::probe::Probe;

/// The processors of the product, with transfers as usage of their senders.
pub(crate) fn real() -> Vec<Arc<dyn Processor>> {
    let settings = processors::Settings::of_chain(1);
    processors::all(&processors::Settings { usage: Some(transfers()), ..settings })
}

/// A rule that counts transfers as usage of their senders.
pub(crate) fn transfers() -> UsageWorker {
    let transfers = UsageRule {
        name: "transfers".to_owned(),
        event: "event Transfer(address indexed from, address indexed to, uint256 value)".to_owned(),
        contracts: Vec::new(),
        event_type: "transfers".to_owned(),
        customer: "from".to_owned(),
        value: Some("value".to_owned()),
        decimals: 6,
        token: None,
        token_decimals: BTreeMap::new(),
        dimensions: BTreeMap::from([("to".to_owned(), "to".to_owned())]),
    };
    UsageWorker::new(vec![transfers]).expect("a rule")
}

pub(crate) fn all() -> Vec<Arc<dyn Processor>> {
    let mut all = real();
    all.push(Probe::shared());
    all
}

pub(crate) fn settings() -> DeriveSettings {
    DeriveSettings { live_chunk: 3, history_chunk: 7, ..DeriveSettings::default() }
}

/// Empty tables in memory.
pub(crate) async fn tables() -> Tables {
    Tables::open(Database::memory().await.open().await).await.expect("tables")
}

pub(crate) fn deriver(
    world: &World,
    process: &Process,
    tables: &Tables,
    processors: &[Arc<dyn Processor>],
) -> Deriver {
    let (chain, clock) = (process.chain.clone(), world.clock.clone());
    Deriver::new(chain, tables.clone(), processors.to_vec(), settings(), "test", clock)
}

/// Checks that the tables match the stored blocks.
pub(crate) async fn check(
    world: &World,
    process: &Process,
    tables: &Tables,
    processors: &[Arc<dyn Processor>],
) {
    let view = process.chain.view().await.expect("read");
    let covered: Vec<u64> = view.covered().into_iter().flatten().collect();
    model::check(tables, processors, &world.sim, covered).await;
}

/// Accepts the outcomes that a race may have.
fn raced(outcome: Result<impl Sized, Error>) {
    match outcome {
        Ok(_) | Err(Error::Overtaken { .. }) => {}
        Err(error) => panic!("{error}"),
    }
}

async fn live(seed: u64, database: &Database, steps: usize) {
    let dice: Arc<dyn Entropy> = SeededEntropy::shared(seed);
    let mut world = World::new(seed, Some(6)).await;
    world.settings.history_stop = 0;
    // The tables are the same whether senders are stored or not.
    world.settings.store_senders = seed.is_multiple_of(2);
    world.sim.grow(5 + dice.below(20));
    let process = world.write().await;
    let tables = Tables::open(database.open().await).await.expect("tables");
    let processors = all();
    // Two at the same time, unaware of each other.
    let mut derivers = Vec::new();
    for _ in 0..2 {
        let deriver = deriver(&world, &process, &tables, &processors);
        deriver.load().await.expect("generations");
        derivers.push(deriver);
    }
    for _ in 0..steps {
        let deriver = &derivers[usize::from(dice.below(2) == 0)];
        match dice.below(12) {
            0..2 => drop(world.sim.grow(1 + dice.below(4))),
            2 => drop(world.sim.reorg(1 + dice.below(6), 1 + dice.below(8))),
            3..5 => process.catch_up().await.expect("nothing is in the way"),
            5 => drop(process.fill().await.expect("nothing is in the way")),
            6..8 => raced(deriver.align_tip(None).await),
            8 => raced(deriver.history_step(None, SearchOrder::HighestFirst).await),
            9 => raced(deriver.history_step(None, SearchOrder::LowestFirst).await),
            10 => {
                let number = usize::try_from(dice.below(processors.len() as u64)).expect("few");
                tables
                    .rederive(model::CHAIN, &processors[number], Permit::default())
                    .await
                    .expect("begun");
                deriver.load().await.expect("generations");
            }
            _ => raced(deriver.finish_generations(None).await),
        }
    }
    world.sim.grow(2);
    process.catch_up().await.expect("nothing is in the way");
    process.fill().await.expect("nothing is in the way");
    for deriver in &derivers {
        deriver.catch_up().await.expect("nothing is in the way");
    }
    assert!(!derivers[1].is_building(), "what was begun is finished");
    check(&world, &process, &tables, &processors).await;
    for checkpoint in derivers[1].status().checkpoints {
        assert_eq!(checkpoint.missing, 0, "{checkpoint:?}");
        assert!(checkpoint.failing.is_empty(), "{checkpoint:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn tables_are_a_fold_of_the_chain_whatever_happened_on_the_way() {
    for seed in 0..u64::from(logmill_io::proof_cases(12)) {
        eprintln!("seed {seed}");
        live(seed, &Database::memory().await, 60).await;
    }
}

#[tokio::test]
async fn tables_are_a_fold_of_the_chain_on_postgresql_too() {
    let server = logmill_sim::postgres::PostgresServer::start();
    for seed in 100..100 + u64::from(logmill_io::proof_cases(3)) {
        eprintln!("seed {seed}");
        live(seed, &Database::postgres(&server), 40).await;
    }
}
