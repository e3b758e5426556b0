//! The crash matrix of the index. For each store operation of a scenario: fail there, lose the reply there, crash
//! just before or just after it; then restart, finish, and compare with the undisturbed run.

use std::sync::Arc;

use finalized_log_index::{FinalizedBlock, LogIndex};
use logmill_io::{CrashMatrix, Fault, Faults};

use crate::chain::Dice;
use crate::fixture::MemoryStores;
use crate::life::{self, collect, finish, image, live, look};

async fn reader(memory: &MemoryStores) -> LogIndex {
    LogIndex::open(memory.stores.clone(), life::settings()).await.expect("it opens")
}

async fn run(faults: &Arc<Faults>, blocks: &[FinalizedBlock]) -> String {
    let memory = MemoryStores::new(5);
    let reader = reader(&memory).await;
    let disturbed = memory.stores.with_faults(faults);
    let mut steps = 0;
    let after_step = async || {
        steps += 1;
        // Whenever the process has crashed, and occasionally before.
        if faults.crashed() || steps % 4 == 0 {
            look(&reader, blocks).await;
        }
    };
    live(&disturbed, blocks, || faults.crashed(), after_step).await;
    memory.pause();
    finish(&memory.stores, blocks).await;
    memory.pause();
    collect(&memory.stores).await;
    look(&reader, blocks).await;
    image(&memory.stores, blocks).await
}

#[tokio::test(start_paused = true)]
async fn an_index_survives_a_fault_at_every_operation() {
    let blocks = life::blocks();
    CrashMatrix::of_at_least(101).check(async |faults| run(&faults, &blocks).await).await;
}

#[tokio::test(start_paused = true)]
async fn an_index_that_crashes_repeatedly_ends_in_the_same_state() {
    let blocks = life::blocks();
    let undisturbed = run(&Faults::none(), &blocks).await;
    for seed in 0..u64::from(logmill_io::proof_cases(60)) {
        let mut dice = Dice::new(seed);
        let memory = MemoryStores::new(seed);
        let reader = reader(&memory).await;
        for _ in 0..1_000 {
            let fault = if dice.one_in(2) { Fault::CrashBefore } else { Fault::CrashAfter };
            let faults = Faults::at(dice.below(150), fault);
            let disturbed = memory.stores.with_faults(&faults);
            live(&disturbed, &blocks, || faults.crashed(), async || {}).await;
            look(&reader, &blocks).await;
            if dice.one_in(3) {
                memory.pause();
            }
            if !faults.crashed() {
                break;
            }
        }
        memory.pause();
        finish(&memory.stores, &blocks).await;
        memory.pause();
        collect(&memory.stores).await;
        assert_eq!(image(&memory.stores, &blocks).await, undisturbed, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_scenario_merges_and_prunes_and_keeps_a_tail() {
    let blocks = life::blocks();
    let memory = MemoryStores::new(5);
    let writer = life::write(&memory.stores).await.expect("it opens");
    let mut merged = 0;
    for number in 0..life::STEPS {
        merged += writer.maintain().await.expect("it works").merged;
        life::step(&writer, &blocks, number).await.expect("nothing is in the way");
    }
    assert!(merged > 0, "pieces are merged");
    let health = writer.index().health();
    assert!(health.pruned_below > 0 && health.tail_blocks > 0, "{health:?}");
}
