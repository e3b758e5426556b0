//! Retrying deliveries now that wait for a later attempt, and the summaries of removed deliveries.

use super::*;

#[tokio::test]
async fn a_retry_sends_waiting_deliveries_now_and_continues_their_schedule() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    let (other, _) = world.endpoint("/fail2").await;
    world.publish("m").await;
    assert_eq!(world.deliver().await, 2);
    world.advance(10 * SECOND);
    assert_eq!(world.deliver().await, 2, "the second attempt");
    world.receiver.mend("/fail");
    assert_eq!(world.deliver().await, 0, "the third is some minutes away");
    let retried = world.hooks.retry_now(&endpoint).await.expect("works");
    assert_eq!(retried, ReplayResult { deliveries: 1, more: false });
    assert_eq!(world.deliver().await, 1, "and nothing of other endpoints");
    let delivery = world.delivery("m", &endpoint).await;
    assert_eq!((delivery.state.name(), delivery.attempts, delivery.round), ("succeeded", 3, 1));
    assert_eq!(world.state("m", &other).await, "pending");
    let again = world.hooks.retry_now(&endpoint).await.expect("works");
    assert_eq!(again, ReplayResult::default(), "nothing waits any longer");
    world.advance(HOUR);
    world.deliver().await;
    assert_eq!(world.receiver.to("/fail").len(), 3, "the job of the earlier round does nothing");
}

#[tokio::test]
async fn a_failure_after_a_retry_goes_on_with_the_schedule() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    world.publish("m").await;
    for attempts in 1..=10 {
        assert_eq!(world.deliver().await, 1);
        assert_eq!(world.delivery("m", &endpoint).await.attempts, attempts);
        let waits = if attempts < 10 { 1 } else { 0 };
        assert_eq!(world.hooks.retry_now(&endpoint).await.expect("works").deliveries, waits);
    }
    assert_eq!(world.state("m", &endpoint).await, "exhausted", "ten are the most, by hand too");
}

#[tokio::test]
async fn a_retry_ends_the_pause_that_an_endpoint_asked_for() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/busy").await;
    world.publish("a").await;
    let mut deliverer = world.hooks.deliverer("test").expect("a deliverer");
    assert_eq!(deliverer.drain().await.expect("works"), 1);
    world.publish("b").await;
    assert_eq!(
        deliverer.drain().await.expect("works"),
        0,
        "b was never attempted: it is postponed"
    );
    world.receiver.mend("/busy");
    let retried = world.hooks.retry_now(&endpoint).await.expect("works");
    assert_eq!(retried.deliveries, 2);
    assert_eq!(deliverer.drain().await.expect("works"), 2, "the same process, at once");
    for message in ["a", "b"] {
        assert_eq!(world.state(message, &endpoint).await, "succeeded");
    }
}

#[tokio::test]
async fn at_an_ordered_endpoint_the_first_is_retried_and_the_others_follow() {
    let world = World::new(quick()).await;
    let new = NewEndpoint { ordered: true, ..NewEndpoint::new(world.receiver.url("/fail")) };
    let (endpoint, _) = world.endpoint_as(new).await;
    world.publish("a").await;
    world.publish("b").await;
    assert_eq!(world.deliver().await, 1);
    world.receiver.mend("/fail");
    assert_eq!(world.hooks.retry_now(&endpoint).await.expect("works").deliveries, 1);
    assert_eq!(world.deliver().await, 2);
    assert_eq!(ids(&world.receiver.to("/fail")), ["a", "a", "b"]);
    world.hooks.disable(&endpoint).await.expect("works");
    let refused = world.hooks.retry_now(&endpoint).await.expect_err("disabled");
    assert!(refused.to_string().contains("disabled"), "{refused}");
}

#[tokio::test]
async fn the_summary_of_a_delivery_stays_when_the_delivery_is_removed() {
    let world = World::new(quick()).await;
    let (well, _) = world.endpoint("/fine").await;
    world.publish("delivered").await;
    world.deliver().await;
    let (gone, _) = world.endpoint("/gone").await;
    world.publish("half").await;
    let other = NewMessage { kind: "alert.triggered".to_owned(), ..message("other") };
    world.hooks.publish(&other).await.expect("published");
    world.deliver().await;
    assert_eq!(world.state("half", &gone).await, "exhausted");
    assert_eq!(world.state("half", &well).await, "succeeded");
    let ids = ["delivered", "half", "none"].map(str::to_owned);
    let before = world.hooks.summaries(&ids).await.expect("works");
    assert_eq!(before.keys().collect::<Vec<_>>(), ["delivered", "half"]);
    let (full, half) = (&before["delivered"], &before["half"]);
    assert_eq!((full.delivered, full.attempts, &full.last_error), (true, 1, &None));
    assert!(full.delivered_at.is_some() && full.last_attempt_at.is_some());
    assert_eq!((half.delivered, half.attempts, half.delivered_at), (false, 2, None));
    assert_eq!(half.last_error.as_deref(), Some("answered 410"));
    world.advance(world.hooks.settings().retention + HOUR);
    assert!(world.hooks.purge().await.expect("works").messages >= 3);
    assert_eq!(world.count("webhook_delivery").await, 0);
    assert_eq!(world.hooks.summaries(&ids).await.expect("works"), before);
    assert_eq!(world.count("webhook_summary").await, 2, "of aggregates alone");
}
