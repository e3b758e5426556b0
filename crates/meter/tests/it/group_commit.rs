//! Aggregates that are ready at the same time are written together, and none is affected by
//! another.

use std::future::{Future, poll_fn};
use std::task::Poll;
use std::time::Duration;

use futures::future::join_all;
use logmill_meter::aggregate::Aggregator;
use logmill_meter::due::{AGGREGATE_JOB, SweepScope};
use logmill_sim::meter_world::{World, settings};
use logmill_work::{Claim, Failure, Handler as _, Outcome, RunningJob};
use serde_json::json;

const NOW: &str = "2026-01-13T08:20:00.000Z";
const CUSTOMERS: usize = 3;

/// A world with due periods of some customers, and the jobs that compute their aggregates.
async fn due() -> (World, Vec<Claim>) {
    let world = World::new(NOW, settings()).await;
    let event = |number| {
        let customer = format!("c{number}");
        json!({"eventType": "api.calls", "customerId": customer, "value": 1})
    };
    world.record(&(0..CUSTOMERS).map(event).collect::<Vec<_>>()).await;
    world.meter.sweep(SweepScope::All).await.expect("a sweep");
    let lease = Duration::from_secs(120);
    let claims = world.queue.claim(AGGREGATE_JOB, 100, lease, "test").await.expect("claims");
    assert_eq!(claims.len(), CUSTOMERS * 4, "hours, days, weeks and months");
    (world, claims)
}

async fn make(world: &World, claim: Claim) -> Result<Outcome, Failure> {
    let running = RunningJob { claim, queue: world.queue.clone() };
    Aggregator(world.meter.clone()).run(running).await
}

async fn count_made(world: &World) -> usize {
    let mut made = 0;
    for period in ["hourly", "daily", "weekly", "monthly"] {
        made += world.aggregates(period).await.len();
    }
    made
}

#[tokio::test(start_paused = true)]
async fn an_aggregate_whose_claim_was_lost_fails_alone() {
    for lost in 0..CUSTOMERS * 4 {
        let (world, claims) = due().await;
        world.queue.remove_in(world.queue.sql(), &claims[lost]).await.expect("it was held");
        let made = join_all(claims.iter().map(|claim| make(&world, claim.clone()))).await;
        let failed: Vec<usize> =
            (0..claims.len()).filter(|number| made[*number].is_err()).collect();
        assert_eq!((failed, count_made(&world).await), (vec![lost], claims.len() - 1));
    }
}

/// Polls a future `polls` times, and then drops it.
async fn stopped_after<T>(polls: usize, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut left) = (Some(Box::pin(future)), polls);
    poll_fn(move |context| {
        if left == 0 {
            future = None;
        }
        left = left.saturating_sub(1);
        future.as_mut().map_or(Poll::Ready(None), |future| future.as_mut().poll(context).map(Some))
    })
    .await
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_task_does_not_affect_the_others() {
    let (mut stopped, mut finished) = (0, 0);
    for polls in 0..60 {
        let (world, claims) = due().await;
        let stopped_or_made = |(number, claim): (usize, &Claim)| {
            let polls = if number == 0 { polls } else { usize::MAX };
            stopped_after(polls, make(&world, claim.clone()))
        };
        let made = join_all(claims.iter().enumerate().map(stopped_or_made)).await;
        assert!(
            made[1..].iter().all(|made| matches!(made, Some(Ok(_)))),
            "after {polls}: {made:?}"
        );
        match made[0] {
            None => stopped += 1,
            Some(_) => finished += 1,
        }
        // A stopped aggregate was written, or its job runs again once its lease has ended.
        world.set("2026-01-13T08:25:00.000Z");
        world.queue.reap(AGGREGATE_JOB).await.expect("works");
        assert_eq!(world.work().await, Vec::<String>::new());
        assert_eq!(count_made(&world).await, claims.len(), "after {polls}");
    }
    assert!(stopped > 10 && finished > 1, "{stopped} were stopped, {finished} were not");
}
