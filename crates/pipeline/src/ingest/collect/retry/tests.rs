//! Tests of which operations are retried, how often, and after which waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use logmill_io::sql::SqliteSettings;
use logmill_io::{Faults, SeededEntropy, SimClock, Timestamp};

use super::*;

/// Maximum time that the database layer itself retries before it reports a failure.
const STORE_S: u64 = 10;

fn of_database() -> Error {
    logmill_io::Error::TooSlow { doing: "try", limit_ms: 1 }.into()
}

fn of_chain() -> Error {
    let (what, why) = ("a node".to_owned(), "it is down".to_owned());
    logmill_chain::Error::Unavailable { what, why }.into()
}

/// How often an operation that fails this often runs, whether it succeeds in the end, and how many seconds that takes.
async fn tried(failures: u32, error: fn() -> Error, faults: Arc<Faults>) -> (u32, bool, u64) {
    let clock = SimClock::at(Timestamp(1_790_000_000_000));
    let (memory, entropy) = (SqliteSettings::memory(), SeededEntropy::shared(1));
    let plain = Sql::sqlite(&memory, clock, entropy).await.expect("a database");
    let sql = plain.with_faults(faults);
    let (ran, started) = (AtomicU32::new(0), sql.clock().monotonic());
    let done = with_retry(&sql, "try", || async {
        match ran.fetch_add(1, Ordering::SeqCst) < failures {
            true => Err(error()),
            false => Ok(()),
        }
    });
    let is_done = done.await.is_ok();
    let took = sql.clock().monotonic().saturating_sub(started);
    (ran.load(Ordering::SeqCst), is_done, took.as_secs())
}

#[tokio::test(start_paused = true)]
async fn there_are_three_attempts_with_linearly_growing_waits() {
    for (failures, expected) in
        [(0, (1, true, 0)), (1, (2, true, 2)), (2, (3, true, 6)), (3, (3, false, 6))]
    {
        assert_eq!(tried(failures, of_database, Faults::none()).await, expected, "{failures}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_database_is_pinged_before_every_retry() {
    let gone = Faults::seeded(SeededEntropy::shared(1), 1_000, 0);
    let (ran, is_done, took) = tried(1, of_database, gone).await;
    // The operation itself would have succeeded.
    assert_eq!((ran, is_done), (1, false));
    assert!((6..6 + 2 * STORE_S).contains(&took), "{took} s");
}

#[tokio::test(start_paused = true)]
async fn a_failure_of_the_chain_is_not_retried() {
    assert_eq!(tried(1, of_chain, Faults::none()).await, (1, false, 0));
}
