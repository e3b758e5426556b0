//! Life cycle of endpoints: which messages they get, which addresses are allowed, and what is kept
//! of them.

use std::net::IpAddr;

use async_trait::async_trait;

use super::super::status::LIST_MAX;
use super::*;

#[tokio::test]
async fn a_message_goes_once_to_each_subscribed_endpoint() {
    let world = World::new(quick()).await;
    let to = |path: &str| NewEndpoint::new(world.receiver.url(path));
    let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    for new in [
        to("/all"),
        NewEndpoint {
            kinds: named(&["aggregation.completed", "endpoint.disabled"]),
            ..to("/kind")
        },
        NewEndpoint { kinds: named(&["alert.triggered"]), ..to("/other-kind") },
        NewEndpoint { customers: named(&["acme"]), ..to("/customer") },
        NewEndpoint { customers: named(&["other"]), ..to("/other-customer") },
        NewEndpoint { enabled: false, ..to("/disabled") },
    ] {
        world.endpoint_as(new).await;
    }
    assert_eq!(world.publish("m").await, PublishResult { messages: 1, deliveries: 3 });
    assert_eq!(world.publish("m").await, PublishResult::default(), "it is known");
    let nobody = NewMessage { customer: None, ..message("n") };
    assert_eq!(world.hooks.publish(&nobody).await.expect("works").deliveries, 2);
    world.deliver().await;
    let mut paths: Vec<String> =
        world.receiver.requests().into_iter().map(|request| request.path).collect();
    paths.sort();
    assert_eq!(paths, ["/all", "/all", "/customer", "/kind", "/kind"]);
    let bodies = world.receiver.to("/all");
    let body = world.hooks.body("m").await.expect("works");
    assert!(bodies.iter().any(|request| request.body == body.as_bytes()));
    assert!(bodies[0].header("user-agent").starts_with("logmill/"));
    assert_eq!(bodies[0].header("content-type"), "application/json");
}

#[tokio::test]
async fn a_kind_that_is_never_published_cannot_be_subscribed_to() {
    let world = World::new(quick()).await;
    let kinds = vec!["alert.triggered".to_owned(), "alert.fired".to_owned()];
    let url = world.receiver.url("/typo");
    let new = NewEndpoint { kinds: kinds.clone(), ..NewEndpoint::new(url.as_str()) };
    let refused = world.hooks.create(&new).await.expect_err("it would never match");
    assert!(refused.to_string().contains(&MESSAGE_KINDS.join(", ")), "{refused}");
    let (id, _) = world.endpoint("/fine").await;
    let change = EndpointChange { kinds: Some(kinds.clone()), ..EndpointChange::default() };
    world.hooks.update(&id, &change).await.expect_err("it would never match");
    let secret = Secret::parse("your_webhook_secret").expect("a secret");
    let configured = ConfiguredEndpoint { enabled: true, url, secret, kinds };
    world.hooks.sync_configured(&[configured]).await.expect_err("it would never match");
    assert_eq!(world.hooks.list(None, 10).await.expect("works").len(), 1);
}

#[tokio::test]
async fn a_message_that_is_rolled_back_was_never_published() {
    let world = World::new(quick()).await;
    world.endpoint("/fine").await;
    let undone: crate::Result<()> = world
        .hooks
        .sql()
        .write(|tx| {
            let hooks = &world.hooks;
            async move {
                hooks.publish_in(&tx, &message("m")).await?;
                Err(crate::Error::invalid("changed our mind"))
            }
        })
        .await;
    undone.expect_err("it was undone");
    assert_eq!(world.deliver().await, 0);
    assert_eq!(world.publish("m").await.messages, 1);
    assert_eq!(world.deliver().await, 1);
}

#[tokio::test]
async fn an_invalid_url_is_refused_with_the_reason() {
    let world = World::new(quick()).await;
    let long = format!("https://hooks.example/{}", "x".repeat(2_048));
    for (url, said) in [
        ("https://hooks.example/a\nb", "character 24 is U+000A (line feed)"),
        ("https://hooks.example/\u{7}", "character 23 is U+0007"),
        (long.as_str(), "at most 2048 bytes, not 2070"),
    ] {
        let refused = world.hooks.create(&NewEndpoint::new(url)).await.expect_err(said);
        assert!(refused.chain().contains(said), "{}", refused.chain());
    }
}

#[tokio::test]
async fn private_addresses_are_refused_in_a_url() {
    let clock = SimClock::at(START);
    let world = World::with(clock.clone(), client(&clock, &[], None), quick()).await;
    let (endpoint, _) = world.endpoint_as(NewEndpoint::new("https://host.example/")).await;
    for url in [
        "http://127.0.0.1/",
        "http://localhost.:0x7f000001/",
        "http://localhost/",
        "http://localhost:8080/hook",
        "http://LOCALHOST./",
        "https://hooks.localhost/",
        "http://10.1.2.3/",
        "http://172.16.0.1/",
        "http://192.168.1.1/",
        "http://169.254.169.254/latest",
        "http://100.64.0.1/",
        "http://0.0.0.0/",
        "http://2130706433/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://[64:ff9b::a00:1]/",
        "http://[2002:a00:1::]/",
        "http://[fd00::1]/",
        "http://[fe80::1]/",
        "ftp://host.example/",
        "file:///etc/passwd",
        "https://user:pass@host.example/",
        "not an address",
        "",
    ] {
        let refused = world.hooks.create(&NewEndpoint::new(url)).await.expect_err(url);
        assert_eq!(refused.kind(), logmill_io::ErrorKind::Invalid, "{url}: {refused}");
        let said = refused.chain();
        let is_own = said.contains("is not public") || said.contains("not a public");
        assert_eq!(is_own, said.contains("meter.delivery.allowed"), "{url}: {said}");
        assert_eq!(
            is_own,
            url.starts_with("http") && !url.contains("0x7f") && !url.contains('@'),
            "{url}: {said}"
        );
        let change = EndpointChange { url: Some(url.to_owned()), ..EndpointChange::default() };
        world.hooks.update(&endpoint, &change).await.expect_err(url);
    }
    assert_eq!(world.hooks.list(None, 10).await.expect("works").len(), 1);
}

/// Resolves all names to one address.
#[derive(Debug)]
struct AllAt(IpAddr);

#[async_trait]
impl NameResolver for AllAt {
    async fn look_up(&self, _name: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(vec![self.0])
    }
}

#[tokio::test]
async fn private_addresses_are_refused_when_a_name_resolves_to_them() {
    for address in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "fd00::1",
    ] {
        let clock = SimClock::at(START);
        let names = Arc::new(AllAt(address.parse().expect("an address")));
        let strict = client(&clock, &[], Some(names));
        let world = World::with(clock, strict, quick()).await;
        let url = format!("http://hooks.example:{}/fine", world.receiver.port());
        let (endpoint, _) = world.endpoint_as(NewEndpoint::new(url)).await;
        world.publish("m").await;
        assert_eq!(world.deliver().await, 1);
        let delivery = world.delivery("m", &endpoint).await;
        let error = delivery.last_error.expect("refused");
        assert!(error.contains("is not public"), "{address}: {error}");
        assert!(error.contains("meter.delivery.allowed"), "{address}: {error}");
        assert_eq!(world.receiver.requests().len(), 0, "{address}");
    }
}

#[tokio::test]
async fn a_test_message_goes_to_one_endpoint_regardless_of_its_filters() {
    let world = World::new(quick()).await;
    let kinds = vec!["alert.triggered".to_owned()];
    let new = NewEndpoint { kinds, ..NewEndpoint::new(world.receiver.url("/one")) };
    let (one, _) = world.endpoint_as(new).await;
    world.endpoint("/other").await;
    let id = world.hooks.test(&one).await.expect("works");
    assert_eq!(world.deliver().await, 1);
    assert_eq!(ids(&world.receiver.to("/one")), [id.as_str()]);
    let body = String::from_utf8_lossy(&world.receiver.requests()[0].body).into_owned();
    assert!(body.contains(r#""type":"webhook.test""#), "{body}");
    world.hooks.disable(&one).await.expect("works");
    world.hooks.test(&one).await.expect_err("it is disabled");
}

#[tokio::test]
async fn a_disabled_endpoint_gets_nothing_and_its_messages_can_be_replayed() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fine").await;
    world.publish("m").await;
    world.hooks.disable(&endpoint).await.expect("works");
    assert_eq!(world.publish("n").await.deliveries, 0);
    assert_eq!(world.deliver().await, 0);
    assert_eq!(world.state("m", &endpoint).await, "cancelled");
    world.hooks.enable(&endpoint).await.expect("works");
    world.hooks.replay_since(&endpoint, START).await.expect("works");
    assert_eq!(world.deliver().await, 1);
    assert_eq!(ids(&world.receiver.requests()), ["m"]);
}

#[tokio::test]
async fn a_deleted_endpoint_is_gone_with_its_secrets_and_its_history_stays() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    world.publish("m").await;
    world.deliver().await;
    world.hooks.delete(&endpoint).await.expect("works");
    assert_eq!(world.count("webhook_secret").await, 0);
    let gone = world.hooks.get(&endpoint).await.expect_err("deleted");
    assert_eq!(gone.kind(), logmill_io::ErrorKind::NotFound);
    world.hooks.delete(&endpoint).await.expect_err("deleted before");
    world.advance(HOUR);
    assert_eq!(world.deliver().await, 0);
    assert_eq!(world.state("m", &endpoint).await, "cancelled");
    assert_eq!(world.hooks.attempts("m", &endpoint).await.expect("works").len(), 1);
}

#[tokio::test]
async fn applying_the_same_config_again_changes_nothing() {
    let world = World::new(quick()).await;
    let secret = Secret::parse("your_webhook_secret").expect("a secret");
    let of = |path: &str, enabled: bool| ConfiguredEndpoint {
        enabled,
        url: world.receiver.url(path),
        secret: secret.clone(),
        kinds: Vec::new(),
    };
    let both = [of("/a", true), of("/b", false)];
    for _ in 0..2 {
        world.hooks.sync_configured(&both).await.expect("works");
        let list = world.hooks.list(None, 10).await.expect("works");
        let mut enabled: Vec<(bool, bool)> =
            list.iter().map(|endpoint| (endpoint.enabled, endpoint.configured)).collect();
        enabled.sort_unstable();
        assert_eq!(enabled, [(false, true), (true, true)]);
    }
    assert_eq!(world.count("webhook_secret").await, 2);
    world.publish("m").await;
    assert_eq!(world.deliver().await, 1);
    assert!(world.receiver.to("/a")[0].is_plainly_signed_by("your_webhook_secret"));
    world.hooks.sync_configured(&[of("/b", true)]).await.expect("works");
    world.publish("n").await;
    world.deliver().await;
    assert_eq!(ids(&world.receiver.to("/a")), ["m"]);
    assert_eq!(ids(&world.receiver.to("/b")), ["n"]);
    let kinds = vec!["alert.triggered".to_owned()];
    let choosy = [ConfiguredEndpoint { kinds, ..of("/b", true) }];
    world.hooks.sync_configured(&choosy).await.expect("works");
    world.publish("o").await;
    world.deliver().await;
    assert_eq!(ids(&world.receiver.to("/b")), ["n"], "it wants other messages now");
    let twice = [of("/a", true), of("/a", true)];
    world.hooks.sync_configured(&twice).await.expect_err("the same address twice");
}

#[tokio::test]
async fn an_endpoint_disabled_for_another_reason_is_not_enabled_by_the_config() {
    let world = World::new(quick()).await;
    let secret = Secret::parse("your_webhook_secret").expect("a secret");
    let gone = ConfiguredEndpoint {
        enabled: true,
        url: world.receiver.url("/gone"),
        secret,
        kinds: Vec::new(),
    };
    world.hooks.sync_configured(std::slice::from_ref(&gone)).await.expect("works");
    world.publish("m").await;
    world.deliver().await;
    world.hooks.sync_configured(&[gone]).await.expect("works");
    assert!(!world.hooks.list(None, 10).await.expect("works")[0].enabled);
}

#[tokio::test]
async fn the_status_counts_the_deliveries_of_each_state() {
    let world = World::new(quick()).await;
    let (failing, _) = world.endpoint("/fail").await;
    let (fine, _) = world.endpoint("/fine").await;
    for id in ["a", "b"] {
        world.publish(id).await;
    }
    world.deliver().await;
    world.publish("c").await;
    let statuses = world.hooks.statuses().await.expect("works");
    let of = |id: &str| {
        let found = statuses.iter().find(|status| status.endpoint.id == id);
        found.expect("every endpoint has one").clone()
    };
    let (failing, fine) = (of(&failing), of(&fine));
    assert_eq!((failing.pending, failing.failing, failing.exhausted), (3, 2, 0));
    assert_eq!((fine.pending, fine.failing), (1, 0));
    assert!(failing.oldest.is_some_and(|oldest| oldest >= START));
    assert_eq!(failing.endpoint.last_error.as_deref(), Some("answered 500"));
    let (mut paged, mut after) = (Vec::new(), None);
    while let Some(status) =
        world.hooks.statuses_after(after.as_deref(), 1).await.expect("works").pop()
    {
        after = Some(status.endpoint.id.clone());
        paged.push(status);
    }
    assert_eq!(paged, statuses, "page by page the same");
    let pending = world.hooks.deliveries(None, Some(DeliveryState::Pending), None, 10).await;
    assert_eq!(pending.expect("works").len(), 4);
    let page = world.hooks.deliveries(Some(&fine.endpoint.id), None, None, 2).await.expect("works");
    assert_eq!((page.len(), page[0].message_id.as_str()), (2, "c"));
    let next = world.hooks.deliveries(Some(&fine.endpoint.id), None, Some(page[1].cursor), 2).await;
    assert_eq!(next.expect("works").len(), 1);
    // One message goes to several endpoints: paging returns all its deliveries.
    let (mut found, mut after) = (0, None);
    while let Some(one) =
        world.hooks.deliveries(None, None, after, 1).await.expect("works").into_iter().next()
    {
        (found, after) = (found + 1, Some(one.cursor));
    }
    let all = world.hooks.deliveries(None, None, None, LIST_MAX).await.expect("works");
    assert_eq!((found, found > 4), (all.len(), true));
}

#[tokio::test]
async fn only_old_and_settled_messages_are_removed() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fine").await;
    world.publish("old").await;
    world.deliver().await;
    let url = world.receiver.url("/fail");
    let change = EndpointChange { url: Some(url), ..EndpointChange::default() };
    world.hooks.update(&endpoint, &change).await.expect("works");
    world.publish("failing").await;
    world.deliver().await;
    world.advance(31 * 24 * HOUR);
    world.publish("young").await;
    let purged = world.hooks.purge().await.expect("works");
    assert_eq!((purged.messages, purged.jobs), (1, 2));
    assert_eq!(world.count("webhook_message").await, 2);
    assert_eq!(world.count("webhook_attempt").await, 1);
    assert_eq!(world.hooks.purge().await.expect("works"), PurgeResult::default());
}
