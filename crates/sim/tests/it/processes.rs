//! Real processes over PostgreSQL, killed in the middle of their work.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{Entropy, SeededEntropy, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_sim::worker::{KIND, LEASE};
use logmill_work::{NewJob, Queue, State};

use crate::work::{in_real_time, open};

const WORKERS: usize = 3;
const JOBS: usize = 400;
const KILLS: usize = 12;
/// How long after the end of its lease a job may start again: a busy runner looks twice a second.
const DETECTION_MAX: Duration = Duration::from_secs(1);
/// Looks at the progress between two kills, at most.
const LOOKS_MAX: usize = 2_000;

/// Worker processes that die with the test.
struct WorkerProcesses {
    database: Database,
    members: Vec<Child>,
    hired: usize,
}

impl WorkerProcesses {
    fn hire(&mut self) -> Child {
        let settings = self.database.postgres_settings().expect("on a server");
        let schema = settings.schema.expect("its own schema");
        self.hired += 1;
        Command::new(env!("CARGO_BIN_EXE_worker"))
            .args([settings.url, schema, format!("worker-{}", self.hired)])
            .stdin(Stdio::piped())
            .spawn()
            .expect("a worker starts")
    }

    /// Kills one at once, as the kernel would, and hires another.
    fn replace(&mut self, which: usize) {
        let fresh = self.hire();
        let mut old = std::mem::replace(&mut self.members[which], fresh);
        old.kill().expect("killed");
        old.wait().expect("gone");
    }
}

impl Drop for WorkerProcesses {
    fn drop(&mut self) {
        for member in &mut self.members {
            // Those that ended by themselves are fine too.
            let _ = member.kill();
            let _ = member.wait();
        }
    }
}

async fn done(queue: &Queue) -> u64 {
    let counts = queue.counts().await.expect("works");
    counts.iter().find(|count| count.state == State::Done).map_or(0, |count| count.jobs)
}

/// Waits until this many more jobs are done.
async fn until_done(queue: &Queue, wanted: u64) {
    for _ in 0..LOOKS_MAX {
        if done(queue).await >= wanted {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("only {} of {wanted} jobs are done", done(queue).await);
}

#[test]
fn killed_workers_lose_no_job_and_do_none_twice() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let queue = open(&database).await;
        let create = [
            "CREATE TABLE effect (key TEXT)",
            "CREATE TABLE attempt (key TEXT, attempt BIGINT, started_at BIGINT)",
        ];
        for text in create {
            queue.sql().execute(text, params![]).await.expect("a table");
        }
        let jobs: Vec<NewJob> = (0..JOBS)
            .map(|number| {
                let mut job = NewJob::new(KIND, format!("{number:04}"), "{}");
                job.attempts_max = 100;
                job
            })
            .collect();
        queue.enqueue_many(&jobs).await.expect("works");
        let mut crew = WorkerProcesses { database, members: Vec::new(), hired: 0 };
        for _ in 0..WORKERS {
            let member = crew.hire();
            crew.members.push(member);
        }
        let seed = logmill_io::OsEntropy.next_u64();
        println!("seed {seed}");
        let entropy = SeededEntropy::shared(seed);
        let share = JOBS / (KILLS + 2);
        for kill in 1..=KILLS {
            until_done(&queue, u64::try_from(kill * share).expect("small")).await;
            crew.replace(usize::try_from(entropy.below(WORKERS as u64)).expect("small"));
        }
        until_done(&queue, JOBS as u64).await;
        check_once(&queue).await;
        check_detection(&queue).await;
    });
}

async fn check_once(queue: &Queue) {
    let text = "SELECT count(*), count(DISTINCT key) FROM effect";
    let found = queue.sql().query(text, params![]).await.expect("works");
    let row = found.row().expect("a row");
    let found = (row.count(0).expect("a count"), row.count(1).expect("a count"));
    assert_eq!(found, (JOBS as u64, JOBS as u64), "every effect once");
}

/// A job whose worker was killed starts again within the lease, and a little for getting there.
async fn check_detection(queue: &Queue) {
    let text = "SELECT count(*), min(later.started_at - earlier.started_at),
            max(later.started_at - earlier.started_at)
        FROM attempt AS earlier JOIN attempt AS later
        ON later.key = earlier.key AND later.attempt = earlier.attempt + 1";
    let found = queue.sql().query(text, params![]).await.expect("works");
    let row = found.row().expect("a row");
    let taken_over = row.count(0).expect("a count");
    println!("{taken_over} attempts were taken over, the slowest after {:?} ms", row.opt_int(2));
    assert!(taken_over > 0, "some were killed in the middle of a job");
    // The quickest: how long the others took depends on what else this machine does.
    let quickest = Duration::from_millis(row.count(1).expect("a time"));
    assert!(quickest <= LEASE + DETECTION_MAX, "noticed only after {quickest:?}");
}
