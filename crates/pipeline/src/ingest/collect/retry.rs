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
mod tests;
