//! Secrets at rest, and endpoints whose key is not there.

use super::*;

const OLD: &str = "b2xkIG9sZCBvbGQgb2xkIG9sZCBvbGQgb2xkIG9sZCE=";
const NEW: &str = "6e6577206e6577206e6577206e6577206e6577206e6577206e6577206e657721";

impl World {
    /// The webhooks as a process sees them that starts with these keys.
    async fn with_keys(&self, keys: &str) -> Webhooks {
        let keys = SecretKeys::parse(keys).expect("keys");
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
    // A process that looks at it unlike this one must send nothing unsigned.
    let text = "UPDATE webhook_endpoint SET enabled = 1";
    restored.sql().execute(text, params![]).await.expect("works");
    let text = "UPDATE webhook_version SET version = version + 1";
    restored.sql().execute(text, params![]).await.expect("works");
    assert_eq!(world.send(&restored, "n").await.len(), 1);

    let again = world.with_keys(NEW).await;
    assert_eq!(world.send(&again, "o").await.len(), 1, "it is disabled again");
    let both = world.with_keys(&format!("{NEW},{OLD}")).await;
    let sent = world.send(&both, "p").await;
    assert_eq!(sent.len(), 2, "the key is back");
    assert!(sent.iter().any(|request| request.is_signed_by(lost.1.expose())));
}

#[tokio::test]
async fn after_a_rekey_the_old_key_may_go() {
    let world = World::new(quick()).await;
    let hooks = world.with_keys(OLD).await;
    let (_, secret) =
        hooks.create(&NewEndpoint::new(world.receiver.url("/fine"))).await.expect("made");
    let both = world.with_keys(&format!("{NEW},{OLD}")).await;
    let expected = Rekeyed { encrypted: 1, ..Rekeyed::default() };
    assert_eq!(both.rekey().await.expect("works"), expected);
    let expected = Rekeyed { kept: 1, ..Rekeyed::default() };
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
    // The one of the new key, and the old one that signs along for whoever has its key.
    assert_eq!(world.count("webhook_secret").await, 2);
}

#[tokio::test]
async fn where_a_key_is_needed_no_secret_is_stored_without() {
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
