//! No range is lost or done twice, in any order of claims, crashes and late completions.

use std::time::Duration;

use logmill_io::sql::Execute;
use logmill_io::{ErrorKind, params};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::coverage::RangeClaim;
use logmill_work::intervals::SearchOrder;
use logmill_work::queue::FailedClaim;
use logmill_work::{Claim, Coverage, Heights, NewJob, Queue, Scope, State};
use proptest::prelude::*;

use super::{in_real_time, on_both, open, simulate};

const KIND: &str = "range";
const END: u64 = 100;
const WORKERS: usize = 3;
const LEASE: Duration = Duration::from_secs(20);

pub(crate) fn scope() -> Scope {
    Scope { chain_id: 1, consumer: "token_worker".to_owned(), version: 1 }
}

fn range_job(range: &Heights) -> NewJob {
    let payload = format!("[{},{}]", range.start, range.end);
    let mut job =
        NewJob::new(KIND, format!("1/token_worker/{}-{}", range.start, range.end), payload);
    job.attempts_max = 1_000;
    job
}

fn range_of(claim: &Claim) -> Heights {
    let [start, end]: [u64; 2] = serde_json::from_str(&claim.payload).expect("a range");
    start..end
}

/// Does a range: rows for the heights that were not covered, coverage, and completion, in one transaction. The table
/// has no key, so that a height done twice shows.
pub(crate) async fn do_range(queue: &Queue, claim: &Claim) -> logmill_work::Result<()> {
    let range = range_of(claim);
    queue
        .sql()
        .write(|tx| {
            let range = range.clone();
            async move {
                for fresh in Coverage::cover(&tx, &scope(), &range).await? {
                    let rows = fresh.map(|height| params![i64::try_from(height).expect("small")]);
                    tx.execute_many(
                        "INSERT INTO done (height) VALUES ($1)",
                        rows.collect::<Vec<_>>(),
                    )
                    .await?;
                }
                queue.complete_in(&tx, claim).await
            }
        })
        .await
}

pub(crate) async fn claim_range(
    queue: &Queue,
    from: SearchOrder,
    most: u64,
) -> logmill_work::Result<Option<Heights>> {
    let wanted = RangeClaim { within: 0..END, most, order: from };
    Coverage::claim_next(queue, &scope(), &wanted, range_job).await
}

pub(crate) async fn create_table(queue: &Queue) {
    queue.sql().execute("CREATE TABLE done (height BIGINT)", params![]).await.expect("a table");
}

/// Claims and does everything that is left, and checks that every height was done exactly once.
pub(crate) async fn finish_and_check(queue: &Queue, database: &Database) {
    loop {
        while claim_range(queue, SearchOrder::HighestFirst, 17).await.expect("works").is_some() {}
        database.advance(LEASE + Duration::from_secs(1), &[queue.sql()]);
        queue.reap(KIND).await.expect("works");
        let claims = queue.claim(KIND, 100, LEASE, "last").await.expect("works");
        for claim in &claims {
            do_range(queue, claim).await.expect("there is no other worker");
        }
        let coverage = Coverage::read(queue.sql(), &scope()).await.expect("works");
        if coverage.done.covers(&(0..END)) {
            assert!(coverage.claimed.is_empty(), "{coverage:?}");
            break;
        }
    }
    let text = "SELECT count(*), count(DISTINCT height), min(height), max(height) FROM done";
    let found = queue.sql().query(text, params![]).await.expect("works");
    let row = found.row().expect("a row");
    let found: Vec<u64> = (0..4).map(|column| row.count(column).expect("a count")).collect();
    assert_eq!(found, [END, END, 0, END - 1], "every height once");
}

#[derive(Clone, Debug)]
enum Step {
    ClaimRange { from_above: bool, most: u64 },
    Claim { worker: usize },
    Finish { worker: usize },
    Crash { worker: usize },
    Sleep { seconds: u64 },
    Reap,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let worker = 0..WORKERS;
    let step = prop_oneof![
        4 => (any::<bool>(), 1..40_u64)
            .prop_map(|(from_above, most)| Step::ClaimRange { from_above, most }),
        4 => worker.clone().prop_map(|worker| Step::Claim { worker }),
        4 => worker.clone().prop_map(|worker| Step::Finish { worker }),
        1 => worker.prop_map(|worker| Step::Crash { worker }),
        2 => (1..30_u64).prop_map(|seconds| Step::Sleep { seconds }),
        1 => Just(Step::Reap),
    ];
    prop::collection::vec(step, 0..50)
}

async fn check(database: Database, steps: &[Step]) {
    let queue = open(&database).await;
    create_table(&queue).await;
    let mut held: Vec<Vec<Claim>> = vec![Vec::new(); WORKERS];
    for step in steps {
        match step {
            Step::ClaimRange { from_above, most } => {
                let from =
                    if *from_above { SearchOrder::HighestFirst } else { SearchOrder::LowestFirst };
                claim_range(&queue, from, *most).await.expect("works");
            }
            Step::Claim { worker } => {
                held[*worker].extend(queue.claim(KIND, 2, LEASE, "worker").await.expect("works"));
            }
            Step::Finish { worker } => {
                if let Some(claim) = held[*worker].pop()
                    && let Err(error) = do_range(&queue, &claim).await
                {
                    assert_eq!(error.kind(), ErrorKind::Fenced, "{}", error.chain());
                }
            }
            Step::Crash { worker } => held[*worker].clear(),
            Step::Sleep { seconds } => {
                database.advance(Duration::from_secs(*seconds), &[queue.sql()]);
            }
            Step::Reap => {
                queue.reap(KIND).await.expect("works");
            }
        }
    }
    finish_and_check(&queue, &database).await;
}

proptest! {
    #[test]
    fn on_sqlite_every_height_is_done_once(steps in steps()) {
        simulate(async { check(Database::memory().await, &steps).await });
    }
}

#[test]
fn on_postgresql_every_height_is_done_once() {
    let server = PostgresServer::start();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(
        logmill_io::proof_cases(16),
    ));
    let outcome = runner.run(&steps(), |steps| {
        in_real_time(async { check(Database::postgres(&server), &steps).await });
        Ok(())
    });
    outcome.expect("every interleaving is fine");
}

#[test]
fn concurrent_claims_get_different_ranges() {
    let server = PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let queue = open(&database).await;
        create_table(&queue).await;
        let claiming = (0..20).map(|number| {
            let from =
                if number % 2 == 0 { SearchOrder::HighestFirst } else { SearchOrder::LowestFirst };
            let queue = &queue;
            async move { claim_range(queue, from, 7).await.expect("works") }
        });
        let ranges: Vec<Heights> =
            futures::future::join_all(claiming).await.into_iter().flatten().collect();
        let total: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        assert_eq!(total, END, "all of it, and nothing twice: {ranges:?}");
        let jobs = queue.list(KIND, State::Pending, None, 100).await.expect("works");
        assert_eq!(jobs.len(), ranges.len(), "a job for every range");
        finish_and_check(&queue, &database).await;
    });
}

#[test]
fn two_derivers_that_both_saw_a_range_as_missing_do_not_both_add_it() {
    on_both(|database| async move {
        let queue = open(&database).await;
        create_table(&queue).await;
        let add = |range: Heights| {
            let queue = &queue;
            async move {
                let done = queue.sql().write(|tx| {
                    let range = range.clone();
                    async move {
                        let fresh = Coverage::cover(&tx, &scope(), &range).await?;
                        for range in fresh.clone() {
                            let rows =
                                range.map(|height| params![i64::try_from(height).expect("small")]);
                            let text = "INSERT INTO done (height) VALUES ($1)";
                            tx.execute_many(text, rows.collect::<Vec<_>>()).await?;
                        }
                        Ok::<_, logmill_work::Error>(fresh)
                    }
                });
                done.await.expect("works")
            }
        };
        let (left, right) = tokio::join!(add(0..60), add(40..END));
        let total: u64 = left.iter().chain(&right).map(|range| range.end - range.start).sum();
        assert_eq!(total, END, "{left:?} {right:?}");
        assert_eq!(add(10..90).await, []);
        finish_and_check(&queue, &database).await;
    });
}

#[test]
fn a_dead_job_keeps_its_range_and_a_purged_one_returns_it() {
    on_both(|database| async move {
        let queue = open(&database).await;
        create_table(&queue).await;
        let range = claim_range(&queue, SearchOrder::LowestFirst, END)
            .await
            .expect("works")
            .expect("missing");
        let claims = queue.claim(KIND, 1, LEASE, "worker").await.expect("works");
        let claim = claims[0].clone();
        let failed = FailedClaim { claim, error: "no".into(), retry_after: None };
        queue.fail(&failed).await.expect("held");
        assert_eq!(claim_range(&queue, SearchOrder::LowestFirst, END).await.expect("works"), None);
        let coverage = Coverage::read(queue.sql(), &scope()).await.expect("works");
        assert!(coverage.claimed.covers(&range), "a dead letter shows as claimed, not as done");
        queue.purge(KIND, State::Dead, Duration::ZERO).await.expect("works");
        assert_eq!(
            claim_range(&queue, SearchOrder::LowestFirst, END).await.expect("works"),
            Some(range)
        );
        finish_and_check(&queue, &database).await;
    });
}

#[test]
fn a_released_range_is_missing_again_and_a_finished_job_in_its_way_is_named() {
    on_both(|database| async move {
        let queue = open(&database).await;
        create_table(&queue).await;
        let range = claim_range(&queue, SearchOrder::LowestFirst, 10)
            .await
            .expect("works")
            .expect("missing");
        let claims = queue.claim(KIND, 1, LEASE, "worker").await.expect("works");
        do_range(&queue, &claims[0]).await.expect("held");
        let released = queue.sql().write(|tx| {
            let range = range.clone();
            async move { Coverage::release(&tx, &scope(), &range).await }
        });
        released.await.expect("works");
        let refused =
            claim_range(&queue, SearchOrder::LowestFirst, 10).await.expect_err("its job is done");
        assert!(refused.to_string().contains("purge that job"), "{refused}");
        queue.purge(KIND, State::Done, Duration::ZERO).await.expect("works");
        assert_eq!(
            claim_range(&queue, SearchOrder::LowestFirst, 10).await.expect("works"),
            Some(range)
        );
    });
}
