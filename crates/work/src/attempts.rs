//! `Attempts`: retries of an operation within a process.
//!
//! Guarantees: an operation runs at most `most` times, and waits as its [`Backoff`] says before each retry. Leaves to
//! others: which errors a retry may solve; the operation must be idempotent. Jobs are retried by [`crate::Runner`],
//! ranges as [`crate::ranges`] describes.

use logmill_io::{Clock, Entropy};

use crate::backoff::Backoff;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// Maximum number of attempts, the first one included.
    pub most: i64,
    pub waits: Backoff,
}

impl Attempts {
    /// Runs an operation, which gets the number of failed attempts, until it succeeds, fails with an error that
    /// `is_retried` rejects, or has no attempts left. `note` gets each failure that is retried, with its number.
    pub async fn run<T, E, F>(
        &self,
        (clock, entropy): (&dyn Clock, &dyn Entropy),
        operation: impl Fn(i64) -> F,
        is_retried: impl Fn(&E) -> bool,
        note: impl Fn(i64, &E),
    ) -> Result<T, E>
    where
        F: Future<Output = Result<T, E>>,
    {
        let mut failed = 0;
        loop {
            let error = match operation(failed).await {
                Err(error) if is_retried(&error) => error,
                outcome => return outcome,
            };
            failed += 1;
            if failed >= self.most {
                return Err(error);
            }
            note(failed, &error);
            drop(error);
            clock.sleep(self.waits.wait(failed, entropy)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};
    use std::time::Duration;

    use logmill_io::{SeededEntropy, SimClock, Timestamp};

    use super::*;

    /// The outcome of an operation that fails this often, the noted failures, and the seconds that it took.
    async fn check(
        failures: i64,
        error: &'static str,
    ) -> (Result<i64, &'static str>, Vec<i64>, u64) {
        let (clock, entropy) = (SimClock::at(Timestamp(0)), SeededEntropy::shared(1));
        let (runs, noted) = (Cell::new(0), RefCell::new(Vec::new()));
        let waits = Backoff::Linear { step: Duration::from_secs(2) };
        let ran = Attempts { most: 3, waits }
            .run(
                (&*clock, &*entropy),
                |failed| {
                    assert_eq!(failed, runs.replace(failed + 1));
                    std::future::ready(if failed < failures { Err(error) } else { Ok(failed) })
                },
                |error| *error != "refused",
                |failed, _| noted.borrow_mut().push(failed),
            )
            .await;
        (ran, noted.take(), clock.monotonic().as_secs())
    }

    #[tokio::test(start_paused = true)]
    async fn an_operation_is_retried_until_it_succeeds_is_refused_or_has_no_attempts_left() {
        assert_eq!(check(0, "busy").await, (Ok(0), vec![], 0));
        assert_eq!(check(2, "busy").await, (Ok(2), vec![1, 2], 6));
        assert_eq!(check(3, "busy").await, (Err("busy"), vec![1, 2], 6));
        assert_eq!(check(1, "refused").await, (Err("refused"), vec![], 0));
    }
}
