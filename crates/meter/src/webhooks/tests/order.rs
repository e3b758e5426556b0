//! Order, fairness, fences, replays.

use super::super::ordering::{RELEASE_BATCH, STUCK};
use super::*;
use logmill_io::Tasks;

#[tokio::test]
async fn an_ordered_endpoint_gets_the_next_message_only_after_the_previous_one() {
    let world = World::new(quick()).await;
    let url = world.receiver.url("/fail");
    let (ordered, _) =
        world.endpoint_as(NewEndpoint { ordered: true, ..NewEndpoint::new(url) }).await;
    let (any, _) = world.endpoint("/fine").await;
    for id in ["a", "b", "c"] {
        world.publish(id).await;
    }
    assert_eq!(world.deliver().await, 4, "one of the ordered, all of the other");
    assert_eq!(world.state("a", &ordered).await, "pending");
    assert_eq!(world.state("b", &ordered).await, "waiting");
    assert_eq!(world.state("c", &any).await, "succeeded");
    world.advance(7 * SECOND);
    assert_eq!(world.deliver().await, 1, "the same again");
    world.receiver.mend("/fail");
    world.advance(HOUR);
    assert_eq!(world.deliver().await, 3);
    assert_eq!(ids(&world.receiver.to("/fail")), ["a", "a", "a", "b", "c"]);
    world.publish("d").await;
    world.deliver().await;
    assert_eq!(world.state("d", &ordered).await, "succeeded", "nothing is in its way");
}

#[tokio::test]
async fn an_exhausted_message_does_not_block_the_next_one() {
    let world = World::new(WebhookSettings { waits: vec![SECOND], ..quick() }).await;
    let url = world.receiver.url("/fail");
    let (endpoint, _) =
        world.endpoint_as(NewEndpoint { ordered: true, ..NewEndpoint::new(url) }).await;
    world.publish("a").await;
    world.publish("b").await;
    for _ in 0..4 {
        world.deliver().await;
        world.advance(2 * SECOND);
    }
    assert_eq!(ids(&world.receiver.to("/fail")), ["a", "a", "b", "b"]);
    assert_eq!(world.state("b", &endpoint).await, "exhausted");
}

#[tokio::test]
async fn waiting_deliveries_are_sent_when_order_is_switched_off() {
    let world = World::new(quick()).await;
    let url = world.receiver.url("/fail");
    let (endpoint, _) =
        world.endpoint_as(NewEndpoint { ordered: true, ..NewEndpoint::new(url) }).await;
    for id in ["a", "b", "c"] {
        world.publish(id).await;
    }
    assert_eq!(world.deliver().await, 1);
    let change = EndpointChange { ordered: Some(false), ..EndpointChange::default() };
    world.hooks.update(&endpoint, &change).await.expect("works");
    world.receiver.mend("/fail");
    world.deliver().await;
    // An endpoint that failed last gets one request at a time until it answers.
    world.advance(2 * SECOND);
    world.deliver().await;
    let mut sent = world.receiver.requests();
    assert_eq!(ids(&sent.split_off(1)), ["b", "c"]);
}

#[tokio::test]
async fn deliveries_that_wait_needlessly_are_found() {
    let world = World::new(quick()).await;
    let (any, _) = world.endpoint("/any").await;
    let url = world.receiver.url("/ordered");
    world.endpoint_as(NewEndpoint { ordered: true, ..NewEndpoint::new(url) }).await;
    for id in ["a", "b", "c"] {
        world.publish(id).await;
    }
    // As if the setting had changed just while they were published and settled.
    let jobs = "DELETE FROM job";
    world.hooks.sql().execute(jobs, params![]).await.expect("works");
    let waiting = "UPDATE webhook_delivery SET state = 1";
    world.hooks.sql().execute(waiting, params![]).await.expect("works");
    assert_eq!(world.deliver().await, 6);
    assert_eq!(ids(&world.receiver.to("/ordered")), ["a", "b", "c"]);
    assert_eq!(world.state("c", &any).await, "succeeded");
}

#[tokio::test]
async fn only_endpoints_with_needlessly_waiting_deliveries_are_unstuck() {
    let world = World::new(quick()).await;
    let mut wanted = Vec::new();
    // States of two messages: pending (0), waiting (1) or succeeded (2).
    let cases = [
        (true, true, [0, 1], false),
        (true, true, [1, 1], true),
        (true, true, [2, 1], true),
        (true, false, [2, 1], false),
        (false, true, [0, 1], true),
        (true, true, [2, 0], false),
    ];
    for _ in &cases {
        world.endpoint("/fine").await;
    }
    world.publish("a").await;
    world.publish("b").await;
    for (endpoint, (ordered, enabled, states, stuck)) in (1_i64..).zip(cases) {
        let text = "UPDATE webhook_endpoint SET ordered = $2, enabled = $3 WHERE seq = $1";
        let set = world.hooks.sql().execute(text, params![endpoint, ordered, enabled]).await;
        set.expect("works");
        for (message, state) in (1_i64..).zip(states) {
            let text = "UPDATE webhook_delivery SET state = $3
                WHERE endpoint_seq = $1 AND message_seq = $2";
            let set = world.hooks.sql().execute(text, params![endpoint, message, state]).await;
            set.expect("works");
        }
        wanted.extend(stuck.then_some(endpoint));
    }
    let rows = world.hooks.sql().query(STUCK, params![100]).await.expect("works").rows;
    let found: Vec<i64> = rows.iter().map(|row| row.int(0).expect("a number")).collect();
    assert_eq!(found, wanted);
    assert_eq!(world.hooks.unstick().await.expect("works"), 3, "one each");
    assert_eq!(world.hooks.unstick().await.expect("works"), 0);
}

#[tokio::test]
async fn many_waiting_deliveries_are_released_in_batches_when_order_is_switched_off() {
    let world = World::new(quick()).await;
    let new = NewEndpoint { ordered: true, ..NewEndpoint::new(world.receiver.url("/fine")) };
    let (endpoint, _) = world.endpoint_as(new).await;
    let batch = RELEASE_BATCH.unsigned_abs();
    let messages: Vec<NewMessage> =
        (0..2 * batch + 10).map(|n| message(&format!("m{n}"))).collect();
    let published = world.hooks.sql().write(|tx| {
        let (hooks, messages) = (&world.hooks, &messages);
        async move { hooks.publish_many_in(&tx, messages).await }
    });
    published.await.expect("works");
    let text = "UPDATE webhook_endpoint SET ordered = 0";
    world.hooks.sql().execute(text, params![]).await.expect("works");
    let given = world.hooks.sql().write(|tx| {
        let hooks = &world.hooks;
        async move { hooks.release_next_in(&tx, 1).await }
    });
    assert_eq!(given.await.expect("works"), batch, "no more in one transaction");
    assert_eq!(world.count("webhook_delivery WHERE state = 0").await, batch + 1);
    let change = EndpointChange { ordered: Some(false), ..EndpointChange::default() };
    world.hooks.update(&endpoint, &change).await.expect("works");
    assert_eq!(world.count("webhook_delivery WHERE state = 0").await, 2 * batch + 10);
    assert_eq!(world.count("job WHERE state = 0").await, 2 * batch + 10);
}

/// Dead endpoints have thousands of due attempts, which hold every retry slot; a first attempt is sent at once.
#[tokio::test]
async fn dead_endpoints_do_not_delay_a_first_attempt_on_another() {
    let slots = WebhookSettings { first_slots: 4, overflow_slots: 4, retry_slots: 4, ..quick() };
    let mut world = World::new(slots).await;
    for number in 0..20 {
        world.endpoint(&format!("/stall{number}")).await;
    }
    let messages: Vec<NewMessage> = (0..150).map(|n| message(&format!("m{n}"))).collect();
    let published = world.hooks.sql().write(|tx| {
        let (hooks, messages) = (&world.hooks, &messages);
        async move { hooks.publish_many_in(&tx, messages).await }
    });
    assert_eq!(published.await.expect("works").deliveries, 3_000);
    // All have failed once, and are due again.
    let failed = "UPDATE webhook_delivery SET attempts = 1";
    world.hooks.sql().execute(failed, params![]).await.expect("works");
    let failing = "UPDATE webhook_endpoint SET failing_since = now_ms()";
    world.hooks.sql().execute(failing, params![]).await.expect("works");
    world.endpoint("/fine").await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut tasks = Tasks::new();
    let deliverer = world.hooks.deliverer("test").expect("a deliverer");
    tasks.spawn(deliverer.run(async { drop(stopped.await) }));
    let stalled = |receiver: &Receiver| receiver.requests().len();
    world.receiver.wait_for("/stall7", 1).await;
    let before = stalled(&world.receiver);
    let started = world.clock.monotonic();
    world.publish("first").await;
    world.receiver.wait_for("/fine", 1).await;
    let (took, between) = (world.clock.monotonic() - started, stalled(&world.receiver) - before);
    assert!(took < 2 * SECOND, "it took {took:?}");
    assert!(between < 100, "{between} others went before it");
    drop(stop);
    tasks.join_next().await.expect("one task").expect("no panic").expect("it stops");
    let held = world.count("job WHERE state = 1").await;
    assert_eq!(held, 0, "what was under way at the stop was released or recorded");
}

#[tokio::test]
async fn a_result_that_comes_too_late_is_fenced_and_the_message_was_sent_twice() {
    let mut world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fine").await;
    world.publish("m").await;
    let mut slow = world.hooks.deliverer("slow").expect("a deliverer");
    slow.step().await.expect("it claims and sends");
    world.receiver.wait_for("/fine", 1).await;
    world.advance(HOUR);
    assert_eq!(world.deliver().await, 1, "its lease has ended, so another sends it");
    assert_eq!(slow.drain().await.expect("works"), 1);
    assert_eq!(ids(&world.receiver.requests()), ["m", "m"]);
    let delivery = world.delivery("m", &endpoint).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Succeeded, 1));
    assert_eq!(world.hooks.attempts("m", &endpoint).await.expect("works").len(), 1);
}

/// Settings with which the first failure is the last. The timeout is not the short one of [`quick`]: on a busy machine
/// a receiver that answers at once may exceed it, and such a delivery would be exhausted.
fn one_attempt() -> WebhookSettings {
    WebhookSettings { waits: Vec::new(), ..WebhookSettings::default() }
}

#[tokio::test]
async fn one_delivery_is_replayed_whatever_its_state() {
    let world = World::new(one_attempt()).await;
    let (fine, _) = world.endpoint("/fine").await;
    let (failing, _) = world.endpoint("/fail").await;
    world.publish("m").await;
    assert_eq!(world.deliver().await, 2);
    assert_eq!(world.state("m", &failing).await, "exhausted");
    world.receiver.mend("/fail");
    for endpoint in [&fine, &failing] {
        world.hooks.replay("m", endpoint).await.expect("works");
    }
    assert_eq!(world.deliver().await, 2);
    let delivery = world.delivery("m", &failing).await;
    assert_eq!((delivery.state, delivery.round), (DeliveryState::Succeeded, 1));
    let log = world.hooks.attempts("m", &failing).await.expect("works");
    let rounds: Vec<(i64, i64)> = log.iter().map(|one| (one.round, one.attempt)).collect();
    assert_eq!(rounds, [(0, 1), (1, 1)]);
    let missing = world.hooks.replay("none", &fine).await.expect_err("no such message");
    assert_eq!(missing.kind(), logmill_io::ErrorKind::NotFound);
}

#[tokio::test]
async fn a_replay_of_a_pending_delivery_sends_it_once() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    world.publish("m").await;
    world.deliver().await;
    world.receiver.mend("/fail");
    world.hooks.replay("m", &endpoint).await.expect("works");
    assert_eq!(world.deliver().await, 1, "at once");
    world.advance(HOUR);
    assert_eq!(world.deliver().await, 0, "and not again when it would have been due");
    assert_eq!(world.state("m", &endpoint).await, "succeeded");
}

#[tokio::test]
async fn all_that_failed_since_a_time_is_replayed_in_batches() {
    let world = World::new(one_attempt()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    world.publish("before").await;
    world.deliver().await;
    world.advance(HOUR);
    let since = world.clock.now();
    let messages: Vec<NewMessage> = (0..1_100).map(|n| message(&format!("m{n}"))).collect();
    let published = world.hooks.sql().write(|tx| {
        let (hooks, messages) = (&world.hooks, &messages);
        async move { hooks.publish_many_in(&tx, messages).await }
    });
    published.await.expect("works");
    world.hooks.disable(&endpoint).await.expect("works");
    let refused = world.hooks.replay_since(&endpoint, since).await.expect_err("disabled");
    assert_eq!(refused.kind(), logmill_io::ErrorKind::Conflict);
    world.hooks.enable(&endpoint).await.expect("works");
    assert_eq!(world.deliver().await, 0, "they were cancelled");
    world.receiver.mend("/fail");
    let replayed = world.hooks.replay_since(&endpoint, since).await.expect("works");
    assert_eq!(replayed, ReplayResult { deliveries: 1_100, more: false });
    for _ in 0..20 {
        world.deliver().await;
        world.advance(10 * SECOND);
    }
    assert_eq!(world.count("webhook_delivery WHERE state = 2").await, 1_100);
    assert_eq!(world.state("before", &endpoint).await, "exhausted");
}
