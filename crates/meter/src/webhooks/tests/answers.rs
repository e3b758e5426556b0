//! Responses of endpoints, and their effect on deliveries.

use super::*;

/// Delivers one message to a path once, and checks the resulting state.
async fn check(path: &str, state: &str, status: Option<i64>, error: &str) -> (World, String) {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint(path).await;
    world.publish("m").await;
    assert_eq!(world.deliver().await, 1, "{path}");
    let delivery = world.delivery("m", &endpoint).await;
    assert_eq!((delivery.state.name(), delivery.attempts), (state, 1), "{path}: {delivery:?}");
    assert_eq!(delivery.last_status, status, "{path}");
    let said = delivery.last_error.unwrap_or_default();
    assert!(said.contains(error), "{path}: {said:?}");
    assert_eq!(said.is_empty(), error.is_empty(), "{path}: {said:?}");
    (world, endpoint)
}

#[tokio::test]
async fn only_2xx_is_success_whatever_else_is_returned() {
    check("/fine", "succeeded", Some(200), "").await;
    check("/fail", "pending", Some(500), "answered 500").await;
    check("/reset", "pending", None, "127.0.0.1").await;
    check("/stall", "pending", None, "250 ms").await;
    let (world, _) = check("/redirect", "pending", Some(302), "answered 302").await;
    assert_eq!(world.receiver.requests().len(), 1, "the redirect was not followed");
}

#[tokio::test]
async fn only_the_beginning_of_a_large_response_is_kept() {
    for (path, state, status) in [
        ("/large", "succeeded", 200),
        ("/large-failure", "pending", 503),
        ("/odd", "succeeded", 200),
    ] {
        let error = if state == "pending" { "answered 503" } else { "" };
        let (world, endpoint) = check(path, state, Some(status), error).await;
        let attempts = world.hooks.attempts("m", &endpoint).await.expect("works");
        let kept = if path == "/odd" { "a\u{fffd}b\u{fffd}".len() } else { 20_000 };
        assert_eq!(attempts[0].response.len(), kept, "{path}");
    }
}

#[tokio::test]
async fn an_unreachable_endpoint_is_a_failure_that_names_no_path() {
    let world = World::new(quick()).await;
    let port = Receiver::start().await.port();
    let url = format!("http://127.0.0.1:{port}/SECRET?key=SECRET");
    let (endpoint, _) = world.endpoint_as(NewEndpoint::new(url)).await;
    world.publish("m").await;
    world.deliver().await;
    let error = world.delivery("m", &endpoint).await.last_error.expect("an error");
    assert!(error.contains(&port.to_string()) && !error.contains("SECRET"), "{error}");
}

#[tokio::test]
async fn attempts_follow_the_schedule_until_none_is_left() {
    let world = World::new(quick()).await;
    let (endpoint, secret) = world.endpoint("/fail").await;
    world.publish("m").await;
    assert_eq!(world.deliver().await, 1);
    for (failed, wait) in (1_i64..).zip(WebhookSettings::default().waits) {
        let delivery = world.delivery("m", &endpoint).await;
        assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, failed));
        world.advance(wait * 8 / 10 - SECOND);
        assert_eq!(world.deliver().await, 0, "too early for attempt {}", failed + 1);
        world.advance(wait * 4 / 10 + SECOND);
        assert_eq!(world.deliver().await, 1, "attempt {}", failed + 1);
    }
    let delivery = world.delivery("m", &endpoint).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Exhausted, 10));
    world.advance(100 * HOUR);
    assert_eq!(world.deliver().await, 0, "that was the last");
    let requests = world.receiver.requests();
    assert_eq!(ids(&requests), ["m"; 10], "always the same id");
    assert!(requests.iter().all(|request| request.is_signed_by(&secret)));
    let mut times: Vec<&str> =
        requests.iter().map(|request| request.header("webhook-timestamp")).collect();
    times.dedup();
    assert_eq!(times.len(), 10, "each attempt has its own time");
    let log = world.hooks.attempts("m", &endpoint).await.expect("works");
    let numbers: Vec<i64> = log.iter().map(|attempt| attempt.attempt).collect();
    assert_eq!(numbers, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_endpoint_that_asks_for_a_pause_gets_it() {
    // For two minutes: in seconds, until a time of our clock, until a time of its own clock.
    for path in ["/busy", "/busy-until", "/busy-until-by-date"] {
        let (world, endpoint) = check(path, "pending", Some(429), "answered 429").await;
        world.receiver.mend(path);
        world.advance(118 * SECOND);
        assert_eq!(world.deliver().await, 0, "{path}");
        world.advance(2 * SECOND);
        assert_eq!(world.deliver().await, 1, "{path}");
        assert_eq!(world.state("m", &endpoint).await, "succeeded", "{path}");
    }
}

#[tokio::test]
async fn a_pause_holds_for_other_messages_too() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/busy").await;
    world.publish("a").await;
    let mut deliverer = world.hooks.deliverer("test").expect("a deliverer");
    assert_eq!(deliverer.drain().await.expect("works"), 1);
    world.receiver.mend("/busy");
    world.publish("b").await;
    assert_eq!(deliverer.drain().await.expect("works"), 0, "its endpoint is left alone");
    let waiting = world.delivery("b", &endpoint).await;
    assert_eq!((waiting.state, waiting.attempts), (DeliveryState::Pending, 0));
    world.advance(200 * SECOND);
    assert_eq!(world.deliver().await, 2);
    assert_eq!(world.state("b", &endpoint).await, "succeeded");
}

#[tokio::test]
async fn a_410_disables_the_endpoint_and_notifies_the_others() {
    let world = World::new(quick()).await;
    let (gone, _) = world.endpoint("/gone").await;
    let (fine, _) = world.endpoint("/fine").await;
    let of_customer = NewEndpoint {
        customers: vec!["acme".to_owned()],
        ..NewEndpoint::new(world.receiver.url("/fine2"))
    };
    world.endpoint_as(of_customer).await;
    world.publish("m").await;
    world.deliver().await;
    let endpoint = world.hooks.get(&gone).await.expect("it exists");
    assert!(!endpoint.enabled);
    assert_eq!(endpoint.disabled_why.as_deref(), Some("it answered 410: gone"));
    assert_eq!(world.state("m", &gone).await, "exhausted");
    assert_eq!(world.state("m", &fine).await, "succeeded");
    let told = world.receiver.to("/fine");
    assert_eq!(told.len(), 2, "the message, and what happened to the other");
    let notice: serde_json::Value = serde_json::from_slice(&told[1].body).expect("JSON");
    assert_eq!(notice["type"], "endpoint.disabled");
    assert_eq!(notice["data"]["endpointId"], gone.as_str());
    assert!(!notice.to_string().contains("127.0.0.1"), "its address is nobody's business");
    assert_eq!(world.receiver.to("/fine2").len(), 1, "one for a customer alone is not told");
    assert_eq!(world.publish("n").await.deliveries, 2);
}

#[tokio::test]
async fn failing_for_five_days_disables_and_one_success_resets_the_count() {
    let world = World::new(quick()).await;
    let (endpoint, _) = world.endpoint("/fail").await;
    let (other, _) = world.endpoint("/fine").await;
    let days = [(0, false), (4, true), (4, false), (2, false), (1, false)];
    for (number, (day, mended)) in days.into_iter().enumerate() {
        world.advance(day * 24 * HOUR);
        let path = if mended { world.receiver.url("/fine3") } else { world.receiver.url("/fail") };
        let change = EndpointChange { url: Some(path), ..EndpointChange::default() };
        world.hooks.update(&endpoint, &change).await.expect("works");
        world.publish(&format!("m{number}")).await;
        world.deliver().await;
        assert!(world.hooks.get(&endpoint).await.expect("works").enabled, "step {number}");
    }
    let since = world.hooks.get(&endpoint).await.expect("works").failing_since;
    assert!(since.is_some());
    world.advance(2 * 24 * HOUR);
    world.publish("last").await;
    world.deliver().await;
    let disabled = world.hooks.get(&endpoint).await.expect("works");
    assert!(!disabled.enabled, "{disabled:?}");
    assert_eq!(disabled.last_error.as_deref(), Some("answered 500"));
    assert!(disabled.disabled_why.expect("a reason").contains("120 hours"));
    assert_eq!(world.state("last", &endpoint).await, "cancelled");
    assert!(
        world.receiver.to("/fine").iter().any(|request| {
            String::from_utf8_lossy(&request.body).contains("endpoint.disabled")
        })
    );
    assert!(world.hooks.get(&other).await.expect("works").enabled);
}

#[tokio::test]
async fn a_dry_run_signs_and_records_and_sends_nothing() {
    let world = World::new(WebhookSettings { dry_run: true, ..quick() }).await;
    let (endpoint, _) = world.endpoint("/fine").await;
    world.publish("m").await;
    assert_eq!(world.deliver().await, 1);
    assert_eq!(world.receiver.requests().len(), 0);
    assert_eq!(world.state("m", &endpoint).await, "succeeded");
    let attempts = world.hooks.attempts("m", &endpoint).await.expect("works");
    assert_eq!((attempts.len(), attempts[0].dry_run, attempts[0].status), (1, true, None));
}
