//! Webhook endpoints over HTTP: create, read, change, rotate, delete.

use http_body_util::Full;
use logmill_meter::webhooks::{ConfiguredEndpoint, Secret, WebhookSettings};
use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::{Answer, Metered, settings};

const URL: &str = "https://example.com/hooks/sesame";

async fn ask(metered: &Metered, method: &str, path: &str, body: &Value) -> Answer {
    let request = hyper::Request::builder().method(method).uri(path).header("host", "localhost");
    let text = if body.is_null() { String::new() } else { body.to_string() };
    metered.ask(request.body(Full::from(text)).expect("a request")).await
}

async fn make(metered: &Metered, body: Value) -> Value {
    let answer = ask(metered, "POST", "/webhooks/endpoints", &body).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
    answer.body
}

async fn the_secret_of_an_endpoint_is_shown_once(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let made = make(&metered, json!({"url": URL, "events": ["aggregation.completed"]})).await;
    let secret = made["secret"].as_str().expect("a secret").to_owned();
    assert!(secret.starts_with("whsec_"));
    let id = made["id"].as_str().expect("an id");
    let path = format!("/webhooks/endpoints/{id}");
    let one = metered.found(&path).await;
    assert_eq!((&one["url"], &one["events"]), (&json!(URL), &json!(["aggregation.completed"])));
    let all = metered.found("/webhooks/endpoints").await;
    assert_eq!((&all[0]["id"], &all[0]["pending"]), (&json!(id), &json!(0)));
    for shown in [&one, &all] {
        assert!(!shown.to_string().contains(&secret) && shown.get("secret").is_none());
    }
    let rotated = ask(&metered, "POST", &format!("{path}/rotate"), &Value::Null).await;
    assert_eq!(rotated.status, 200, "{}", rotated.body);
    assert_ne!(rotated.body["secret"], secret);
}

async fn an_endpoint_is_changed_disabled_and_deleted(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let id = make(&metered, json!({"url": URL})).await["id"].as_str().expect("an id").to_owned();
    let path = format!("/webhooks/endpoints/{id}");
    let change = json!({"description": "x", "ordered": true, "enabled": false});
    let changed = ask(&metered, "PATCH", &path, &change).await;
    assert_eq!(changed.status, 200, "{}", changed.body);
    assert_eq!((&changed.body["enabled"], &changed.body["ordered"]), (&json!(false), &json!(true)));
    assert_eq!(changed.body["url"], URL);
    let replay = json!({"since": "2026-01-01T00:00:00Z"});
    let refused = ask(&metered, "POST", &format!("{path}/replay"), &replay).await;
    assert_eq!(refused.status, 409, "it is disabled: {}", refused.body);
    let request = hyper::Request::delete(path.as_str()).header("host", "localhost");
    let status = metered.status(request.body(Full::default()).expect("a request")).await;
    assert_eq!(status, 204);
    assert_eq!(metered.get(&path).await.status, 404);
    assert_eq!(ask(&metered, "PATCH", &path, &change).await.status, 404);
    assert_eq!(ask(&metered, "POST", &format!("{path}/test"), &Value::Null).await.status, 404);
}

async fn what_is_told_is_listed_and_can_be_sent_again(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let id = make(&metered, json!({"url": URL})).await["id"].as_str().expect("an id").to_owned();
    metered.send("api.calls", json!({"customerId": "c", "value": 1})).await;
    let provisional = metered.aggregated("period=daily").await;
    let untold = json!({"delivered": false, "attempts": 0});
    assert_eq!(provisional[0]["webhookStatus"], untold);
    assert_eq!(
        metered.found("/webhooks/deliveries").await,
        json!([]),
        "nothing provisional is told"
    );
    metered.set("2026-01-14T00:30:00Z");
    let daily = metered.aggregated("period=daily").await;
    assert_eq!((&daily[0]["state"], &daily[0]["webhookStatus"]), (&json!("final"), &untold));
    let deliveries = metered.found("/webhooks/deliveries?state=pending").await;
    let kinds: Vec<&str> = deliveries
        .as_array()
        .expect("a page")
        .iter()
        .filter_map(|delivery| delivery["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["aggregation.completed", "aggregation.completed"], "the hour and the day");
    let message = deliveries[0]["messageId"].as_str().expect("an id");
    let path = format!("/webhooks/deliveries/{message}/{id}/attempts");
    assert_eq!(metered.found(&path).await, json!([]));
    let path = format!("/webhooks/endpoints/{id}/replay");
    let again = ask(&metered, "POST", &path, &json!({"messageId": message})).await;
    assert_eq!((again.status, &again.body["deliveries"]), (202, &json!(1)), "{}", again.body);
    assert_eq!(ask(&metered, "POST", &path, &json!({"messageId": "none"})).await.status, 404);
    for wrong in [json!({}), json!({"messageId": "a", "since": "b"}), json!({"since": "soon"})] {
        assert_eq!(ask(&metered, "POST", &path, &wrong).await.status, 400, "{wrong}");
    }
    let test = ask(&metered, "POST", &format!("/webhooks/endpoints/{id}/test"), &Value::Null).await;
    assert_eq!(test.status, 202, "{}", test.body);
    let found = metered.found("/webhooks/deliveries?limit=1").await;
    assert_eq!(found[0]["messageId"], test.body["messageId"]);
}

async fn an_endpoint_that_must_not_be_reached_is_refused_without_its_secret(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for body in [
        json!({}),
        json!({"url": "ftp://example.com/"}),
        json!({"url": "http://127.0.0.1/"}),
        json!({"url": "http://localhost:8080/hook"}),
        json!({"url": "https://[::ffff:10.0.0.1]/"}),
        json!({"url": "https://user:sesame@example.com/"}),
        json!({"url": URL, "secret": "sesame"}),
        json!({"url": URL, "secret": 77_123_771_237_i64}),
        json!({"url": URL, "colour": "red"}),
        json!([]),
    ] {
        let answer = ask(&metered, "POST", "/webhooks/endpoints", &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let said = answer.body.to_string();
        assert!(!said.contains("sesame") && !said.contains("77123"), "{said}");
        let is_own =
            ["127.0.0.1", "localhost", "::ffff"].iter().any(|own| body.to_string().contains(own));
        assert_eq!(is_own, said.contains("meter.delivery.allowed"), "{body}: {said}");
    }
    assert_eq!(metered.found("/webhooks/endpoints").await, json!([]));
    assert_eq!(metered.get("/webhooks/deliveries?state=lost").await.status, 400);
}

async fn an_event_that_is_never_sent_is_refused_with_those_that_are(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let id = make(&metered, json!({"url": URL})).await["id"].as_str().expect("an id").to_owned();
    let typo = json!(["alert.triggered", "aggregation.complete"]);
    let why = "events: entry 2: no such kind of message; it must be one of aggregation.completed, \
        aggregation.corrected, alert.triggered, endpoint.disabled, webhook.test";
    for (method, path, body) in [
        ("POST", "/webhooks/endpoints", json!({"url": URL, "events": typo})),
        ("PATCH", &format!("/webhooks/endpoints/{id}"), json!({"events": typo})),
    ] {
        let refused = ask(&metered, method, path, &body).await;
        assert_eq!((refused.status, &refused.body["error"]), (422, &json!(why)), "{method}");
    }
    assert_eq!(metered.found("/webhooks/endpoints").await.as_array().map(Vec::len), Some(1));
    let change = json!({"events": ["endpoint.disabled"]});
    let changed = ask(&metered, "PATCH", &format!("/webhooks/endpoints/{id}"), &change).await;
    assert_eq!((changed.status, &changed.body["events"]), (200, &change["events"]));
}

#[derive(Clone, Copy)]
enum Receiving {
    /// Dry run: nothing is sent, and everything counts as delivered.
    All,
    /// No receiver listens.
    Nothing,
}

/// A meter with one endpoint, whose hourly and daily aggregates are final.
async fn finished(engine: &Engine, receiving: Receiving) -> (Metered, String) {
    let hooks = WebhookSettings {
        dry_run: matches!(receiving, Receiving::All),
        ..WebhookSettings::default()
    };
    let metered = Metered::delivering(engine, settings(), hooks, |_| {}).await;
    // Nothing listens on the second loopback address.
    let made = make(&metered, json!({"url": "http://127.0.0.2:9/"})).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "e"})).await;
    metered.set("2026-01-14T00:30:00Z");
    assert_eq!(metered.aggregated("period=daily").await[0]["state"], "final");
    (metered, made["id"].as_str().expect("an id").to_owned())
}

const DAY: &str = "/aggregations/c_daily_20260113";

async fn the_status_of_an_aggregate_outlives_its_deliveries(engine: Engine) {
    let (metered, _) = finished(&engine, Receiving::All).await;
    assert_eq!(metered.deliver().await, 2, "the hour and the day");
    let status = metered.found(DAY).await["webhookStatus"].take();
    assert_eq!((&status["delivered"], &status["attempts"]), (&json!(true), &json!(1)));
    assert!(status["deliveredAt"].is_string(), "{status}");
    assert!(status["lastAttemptAt"].is_string() && status["lastError"].is_null(), "{status}");
    assert_eq!(status["dryRun"], true, "{status}");
    let page = metered.found("/aggregations?customerId=c").await;
    let delivered = page.as_array().expect("a page").iter();
    let delivered = delivered.filter(|one| one["webhookStatus"]["delivered"] == true).count();
    assert_eq!(delivered, 2, "of four, two of which are under way");
    metered.set("2026-02-20T00:30:00Z");
    let purged = metered.meter.webhooks().purge().await.expect("purged");
    assert_eq!(purged.messages, 2);
    assert_eq!(metered.found("/webhooks/deliveries").await, json!([]));
    assert_eq!(metered.found(DAY).await["webhookStatus"], status);
}

async fn a_delivery_that_failed_is_shown_and_retried_now(engine: Engine) {
    let (metered, id) = finished(&engine, Receiving::Nothing).await;
    assert_eq!(metered.deliver().await, 2);
    let status = metered.found(DAY).await["webhookStatus"].take();
    assert_eq!((&status["delivered"], &status["attempts"]), (&json!(false), &json!(1)));
    assert!(status["lastError"].is_string() && status["deliveredAt"].is_null(), "{status}");
    assert!(status["lastAttemptAt"].is_string() && status["dryRun"] != true, "{status}");
    let since = json!({"since": "2026-01-01T00:00:00Z"});
    let endpoint = format!("/webhooks/endpoints/{id}");
    let replayed = ask(&metered, "POST", &format!("{endpoint}/replay"), &since).await;
    assert_eq!(replayed.body["deliveries"], 0, "what is retried is not replayed");
    assert_eq!(metered.deliver().await, 0, "the next attempt is some seconds away");
    let retry = format!("{endpoint}/retry");
    let retried = ask(&metered, "POST", &retry, &Value::Null).await;
    let expected = json!({"deliveries": 2, "more": false});
    assert_eq!((retried.status, retried.body), (202, expected));
    assert_eq!(metered.deliver().await, 2);
    let status = metered.found(DAY).await["webhookStatus"].take();
    assert_eq!(status["attempts"], 2, "the schedule goes on");
    // Repeated with its key, the request gets the same response and sends nothing more.
    let first = metered.post_once(&retry, "k", &Value::Null).await;
    assert_eq!((first.status, &first.body["deliveries"]), (202, &json!(2)), "{}", first.body);
    assert_eq!(metered.deliver().await, 2);
    let again = metered.post_once(&retry, "k", &Value::Null).await;
    assert_eq!((again.status, &again.body), (first.status, &first.body));
    assert_eq!(metered.deliver().await, 0);
    let refused = ask(&metered, "POST", &retry, &json!({"since": "x"})).await;
    assert_eq!(refused.status, 400, "{}", refused.body);
    let none = ask(&metered, "POST", "/webhooks/endpoints/none/retry", &Value::Null).await;
    assert_eq!(none.status, 404);
    ask(&metered, "PATCH", &endpoint, &json!({"enabled": false})).await;
    assert_eq!(ask(&metered, "POST", &retry, &Value::Null).await.status, 409);
}

async fn what_the_configuration_declares_is_not_changed_here(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let hooks = metered.meter.webhooks();
    let declared = |enabled| {
        let secret = Secret::parse("your_webhook_secret").expect("a secret");
        [ConfiguredEndpoint { enabled, url: URL.to_owned(), secret, kinds: Vec::new() }]
    };
    hooks.sync_configured(&declared(true)).await.expect("declared");
    let id =
        metered.found("/webhooks/endpoints").await[0]["id"].as_str().expect("an id").to_owned();
    let path = format!("/webhooks/endpoints/{id}");
    for (method, path, body) in [
        ("PATCH", path.clone(), json!({"description": "x"})),
        ("PATCH", path.clone(), json!({"enabled": false})),
        ("PATCH", path.clone(), json!({"enabled": true, "ordered": true})),
        ("DELETE", path.clone(), Value::Null),
        ("POST", format!("{path}/rotate"), Value::Null),
    ] {
        let refused = ask(&metered, method, &path, &body).await;
        assert_eq!(refused.status, 409, "{method} {path} {body}: {}", refused.body);
        let error = refused.body["error"].as_str().unwrap_or_default();
        assert!(error.contains("declared by the configuration"), "{error}");
    }
    let enabled = json!({"enabled": true});
    assert_eq!(ask(&metered, "PATCH", &path, &enabled).await.status, 200, "after it failed");
    hooks.sync_configured(&declared(false)).await.expect("declared");
    assert_eq!(ask(&metered, "PATCH", &path, &enabled).await.status, 409, "it is declared so");
}

async fn a_field_that_there_is_not_is_named(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let id = make(&metered, json!({"url": URL})).await["id"].as_str().expect("an id").to_owned();
    let one = format!("/webhooks/endpoints/{id}");
    for (method, path, body) in [
        ("POST", "/webhooks/endpoints".to_owned(), json!({"url": URL, "colour": "red"})),
        ("PATCH", one.clone(), json!({"colour": "red"})),
        ("POST", format!("{one}/test"), json!({"colour": "red"})),
        ("POST", format!("{one}/retry"), json!({"colour": "red"})),
        ("POST", format!("{one}/rotate"), json!({"colour": "red"})),
        ("POST", format!("{one}/replay"), json!({"messageId": "m", "colour": "red"})),
        ("POST", "/aggregations/trigger".to_owned(), json!({"colour": "red"})),
        ("POST", "/events/cancel".to_owned(), json!({"id": "e", "reason": "x", "colour": 1})),
        ("POST", "/events/amend".to_owned(), json!({"id": "e", "reason": "x", "colour": 1})),
        ("GET", "/webhooks/endpoints?colour=red".to_owned(), Value::Null),
        ("GET", format!("{one}?colour=red"), Value::Null),
        ("POST", "/aggregations/trigger?colour=red".to_owned(), Value::Null),
        ("POST", "/usage/api.calls?colour=red".to_owned(), json!({"customerId": "c", "value": 1})),
        ("GET", "/config?colour=red".to_owned(), Value::Null),
    ] {
        let refused = ask(&metered, method, &path, &body).await;
        assert_eq!(refused.status, 400, "{method} {path}: {}", refused.body);
        let error = refused.body["error"].as_str().unwrap_or_default();
        assert!(error.contains("colour"), "{method} {path}: {error}");
    }
}

on_both_engines![
    the_secret_of_an_endpoint_is_shown_once,
    an_endpoint_is_changed_disabled_and_deleted,
    what_is_told_is_listed_and_can_be_sent_again,
    an_endpoint_that_must_not_be_reached_is_refused_without_its_secret,
    an_event_that_is_never_sent_is_refused_with_those_that_are,
    the_status_of_an_aggregate_outlives_its_deliveries,
    a_delivery_that_failed_is_shown_and_retried_now,
    what_the_configuration_declares_is_not_changed_here,
    a_field_that_there_is_not_is_named,
];
