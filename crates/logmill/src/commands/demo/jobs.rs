//! Jobs: a few thousand, some of which fail, one of which panics and one of which cannot succeed.
//!
//! Guarantees: the handler counts effects, the queue counts states, and both are compared. Leaves to others: processes
//! that die, which the tests of the work kernel cover with `kill -9`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::Tasks;
use logmill_work::{
    Backoff, Failure, Handler, NewJob, Outcome, Queue, Runner, RunnerSettings, RunningJob, State,
};
use tokio::sync::watch;

use super::check;
use crate::error::{Error, Result};
use crate::output;

const KIND: &str = "demo.job";
const JOBS: u64 = 3_000;
/// One of this many jobs fails at its first attempt.
const FAILING_EVERY: u64 = 20;
/// This one panics at its first attempt.
const PANICS: u64 = 777;
/// This one always fails.
const HOPELESS: u64 = 1_234;
const ATTEMPTS_MAX: u32 = 3;
const SLOTS: usize = 64;
const RETRY_WAIT: Duration = Duration::from_millis(100);
const LOOK_WAIT: Duration = Duration::from_millis(500);
/// A demo that takes longer is stuck: a minute, where a few seconds are usual.
const LOOKS_MAX: u32 = 120;

pub(super) async fn show(queue: &Queue) -> Result<String> {
    let jobs: Vec<NewJob> = (0..JOBS).map(job).collect();
    let created = queue.enqueue_many(&jobs).await?;
    let again = queue.enqueue_many(&jobs).await?;
    check((created, again) == (JOBS, 0), || {
        format!("{created} jobs were created first, then {again} more")
    })?;
    let handler = Arc::new(DemoHandler::default());
    let settings = RunnerSettings {
        backoff: Backoff::Linear { step: RETRY_WAIT },
        ..RunnerSettings::new(KIND, "demo", SLOTS)
    };
    let runner = Runner::new(queue.clone(), Arc::clone(&handler) as Arc<dyn Handler>, settings)?;
    let (stop, mut stopped) = watch::channel(false);
    let mut tasks = Tasks::new();
    tasks.spawn(async move {
        runner.run(async move { drop(stopped.wait_for(|stop| *stop).await) }).await
    });
    watch_progress(queue).await?;
    // The runner listens until it has ended.
    let _ = stop.send(true);
    let ended = tasks.join_next().await.ok_or(Error::TaskEnded { task: "the demo's runner" })?;
    ended??;
    verify(queue, &handler).await
}

fn job(number: u64) -> NewJob {
    let mut job = NewJob::new(KIND, format!("{number:06}"), format!("{{\"number\":{number}}}"));
    job.attempts_max = ATTEMPTS_MAX;
    job
}

/// Prints progress until nothing is left to do.
async fn watch_progress(queue: &Queue) -> Result<()> {
    for _ in 0..LOOKS_MAX {
        let counts = counts(queue).await?;
        let count = |state| counts.get(&state).copied().unwrap_or(0);
        let finished = count(State::Done) + count(State::Dead);
        let text = format!(
            "demo: jobs: {} of {JOBS} done, {} running, {} waiting, {} dead",
            count(State::Done),
            count(State::Running),
            count(State::Pending),
            count(State::Dead)
        );
        output::progress(&text, finished == JOBS);
        if finished == JOBS {
            return Ok(());
        }
        queue.sql().clock().sleep(LOOK_WAIT).await;
    }
    Err(Error::Demo { what: "the jobs were not done in time".to_owned() })
}

async fn counts(queue: &Queue) -> Result<BTreeMap<State, u64>> {
    let counts = queue.counts().await?;
    let ours = counts.into_iter().filter(|counts| counts.kind == KIND);
    Ok(ours.map(|counts| (counts.state, counts.jobs)).collect())
}

async fn verify(queue: &Queue, handler: &DemoHandler) -> Result<String> {
    let counts = counts(queue).await?;
    let wanted = BTreeMap::from([(State::Done, JOBS - 1), (State::Dead, 1)]);
    check(counts == wanted, || format!("the jobs ended as {counts:?}"))?;
    let effects = handler.effects.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let once = effects.len() as u64 == JOBS - 1 && effects.values().all(|times| *times == 1);
    check(once, || "a job did not take effect exactly once".to_owned())?;
    let failed = handler.failed.load(Ordering::SeqCst);
    let dead = queue.list(KIND, State::Dead, None, 1).await?;
    let attempts = dead.first().map_or(0, |job| job.attempts);
    check(attempts == i64::from(ATTEMPTS_MAX), || {
        format!("a dead letter after {attempts} attempts")
    })?;
    check(queue.redrive(KIND, &format!("{HOPELESS:06}")).await?, || {
        "the dead letter could not be redriven".to_owned()
    })?;
    Ok(format!(
        "jobs: {JOBS} enqueued twice and created once, {} done with one effect each, {failed} failed attempts \
         retried (one was a panic), 1 dead letter after {attempts} attempts, redriven",
        JOBS - 1
    ))
}

#[derive(Default)]
struct DemoHandler {
    /// How often each job took effect.
    effects: Mutex<BTreeMap<u64, u64>>,
    /// Attempts that failed and were retried.
    failed: AtomicU64,
}

#[async_trait]
impl Handler for DemoHandler {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let key = &running.claim.key;
        let number: u64 = key.parse().map_err(|_| Failure::for_good("the key is not a number"))?;
        let first = running.claim.attempt == 1;
        if number == HOPELESS {
            return Err(Failure::again("this one always fails"));
        }
        if first && (number == PANICS || number.is_multiple_of(FAILING_EVERY)) {
            self.failed.fetch_add(1, Ordering::SeqCst);
            assert!(number != PANICS, "this one panics at its first attempt, on purpose");
            return Err(Failure::again("this one fails at its first attempt"));
        }
        *self.effects.lock().unwrap_or_else(PoisonError::into_inner).entry(number).or_default() +=
            1;
        Ok(Outcome::Done)
    }
}
