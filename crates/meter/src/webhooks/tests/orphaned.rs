//! Pending deliveries without a job: they are found, and others are left alone.

use logmill_work::State;

use super::super::orphaned::{PAGE, REST, ScanPosition};
use super::*;

#[tokio::test]
async fn a_delivery_whose_job_was_cancelled_is_sent_after_a_while() {
    let world = World::new(WebhookSettings { waits: vec![HOUR], ..quick() }).await;
    let (fine, _) = world.endpoint("/fine").await;
    let (failing, _) = world.endpoint("/fail").await;
    world.publish("m").await;
    for job in
        world.hooks.queue.list("webhook.first", State::Pending, None, 10).await.expect("works")
    {
        if job.payload.starts_with("[1,1,") {
            assert!(world.hooks.queue.cancel("webhook.first", &job.key).await.expect("works"));
        }
    }
    assert_eq!(world.deliver().await, 1, "to the other alone");
    assert_eq!(world.state("m", &fine).await, "pending");
    world.advance(REST / 2);
    assert_eq!(world.deliver().await, 0, "its job may be about to come");
    world.advance(REST / 2 + SECOND);
    assert_eq!(world.deliver().await, 1);
    let delivery = world.delivery("m", &fine).await;
    assert_eq!((delivery.state, delivery.round), (DeliveryState::Succeeded, 1));
    let delivery = world.delivery("m", &failing).await;
    assert_eq!((delivery.state, delivery.round), (DeliveryState::Pending, 0), "it has a job");
    world.hooks.queue.redrive("webhook.first", "1-1-0").await.expect("works");
    assert_eq!(world.deliver().await, 0, "the old job does nothing");
}

#[tokio::test]
async fn a_scan_reads_one_page_and_the_next_scan_continues_there() {
    let world = World::new(quick()).await;
    world.endpoint("/many").await;
    let messages: Vec<NewMessage> = (0..=PAGE).map(|n| message(&format!("m{n}"))).collect();
    let published = world.hooks.sql().write(|tx| {
        let (hooks, messages) = (&world.hooks, &messages);
        async move { hooks.publish_many_in(&tx, messages).await }
    });
    published.await.expect("works");
    let last = format!("{}-1-0", PAGE + 1);
    for key in ["1-1-0", &last] {
        assert!(world.hooks.queue.cancel("webhook.first", key).await.expect("works"));
    }
    world.advance(REST + SECOND);
    let start = ScanPosition::default();
    let (found, after) = world.hooks.requeue_orphaned(start).await.expect("works");
    assert_eq!((found, after != start), (1, true), "the first, and one page is full");
    assert_eq!(world.hooks.requeue_orphaned(after).await.expect("works"), (1, start), "the last");
    assert_eq!(
        world.hooks.requeue_orphaned(start).await.expect("works").0,
        0,
        "they have jobs now"
    );
    assert_eq!(world.count("webhook_delivery WHERE round = 1").await, 2);
    let jobs =
        format!("job WHERE kind = 'webhook.overflow' AND key IN ('1-1-1', '{}-1-1')", PAGE + 1);
    assert_eq!(world.count(&jobs).await, 2);
}
