//! Signatures as receivers check them, rotation, and where secrets must not appear.

use logmill_io::SystemClock;

use super::*;

#[tokio::test]
async fn a_receiver_verifies_with_the_library_and_with_the_plain_pair() {
    let receiver = Receiver::start().await;
    let clock = SystemClock::shared();
    let allowed = vec![AllowedTarget::Net(Net::parse("127.0.0.1").expect("a network"))];
    let guard = quick().guard(allowed);
    let client = GuardedClient::new(Arc::clone(&clock), guard).expect("a client");
    let entropy = SeededEntropy::shared(1);
    let sql = Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await.expect("it opens");
    let queue = Queue::open(sql).await.expect("a queue");
    let hooks = Webhooks::open(queue, client, quick()).await.expect("webhooks");
    let made = hooks.create(&NewEndpoint::new(receiver.url("/made"))).await.expect("made");
    let secret = Some(Secret::parse("your_webhook_secret").expect("a secret"));
    let chosen = NewEndpoint { secret, ..NewEndpoint::new(receiver.url("/chosen")) };
    hooks.create(&chosen).await.expect("made");
    hooks.publish(&message("m")).await.expect("published");
    hooks.deliverer("test").expect("a deliverer").drain().await.expect("works");
    let standard = &receiver.to("/made")[0];
    assert!(standard.is_verified_by(made.1.expose()), "{standard:?}");
    assert!(standard.is_plainly_signed_by(made.1.expose()), "{standard:?}");
    assert_eq!(standard.header("webhook-timestamp"), standard.header("x-webhook-timestamp"));
    let mut forged = standard.clone();
    forged.body.push(b' ');
    assert!(!forged.is_verified_by(made.1.expose()));
    let plain = &receiver.to("/chosen")[0];
    assert!(plain.is_plainly_signed_by("your_webhook_secret"), "{plain:?}");
    assert!(!plain.is_plainly_signed_by("another_webhook_secret"));
    assert!(!plain.is_verified_by(made.1.expose()), "each endpoint has its own secret");
}

#[tokio::test]
async fn an_old_secret_also_signs_until_its_overlap_ends() {
    let world = World::new(quick()).await;
    let (endpoint, old) = world.endpoint("/fine").await;
    let new = world.hooks.rotate(&endpoint, None, None).await.expect("works");
    let check = async |id: &str, by_old: bool| {
        world.publish(id).await;
        world.deliver().await;
        let requests = world.receiver.requests();
        let last = requests.last().expect("a request");
        assert_eq!(last.id(), id);
        assert!(last.is_signed_by(new.expose()) && last.is_plainly_signed_by(new.expose()));
        assert_eq!(last.is_signed_by(&old), by_old, "{id}");
    };
    check("at-once", true).await;
    world.advance(24 * HOUR - SECOND);
    check("just-before", true).await;
    world.advance(SECOND);
    check("after", false).await;
}

#[tokio::test]
async fn an_overlap_can_be_zero_and_is_at_most_a_week() {
    let world = World::new(quick()).await;
    let (endpoint, old) = world.endpoint("/fine").await;
    let long = Some(settings::OVERLAP_MAX + SECOND);
    world.hooks.rotate(&endpoint, None, long).await.expect_err("more than a week");
    let given = Secret::parse("a secret of their own choice").expect("a secret");
    let new = world.hooks.rotate(&endpoint, Some(given), Some(Duration::ZERO)).await;
    assert_eq!(new.expect("works").expose(), "a secret of their own choice");
    world.publish("m").await;
    world.deliver().await;
    assert!(!world.receiver.requests()[0].is_signed_by(&old));
    for _ in 0..15 {
        world.hooks.rotate(&endpoint, None, Some(HOUR)).await.expect("works");
    }
    assert_eq!(world.count("webhook_secret").await, 11, "the newest and ten old ones");
    world.publish("n").await;
    world.deliver().await;
    let requests = world.receiver.requests();
    assert_eq!(requests[1].header("webhook-signature").split(' ').count(), 11);
}

#[tokio::test]
async fn secrets_are_in_nothing_that_is_printed_or_stored_elsewhere() {
    let world = World::new(quick()).await;
    let secret = Some(Secret::parse("tell-nobody-about-this").expect("a secret"));
    let new = NewEndpoint { secret, ..NewEndpoint::new(world.receiver.url("/fail")) };
    let (endpoint, _) = world.hooks.create(&new).await.expect("made");
    let rotated = world.hooks.rotate(&endpoint.id, None, None).await.expect("works");
    world.publish("m").await;
    let mut deliverer = world.hooks.deliverer("test").expect("a deliverer");
    deliverer.drain().await.expect("works");
    let targets = world
        .hooks
        .targets
        .current(targets::Connection::Sql(world.hooks.sql()), &world.hooks.keys)
        .await;
    let configured = ConfiguredEndpoint {
        enabled: true,
        url: String::new(),
        secret: rotated.clone(),
        kinds: Vec::new(),
    };
    let mut printed = vec![
        format!("{new:?} {endpoint:?} {rotated:?} {configured:?}"),
        format!("{:?} {deliverer:?} {:?}", world.hooks, targets.expect("works")),
        format!("{:?}", world.hooks.list(None, 10).await.expect("works")),
        format!("{:?}", world.hooks.statuses().await.expect("works")),
        format!("{:?}", world.hooks.attempts("m", &endpoint.id).await.expect("works")),
    ];
    for table in
        ["job", "webhook_endpoint", "webhook_message", "webhook_delivery", "webhook_attempt"]
    {
        let rows = world.hooks.sql().execute(&format!("SELECT * FROM {table}"), params![]).await;
        let rows = rows.expect("works").rows;
        assert!(!rows.is_empty(), "{table}");
        printed.push(format!("{rows:?}"));
    }
    for printed in printed {
        for secret in ["tell-nobody-about-this", &rotated.expose()["whsec_".len()..]] {
            assert!(!printed.contains(secret), "{printed}");
        }
    }
}
