//! The loop of a component that works on claims: steps until it is stopped, then a bounded wait for its tasks.
//!
//! ```text
//!       task ends, wake-up, next due time
//!                │            ▲
//!                ▼            │ nothing more to do now
//!               step ─────────┘
//!                │ stop
//!                ▼
//!     tasks may end, with heartbeats, until the deadline
//! ```
//!
//! Guarantees: a step that fails is repeated after `AGAIN_WAIT`, and tasks go on meanwhile, unless the store can
//! never work again. After the stop signal there is no further step; no task is waited for beyond the deadline.
//! Leaves to others: what a step does, and what becomes of tasks that have not ended by the deadline.

use std::future::Future;
use std::time::Duration;

use logmill_io::{Clock, ErrorKind};

/// Delay before a failed statement is retried.
const AGAIN_WAIT: Duration = Duration::from_millis(500);

/// Claims jobs, runs them in tasks and records their results.
pub trait ClaimWorker: Send {
    type Error: Send;

    /// Does everything that can be done now; returns the time to the next work if no event comes earlier.
    fn work(&mut self) -> impl Future<Output = Result<Duration, Self::Error>> + Send;

    /// Waits until a task has ended or a wake-up comes.
    fn event(&mut self) -> impl Future<Output = ()> + Send;

    /// Waits until a task has ended. Called only if there are any.
    fn end_next(&mut self) -> impl Future<Output = ()> + Send;

    fn has_tasks(&self) -> bool;

    /// Prolongs the leases of the held claims, if it is time.
    fn heartbeat(&mut self) -> impl Future<Output = Result<(), Self::Error>> + Send;

    fn error_kind(error: &Self::Error) -> ErrorKind;

    /// Logs an error of [`Self::work`] that may pass.
    fn log_failure(&self, error: &Self::Error);

    /// Logs an error of [`Self::heartbeat`] during a stop.
    fn log_missed_heartbeat(&self, error: &Self::Error);
}

/// Works until `stop` completes.
pub async fn work_until<W: ClaimWorker>(
    worker: &mut W,
    clock: &dyn Clock,
    stop: impl Future<Output = ()> + Send,
) -> Result<(), W::Error> {
    let mut stop = std::pin::pin!(stop);
    loop {
        let wait = match worker.work().await {
            Ok(wait) => wait,
            // A store handle with this error does not recover: the caller must reopen it.
            Err(error)
                if matches!(W::error_kind(&error), ErrorKind::Internal | ErrorKind::Corrupt) =>
            {
                return Err(error);
            }
            // The store is unavailable. Tasks go on; the worker retries.
            Err(error) => {
                worker.log_failure(&error);
                AGAIN_WAIT
            }
        };
        tokio::select! {
            biased;
            () = &mut stop => return Ok(()),
            () = worker.event() => {}
            () = clock.sleep(wait) => {}
        }
    }
}

/// Lets tasks end, for at most this long, and keeps their claims meanwhile.
pub async fn finish_tasks<W: ClaimWorker>(worker: &mut W, clock: &dyn Clock, within: Duration) {
    let deadline = clock.monotonic() + within;
    while worker.has_tasks() && clock.monotonic() < deadline {
        if let Err(error) = worker.heartbeat().await {
            worker.log_missed_heartbeat(&error);
        }
        let left = deadline.saturating_sub(clock.monotonic());
        tokio::select! {
            biased;
            () = worker.end_next() => {}
            () = clock.sleep(left.min(AGAIN_WAIT)) => {}
        }
    }
}
