//! A clock that jumps: attempts may be late, but they are made; nothing that was recorded is sent twice.

use super::*;

const BACK: Duration = HOUR;
const YEARS: Duration = Duration::from_secs(20 * 365 * 24 * 3_600);

impl World {
    fn go_back(&self, by: Duration) {
        self.clock.jump(-millis(by));
    }
}

#[tokio::test]
async fn a_clock_that_goes_back_delays_a_retry_by_as_much_and_nothing_else() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    let (other, secret) = world.endpoint("/fine").await;
    world.publish("m").await;
    assert_eq!(world.deliver().await, 2);
    world.receiver.mend("/fail");
    world.go_back(BACK);
    assert_eq!(world.deliver().await, 0, "its time has not come");
    world.publish("n").await;
    assert_eq!(world.deliver().await, 2, "what is new goes out at once");
    world.advance(BACK + 7 * SECOND);
    assert_eq!(world.deliver().await, 1);
    for (message, to) in [("m", &endpoint), ("n", &endpoint), ("m", &other), ("n", &other)] {
        assert_eq!(world.state(message, to).await, "succeeded", "{message}");
    }
    assert_eq!(ids(&world.receiver.to("/fail")), ["m", "n", "m"]);
    let fine = world.receiver.to("/fine");
    assert_eq!(ids(&fine), ["m", "n"], "what was recorded is not sent again");
    let at = |index: usize| fine[index].header("webhook-timestamp").parse::<i64>().expect("a time");
    let start = START.millis() / 1_000;
    let back = i64::try_from(BACK.as_secs()).expect("small");
    assert_eq!((at(0), at(1)), (start, start - back), "what the clock said");
    assert!(fine.iter().all(|request| request.is_signed_by(&secret)));
    world.advance(100 * HOUR);
    assert_eq!(world.deliver().await, 0, "nothing is left");
}

#[tokio::test]
async fn a_clock_that_was_years_ahead_for_a_while_does_not_stop_retries() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    world.advance(YEARS);
    world.publish("m").await;
    assert_eq!(world.deliver().await, 1);
    world.go_back(YEARS);
    world.receiver.mend("/fail");
    world.deliver().await;
    assert_eq!(world.state("m", &endpoint).await, "succeeded", "sooner than in years");
    assert_eq!(ids(&world.receiver.to("/fail")), ["m", "m"]);
    world.advance(YEARS);
    assert_eq!(world.deliver().await, 0, "and not again when its time comes");
}

/// First attempts are due at once: a clock that was ahead by less than the delays of retries holds none of them back.
#[tokio::test]
async fn a_clock_that_was_an_hour_ahead_for_a_while_does_not_stop_first_attempts() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fine").await;
    world.advance(HOUR);
    world.publish("m").await;
    world.go_back(HOUR);
    assert_eq!(world.deliver().await, 1);
    assert_eq!(world.state("m", &endpoint).await, "succeeded");
}

#[tokio::test]
async fn attempts_with_long_waits_are_not_sent_early() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    world.publish("m").await;
    world.deliver().await;
    for wait in WebhookSettings::default().waits {
        assert_eq!(world.deliver().await, 0, "it waits");
        world.advance(wait * 12 / 10 + SECOND);
        assert_eq!(world.deliver().await, 1);
    }
    assert_eq!(world.state("m", &endpoint).await, "exhausted");
}

#[tokio::test]
async fn a_request_under_way_while_the_clock_goes_back_is_recorded_and_sent_once() {
    let mut world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fine").await;
    world.publish("m").await;
    let mut slow = world.hooks.deliverer("slow").expect("a deliverer");
    slow.step().await.expect("it claims and sends");
    world.receiver.wait_for("/fine", 1).await;
    world.go_back(BACK);
    assert_eq!(world.deliver().await, 0, "it is another's for now");
    assert_eq!(slow.drain().await.expect("works"), 1);
    assert_eq!(world.state("m", &endpoint).await, "succeeded");
    world.advance(2 * BACK);
    assert_eq!(world.deliver().await, 0);
    assert_eq!(ids(&world.receiver.requests()), ["m"]);
}

#[tokio::test]
async fn deliveries_of_a_dead_process_are_sent_although_the_clock_went_back() {
    for (ahead, waited) in [(Duration::ZERO, BACK + HOUR), (YEARS, HOUR)] {
        let mut world = World::new(quick()).await;
        let (endpoint, _) = world.endpoint("/fine").await;
        world.advance(ahead);
        world.publish("m").await;
        let mut dead = world.hooks.deliverer("dead").expect("a deliverer");
        dead.step().await.expect("it claims and sends");
        world.receiver.wait_for("/fine", 1).await;
        drop(dead);
        world.go_back(ahead.max(BACK));
        world.deliver().await;
        world.advance(waited);
        world.deliver().await;
        assert_eq!(world.state("m", &endpoint).await, "succeeded", "{ahead:?}");
        assert_eq!(ids(&world.receiver.requests()), ["m", "m"], "{ahead:?}");
    }
}

#[tokio::test]
async fn a_jump_ahead_costs_one_attempt_and_no_more() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    world.publish("m").await;
    assert_eq!(world.deliver().await, 1);
    world.advance(100 * HOUR);
    assert_eq!(world.deliver().await, 1);
    assert_eq!(world.deliver().await, 0, "the next wait is from now on");
    let delivery = world.delivery("m", &endpoint).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 2));
}
