//! The runner: slots do not leak, jobs are acknowledged, and an idle runner sends no statements.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::{Faults, SeededEntropy, Tasks};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::{
    Backoff, Failure, Handler, NewJob, Outcome, Queue, Runner, RunnerSettings, RunningJob, State,
};
use tokio::sync::{Semaphore, mpsc, oneshot};

use super::{in_real_time, open, simulate};

const SLOTS: usize = 2;

/// Does what the payload says, and reports each start.
struct ScriptedHandler {
    reports: mpsc::Sender<String>,
    /// Jobs with the payload `wait` take a permit from here.
    gate: Arc<Semaphore>,
    running: AtomicUsize,
    most_running: AtomicUsize,
}

impl ScriptedHandler {
    fn new() -> (Arc<Self>, mpsc::Receiver<String>) {
        let (reports, received) = mpsc::channel(10_000);
        let gate = Arc::new(Semaphore::new(0));
        let scripted =
            Self { reports, gate, running: AtomicUsize::new(0), most_running: AtomicUsize::new(0) };
        (Arc::new(scripted), received)
    }
}

struct RunningGuard<'a>(&'a AtomicUsize);

impl Drop for RunningGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Handler for ScriptedHandler {
    async fn run(&self, running: RunningJob) -> Result<Outcome, Failure> {
        let now = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        let _guard = RunningGuard(&self.running);
        self.most_running.fetch_max(now, Ordering::SeqCst);
        let claim = &running.claim;
        self.reports
            .send(format!("{}#{}", claim.key, claim.attempt))
            .await
            .expect("the test listens");
        match claim.payload.as_str() {
            "panic" => panic!("out of cheese"),
            "fail" => Err(Failure::again("no luck")),
            "fail twice" if claim.attempt <= 2 => Err(Failure::again("no luck yet")),
            "give up" => Err(Failure::for_good("never works")),
            "wait" => {
                self.gate.acquire().await.expect("the gate is open").forget();
                Ok(Outcome::Done)
            }
            "sleep" => {
                tokio::time::sleep(Duration::from_secs(600)).await;
                Ok(Outcome::Done)
            }
            "complete" => {
                running.queue.complete(claim).await?;
                Ok(Outcome::Completed)
            }
            _ => Ok(Outcome::Done),
        }
    }
}

fn settings() -> RunnerSettings {
    let mut settings = RunnerSettings::new("k", "me", SLOTS);
    settings.backoff = Backoff::Linear { step: Duration::from_secs(10) };
    settings
}

async fn enqueue(queue: &Queue, key: &str, payload: &str) {
    let mut job = NewJob::new("k", key, payload);
    job.attempts_max = 3;
    queue.enqueue(&job).await.expect("works");
}

/// A runner in the background, with a way to stop it.
struct BackgroundRunner {
    tasks: Tasks<logmill_work::Result<()>>,
    stop: Option<oneshot::Sender<()>>,
}

impl BackgroundRunner {
    fn start(queue: &Queue, scripted: &Arc<ScriptedHandler>, settings: RunnerSettings) -> Self {
        let handler: Arc<dyn Handler> = scripted.clone();
        let runner = Runner::new(queue.clone(), handler, settings).expect("fine settings");
        let (stop, stopped) = oneshot::channel::<()>();
        let mut tasks = Tasks::new();
        tasks.spawn(runner.run(async { drop(stopped.await) }));
        Self { tasks, stop: Some(stop) }
    }

    async fn stop(mut self) {
        self.stop.take();
        let ended = self.tasks.join_next().await.expect("one runner");
        ended.expect("it did not panic").expect("it wound down");
    }
}

async fn state(queue: &Queue, key: &str) -> (State, i64) {
    let job = queue.get("k", key).await.expect("works").expect("it exists");
    (job.state, job.attempts)
}

/// Waits until every job has ended.
async fn until_finished(queue: &Queue) {
    loop {
        let counts = queue.counts().await.expect("works");
        if counts.iter().all(|count| !matches!(count.state, State::Pending | State::Running)) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[test]
fn jobs_are_completed_retried_and_buried() {
    simulate(async {
        let queue = open(&Database::memory().await).await;
        let (scripted, _received) = ScriptedHandler::new();
        let background = BackgroundRunner::start(&queue, &scripted, settings());
        let played = [
            ("done", "", State::Done, 1),
            ("self", "complete", State::Done, 1),
            ("third time", "fail twice", State::Done, 3),
            ("failing", "fail", State::Dead, 3),
            ("panicking", "panic", State::Dead, 3),
            ("hopeless", "give up", State::Dead, 1),
        ];
        for (key, payload, _, _) in played {
            enqueue(&queue, key, payload).await;
        }
        until_finished(&queue).await;
        for (key, _, wanted, attempts) in played {
            assert_eq!(state(&queue, key).await, (wanted, attempts), "{key}");
        }
        let error = queue.get("k", "panicking").await.expect("works").expect("exists").error;
        assert_eq!(error.as_deref(), Some("panicked: out of cheese"));
        assert!(scripted.most_running.load(Ordering::SeqCst) <= SLOTS);
        background.stop().await;
    });
}

#[test]
fn no_slot_leaks_over_empty_claims_claim_errors_and_panics() {
    simulate(async {
        let database = Database::memory().await;
        let plain = open(&database).await;
        // Every third statement fails, before or after its effect.
        let faults = Faults::seeded(SeededEntropy::shared(7), 170, 170);
        let shaky = plain.through(plain.sql().with_faults(Arc::clone(&faults)));
        let (scripted, mut received) = ScriptedHandler::new();
        let background = BackgroundRunner::start(&shaky, &scripted, settings());
        for round in 0..20 {
            // Empty claims: spurious wake-ups.
            for _ in 0..10 {
                plain.wakes().wake("k");
                tokio::task::yield_now().await;
            }
            enqueue(&plain, &format!("panic-{round}"), "panic").await;
            enqueue(&plain, &format!("fine-{round}"), "").await;
            tokio::time::sleep(Duration::from_secs(120)).await;
        }
        until_finished(&plain).await;
        assert!(faults.operations() > 200, "faults were tried: {faults:?}");
        while received.try_recv().is_ok() {}
        // No slot is lost: as many jobs as slots run concurrently.
        for slot in 0..SLOTS {
            enqueue(&plain, &format!("wait-{slot}"), "wait").await;
        }
        for _ in 0..SLOTS {
            received.recv().await.expect("another one starts while the first still waits");
        }
        scripted.gate.add_permits(SLOTS);
        until_finished(&plain).await;
        drop(background);
    });
}

#[test]
fn an_idle_runner_sends_no_statement_between_its_slow_polls() {
    simulate(async {
        let database = Database::memory().await;
        let plain = open(&database).await;
        let faults = Faults::none();
        let counted = plain.through(plain.sql().with_faults(Arc::clone(&faults)));
        let (scripted, mut received) = ScriptedHandler::new();
        let background = BackgroundRunner::start(&counted, &scripted, settings());
        enqueue(&plain, "a", "").await;
        received.recv().await.expect("it runs");
        tokio::time::sleep(Duration::from_secs(1)).await;
        let before = faults.operations();
        tokio::time::sleep(Duration::from_secs(13)).await;
        assert_eq!(faults.operations(), before, "nothing at all");
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        let polls = faults.operations() - before;
        assert!(polls <= 5 * (3_600 / 15 + 1), "{polls} statements in an hour of slow polls");
        background.stop().await;
    });
}

#[test]
fn a_busy_runner_completes_and_claims_in_one_statement() {
    simulate(async {
        const JOBS: u64 = 1_000;
        let plain = open(&Database::memory().await).await;
        let faults = Faults::none();
        let counted = plain.through(plain.sql().with_faults(Arc::clone(&faults)));
        let jobs: Vec<NewJob> = (0..JOBS).map(|n| NewJob::new("k", format!("{n}"), "")).collect();
        plain.enqueue_many(&jobs).await.expect("works");
        let (scripted, _received) = ScriptedHandler::new();
        let background = BackgroundRunner::start(&counted, &scripted, settings());
        until_finished(&plain).await;
        let statements = faults.operations();
        // While the clock stands still, each claim is a full look: a read of the priorities comes before it.
        let turns = JOBS / u64::try_from(SLOTS).expect("few");
        assert!(statements <= 2 * turns + 10, "{statements} statements for {turns} turns");
        background.stop().await;
    });
}

#[test]
fn a_wake_up_starts_a_job_at_once_and_a_due_time_is_kept() {
    simulate(async {
        let queue = open(&Database::memory().await).await;
        let (scripted, mut received) = ScriptedHandler::new();
        let background = BackgroundRunner::start(&queue, &scripted, settings());
        tokio::time::sleep(Duration::from_secs(5)).await;
        let asked = tokio::time::Instant::now();
        enqueue(&queue, "a", "fail twice").await;
        for (attempt, after) in [(1, 0), (2, 10), (3, 30)] {
            assert_eq!(received.recv().await, Some(format!("a#{attempt}")));
            // Backoff of 10 s, then 20 s; times in the database are in milliseconds.
            let took = asked.elapsed().as_millis();
            assert!((after * 1_000..after * 1_000 + 50).contains(&took), "{attempt}: {took} ms");
        }
        background.stop().await;
    });
}

#[test]
fn a_long_job_keeps_its_lease_and_a_lost_claim_is_aborted() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        let (scripted, mut received) = ScriptedHandler::new();
        let background = BackgroundRunner::start(&queue, &scripted, settings());
        enqueue(&queue, "long", "sleep").await;
        received.recv().await.expect("it starts");
        until_finished(&queue).await;
        assert_eq!(state(&queue, "long").await, (State::Done, 1), "600 s under leases of 60 s");
        enqueue(&queue, "unwanted", "sleep").await;
        received.recv().await.expect("it starts");
        queue.cancel("k", "unwanted").await.expect("works");
        tokio::time::sleep(Duration::from_secs(21)).await;
        assert_eq!(scripted.running.load(Ordering::SeqCst), 0, "aborted by the next heartbeat");
        background.stop().await;
    });
}

#[test]
fn another_runner_takes_over_within_the_lease_when_one_dies() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        let (scripted, mut received) = ScriptedHandler::new();
        let first = BackgroundRunner::start(&queue, &scripted, settings());
        enqueue(&queue, "a", "wait").await;
        assert_eq!(received.recv().await.as_deref(), Some("a#1"));
        let mut other = settings();
        other.owner = "other".to_owned();
        let second = BackgroundRunner::start(&queue, &scripted, other);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let died = tokio::time::Instant::now();
        drop(first);
        assert_eq!(received.recv().await.as_deref(), Some("a#2"));
        let lease = settings().lease;
        assert!(died.elapsed() <= lease, "noticed after {:?}", died.elapsed());
        scripted.gate.add_permits(1);
        until_finished(&queue).await;
        second.stop().await;
    });
}

#[test]
fn a_stop_lets_jobs_finish_and_releases_what_takes_too_long() {
    simulate(async {
        let queue = open(&Database::memory().await).await;
        let (scripted, mut received) = ScriptedHandler::new();
        let background = BackgroundRunner::start(&queue, &scripted, settings());
        enqueue(&queue, "long", "sleep").await;
        enqueue(&queue, "short", "wait").await;
        enqueue(&queue, "next", "").await;
        for _ in 0..SLOTS {
            received.recv().await.expect("both start");
        }
        let started = tokio::time::Instant::now();
        let gate = Arc::clone(&scripted.gate);
        tokio::join!(background.stop(), async move {
            tokio::time::sleep(Duration::from_secs(3)).await;
            gate.add_permits(1);
        });
        assert_eq!(started.elapsed(), settings().stop_deadline);
        assert_eq!(state(&queue, "short").await, (State::Done, 1));
        assert_eq!(state(&queue, "long").await, (State::Pending, 0), "released, not counted");
        assert_eq!(state(&queue, "next").await, (State::Pending, 0), "never claimed");
    });
}

#[test]
fn position_and_eta_come_from_measured_times_and_all_slots() {
    simulate(async {
        let queue = open(&Database::memory().await).await;
        for number in 0..10 {
            enqueue(&queue, &format!("{number}"), "wait").await;
        }
        let place = queue.place("k", "9").await.expect("works");
        assert_eq!((place.position, place.wait), (10, None), "no runner has this kind");
        let (scripted, mut received) = ScriptedHandler::new();
        let mut slow = settings();
        slow.expected_job_time = Duration::from_secs(6);
        let mut other = slow.clone();
        other.owner = "other".to_owned();
        let stages = [
            BackgroundRunner::start(&queue, &scripted, slow),
            BackgroundRunner::start(&queue, &scripted, other),
        ];
        for _ in 0..2 * SLOTS {
            received.recv().await.expect("four start");
        }
        // A runner announces itself when it finds nothing more to claim, so let the jobs end.
        scripted.gate.add_permits(100);
        until_finished(&queue).await;
        let mut last = NewJob::new("k", "later", "wait");
        last.delay = Duration::from_secs(1_000);
        queue.enqueue(&last).await.expect("works");
        let place = queue.place("k", "later").await.expect("works");
        assert_eq!(place.position, 1);
        assert!(place.wait.is_some_and(|wait| wait <= Duration::from_secs(6)), "{place:?}");
        let done = queue.place("k", "0").await.expect("works");
        assert_eq!((done.position, done.wait), (0, Some(Duration::ZERO)));
        for background in stages {
            background.stop().await;
        }
        let place = queue.place("k", "later").await.expect("works");
        assert_eq!(place.wait, None, "the runners have deregistered");
    });
}

#[test]
fn on_postgresql_jobs_wake_a_runner_in_another_process_and_all_are_done() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let (here, there) = (open(&database).await, open(&database).await);
        let (scripted, mut received) = ScriptedHandler::new();
        let mut patient = settings();
        (patient.lease, patient.slow_poll) = (Duration::from_secs(600), Duration::from_secs(600));
        let background = BackgroundRunner::start(&there, &scripted, patient);
        // Each job is enqueued only after the previous one has started, so each needs its own wake-up.
        let started = Mutex::new(Vec::new());
        for number in 0..30 {
            enqueue(&here, &format!("{number}"), "").await;
            let report = tokio::time::timeout(Duration::from_secs(60), received.recv()).await;
            started
                .lock()
                .expect("no panic")
                .push(report.expect("woken by NOTIFY, not by the slow poll"));
        }
        until_finished(&here).await;
        let counts = here.counts().await.expect("works");
        assert_eq!(
            counts.iter().map(|count| (count.state, count.jobs)).collect::<Vec<_>>(),
            [(State::Done, 30)]
        );
        background.stop().await;
    });
}
