//! The crash matrix of the pipeline: for each store operation of a run, fail there, lose the answer there, or crash
//! just before or after it; then restart, finish, and compare with an undisturbed run.

use std::sync::Arc;

use logmill_chain::sim::SimChain;
use logmill_io::{CrashMatrix, Faults};
use logmill_sim::chain_world::World;

use crate::life::{STEPS, chains, check, finish, image, live};
use crate::stages::Stages;

async fn run(faults: &Arc<Faults>, chains: &[SimChain]) -> String {
    let stages = Stages::new(chains);
    let world = World::of(5, chains[chains.len() - 1].clone()).await;
    let next = live(&world, &stages, &world.stores.with_faults(faults), || faults.crashed()).await;
    world.pause();
    finish(&world, &stages, next).await;
    image(&world, stages.chain()).await
}

#[tokio::test(start_paused = true)]
async fn stored_blocks_survive_a_fault_at_every_operation() {
    let chains = chains();
    CrashMatrix::of_at_least(81).check(async |faults| run(&faults, &chains).await).await;
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
