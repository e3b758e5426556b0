//! `with_retry`: retries of database operations.
//!
//! The store itself handles short outages ([`logmill_io::Sql`] retries lost races and broken connections); this is for
//! longer ones. Operations that ask a node are not retried here: a failed node says nothing about the database.
//!
//! Guarantees: three attempts, two and four seconds apart; before each retry the database is pinged. Leaves to others:
//! what to do when all attempts fail; the operation must be idempotent.

use std::time::Duration;

use logmill_io::{ErrorKind, Sql};
use logmill_work::{Attempts, Backoff};

use crate::error::{Error, Result};

const ATTEMPTS: Attempts =
    Attempts { most: 3, waits: Backoff::Linear { step: Duration::from_secs(2) } };

/// Runs a database operation, and retries it if the database fails.
pub(super) async fn with_retry<T, F, Fut>(sql: &Sql, doing: &'static str, run: F) -> Result<T>
where
    F: Fn() -> Fut + Send + Sync,
    Fut: Future<Output = Result<T>> + Send,
{
    let run = &run;
    let operation = |failed: i64| async move {
        if failed > 0 {
            sql.now().await?;
        }
        run().await
    };
    let is_retried = |error: &Error| error.kind() == ErrorKind::Transient && !is_of_chain(error);
    let note = |attempt: i64, error: &Error| {
        let error = logmill_io::error_chain(error);
        tracing::warn!(doing, attempt, error, "a database operation failed, retrying");
    };
    ATTEMPTS.run((&**sql.clock(), &**sql.entropy()), operation, is_retried, note).await
}

/// Whether the chain failed, not the database.
pub(super) fn is_of_chain(error: &Error) -> bool {
    matches!(error, Error::Chain(_) | Error::FinalityReverted { .. })
}

#[cfg(test)]
mod tests;
