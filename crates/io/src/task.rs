//! Tasks: the one place where concurrency starts.
//!
//! Guarantees: a [`Tasks`] set stops what it started when it is dropped, so no task outlives its owner, and
//! a panic in a task comes back as a value. Leaves to others: how many tasks there are; every caller names
//! its bound.

use std::future::Future;

use tokio::task::{JoinError, JoinSet};

/// A set of running tasks that ends with its owner.
#[derive(Debug)]
pub struct Tasks<T: 'static> {
    set: JoinSet<T>,
}

impl<T: Send + 'static> Tasks<T> {
    /// An empty set.
    pub fn new() -> Self {
        Self { set: JoinSet::new() }
    }

    /// Starts one more task.
    pub fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.set.spawn(task);
    }

    /// How many are still running or not yet joined.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    /// Whether none is left.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// The outcome of the next task that ends, `None` when there is none left.
    pub async fn join_next(&mut self) -> Option<Result<T, Panicked>> {
        Some(self.set.join_next().await?.map_err(Panicked::from))
    }

    /// Stops all tasks at their next await.
    pub fn abort_all(&mut self) {
        self.set.abort_all();
    }
}

impl<T: Send + 'static> Default for Tasks<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs work that takes the processor for long, where it holds up no other task. A panic of it is a panic of the
/// caller.
pub async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is going down, and with it whoever waits here.
        Err(_) => std::future::pending().await,
    }
}

/// Runs a task on a thread of its own, where it may take the processor for long between its awaits. It goes on to its
/// end also if the caller goes away. A panic of it is a panic of the caller.
pub async fn apart<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Handle::current();
    compute(move || runtime.block_on(task)).await
}

/// A task that did not return: it panicked, or was stopped.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Panicked {
    message: String,
}

impl From<JoinError> for Panicked {
    fn from(error: JoinError) -> Self {
        if error.is_cancelled() {
            return Self { message: "the task was stopped".to_owned() };
        }
        let panic = error.into_panic();
        let said = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        Self { message: format!("panicked: {said}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_comes_back_with_its_message() {
        let mut tasks: Tasks<()> = Tasks::new();
        tasks.spawn(async { panic!("out of cheese") });
        let outcome = tasks.join_next().await.expect("one task").expect_err("it panicked");
        assert_eq!(outcome.to_string(), "panicked: out of cheese");
        assert!(tasks.join_next().await.is_none());
    }

    #[tokio::test]
    async fn what_runs_apart_may_block_and_wait() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (first, second) = std::sync::mpsc::channel();
        let task = apart(async move {
            // Its own test's only thread must go on while this one stands still.
            second.recv().expect("the other side is there");
            receiver.await.expect("an answer")
        });
        let other = async {
            first.send(()).expect("the other side is there");
            sender.send(7).expect("the other side is there");
        };
        assert_eq!(tokio::join!(task, other).0, 7);
    }

    #[tokio::test]
    async fn a_dropped_set_stops_its_tasks() {
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let mut tasks = Tasks::new();
        tasks.spawn(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        drop(tasks);
        receiver.await.expect_err("the sender was dropped with its task");
    }
}
