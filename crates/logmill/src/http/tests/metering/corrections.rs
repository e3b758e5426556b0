//! One event, found, cancelled and amended.

use serde_json::json;

use super::engine::{Engine, on_both_engines};
use super::ground::Metered;

async fn a_cancelled_event_counts_no_more_and_is_told_with_its_reason(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for (id, value) in [("a", 1), ("b", 10)] {
        metered.send("api.calls", json!({"customerId": "c", "value": value, "id": id})).await;
    }
    metered.set("2026-01-14T00:30:00Z");
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("final"), &json!(11))
    );
    let cancel = json!({"source": "local", "id": "b", "reason": "sent by mistake"});
    let answer = metered.post("/events/cancel", &cancel).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(
        (&answer.body["state"], &answer.body["customerId"]),
        (&json!("cancelled"), &json!("c"))
    );
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("corrected"), &json!(1))
    );
    let mut found = metered.found("/events/lookup?id=b").await;
    // By the database's clock, which on PostgreSQL goes on.
    let at = found["corrections"][0]["at"].take();
    assert!(at.as_str().is_some_and(|at| at.starts_with("2026-01-14T00:3")), "{at}");
    let expected = json!([{
        "action": "cancel", "valueBefore": "10", "valueAfter": null, "reason": "sent by mistake",
        "actor": "local", "at": null,
    }]);
    assert_eq!(found["corrections"], expected);
    let behind = metered.found("/aggregations/c_daily_20260113/events").await;
    assert_eq!(behind.as_array().map(Vec::len), Some(1), "only what counts");
    let again = metered.post("/events/cancel", &cancel).await;
    assert_eq!(again.status, 409, "{}", again.body);
}

async fn an_amended_event_has_its_new_value_exactly(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "a"})).await;
    let text = r#"{"id":"a","value":0.1000000000000000001,"reason":"x"}"#;
    let wrong = metered.post_as("/events/amend", "application/json", text).await;
    assert_eq!(wrong.status, 400, "more places than the type takes: {}", wrong.body);
    let text = r#"{"id":"a","value":0.100000000000000001,"reason":"x"}"#;
    let answer = metered.post_as("/events/amend", "application/json", text).await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.body["valueExact"], "0.100000000000000001");
    assert_eq!(answer.body["state"], "amended");
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(daily[0]["eventsExact"]["api.calls"], "0.100000000000000001");
    // The first request again is still the first request.
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "a"})).await;
    assert_eq!(metered.found("/events").await.as_array().map(Vec::len), Some(1));
}

async fn a_correction_that_makes_no_sense_is_refused(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "a"})).await;
    for (path, body, status) in [
        ("/events/cancel", json!({"id": "none", "reason": "x"}), 404),
        ("/events/cancel", json!({"id": "a", "reason": ""}), 400),
        ("/events/cancel", json!({"id": "a"}), 400),
        ("/events/cancel", json!({"reason": "x"}), 400),
        ("/events/cancel", json!({"id": "a", "reason": "x", "value": 1}), 400),
        ("/events/cancel", json!({"id": "a", "reason": "x", "why": 1}), 400),
        ("/events/cancel", json!([]), 400),
        ("/events/amend", json!({"id": "a", "reason": "x"}), 400),
        ("/events/amend", json!({"id": "a", "reason": "x", "value": "much"}), 400),
        ("/events/amend", json!({"id": "a", "reason": "x", "value": 1}), 409),
        ("/events/amend", json!({"id": "a", "source": "other", "reason": "x", "value": 2}), 404),
    ] {
        let answer = metered.post(path, &body).await;
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.body);
        assert!(answer.body["error"].is_string());
    }
    assert_eq!(metered.get("/events/lookup?id=none").await.status, 404);
    assert_eq!(metered.get("/events/lookup").await.status, 400);
}

on_both_engines![
    a_cancelled_event_counts_no_more_and_is_told_with_its_reason,
    an_amended_event_has_its_new_value_exactly,
    a_correction_that_makes_no_sense_is_refused,
];
