//! The crash matrix of the pipeline: for each store operation of a run, fail there, lose the answer there, or crash
//! just before or after it; then restart, finish, and compare with an undisturbed run.

use std::sync::Arc;

use finalized_log_index::Stores;
use logmill_chain::sim::SimChain;
use logmill_io::{Fault, Faults, FaultyStore};

use crate::life::{STEPS, chains, check, finish, image, live};
use crate::stages::Stages;
use crate::world::World;

const FAULTS: [Fault; 4] = [Fault::Before, Fault::After, Fault::CrashBefore, Fault::CrashAfter];

fn through(stores: &Stores, faults: &Arc<Faults>) -> Stores {
    let (meta, blobs) = (Arc::clone(&stores.meta), Arc::clone(&stores.blobs));
    Stores {
        meta: Arc::new(FaultyStore::new(meta, Arc::clone(faults))),
        blobs: Arc::new(FaultyStore::new(blobs, Arc::clone(faults))),
        ..stores.clone()
    }
}

async fn run(faults: &Arc<Faults>, chains: &[SimChain]) -> String {
    let stages = Stages::new(chains);
    let world = World::of(5, chains[chains.len() - 1].clone()).await;
    let next = live(&world, &stages, &through(&world.stores, faults), || faults.crashed()).await;
    world.pause();
    finish(&world, &stages, next).await;
    image(&world, stages.chain()).await
}

#[tokio::test(start_paused = true)]
async fn stored_blocks_survive_a_fault_at_every_operation() {
    let chains = chains();
    let counted = Faults::none();
    let undisturbed = run(&counted, &chains).await;
    let operations = counted.operations();
    assert!(operations > 80, "the life has only {operations} operations");
    for operation in 0..operations {
        for fault in FAULTS {
            let faults = Faults::at(operation, fault);
            let image = run(&faults, &chains).await;
            assert!(image == undisturbed, "{fault:?} at operation {operation} of {operations}");
            let died = matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
            assert_eq!(faults.crashed(), died, "the fault was reached");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_undisturbed_run_reaches_every_stage() {
    let chains = chains();
    let stages = Stages::new(&chains);
    let world = World::of(5, chains[3].clone()).await;
    let next = live(&world, &stages, &world.stores, || false).await;
    assert_eq!(next, STEPS);
    let chain = world.open().await;
    check(stages.chain(), &chain).await;
    let health = chain.index().health();
    assert!(health.chunks > 3 && health.tail_blocks > 0, "{health:?}");
    assert!(chain.view().await.expect("read").is_complete());
}
