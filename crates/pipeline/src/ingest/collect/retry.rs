//! `with_retry`: retries of database operations.
//!
//! The store itself handles short outages ([`logmill_io::Sql`] retries lost races and broken connections); this is for
//! longer ones. Operations that ask a node are not retried here: a failed node says nothing about the database.
//!
//! Guarantees: three attempts, two and four seconds apart; before each retry the database is pinged. Leaves to others:
//! what to do when all attempts fail; the operation must be idempotent.

use std::time::Duration;

use logmill_io::{ErrorKind, Sql};
use logmill_work::Backoff;

use crate::error::{Error, Result};

const ATTEMPTS: i64 = 3;
const WAITS: Backoff = Backoff::Linear { step: Duration::from_secs(2) };

/// Runs a database operation, and retries it if the database fails.
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
        tracing::warn!(
            doing,
            attempt = failed,
            error = logmill_io::error_chain(&error),
            "a database operation failed, retrying"
        );
        sql.clock().sleep(WAITS.wait(failed, &**sql.entropy())).await;
    }
}

/// Whether the chain failed, not the database.
pub(super) fn is_of_chain(error: &Error) -> bool {
    matches!(error, Error::Chain(_) | Error::FinalityReverted { .. })
}

#[cfg(test)]
mod tests;
