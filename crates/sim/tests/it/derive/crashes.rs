//! The crash matrix of derived tables: die at every operation, restart, finish, compare.

use std::sync::Arc;

use logmill_io::{CrashMatrix, Fault, Faults};
use logmill_pipeline::derive::store::Permit;
use logmill_pipeline::derive::{Deriver, Processor, Tables};
use logmill_sim::Database;
use logmill_sim::chain_world::{Process, World};

use super::life::{check, deriver};
use super::model;
use super::probe::Probe;

fn some() -> Vec<Arc<dyn Processor>> {
    let mut some = super::life::real();
    some.retain(|processor| processor.name() == "ft_holdings_worker");
    some.push(Probe::shared());
    some
}

/// A tip, then another branch and finality, then a new generation.
async fn life(world: &World, process: &Process, deriver: &Deriver) -> logmill_pipeline::Result<()> {
    deriver.catch_up().await?;
    world.sim.reorg(2, 6).expect("not final");
    process.catch_up().await?;
    deriver.catch_up().await?;
    deriver.tables().rederive(model::CHAIN, &Probe::shared(), Permit::default()).await?;
    deriver.catch_up().await
}

async fn run(faults: &Arc<Faults>, processors: &[Arc<dyn Processor>]) {
    let world = World::new(8, Some(3)).await;
    world.sim.grow(9);
    let process = world.stored().await;
    let database = Database::memory().await;
    let plain = Tables::open(database.open().await).await.expect("tables");
    let disturbed = plain.through(plain.sql().with_faults(Arc::clone(faults)));
    let first = deriver(&world, &process, &disturbed, processors);
    // Whether the process died or only failed: the next one finishes.
    let _ = life(&world, &process, &first).await;
    process.catch_up().await.expect("nothing is in the way");
    let restarted = Tables::open(database.open().await).await.expect("tables");
    let next = deriver(&world, &process, &restarted, processors);
    next.catch_up().await.expect("nothing is in the way");
    check(&world, &process, &restarted, processors).await;
}

#[tokio::test(start_paused = true)]
async fn a_deriver_that_dies_anywhere_leaves_tables_that_the_next_one_completes() {
    let counted = Faults::none();
    run(&counted, &some()).await;
    let operations = counted.operations();
    assert!(operations > 50, "only {operations} operations");
    for operation in 0..operations {
        for fault in Fault::ALL {
            // Dying after an operation is mostly the same as dying before the next one, and failures without a
            // crash take the same retry path everywhere.
            if fault != Fault::CrashBefore && !operation.is_multiple_of(4) {
                continue;
            }
            let faults = Faults::at(operation, fault);
            run(&faults, &some()).await;
            assert_eq!(faults.crashed(), fault.crashes(), "{fault:?} at {operation} was reached");
        }
    }
}

/// All tables of all processors change together. A sample of the operations is enough, since all processors share the
/// code path.
#[tokio::test(start_paused = true)]
async fn no_table_of_any_processor_is_torn_when_a_deriver_dies() {
    const TIMES: u64 = 12;
    let all = super::life::all();
    let matrix = CrashMatrix::of_at_least(TIMES + 1).at_most(TIMES).in_turn();
    matrix.check(async |faults| run(&faults, &all).await).await;
}
