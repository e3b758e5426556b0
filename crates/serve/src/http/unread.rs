//! HTTP/2 responses that their client does not read.
//!
//! The client controls the flow-control windows of HTTP/2. One that opens none would keep its responses and its
//! connection forever while it reads everything else: backpressure of the socket ([`super::paced_stream`]) does not
//! reveal that.
//!
//! Guarantees: [`UnreadAnswers::overdue`] completes once a piece of a response has waited too long for its client; the
//! time to produce a piece does not count. Leaves to others: ending the connection.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use logmill_io::Clock;

/// The pending responses of one connection. Clones share their state.
#[derive(Clone, Debug)]
pub(super) struct UnreadAnswers {
    clock: Arc<dyn Clock>,
    limit: Duration,
    wait_times: Arc<Mutex<WaitTimes>>,
}

#[derive(Debug, Default)]
struct WaitTimes {
    next: u64,
    /// For each response, since when its next piece has been waiting for the client.
    since: BTreeMap<u64, Duration>,
}

impl UnreadAnswers {
    /// `limit`: time in which the client must take each piece.
    pub(super) fn new(clock: Arc<dyn Clock>, limit: Duration) -> Self {
        Self { clock, limit, wait_times: Arc::default() }
    }

    /// Adds a response that waits for its client.
    pub(super) fn add(&self) -> UnreadAnswer {
        let mut wait_times = self.wait_times();
        let id = wait_times.next;
        wait_times.next += 1;
        drop(wait_times);
        let answer = UnreadAnswer { answers: self.clone(), id };
        answer.waits(true);
        answer
    }

    /// Completes when the client has left a piece of a response for too long.
    pub(super) async fn overdue(&self) {
        loop {
            let now = self.clock.monotonic();
            let oldest = self.wait_times().since.values().min().copied();
            let waited = oldest.map_or(Duration::ZERO, |since| now.saturating_sub(since));
            let left = self.limit.saturating_sub(waited);
            if left.is_zero() {
                return;
            }
            self.clock.sleep(left).await;
        }
    }

    fn wait_times(&self) -> MutexGuard<'_, WaitTimes> {
        self.wait_times.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A response, until it is sent or abandoned.
#[derive(Debug)]
pub(super) struct UnreadAnswer {
    answers: UnreadAnswers,
    id: u64,
}

impl UnreadAnswer {
    /// Called when the next piece is requested, that is, after the client took the last one. From now on the response
    /// waits for the client or for the server.
    pub(super) fn waits(&self, is_for_client: bool) {
        let now = self.answers.clock.monotonic();
        let mut wait_times = self.answers.wait_times();
        match is_for_client {
            true => drop(wait_times.since.insert(self.id, now)),
            false => drop(wait_times.since.remove(&self.id)),
        }
    }
}

impl Drop for UnreadAnswer {
    fn drop(&mut self) {
        self.waits(false);
    }
}
