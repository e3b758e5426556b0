//! Secrets at rest, and endpoints whose key is missing.

use super::*;

const OLD: &str = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE=";
const NEW: &str = "6e6577206e6577206e6577206e6577206e6577206e6577206e6577206e657721";

impl World {
    /// The webhooks of a server that starts with these keys.
    async fn with_keys(&self, keys: &str) -> Webhooks {
        let hooks = self.command_with_keys(keys).await;
        hooks.secure_secrets().await.expect("works");
        hooks
    }

    /// The webhooks of a command that has these keys.
    async fn command_with_keys(&self, keys: &str) -> Webhooks {
        self.open_with(SecretKeys::parse(keys).expect("keys")).await
    }

    async fn open_with(&self, keys: SecretKeys) -> Webhooks {
        let client = client(&self.clock, &["127.0.0.1"], None);
        let opened = Webhooks::open_with_keys(self.hooks.queue.clone(), client, quick(), keys);
        opened.await.expect("webhooks")
    }

    async fn stored(&self) -> String {
        let found = self.hooks.sql().query("SELECT * FROM webhook_secret", params![]).await;
        format!("{:?}", found.expect("works").rows)
    }

    async fn send(&self, hooks: &Webhooks, id: &str) -> Vec<Request> {
        let before = self.receiver.requests().len();
        hooks.publish(&message(id)).await.expect("published");
        hooks.deliverer("test").expect("a deliverer").drain().await.expect("works");
        self.receiver.requests().split_off(before)
    }
}

#[tokio::test]
async fn plain_secrets_are_encrypted_at_the_start_and_sign_as_before() {
    let world = World::new(quick()).await;
    let (endpoint, first) = world.endpoint("/fine").await;
    assert!(world.stored().await.contains(&first), "an earlier version stored it so");
    let hooks = world.with_keys(OLD).await;
    let second = hooks.rotate(&endpoint, None, None).await.expect("works");
    let chosen = Secret::parse("your_webhook_secret").expect("a secret");
    let new = NewEndpoint { secret: Some(chosen), ..NewEndpoint::new(world.receiver.url("/own")) };
    hooks.create(&new).await.expect("made");
    let stored = world.stored().await;
    for secret in [&first["whsec_".len()..], &second.expose()["whsec_".len()..], "your_webhook"] {
        assert!(!stored.contains(secret), "{stored}");
    }
    let sent = world.send(&hooks, "m").await;
    assert_eq!(sent.len(), 2);
    let fine = &world.receiver.to("/fine")[0];
    assert!(fine.is_signed_by(&first) && fine.is_signed_by(second.expose()));
    assert!(world.receiver.to("/own")[0].is_plainly_signed_by("your_webhook_secret"));
}

#[tokio::test]
async fn without_its_key_an_endpoint_is_disabled_with_the_reason_and_nothing_else() {
    let world = World::new(quick()).await;
    let hooks = world.with_keys(OLD).await;
    let lost = hooks.create(&NewEndpoint::new(world.receiver.url("/lost"))).await.expect("made");
    let other = world.with_keys(&format!("{NEW} {OLD}")).await;
    other.create(&NewEndpoint::new(world.receiver.url("/kept"))).await.expect("made");

    let restored = world.with_keys(NEW).await;
    let all = restored.list(None, 10).await.expect("works");
    let endpoint = all.iter().find(|endpoint| endpoint.id == lost.0.id).expect("it is there");
    let why = endpoint.disabled_why.clone().expect("a reason");
    assert!(!endpoint.enabled && why.contains("a key that is not configured"), "{why}");
    assert!(why.contains("webhook-secret-keys.md"), "{why}");
    let sent = world.send(&restored, "m").await;
    assert_eq!(sent.len(), 1, "only the other one");
    // A process that considers the endpoint enabled must send nothing unsigned.
    let text = "UPDATE webhook_endpoint SET enabled = 1";
    restored.sql().execute(text, params![]).await.expect("works");
    let text = "UPDATE webhook_version SET version = version + 1";
    restored.sql().execute(text, params![]).await.expect("works");
    assert_eq!(world.send(&restored, "n").await.len(), 1);

    let again = world.with_keys(NEW).await;
    assert_eq!(world.send(&again, "o").await.len(), 1, "it is disabled again");
    let both = world.with_keys(&format!("{NEW},{OLD}")).await;
    let sent = world.send(&both, "p").await;
    assert_eq!(sent.len(), 5, "the key is back: what was held goes out");
    let mut held = ids(&world.receiver.to("/lost")).join(" ").into_bytes();
    held.sort_unstable();
    assert_eq!(held, b"   mnop");
    assert!(world.receiver.to("/lost").iter().all(|one| one.is_signed_by(lost.1.expose())));
}

#[tokio::test]
async fn a_command_without_the_key_changes_no_endpoint_and_loses_no_message() {
    let world = World::new(quick()).await;
    let server = world.with_keys(OLD).await;
    let (endpoint, _) =
        server.create(&NewEndpoint::new(world.receiver.url("/fine"))).await.expect("made");
    let stored = world.stored().await;
    for keys in ["", NEW] {
        let command = world.command_with_keys(keys).await;
        let shown = command.get(&endpoint.id).await.expect("it is there");
        assert!(shown.enabled && shown.disabled_why.is_none(), "{shown:?}");
        command.publish(&message(&format!("m{}", keys.len()))).await.expect("published");
    }
    assert_eq!(world.stored().await, stored);
    assert_eq!(world.send(&server, "n").await.len(), 3);
}

#[tokio::test]
async fn deliveries_held_because_of_a_missing_key_are_cancelled_only_by_an_operator() {
    let world = World::new(quick()).await;
    let hooks = world.with_keys(OLD).await;
    let make = async |path: &str| {
        let new = NewEndpoint { ordered: true, ..NewEndpoint::new(world.receiver.url(path)) };
        hooks.create(&new).await.expect("made").0.id
    };
    let (rotated, disabled) = (make("/rotated").await, make("/disabled").await);
    hooks.publish(&message("m")).await.expect("published");
    hooks.publish(&message("n")).await.expect("published");
    let other = world.with_keys(NEW).await;
    other.deliverer("test").expect("a deliverer").drain().await.expect("works");
    let description = Some("changed".to_owned());
    let change = EndpointChange { description, ..EndpointChange::default() };
    other.update(&disabled, &change).await.expect("changed");
    for endpoint in [&rotated, &disabled] {
        assert_eq!(world.state("m", endpoint).await, "pending");
        assert_eq!(world.state("n", endpoint).await, "waiting");
    }
    other.disable(&disabled).await.expect("disabled");
    assert_eq!(world.state("m", &disabled).await, "cancelled");
    assert_eq!(world.state("n", &disabled).await, "cancelled");
    let both = world.with_keys(&format!("{NEW},{OLD}")).await;
    let shown = both.get(&disabled).await.expect("it is there");
    assert!(!shown.enabled, "its key is back, but a person disabled it: {shown:?}");

    // A new secret does not depend on an old key.
    let other = world.with_keys(&NEW.replace('6', "7")).await;
    let secret = other.rotate(&rotated, None, None).await.expect("rotated");
    assert!(other.get(&rotated).await.expect("it is there").enabled);
    let sent = world.send(&other, "o").await;
    assert_eq!(ids(&sent), ["m", "n", "o"]);
    assert!(sent.iter().all(|request| request.is_signed_by(secret.expose())));
}

#[tokio::test]
async fn after_a_rekey_the_old_key_is_not_needed() {
    let world = World::new(quick()).await;
    let hooks = world.with_keys(OLD).await;
    let (_, secret) =
        hooks.create(&NewEndpoint::new(world.receiver.url("/fine"))).await.expect("made");
    let both = world.with_keys(&format!("{NEW},{OLD}")).await;
    let expected = RekeyResult { encrypted: 1, ..RekeyResult::default() };
    assert_eq!(both.rekey().await.expect("works"), expected);
    let expected = RekeyResult { kept: 1, ..RekeyResult::default() };
    assert_eq!(both.rekey().await.expect("works"), expected);
    let new = world.with_keys(NEW).await;
    let sent = world.send(&new, "m").await;
    assert!(sent[0].is_signed_by(secret.expose()));
    world.hooks.rekey().await.expect_err("there is no key");
}

#[tokio::test]
async fn an_endpoint_of_the_config_gets_its_secret_from_there() {
    let world = World::new(quick()).await;
    let configured = ConfiguredEndpoint {
        enabled: true,
        url: world.receiver.url("/config"),
        secret: Secret::parse("the secret of the config").expect("a secret"),
        kinds: Vec::new(),
    };
    for keys in [OLD, OLD, NEW] {
        let hooks = world.with_keys(keys).await;
        hooks.sync_configured(std::slice::from_ref(&configured)).await.expect("works");
        let id = format!("after-{}", world.receiver.requests().len());
        let sent = world.send(&hooks, &id).await;
        assert!(sent[0].is_plainly_signed_by("the secret of the config"));
    }
    // The one of the new key, and the old one, which still signs in processes that have its key.
    assert_eq!(world.count("webhook_secret").await, 2);
}

/// The messages are sent with the secret of the config, whether the lost key comes back or another one replaces it.
#[tokio::test]
async fn messages_for_endpoints_of_the_config_are_held_without_a_key_and_sent_later() {
    for later in [OLD, NEW] {
        let world = World::new(quick()).await;
        let configured = [ConfiguredEndpoint {
            enabled: true,
            url: world.receiver.url("/config"),
            secret: Secret::parse("the secret of the config").expect("a secret"),
            kinds: Vec::new(),
        }];
        let hooks = world.with_keys(OLD).await;
        hooks.sync_configured(&configured).await.expect("works");
        hooks.publish(&message("before")).await.expect("published");
        let endpoint = hooks.list(None, 10).await.expect("works").remove(0).id;

        // Twice, because the second start finds what the first one left.
        for id in ["first", "second"] {
            let without = world.open_with(SecretKeys::missing()).await;
            without.secure_secrets().await.expect("works");
            without.sync_configured(&configured).await.expect("a missing key is no error");
            assert_eq!(world.send(&without, id).await.len(), 0, "nothing is sent unsigned");
            world.advance(HOUR);
            without.deliverer("test").expect("a deliverer").drain().await.expect("works");
            let shown = without.get(&endpoint).await.expect("it is there");
            let why = shown.disabled_why.expect("a reason");
            assert!(!shown.enabled && why.contains("a key that is not configured"), "{why}");
        }
        for id in ["before", "first", "second"] {
            assert_eq!(world.state(id, &endpoint).await, "pending");
            assert_eq!(world.delivery(id, &endpoint).await.attempts, 0);
        }

        let hooks = world.with_keys(later).await;
        hooks.sync_configured(&configured).await.expect("works");
        assert!(hooks.get(&endpoint).await.expect("it is there").enabled);
        let sent = world.send(&hooks, "after").await;
        let mut sent_ids = ids(&sent);
        sent_ids.sort_unstable();
        assert_eq!(sent_ids, ["after", "before", "first", "second"]);
        assert!(sent.iter().all(|one| one.is_plainly_signed_by("the secret of the config")));
    }
}

#[tokio::test]
async fn no_secret_is_stored_without_a_key_if_keys_are_required() {
    let world = World::new(quick()).await;
    let client = client(&world.clock, &["127.0.0.1"], None);
    let queue = world.hooks.queue.clone();
    let hooks = Webhooks::open_with_keys(queue, client, quick(), SecretKeys::missing()).await;
    let hooks = hooks.expect("webhooks");
    let refused = hooks.create(&NewEndpoint::new(world.receiver.url("/fine"))).await;
    let error = refused.expect_err("no key").to_string();
    assert!(error.contains("secrets.key_file"), "{error}");
    assert_eq!(world.count("webhook_secret").await, 0);
}
