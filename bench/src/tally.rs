//! Counts handler runs, signals when the expected number is reached, and reports when each handler started.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};

/// Shared by the handlers of one drain.
#[derive(Clone, Debug)]
pub struct Tally(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    done: AtomicU64,
    expected: u64,
    reached: Notify,
}

impl Tally {
    pub fn new(expected: u64) -> Self {
        Self(Arc::new(Inner { done: AtomicU64::new(0), expected, reached: Notify::new() }))
    }

    /// Counts one handler run.
    pub fn hit(&self) {
        if self.0.done.fetch_add(1, Ordering::Relaxed) + 1 == self.0.expected {
            // Stores a permit, so it does not matter whether the waiter comes first.
            self.0.reached.notify_one();
        }
    }

    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Waits until the expected number is reached, at most for `limit`. Supports a single waiter.
    pub async fn wait(&self, limit: Duration) {
        if self.0.expected > 0 {
            let _ = tokio::time::timeout(limit, self.0.reached.notified()).await;
        }
    }
}

/// Maximum time of a single pick-up, after which the engine counts as stuck.
const PICKUP_MAX: Duration = Duration::from_secs(30);

/// Sends the time when a handler starts.
#[derive(Clone, Debug)]
pub struct Starts(mpsc::Sender<Instant>);

impl Starts {
    pub fn new() -> (Self, StartReceiver) {
        let (sender, receiver) = mpsc::channel(16);
        (Self(sender), StartReceiver(receiver))
    }

    /// Call this first in the handler.
    pub fn started(&self) {
        let _ = self.0.try_send(Instant::now());
    }
}

#[derive(Debug)]
pub struct StartReceiver(mpsc::Receiver<Instant>);

impl StartReceiver {
    pub async fn next(&mut self) -> anyhow::Result<Instant> {
        match tokio::time::timeout(PICKUP_MAX, self.0.recv()).await {
            Ok(Some(at)) => Ok(at),
            Ok(None) => anyhow::bail!("the workers stopped before the job was picked up"),
            Err(_) => anyhow::bail!("no worker picked the job up within {PICKUP_MAX:?}"),
        }
    }
}
