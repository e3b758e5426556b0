//! Recording: stale claims, commits whose answer was lost, and since when an endpoint fails.

use logmill_work::{Claim, State};

use super::super::in_flight::InFlightDeliveries;
use super::super::publish::DeliveryRound;
use super::super::record::{Attempt, Ending, SettledClaim};
use super::super::verdict::NextStep;
use super::*;

const LEASE: Duration = Duration::from_secs(60);

impl World {
    /// Claims the one delivery that is due in a class.
    async fn claim(&self, class: Class) -> Claim {
        let claimed = self.hooks.queue.claim(class.kind(), 2, LEASE, "test").await;
        let [claim] = <[Claim; 1]>::try_from(claimed.expect("works")).expect("one is due");
        claim
    }

    async fn record(&self, batch: &[SettledClaim]) {
        self.hooks.record(batch).await.expect("recorded");
    }
}

/// The attempt after `attempts` earlier ones, made under a claim.
fn attempted(claim: &Claim, class: Class, attempts: i64, next: NextStep) -> SettledClaim {
    let failed = next != NextStep::Succeeded;
    let attempt = Attempt {
        at: START,
        took: SECOND,
        status: Some(if failed { 500 } else { 200 }),
        error: failed.then(|| format!("failure {}", attempts + 1)),
        response: String::new(),
        dry_run: false,
        next,
    };
    SettledClaim {
        claim: claim.clone(),
        class,
        delivery: DeliveryRound::parse(&claim.payload).expect("a job of ours"),
        attempts,
        ending: Ending::Attempted(attempt),
        again: false,
    }
}

fn failed(claim: &Claim, class: Class, attempts: i64, wait: Duration) -> SettledClaim {
    attempted(claim, class, attempts, NextStep::Again { wait })
}

/// One process lost its claim, and holds the same job again when it records both.
#[tokio::test]
async fn of_two_claims_of_one_job_in_a_batch_the_newer_one_counts() {
    for stale_first in [true, false] {
        let world = World::new(quick()).await;
        let (endpoint, _) = world.endpoint("/fine").await;
        world.publish("m").await;
        let stale = world.claim(Class::First).await;
        world.advance(2 * LEASE);
        world.hooks.queue.reap(Class::First.kind()).await.expect("works");
        let fresh = world.claim(Class::First).await;
        let mut batch = [
            failed(&stale, Class::First, 0, SECOND),
            attempted(&fresh, Class::First, 0, NextStep::Succeeded),
        ];
        if !stale_first {
            batch.reverse();
        }
        world.record(&batch).await;
        assert_eq!(world.state("m", &endpoint).await, "succeeded");
        assert_eq!(world.count("job WHERE state <> 2").await, 0, "no job is left");
        assert_eq!(world.hooks.attempts("m", &endpoint).await.expect("works").len(), 1);
    }
}

/// The first attempt is recorded, the answer is lost, another process continues, and then it is recorded
/// again.
#[tokio::test]
async fn recording_a_batch_again_changes_nothing_that_happened_since() {
    for known_to_be_again in [true, false] {
        let world = World::new(quick()).await;
        let (endpoint, _) = world.endpoint("/fail").await;
        world.publish("m").await;
        let claim = world.claim(Class::First).await;
        let mut first = failed(&claim, Class::First, 0, SECOND);
        world.record(std::slice::from_ref(&first)).await;
        world.advance(2 * SECOND);
        let second = world.claim(Class::Retry).await;
        world.record(&[failed(&second, Class::Retry, 1, HOUR)]).await;
        first.again = known_to_be_again;
        world.advance(SECOND);
        world.record(&[first]).await;
        let delivery = world.delivery("m", &endpoint).await;
        assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 2));
        assert_eq!(delivery.last_error.as_deref(), Some("failure 2"));
        if !known_to_be_again {
            continue;
        }
        let job = world.hooks.queue.get(Class::Retry.kind(), &second.key).await.expect("works");
        let job = job.expect("it waits");
        assert_eq!(job.state, State::Pending);
        assert!(job.due_at.since(world.clock.now()) > HOUR / 2, "its time has not changed");
        let health = world.hooks.get(&endpoint).await.expect("works");
        assert_eq!(health.last_error.as_deref(), Some("failure 2"), "nor has its endpoint");
    }
}

#[tokio::test]
async fn a_result_that_could_not_be_recorded_is_marked_as_in_doubt() {
    let world = World::new(quick()).await;
    world.endpoint("/fail").await;
    world.publish("m").await;
    let claim = world.claim(Class::First).await;
    let mut in_flight = InFlightDeliveries::new(world.hooks.clone(), [1; 3]);
    in_flight.put_back(vec![failed(&claim, Class::First, 0, SECOND)]);
    assert!(in_flight.take_settled(10)[0].again);
}

#[tokio::test]
async fn a_success_is_recorded_whatever_the_earlier_state() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fine").await;
    world.publish("m").await;
    let claim = world.claim(Class::First).await;
    let ahead = "UPDATE webhook_delivery SET attempts = 7";
    world.hooks.sql().execute(ahead, params![]).await.expect("works");
    world.record(&[attempted(&claim, Class::First, 0, NextStep::Succeeded)]).await;
    let delivery = world.delivery("m", &endpoint).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Succeeded, 7));
}

/// Fails at these hours; checks since which of them the endpoint has failed, and whether it is still enabled.
async fn check_failing(hours: &[u32], since: u32, enabled: bool) {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    let mut passed = 0;
    for hour in hours {
        world.advance((hour - passed) * HOUR);
        passed = *hour;
        world.publish(&format!("m{hour}")).await;
        let claim = world.claim(Class::First).await;
        world.record(&[attempted(&claim, Class::First, 0, NextStep::Exhausted)]).await;
    }
    let endpoint = world.hooks.get(&endpoint).await.expect("works");
    assert_eq!(endpoint.enabled, enabled, "{hours:?}");
    let failing = endpoint.failing_since.expect("it fails").since(START);
    assert_eq!(failing.as_secs() / 3_600, u64::from(since), "{hours:?}");
}

#[tokio::test]
async fn a_failure_after_a_long_silence_is_the_first_of_a_new_period() {
    check_failing(&[0, 40, 80, 119], 0, true).await;
    check_failing(&[0, 40, 80, 121], 0, false).await;
    check_failing(&[0, 721], 721, true).await;
    check_failing(&[0, 40, 721, 761], 721, true).await;
}
