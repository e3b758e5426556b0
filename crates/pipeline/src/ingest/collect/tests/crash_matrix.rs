//! The crash matrix of the collector: for each database operation of a run, fail there, lose the answer there, or crash
//! just before or after it; then restart, finish, and compare with an undisturbed run.

use logmill_io::{CrashMatrix, Faults};

use super::*;

/// A run under faults, then an undisturbed one.
async fn live(chain: &SimChain, faults: &Arc<Faults>) {
    let fixture = Fixture::on(chain.clone()).await;
    // The set-up runs without faults.
    drop(fixture.collector().await);
    let faulty = fixture.sql.with_faults(Arc::clone(faults));
    if let Ok(collector) = fixture.collector_of(&faulty, fixture.settings()).await {
        collector.catch_up().await;
    }
    fixture.clock.sleep(LATER).await;
    let after = fixture.collector().await;
    after.tables.queue().reap(&after.kind()).await.expect("leases are over");
    assert!(after.catch_up().await);
    fixture.check().await;
    let status = after.report().await.collected.expect("the database answers");
    assert_eq!((status.cursor, status.dead, status.pending, status.running), (20, 0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn collected_rows_survive_a_fault_at_every_operation() {
    let chain = Fixture::new(24, 5).await.sim;
    CrashMatrix::of_at_least(41).check(async |faults| live(&chain, &faults).await).await;
}
