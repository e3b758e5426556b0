//! Leases and jobs of a process that ended are taken over without waiting for expiry; times set while a clock was
//! ahead do not last.

use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use logmill_io::meta::SqlMeta;
use logmill_io::sql::{Execute, Wakes};
use logmill_io::{ErrorKind, MetaStore, Sql, SystemClock, Tasks, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::queue::{AT_ONCE_ATTEMPTS_MAX, Reclaimer};
use logmill_work::{
    Claim, Failure, Handler, HeldLease, Lease, LeaseSettings, NewJob, Outcome, Queue, Runner,
    RunnerSettings, RunningJob, State, end_leases,
};

use super::{in_real_time, on_both, open, simulate};

const HOUR: Duration = Duration::from_secs(3_600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);
/// Time within which the end of a process must be noticed, on a busy machine.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// A lease of an hour, longer than any test waits.
fn lease(sql: &Sql, owner: &str) -> Lease {
    let store: Arc<dyn MetaStore> = SqlMeta::shared(sql.clone());
    let settings = LeaseSettings { ttl: HOUR, margin: Duration::from_secs(5) };
    Lease::new(store, SystemClock::shared(), "writer", owner, settings)
}

async fn acquire(lease: &Lease) -> Option<HeldLease> {
    lease.acquire().await.expect("the database works")
}

async fn claim(queue: &Queue, owner: &str) -> Vec<Claim> {
    queue.claim("k", 10, HOUR, owner).await.expect("the database works")
}

#[test]
fn ended_leases_are_free_at_once_and_their_holders_are_fenced() {
    on_both(|database| async move {
        let sql = database.open().await;
        let store = SqlMeta::shared(sql.clone());
        let old = lease(&sql, "old");
        let held = acquire(&old).await.expect("it is free");
        assert!(acquire(&lease(&sql, "new")).await.is_none(), "it is held");
        assert_eq!(end_leases(&*store).await.expect("works"), 1);
        assert_eq!(end_leases(&*store).await.expect("works"), 0, "once");
        let taken = acquire(&lease(&sql, "new")).await.expect("it was ended");
        assert_eq!(taken.epoch(), held.epoch() + 1);
        let late = old.renew(&held).await.expect_err("a holder that wakes up is refused");
        assert_eq!(late.kind(), ErrorKind::Fenced);
    });
}

#[test]
fn reclaimed_jobs_keep_their_attempts_and_fence_their_old_worker() {
    on_both(|database| async move {
        let queue = open(&database).await;
        queue.enqueue(&NewJob::new("k", "job", "{}")).await.expect("works");
        let last = NewJob { attempts_max: 1, ..NewJob::new("k", "last", "{}") };
        queue.enqueue(&last).await.expect("works");
        let held = claim(&queue, "old").await;
        assert_eq!(queue.reclaim_all().await.expect("works"), 2);
        let fenced = queue.complete_many(&held).await.expect("works");
        assert_eq!(fenced, held, "workers that wake up are refused");
        let last = queue.get("k", "last").await.expect("works").expect("it is kept");
        assert_eq!((last.state, last.attempts), (State::Dead, 1), "its only attempt was used");
        let again = claim(&queue, "new").await;
        assert_eq!(again.len(), 1);
        assert_eq!((again[0].token, again[0].attempt), (held[0].token + 1, 2));
        assert!(queue.complete(&held[0]).await.is_err(), "also while the new one runs");
        queue.complete(&again[0]).await.expect("it is ours");
    });
}

#[test]
fn a_process_that_crashes_repeatedly_does_not_use_up_all_attempts_at_once() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        queue.enqueue(&NewJob::new("k", "job", "{}")).await.expect("works");
        for _ in 0..AT_ONCE_ATTEMPTS_MAX {
            assert_eq!(claim(&queue, "old").await.len(), 1);
            assert_eq!(queue.reclaim_all().await.expect("works"), 1);
        }
        assert_eq!(claim(&queue, "old").await.len(), 1);
        assert_eq!(queue.reclaim_all().await.expect("works"), 0, "its lease is waited for");
        database.advance(HOUR, &[queue.sql()]);
        assert_eq!(queue.reap("k").await.expect("works"), 1);
    });
}

/// A process as others see it: its connections, and the session that proves that it is alive.
struct Peer {
    queue: Queue,
    owner: String,
}

impl Peer {
    async fn start(database: &Database, name: &str) -> Self {
        let queue = open(database).await;
        let owner = queue.wakes().prove_alive(name).await;
        assert!(owner.starts_with(&format!("{name}~")), "{owner}");
        Self { queue, owner }
    }

    fn lease(&self) -> Lease {
        lease(self.queue.sql(), &self.owner)
    }
}

#[test]
fn the_lease_of_a_process_whose_session_ended_is_taken_over_within_seconds() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let (old, new) = (Peer::start(&database, "old").await, Peer::start(&database, "new").await);
        let held = acquire(&old.lease()).await.expect("it is free");
        for _ in 0..5 {
            assert!(acquire(&new.lease()).await.is_none(), "its holder lives");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let gone = Instant::now();
        drop(old);
        let taken = loop {
            if let Some(taken) = acquire(&new.lease()).await {
                break taken;
            }
            assert!(gone.elapsed() < NOTICED_WITHIN, "a lease of an hour is waited for");
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        println!("a lease was taken over after {:?}", gone.elapsed());
        assert_eq!(taken.epoch(), held.epoch() + 1);
    });
}

#[test]
fn the_lease_of_an_owner_without_presence_is_waited_for() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let sql = database.open().await;
        acquire(&lease(&sql, "nameless")).await.expect("it is free");
        let new = Peer::start(&database, "new").await;
        for _ in 0..6 {
            assert!(acquire(&new.lease()).await.is_none(), "nothing is known of its holder");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    });
}

/// Ends the session that proves that a process is alive, as an operator or a failing network would.
async fn end_sessions(sql: &Sql) -> i64 {
    let text = "
        SELECT count(pg_terminate_backend(pid)) FROM pg_locks
        WHERE locktype = 'advisory' AND objsubid = 2 AND granted";
    let ended = sql.query(text, params![]).await.expect("works");
    ended.row().and_then(|row| row.int(0)).expect("a count")
}

#[test]
fn a_process_that_lost_its_session_for_a_moment_keeps_its_lease() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let old = Peer::start(&database, "old").await;
        let old_lease = old.lease();
        let held = acquire(&old_lease).await.expect("it is free");
        let new = open(&database).await;
        assert_eq!(end_sessions(new.sql()).await, 1);
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            assert!(acquire(&lease(new.sql(), "new")).await.is_none(), "it came back in time");
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        old_lease.renew(&held).await.expect("it still holds");
    });
}

#[test]
fn the_jobs_of_a_process_whose_session_ended_are_run_within_seconds() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let (old, new) = (Peer::start(&database, "old").await, Peer::start(&database, "new").await);
        old.queue.enqueue(&NewJob::new("k", "job", "{}")).await.expect("works");
        let held = claim(&old.queue, &old.owner).await;
        assert_eq!(held.len(), 1);
        let mut reclaimer = Reclaimer::new(new.queue.clone(), "k", &new.owner, HOUR);
        assert_eq!(reclaimer.look().await.expect("works"), 0, "its worker lives");
        assert!(reclaimer.look_within().is_some(), "and is looked at again soon");
        let gone = Instant::now();
        drop(old);
        let runner = runner(&new.queue, &new.owner);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut tasks = Tasks::new();
        tasks.spawn(runner.run(async { drop(stopped.await) }));
        while new.queue.get("k", "job").await.expect("works").map(|job| job.state)
            != Some(State::Done)
        {
            assert!(gone.elapsed() < NOTICED_WITHIN, "a lease of an hour is waited for");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("a job was run again after {:?}", gone.elapsed());
        let job = new.queue.get("k", "job").await.expect("works").expect("it exists");
        assert_eq!((job.attempts, job.token), (2, held[0].token + 1));
        drop(stop);
        tasks.join_next().await.expect("one").expect("no panic").expect("it wound down");
    });
}

/// Completes every job.
struct CompletingHandler;

#[async_trait]
impl Handler for CompletingHandler {
    async fn run(&self, _running: RunningJob) -> Result<Outcome, Failure> {
        Ok(Outcome::Done)
    }
}

fn runner(queue: &Queue, owner: &str) -> Runner {
    let settings = RunnerSettings::new("k", owner, 2);
    Runner::new(queue.clone(), Arc::new(CompletingHandler), settings).expect("fine settings")
}

#[test]
fn a_lease_taken_while_the_clock_was_a_year_ahead_is_not_waited_for() {
    on_both(|database| async move {
        let sql = database.open().await;
        database.advance(YEAR, &[&sql]);
        let old = lease(&sql, "old");
        let held = acquire(&old).await.expect("it is free");
        database.set_back(YEAR, &[&sql]);
        let taken = acquire(&lease(&sql, "new")).await.expect("it cannot last that long");
        assert_eq!(taken.epoch(), held.epoch() + 1);
        let late = old.renew(&held).await.expect_err("taken over");
        assert_eq!(late.kind(), ErrorKind::Fenced);
    });
}

#[test]
fn a_holder_that_lives_keeps_its_lease_when_the_clock_is_set_back() {
    on_both(|database| async move {
        let sql = database.open().await;
        database.advance(YEAR, &[&sql]);
        let mine = lease(&sql, "mine");
        let held = acquire(&mine).await.expect("it is free");
        database.set_back(YEAR, &[&sql]);
        let held = mine.renew(&held).await.expect("it was not taken over");
        assert!(acquire(&lease(&sql, "other")).await.is_none(), "it was renewed");
        mine.renew(&held).await.expect("held");
    });
}

#[test]
fn jobs_held_and_postponed_while_the_clock_was_a_year_ahead_are_run() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        database.advance(YEAR, &[queue.sql()]);
        for key in ["held", "failed"] {
            queue.enqueue(&NewJob::new("k", key, "{}")).await.expect("works");
        }
        let urgent = NewJob { priority: 7, ..NewJob::new("k", "urgent", "{}") };
        queue.enqueue(&urgent).await.expect("works");
        let claims = claim(&queue, "old").await;
        assert_eq!(claims.len(), 3);
        for claim in claims.into_iter().filter(|claim| claim.key != "held") {
            let failed = logmill_work::queue::FailedClaim {
                claim,
                error: "no luck".to_owned(),
                retry_after: Some(HOUR),
            };
            queue.fail(&failed).await.expect("works");
        }
        database.set_back(YEAR, &[queue.sql()]);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let mut tasks = Tasks::new();
        tasks.spawn(runner(&queue, "new").run(async { drop(stopped.await) }));
        for key in ["held", "failed", "urgent"] {
            let clock = Arc::clone(queue.sql().clock());
            let end = clock.monotonic() + HOUR;
            while queue.get("k", key).await.expect("works").map(|job| job.state)
                != Some(State::Done)
            {
                assert!(clock.monotonic() < end, "{key} waits for a year");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        drop(stop);
        tasks.join_next().await.expect("one").expect("no panic").expect("it wound down");
    });
}

#[test]
fn a_runner_seen_while_the_clock_was_ahead_is_not_counted() {
    simulate(async {
        let database = Database::memory().await;
        let queue = open(&database).await;
        let text = "INSERT INTO job_runner (owner, kind, slots, job_ms, seen_at)
            VALUES ('ahead', 'k', 1000, 1, now_ms() + $1)";
        let year_ms = logmill_io::millis(YEAR);
        queue.sql().execute(text, params![year_ms]).await.expect("works");
        queue.enqueue(&NewJob::new("k", "job", "{}")).await.expect("works");
        let place = queue.place("k", "job").await.expect("works");
        assert_eq!(place.wait, None, "no runner has this kind");
    });
}

#[test]
fn a_database_in_memory_needs_no_presence() {
    simulate(async {
        let sql = Database::memory().await.open().await;
        let wakes = Wakes::over(&sql, "logmill_test").await.expect("works");
        assert_eq!(wakes.prove_alive("me").await, "me");
        assert!(!sql.is_gone("other~00000001").await.expect("works"));
    });
}
