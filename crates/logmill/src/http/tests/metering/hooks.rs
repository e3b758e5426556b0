//! Endpoints of webhooks over HTTP: made, looked at, changed, rotated, deleted.

use http_body_util::Full;
use serde_json::{Value, json};

use super::ground::{Answer, Metered};

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

#[tokio::test]
async fn the_secret_of_an_endpoint_is_shown_once() {
    let metered = Metered::new().await;
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

#[tokio::test]
async fn an_endpoint_is_changed_disabled_and_deleted() {
    let metered = Metered::new().await;
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

#[tokio::test]
async fn what_is_told_is_listed_and_can_be_sent_again() {
    let metered = Metered::new().await;
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

#[tokio::test]
async fn an_endpoint_that_must_not_be_reached_is_refused_without_its_secret() {
    let metered = Metered::new().await;
    for body in [
        json!({}),
        json!({"url": "ftp://example.com/"}),
        json!({"url": "http://127.0.0.1/"}),
        json!({"url": "https://[::ffff:10.0.0.1]/"}),
        json!({"url": "https://user:sesame@example.com/"}),
        json!({"url": URL, "secret": "sesame"}),
        json!({"url": URL, "secret": 77_123_771_237_i64}),
        json!({"url": URL, "events": ["not a kind"]}),
        json!({"url": URL, "colour": "red"}),
        json!([]),
    ] {
        let answer = ask(&metered, "POST", "/webhooks/endpoints", &body).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.body);
        let said = answer.body.to_string();
        assert!(!said.contains("sesame") && !said.contains("77123"), "{said}");
    }
    assert_eq!(metered.found("/webhooks/endpoints").await, json!([]));
    assert_eq!(metered.get("/webhooks/deliveries?state=lost").await.status, 400);
}
