//! Any interleaving of claim, expiry, late heartbeat, late complete, crash and restart yields each effect once.

use std::collections::BTreeMap;
use std::time::Duration;

use logmill_io::{ErrorKind, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::queue::FailedClaim;
use logmill_work::{Claim, NewJob, Queue};
use proptest::prelude::*;

use super::{create_effects, effect, in_real_time, open, simulate};

const KIND: &str = "once";
const JOBS: usize = 6;
const WORKERS: usize = 3;
const LEASE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
enum Step {
    Claim { worker: usize, most: usize },
    Finish { worker: usize },
    Heartbeat { worker: usize },
    Fail { worker: usize },
    Crash { worker: usize },
    Sleep { seconds: u64 },
    Reap,
    EnqueueAgain,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let worker = 0..WORKERS;
    let step = prop_oneof![
        4 => (worker.clone(), 1..4_usize).prop_map(|(worker, most)| Step::Claim { worker, most }),
        4 => worker.clone().prop_map(|worker| Step::Finish { worker }),
        1 => worker.clone().prop_map(|worker| Step::Heartbeat { worker }),
        1 => worker.clone().prop_map(|worker| Step::Fail { worker }),
        1 => worker.prop_map(|worker| Step::Crash { worker }),
        3 => (1..30_u64).prop_map(|seconds| Step::Sleep { seconds }),
        2 => Just(Step::Reap),
        1 => Just(Step::EnqueueAgain),
    ];
    prop::collection::vec(step, 0..60)
}

async fn enqueue(queue: &Queue) {
    let jobs: Vec<NewJob> = (0..JOBS)
        .map(|number| {
            let mut job = NewJob::new(KIND, format!("job-{number}"), "{}");
            job.attempts_max = 1_000;
            job
        })
        .collect();
    queue.enqueue_many(&jobs).await.expect("the database works");
}

async fn check(database: Database, steps: &[Step]) {
    let queue = open(&database).await;
    create_effects(&queue).await;
    enqueue(&queue).await;
    let mut held: Vec<Vec<Claim>> = vec![Vec::new(); WORKERS];
    for step in steps {
        run(&queue, &database, &mut held, step).await;
    }
    // All workers are gone; a new process does the rest.
    while queue
        .counts()
        .await
        .expect("counts")
        .iter()
        .any(|count| count.state != logmill_work::State::Done)
    {
        database.advance(LEASE + Duration::from_secs(1), &[queue.sql()]);
        queue.reap(KIND).await.expect("the database works");
        for claim in queue.claim(KIND, JOBS, LEASE, "last").await.expect("the database works") {
            effect(&queue, &claim).await.expect("there is no other worker");
        }
    }
    // Workers that slept through all of it wake up and finish their old claims.
    for claim in held.into_iter().flatten() {
        let late = effect(&queue, &claim).await;
        assert_late(late.map_err(|error| error.kind()));
    }
    let effects =
        queue.sql().query("SELECT key, count(*) FROM effect GROUP BY key", params![]).await;
    let effects: BTreeMap<String, u64> = effects
        .expect("the database works")
        .rows
        .iter()
        .map(|row| (row.text(0).expect("a key").to_owned(), row.count(1).expect("a count")))
        .collect();
    let wanted = (0..JOBS).map(|number| (format!("job-{number}"), 1)).collect();
    assert_eq!(effects, wanted, "each effect once");
}

/// A late finish is fenced. (If it succeeded, its effect would happen twice.)
fn assert_late(outcome: Result<(), ErrorKind>) {
    assert_eq!(outcome, Err(ErrorKind::Fenced));
}

async fn run(queue: &Queue, database: &Database, held: &mut [Vec<Claim>], step: &Step) {
    match step {
        Step::Claim { worker, most } => {
            let owner = format!("worker-{worker}");
            let claims = queue.claim(KIND, *most, LEASE, &owner).await;
            held[*worker].extend(claims.expect("the database works"));
        }
        Step::Finish { worker } => {
            if let Some(claim) = held[*worker].pop()
                && let Err(error) = effect(queue, &claim).await
            {
                assert_eq!(error.kind(), ErrorKind::Fenced, "{}", error.chain());
            }
        }
        Step::Heartbeat { worker } => {
            queue.heartbeat(&held[*worker], LEASE).await.expect("the database works");
        }
        Step::Fail { worker } => {
            if let Some(claim) = held[*worker].pop() {
                let retry_after = Some(Duration::from_secs(3));
                let failed = FailedClaim { claim, error: "no luck".into(), retry_after };
                queue.fail_many(&[failed]).await.expect("the database works");
            }
        }
        Step::Crash { worker } => held[*worker].clear(),
        Step::Sleep { seconds } => database.advance(Duration::from_secs(*seconds), &[queue.sql()]),
        Step::Reap => {
            queue.reap(KIND).await.expect("the database works");
        }
        Step::EnqueueAgain => enqueue(queue).await,
    }
}

proptest! {
    #[test]
    fn on_sqlite_each_effect_happens_once(steps in steps()) {
        simulate(async { check(Database::memory().await, &steps).await });
    }
}

#[test]
fn on_postgresql_each_effect_happens_once() {
    let server = PostgresServer::start();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(
        logmill_io::proof_cases(24),
    ));
    let outcome = runner.run(&steps(), |steps| {
        in_real_time(async { check(Database::postgres(&server), &steps).await });
        Ok(())
    });
    outcome.expect("every interleaving is fine");
}
