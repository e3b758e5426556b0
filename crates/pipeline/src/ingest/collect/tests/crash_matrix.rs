//! The crash matrix of the collector: for each operation of a life on its database, fail there, lose the answer there,
//! die just before or just after it; then start again, finish, and compare with the life that nothing disturbed.

use logmill_io::{Fault, Faults};

use super::*;

const FAULTS: [Fault; 4] = [Fault::Before, Fault::After, Fault::CrashBefore, Fault::CrashAfter];

/// A life under faults, and one after it that nothing disturbs.
async fn live(chain: &SimChain, faults: &Arc<Faults>) {
    let ground = Ground::on(chain.clone()).await;
    // What opening makes is not what is disturbed here.
    drop(ground.collector().await);
    let faulty = ground.sql.with_faults(Arc::clone(faults));
    if let Ok(collector) = ground.collector_of(&faulty, ground.settings()).await {
        collector.catch_up().await;
    }
    ground.clock.sleep(LATER).await;
    let after = ground.collector().await;
    after.tables.queue().reap(&after.kind()).await.expect("leases are over");
    assert!(after.catch_up().await);
    ground.check().await;
    let status = after.report().await.collected.expect("the database answers");
    assert_eq!((status.cursor, status.dead, status.pending, status.running), (20, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_is_collected_survives_a_fault_at_every_operation() {
    let chain = Ground::new(24, 5).await.sim;
    let counted = Faults::none();
    live(&chain, &counted).await;
    let operations = counted.operations();
    assert!(operations > 40, "the life has only {operations} operations");
    for operation in 0..operations {
        for fault in FAULTS {
            let faults = Faults::at(operation, fault);
            live(&chain, &faults).await;
            let died = matches!(fault, Fault::CrashBefore | Fault::CrashAfter);
            assert_eq!(faults.crashed(), died, "{fault:?} at {operation} was reached");
        }
    }
}
