//! `with_retry`: operations of the database, tried again.
//!
//! A short outage is the store's own business ([`logmill_io::Sql`] tries lost races and broken connections again); this
//! is for longer ones. Nothing that asks a chain runs in here: a node that is away says nothing about the database.
//!
//! Guarantees: three attempts, two and four seconds apart, and before each that follows a failure the database is asked
//! whether it is there. Leaves to others: what to do when all have failed; what is tried must be harmless twice.

use std::time::Duration;

use logmill_io::{ErrorKind, Sql};
use logmill_work::Backoff;

use crate::error::{Error, Result};

const ATTEMPTS: i64 = 3;
const WAITS: Backoff = Backoff::Linear { step: Duration::from_secs(2) };

/// Runs an operation of the database, again if the database fails.
pub(super) async fn with_retry<T, F, Fut>(sql: &Sql, doing: &'static str, run: F) -> Result<T>
where
    F: Fn() -> Fut + Send,
    Fut: Future<Output = Result<T>> + Send,
{
    let mut failed = 0;
    loop {
        let outcome = match failed {
            0 => run().await,
            _ => match sql.now().await {
                Ok(_) => run().await,
                Err(error) => Err(error.into()),
            },
        };
        let error = match outcome {
            Err(error) if error.kind() == ErrorKind::Transient && !is_of_chain(&error) => error,
            outcome => return outcome,
        };
        failed += 1;
        if failed >= ATTEMPTS {
            return Err(error);
        }
        tracing::warn!(doing, attempt = failed, error = logmill_io::chain(&error), "tried again");
        sql.clock().sleep(WAITS.wait(failed, &**sql.entropy())).await;
    }
}

/// Whether the chain is what failed.
pub(super) fn is_of_chain(error: &Error) -> bool {
    matches!(error, Error::Chain(_) | Error::FinalityReverted { .. })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use logmill_io::sql::SqliteSettings;
    use logmill_io::{Fault, Faults, SeededEntropy, SimClock, Timestamp};

    use super::*;

    /// How often an operation runs whose database has these faults, whether it goes well in the end, and how many
    /// seconds that takes.
    async fn tried(faults: std::sync::Arc<Faults>) -> (u32, bool, u64) {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let (memory, entropy) = (SqliteSettings::memory(), SeededEntropy::shared(1));
        let plain = Sql::sqlite(&memory, clock.clone(), entropy).await.expect("a database");
        let sql = plain.with_faults(faults);
        let (ran, started) = (AtomicU32::new(0), sql.clock().monotonic());
        let done = with_retry(&sql, "try", || async {
            ran.fetch_add(1, Ordering::SeqCst);
            sql.now().await?;
            Ok(())
        });
        let is_done = done.await.is_ok();
        let took = sql.clock().monotonic().saturating_sub(started);
        (ran.load(Ordering::SeqCst), is_done, took.as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn the_database_is_asked_whether_it_is_there_before_anything_is_tried_again() {
        assert_eq!(tried(Faults::none()).await, (1, true, 0));
        assert_eq!(tried(Faults::at(0, Fault::Before)).await, (2, true, 2));
        // The second attempt ends with the question.
        let gone = Faults::seeded(SeededEntropy::shared(1), 1_000, 0);
        assert_eq!(tried(gone).await, (1, false, 6));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_no_fault_of_the_database_is_not_tried_again() {
        let clock = SimClock::at(Timestamp(1_790_000_000_000));
        let (memory, entropy) = (SqliteSettings::memory(), SeededEntropy::shared(1));
        let sql = Sql::sqlite(&memory, clock, entropy).await.expect("a database");
        let ran = AtomicU32::new(0);
        let chain = with_retry(&sql, "try", || async {
            ran.fetch_add(1, Ordering::SeqCst);
            let why = "it is down".to_owned();
            Err::<(), _>(Error::Chain(logmill_chain::Error::Unavailable {
                what: "a node".to_owned(),
                why,
            }))
        });
        assert!(chain.await.is_err());
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }
}
