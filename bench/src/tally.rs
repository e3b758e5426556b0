//! Counts handler runs and tells when the expected number is reached, and when each one started.

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

    /// One more handler has run.
    pub fn hit(&self) {
        if self.0.done.fetch_add(1, Ordering::Relaxed) + 1 == self.0.expected {
            // Stores a permit, so it does not matter who comes first.
            self.0.reached.notify_one();
        }
    }

    pub fn done(&self) -> u64 {
        self.0.done.load(Ordering::Relaxed)
    }

    /// Waits until the expected number is reached, but no longer than `limit`. One waiter only.
    pub async fn wait(&self, limit: Duration) {
        if self.0.expected > 0 {
            let _ = tokio::time::timeout(limit, self.0.reached.notified()).await;
        }
    }
}

/// The longest a single pick-up may take before the engine counts as stuck.
const PICKUP_MAX: Duration = Duration::from_secs(30);

/// Sends the moment a handler starts to the one who waits for it.
#[derive(Clone, Debug)]
pub struct Starts(mpsc::Sender<Instant>);

impl Starts {
    pub fn new() -> (Self, StartsSeen) {
        let (sender, receiver) = mpsc::channel(16);
        (Self(sender), StartsSeen(receiver))
    }

    /// To be called first thing in the handler.
    pub fn started(&self) {
        let _ = self.0.try_send(Instant::now());
    }
}

#[derive(Debug)]
pub struct StartsSeen(mpsc::Receiver<Instant>);

impl StartsSeen {
    pub async fn next(&mut self) -> anyhow::Result<Instant> {
        match tokio::time::timeout(PICKUP_MAX, self.0.recv()).await {
            Ok(Some(at)) => Ok(at),
            Ok(None) => anyhow::bail!("the workers stopped before the job was picked up"),
            Err(_) => anyhow::bail!("no worker picked the job up within {PICKUP_MAX:?}"),
        }
    }
}
