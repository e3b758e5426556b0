//! The crash matrix of the index: for each operation of a life on its stores, fail there, lose the answer there, die
//! just before or just after it; then restart, finish, and compare with the life that nothing disturbed.

use std::sync::Arc;

use finalized_log_index::{FinalizedBlock, LogIndex, Stores};
use logmill_io::blob::MemoryBlobs;
use logmill_io::meta::MemoryMeta;
use logmill_io::{
    Clock, Entropy, Fault, Faults, Faulty, SeededEntropy, SimClock, Timestamp, millis,
};

use crate::chain::Dice;
use crate::life::{self, PAUSE, collect, finish, image, live, look};

const FAULTS: [Fault; 4] = [Fault::Before, Fault::After, Fault::CrashBefore, Fault::CrashAfter];

/// Stores in memory whose time can be moved.
pub(crate) struct Ground {
    pub(crate) clock: Arc<SimClock>,
    pub(crate) stores: Stores,
}

impl Ground {
    pub(crate) fn new(seed: u64) -> Self {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let entropy: Arc<dyn Entropy> = SeededEntropy::shared(seed);
        let shared: Arc<dyn Clock> = clock.clone();
        let stores = Stores {
            meta: MemoryMeta::shared(Arc::clone(&shared), Arc::clone(&entropy)),
            blobs: MemoryBlobs::shared(),
            clock: shared,
            entropy,
        };
        Self { clock, stores }
    }

    /// The stores as a process sees them that faults reach.
    pub(crate) fn through(&self, faults: &Arc<Faults>) -> Stores {
        let (meta, blobs) = (Arc::clone(&self.stores.meta), Arc::clone(&self.stores.blobs));
        Stores {
            meta: Arc::new(Faulty::new(meta, Arc::clone(faults))),
            blobs: Arc::new(Faulty::new(blobs, Arc::clone(faults))),
            ..self.stores.clone()
        }
    }

    pub(crate) fn pause(&self) {
        self.clock.jump(millis(PAUSE));
    }
}

async fn reader(ground: &Ground) -> LogIndex {
    LogIndex::open(ground.stores.clone(), life::settings()).await.expect("it opens")
}

async fn run(faults: &Arc<Faults>, blocks: &[FinalizedBlock]) -> String {
    let ground = Ground::new(5);
    let reader = reader(&ground).await;
    let disturbed = ground.through(faults);
    let mut steps = 0;
    let after_step = async || {
        steps += 1;
        // Whenever the process is gone, and now and then before.
        if faults.crashed() || steps % 4 == 0 {
            look(&reader, blocks).await;
        }
    };
    live(&disturbed, blocks, || faults.crashed(), after_step).await;
    ground.pause();
    finish(&ground.stores, blocks).await;
    ground.pause();
    collect(&ground.stores).await;
    look(&reader, blocks).await;
    image(&ground.stores, blocks).await
}

#[tokio::test(start_paused = true)]
async fn an_index_survives_a_fault_at_every_operation() {
    let blocks = life::blocks();
    let counted = Faults::none();
    let undisturbed = run(&counted, &blocks).await;
    let operations = counted.operations();
    assert!(operations > 100, "the life has only {operations} operations");
    for operation in 0..operations {
        for fault in FAULTS {
            let faults = Faults::at(operation, fault);
            let image = run(&faults, &blocks).await;
            assert_eq!(image, undisturbed, "{fault:?} at operation {operation} of {operations}");
            let died = matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
            assert_eq!(faults.crashed(), died, "the fault was reached");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_index_that_crashes_again_and_again_is_finished_all_the_same() {
    let blocks = life::blocks();
    let undisturbed = run(&Faults::none(), &blocks).await;
    for seed in 0..u64::from(logmill_io::proof_cases(60)) {
        let mut dice = Dice::new(seed);
        let ground = Ground::new(seed);
        let reader = reader(&ground).await;
        for _ in 0..1_000 {
            let fault = if dice.one_in(2) { Fault::CrashBefore } else { Fault::CrashAfter };
            let faults = Faults::at(dice.below(150), fault);
            let disturbed = ground.through(&faults);
            live(&disturbed, &blocks, || faults.crashed(), async || {}).await;
            look(&reader, &blocks).await;
            if dice.one_in(3) {
                ground.pause();
            }
            if !faults.crashed() {
                break;
            }
        }
        ground.pause();
        finish(&ground.stores, &blocks).await;
        ground.pause();
        collect(&ground.stores).await;
        assert_eq!(image(&ground.stores, &blocks).await, undisturbed, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_life_has_all_that_is_to_be_disturbed() {
    let blocks = life::blocks();
    let ground = Ground::new(5);
    let writer = life::write(&ground.stores).await.expect("it opens");
    let mut merged = 0;
    for number in 0..life::STEPS {
        merged += writer.maintain().await.expect("it works").merged;
        life::step(&writer, &blocks, number).await.expect("nothing is in the way");
    }
    assert!(merged > 0, "pieces are merged");
    let health = writer.index().health();
    assert!(health.pruned_below > 0 && health.tail_blocks > 0, "{health:?}");
}
