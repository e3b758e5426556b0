//! How many statements deliveries cost: claims and results go in batches.

use logmill_io::Faults;

use super::*;

#[tokio::test]
async fn deliveries_are_claimed_loaded_and_recorded_in_batches() {
    const MESSAGES: usize = 100;
    const ENDPOINTS: usize = 40;
    let world = World::new(WebhookSettings { dry_run: true, ..quick() }).await;
    for _ in 0..ENDPOINTS {
        world.endpoint("/fine").await;
    }
    let messages: Vec<NewMessage> = (0..MESSAGES).map(|n| message(&format!("m{n}"))).collect();
    let published = world.hooks.sql().write(|tx| {
        let (hooks, messages) = (&world.hooks, &messages);
        async move { hooks.publish_many_in(&tx, messages).await }
    });
    published.await.expect("works");
    let faults = Faults::none();
    let queue = &world.hooks.queue;
    let counted = queue.through(queue.sql().with_faults(Arc::clone(&faults)));
    let hooks = world.hooks.through(counted);
    let mut deliverer = hooks.deliverer("test").expect("a deliverer");
    assert_eq!(deliverer.drain().await.expect("works"), 4_000);
    let statements = faults.operations();
    assert!(statements <= 120, "{statements} statements for 4000 deliveries");
    assert_eq!(deliverer.drain().await.expect("works"), 0);
    let idle = faults.operations() - statements;
    assert!(idle <= 6, "{idle} statements although nothing is due");
}
