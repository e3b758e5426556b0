//! What users of the queue rely on, on both engines.

use std::time::Duration;

use logmill_io::ErrorKind;
use logmill_sim::Database;
use logmill_work::queue::{BATCH_MAX, FailedClaim, PAYLOAD_BYTES_MAX, Reclaimer};
use logmill_work::{Claim, EnqueueResult, NewJob, Queue, State};

use super::{on_both, open, simulate};

const LEASE: Duration = Duration::from_secs(60);

async fn claim(queue: &Queue, most: usize) -> Vec<Claim> {
    queue.claim("k", most, LEASE, "tester").await.expect("the database works")
}

fn job(key: &str) -> NewJob {
    NewJob::new("k", key, "{}")
}

fn keys(claims: &[Claim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.key.as_str()).collect()
}

#[test]
fn enqueueing_twice_makes_one_job_and_a_bulk_counts_what_is_new() {
    on_both(|database| async move {
        let queue = open(&database).await;
        assert_eq!(queue.enqueue(&job("a")).await.expect("works"), EnqueueResult::Created);
        let again = queue.enqueue(&job("a")).await.expect("works");
        assert_eq!(again, EnqueueResult::Exists(State::Pending));
        for size in [3, 63, 64, 500] {
            let bulk: Vec<NewJob> =
                (0..size).map(|number| job(&format!("{size}-{number}"))).collect();
            assert_eq!(queue.enqueue_many(&bulk).await.expect("works"), size);
            assert_eq!(queue.enqueue_many(&bulk).await.expect("works"), 0);
        }
        let twice = queue.enqueue_many(&[job("x"), job("x")]).await.expect_err("one key twice");
        assert_eq!(twice.kind(), ErrorKind::Invalid);
        assert_eq!(queue.get("k", "x").await.expect("works"), None, "nothing of it happened");
    });
}

#[test]
fn a_bulk_goes_in_the_order_given_and_priority_goes_before_age() {
    on_both(|database| async move {
        let queue = open(&database).await;
        let bulk: Vec<NewJob> = (0..100).rev().map(|number| job(&format!("{number:03}"))).collect();
        queue.enqueue_many(&bulk).await.expect("works");
        let mut urgent = job("urgent");
        urgent.priority = 5;
        queue.enqueue(&urgent).await.expect("works");
        let mut idle = job("idle");
        idle.priority = -1;
        queue.enqueue(&idle).await.expect("works");
        assert_eq!(keys(&claim(&queue, 3).await), ["urgent", "099", "098"]);
        let rest = claim(&queue, 200).await;
        assert_eq!(keys(&rest)[..2], ["097", "096"]);
        assert_eq!(rest.last().map(|claim| claim.key.as_str()), Some("idle"));
    });
}

#[test]
fn failed_and_dead_jobs_come_back_when_they_are_submitted_again() {
    on_both(|database| async move {
        let queue = open(&database).await;
        let mut once = job("a");
        once.attempts_max = 1;
        queue.enqueue(&once).await.expect("works");
        let claims = claim(&queue, 1).await;
        let fail = |claim: &Claim, wait| FailedClaim {
            claim: claim.clone(),
            error: "the node said no".into(),
            retry_after: Some(wait),
        };
        queue.fail(&fail(&claims[0], Duration::ZERO)).await.expect("held");
        let dead = queue.get("k", "a").await.expect("works").expect("it exists");
        assert_eq!((dead.state, dead.error.as_deref()), (State::Dead, Some("the node said no")));
        assert_eq!(claim(&queue, 1).await, []);
        assert_eq!(queue.enqueue(&job("a")).await.expect("works"), EnqueueResult::Revived);
        let claims = claim(&queue, 1).await;
        assert_eq!((claims[0].attempt, claims[0].token), (1, 2));
        queue.fail(&fail(&claims[0], Duration::from_secs(600))).await.expect("held");
        assert_eq!(claim(&queue, 1).await, [], "it waits");
        assert_eq!(queue.enqueue(&job("a")).await.expect("works"), EnqueueResult::Revived);
        let claims = claim(&queue, 1).await;
        assert_eq!(claims[0].attempt, 2, "brought forward, still counted");
        queue.complete(&claims[0]).await.expect("held");
        let done = queue.enqueue(&job("a")).await.expect("works");
        assert_eq!(done, EnqueueResult::Exists(State::Done));
    });
}

#[test]
fn dead_letters_are_listed_redriven_and_purged() {
    on_both(|database| async move {
        let queue = open(&database).await;
        let bulk: Vec<NewJob> = (0..10).map(|number| job(&format!("{number}"))).collect();
        queue.enqueue_many(&bulk).await.expect("works");
        let failed: Vec<FailedClaim> = claim(&queue, 10)
            .await
            .into_iter()
            .map(|claim| FailedClaim { claim, error: "no".into(), retry_after: None })
            .collect();
        assert_eq!(queue.fail_many(&failed).await.expect("works"), []);
        let listed = queue.list("k", State::Dead, Some("4"), 3).await.expect("works");
        let listed: Vec<&str> = listed.iter().map(|job| job.key.as_str()).collect();
        assert_eq!(listed, ["5", "6", "7"]);
        assert!(queue.redrive("k", "5").await.expect("works"));
        assert!(!queue.redrive("k", "5").await.expect("works"), "it is not dead any more");
        let purged = queue.purge("k", State::Dead, Duration::from_secs(60)).await.expect("works");
        assert_eq!(purged, 0, "too young");
        database.advance(Duration::from_secs(61), &[queue.sql()]);
        let purged = queue.purge("k", State::Dead, Duration::from_secs(60)).await.expect("works");
        assert_eq!(purged, 9);
        assert_eq!(keys(&claim(&queue, 10).await), ["5"]);
        let refused = queue.purge("k", State::Running, Duration::ZERO).await.expect_err("it runs");
        assert_eq!(refused.kind(), ErrorKind::Invalid);
        queue.enqueue_many(&bulk[..4]).await.expect("a purged key is free again");
        assert_eq!(queue.redrive_dead("k").await.expect("works"), 0);
    });
}

#[test]
fn one_of_ten_concurrent_claims_gets_the_job() {
    let server = logmill_sim::postgres::PostgresServer::start();
    super::in_real_time(async {
        let database = Database::postgres(&server);
        let queue = open(&database).await;
        for round in 0..20 {
            queue.enqueue(&job(&format!("{round}"))).await.expect("works");
            let claims = futures::future::join_all((0..10).map(|_| claim(&queue, 5))).await;
            assert_eq!(claims.iter().map(Vec::len).sum::<usize>(), 1, "round {round}");
        }
    });
}

#[test]
fn a_paused_kind_is_not_claimed_and_others_are() {
    on_both(|database| async move {
        let queue = open(&database).await;
        queue.enqueue(&job("a")).await.expect("works");
        queue.enqueue(&NewJob::new("other", "b", "{}")).await.expect("works");
        queue.set_paused("k", true).await.expect("works");
        assert_eq!(queue.paused().await.expect("works"), ["k"]);
        assert_eq!(claim(&queue, 5).await, []);
        assert_eq!(queue.claim("other", 5, LEASE, "t").await.expect("works").len(), 1);
        queue.set_paused("k", false).await.expect("works");
        assert_eq!(keys(&claim(&queue, 5).await), ["a"]);
    });
}

#[test]
fn a_cancelled_job_fences_its_worker() {
    on_both(|database| async move {
        let queue = open(&database).await;
        queue.enqueue(&job("a")).await.expect("works");
        let claims = claim(&queue, 1).await;
        assert!(queue.cancel("k", "a").await.expect("works"));
        assert!(!queue.cancel("k", "a").await.expect("works"));
        let late = queue.complete(&claims[0]).await.expect_err("it was cancelled");
        assert_eq!(late.kind(), ErrorKind::Fenced);
        assert_eq!(queue.heartbeat(&claims, LEASE).await.expect("works"), claims);
        let missing = queue.cancel("k", "nothing").await.expect_err("no such job");
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    });
}

#[test]
fn counts_and_ages_are_by_kind_and_state() {
    on_both(|database| async move {
        let queue = open(&database).await;
        let bulk: Vec<NewJob> = (0..5).map(|number| job(&format!("{number}"))).collect();
        queue.enqueue_many(&bulk).await.expect("works");
        queue.enqueue(&NewJob::new("other", "b", "{}")).await.expect("works");
        let claims = claim(&queue, 2).await;
        queue.complete(&claims[0]).await.expect("held");
        database.advance(Duration::from_secs(30), &[queue.sql()]);
        let counts = queue.counts().await.expect("works");
        let found: Vec<(&str, State, u64)> =
            counts.iter().map(|count| (count.kind.as_str(), count.state, count.jobs)).collect();
        let wanted = [
            ("k", State::Pending, 3),
            ("k", State::Running, 1),
            ("k", State::Done, 1),
            ("other", State::Pending, 1),
        ];
        assert_eq!(found, wanted);
        let ages = counts.iter().map(|count| count.oldest_age.as_secs());
        assert!(ages.clone().all(|age| (30..40).contains(&age)), "{:?}", ages.collect::<Vec<_>>());
    });
}

#[test]
fn jobs_that_are_too_large_or_malformed_are_refused() {
    simulate(async {
        let queue = open(&Database::memory().await).await;
        let mut never = job("a");
        never.attempts_max = 0;
        let cases = [
            job(""),
            job(&"k".repeat(600)),
            job("a\0b"),
            NewJob::new("", "a", "{}"),
            NewJob::new("k", "a", "x".repeat(PAYLOAD_BYTES_MAX + 1)),
            NewJob::new("k", "a", "\0"),
            never,
        ];
        for case in cases {
            let refused = queue.enqueue(&case).await.expect_err("refused");
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{}/{}", case.kind, case.key.len());
        }
        let many = queue.claim("k", BATCH_MAX + 1, LEASE, "t").await.expect_err("too many");
        assert_eq!(many.kind(), ErrorKind::Invalid);
    });
}

#[test]
fn odd_keys_payloads_and_errors_survive() {
    on_both(|database| async move {
        let queue = open(&database).await;
        let odd = ["a'b\"c", "ключ/鍵", "{\"json\":[1]}", "back\\slash", " space "];
        let jobs: Vec<NewJob> = odd.iter().map(|text| NewJob::new("k", *text, *text)).collect();
        queue.enqueue_many(&jobs).await.expect("works");
        let claims = claim(&queue, 10).await;
        assert_eq!(keys(&claims), odd);
        assert!(claims.iter().all(|claim| claim.payload == claim.key));
        let long = format!("{}\0{}", "é".repeat(3_000), "x");
        let failed: Vec<FailedClaim> = claims
            .into_iter()
            .map(|claim| FailedClaim { claim, error: long.clone(), retry_after: None })
            .collect();
        assert_eq!(queue.fail_many(&failed).await.expect("works"), []);
        let kept = queue.get("k", odd[0]).await.expect("works").expect("exists").error;
        assert!(kept.is_some_and(|error| error.len() <= 4_096 && error.starts_with("éé")));
    });
}

#[test]
fn jobs_postponed_by_a_clock_that_was_ahead_are_run() {
    on_both(|database| async move {
        let queue = open(&database).await;
        let (hour, day) = (Duration::from_secs(3_600), Duration::from_secs(24 * 3_600));
        for (key, delay) in [("now", Duration::ZERO), ("soon", hour), ("never", 1_000 * day)] {
            queue.enqueue(&NewJob { delay, ..job(key) }).await.expect("works");
        }
        let held = queue.claim("k", 1, 1_000 * day, "tester").await.expect("works");
        assert_eq!(keys(&held), ["now"]);
        for (kind, corrected) in [("other", 0), ("k", 2), ("k", 0)] {
            let reclaimer = Reclaimer::new(queue.clone(), kind, "tester", hour);
            let looked = reclaimer.with_wait_max(day, hour).look().await;
            assert_eq!(looked.expect("works"), corrected, "{kind}: once");
        }
        assert_eq!(keys(&claim(&queue, 10).await), ["never"], "what is due soon is left alone");
        assert_eq!(queue.reap("k").await.expect("works"), 0, "it is held for a while");
        database.advance(hour, &[queue.sql()]);
        assert_eq!(queue.reap("k").await.expect("works"), 2, "and so is what was claimed just now");
        queue.complete(&held[0]).await.expect_err("it was reaped");
    });
}
