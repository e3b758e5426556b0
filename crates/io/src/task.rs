//! Tasks: the one place where concurrency starts.
//!
//! Guarantees: dropping a [`Tasks`] set aborts its tasks, so no task outlives its owner; a panic in a task is
//! returned as a value. Leaves to others: how many tasks there are; every caller defines its own bound.

use std::future::Future;
use std::sync::OnceLock;

use tokio::runtime::{Builder, Runtime};
use tokio::task::{JoinError, JoinSet};

/// A set of running tasks that are aborted when it is dropped.
#[derive(Debug)]
pub struct Tasks<T: 'static> {
    set: JoinSet<T>,
}

impl<T: Send + 'static> Tasks<T> {
    pub fn new() -> Self {
        Self { set: JoinSet::new() }
    }

    pub fn spawn(&mut self, task: impl Future<Output = T> + Send + 'static) {
        self.set.spawn(task);
    }

    /// Number of tasks that run or are not joined yet.
    pub fn len(&self) -> usize {
        self.set.len()
    }

    pub fn is_empty(&self) -> bool {
        self.set.is_empty()
    }

    /// Waits for the next task to end and returns its outcome; `None` if no tasks are left.
    pub async fn join_next(&mut self) -> Option<Result<T, TaskPanic>> {
        Some(self.set.join_next().await?.map_err(TaskPanic::from))
    }

    /// Aborts all tasks at their next await.
    pub fn abort_all(&mut self) {
        self.set.abort_all();
    }
}

impl<T: Send + 'static> Default for Tasks<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// Runs CPU-bound or blocking work on a thread where it delays no other task. A panic propagates to the caller.
pub async fn compute<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, and with it the task that waits here.
        Err(_) => std::future::pending().await,
    }
}

/// Runs a task on its own thread, where it may block between awaits. It runs to its end even if the caller is
/// dropped. A panic propagates to the caller.
pub async fn apart<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    let runtime = tokio::runtime::Handle::current();
    compute(move || runtime.block_on(task)).await
}

/// Runs one of many similar tasks, such as those of sockets, on a separate set of threads, so that their number
/// and load never delay other tasks. The task is aborted if the caller is dropped; a panic propagates to the
/// caller.
pub async fn in_crowd<T: Send + 'static>(task: impl Future<Output = T> + Send + 'static) -> T {
    // Lives as long as the process: others may go on using what such a task opened.
    static CROWD: OnceLock<Option<Runtime>> = OnceLock::new();
    let Some(crowd) = CROWD.get_or_init(crowd) else {
        return task.await;
    };
    let mut set = JoinSet::new();
    set.spawn_on(task, crowd.handle());
    match set.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(error)) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The runtime is shutting down, and with it the task that waits here.
        _ => std::future::pending().await,
    }
}

/// A runtime with threads for half of the processors; `None` if it cannot be built.
fn crowd() -> Option<Runtime> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = (processors / 2).max(1);
    Builder::new_multi_thread()
        .worker_threads(threads)
        .thread_name("logmill-crowd")
        .enable_all()
        .build()
        .ok()
}

/// Error of a task that did not return: it panicked, or was aborted.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct TaskPanic {
    message: String,
}

impl From<JoinError> for TaskPanic {
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
    async fn a_panic_is_returned_with_its_message() {
        let mut tasks: Tasks<()> = Tasks::new();
        tasks.spawn(async { panic!("out of cheese") });
        let outcome = tasks.join_next().await.expect("one task").expect_err("it panicked");
        assert_eq!(outcome.to_string(), "panicked: out of cheese");
        assert!(tasks.join_next().await.is_none());
    }

    #[tokio::test]
    async fn a_task_on_its_own_thread_may_block_and_wait() {
        let (sender, receiver) = tokio::sync::oneshot::channel();
        let (first, second) = std::sync::mpsc::channel();
        let task = apart(async move {
            // The test's only thread must go on while this one blocks.
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
    async fn blocked_crowd_threads_delay_no_other_task() {
        let (first, second) = std::sync::mpsc::channel::<()>();
        // The test's only thread must go on while this one blocks.
        let crowd = in_crowd(async move {
            second.recv().expect_err("the other side is dropped");
            7
        });
        let other = async move {
            tokio::task::yield_now().await;
            drop(first);
        };
        assert_eq!(tokio::join!(crowd, other).0, 7);
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let mut endless = Box::pin(in_crowd(async move {
            std::future::pending::<()>().await;
            drop(sender);
        }));
        assert!(futures::poll!(&mut endless).is_pending());
        drop(endless);
        receiver.await.expect_err("the sender was dropped with its task");
    }

    #[tokio::test]
    async fn a_dropped_set_aborts_its_tasks() {
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
