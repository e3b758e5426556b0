//! Batches, whole or in part, sent once or repeatedly: the response matches what is counted.

use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::Metered;

const CLOUD_BATCH: &str = "application/cloudevents-batch+json";

fn event(value: i64, id: &str) -> Value {
    json!({
        "eventType": "api.calls", "customerId": "c", "value": value, "id": id, "source": "app",
        "timestamp": "2026-01-13T07:10:00Z",
    })
}

fn cloud(value: i64, id: &str) -> Value {
    json!({
        "specversion": "1.0", "type": "api.calls", "subject": "c", "id": id, "source": "app",
        "time": "2026-01-13T07:10:00Z", "data": {"value": value},
    })
}

/// The total, which live queries and aggregates must agree on, and the number of events.
async fn counted(metered: &Metered) -> (i64, usize) {
    let query = "/meters/query?eventType=api.calls&from=2026-01-13T00:00:00Z";
    let answer = metered.found(query).await;
    let events = metered.found("/events?limit=1000").await;
    let events = events.as_array().map_or(0, Vec::len);
    let Some(line) = answer["data"].get(0) else { return (0, events) };
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(daily[0]["events"]["api.calls"], line["value"]);
    assert_eq!(daily[0]["eventCounts"]["api.calls"], line["count"]);
    (line["value"].as_i64().expect("a number"), events)
}

async fn a_batch_with_conflicts_is_answered_the_same_again_and_counts_once(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.post("/usagebatch", &json!([event(1, "a"), event(2, "b")])).await;
    let batch = json!([event(8, "a"), event(2, "b"), event(4, "c"), event(9, "c"), event(4, "c")]);
    let expected = json!([{"index": 0, "id": "a"}, {"index": 3, "id": "c"}]);
    for _ in 0..3 {
        let answer = metered.post("/usagebatch", &batch).await;
        assert_eq!((answer.status, &answer.body["conflicts"]), (207, &expected), "{}", answer.body);
        let counts = (&answer.body["successCount"], &answer.body["failedCount"]);
        assert_eq!(counts, (&json!(3), &json!(2)));
        assert_eq!(answer.body["ids"].as_array().map(Vec::len), Some(5));
        assert_eq!(counted(&metered).await, (7, 3));
    }
    let answer = metered.post("/usagebatch", &json!([event(3, "a"), event(3, "b")])).await;
    assert_eq!(answer.status, 207, "{}", answer.body);
    let counts = (&answer.body["successCount"], &answer.body["failedCount"]);
    assert_eq!(counts, (&json!(0), &json!(2)), "all of them contradict");
    assert_eq!(counted(&metered).await, (7, 3));
}

async fn of_a_batch_that_is_refused_nothing_counts_and_mended_it_counts_once(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let mut many: Vec<Value> = (0..1_001).map(|number| event(1, &number.to_string())).collect();
    assert_eq!(metered.post("/usagebatch", &json!(many)).await.status, 413);
    assert_eq!(counted(&metered).await, (0, 0));
    many.truncate(1_000);
    many[999]["value"] = json!("many");
    many[0]["customerId"] = json!(7);
    let refused = metered.post("/usagebatch", &json!(many)).await;
    assert_eq!(refused.status, 422);
    let wrong = json!([
        {"index": 0, "errors": ["customerId must be a string"]},
        {"index": 999, "errors": ["value must be a finite number"]},
    ]);
    assert_eq!(refused.body["validationErrors"], wrong);
    let counts = (&refused.body["validCount"], &refused.body["invalidCount"]);
    assert_eq!(counts, (&json!(998), &json!(2)));
    assert_eq!(counted(&metered).await, (0, 0));
    many[999]["value"] = json!(1);
    many[0]["customerId"] = json!("c");
    for _ in 0..2 {
        let answer = metered.post("/usagebatch", &json!(many)).await;
        assert_eq!((answer.status, &answer.body["count"]), (201, &json!(1_000)));
        assert_eq!(counted(&metered).await, (1_000, 1_000));
    }
}

async fn batches_of_cloud_events_have_the_same_rules_and_the_same_keys(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let send =
        async |batch: Value| metered.post_as("/events", CLOUD_BATCH, &batch.to_string()).await;
    let mut wrong = cloud(2, "b");
    wrong["specversion"] = json!("0.3");
    let refused = send(json!([cloud(1, "a"), wrong, 7])).await;
    assert_eq!(refused.status, 422, "{}", refused.body);
    let indexes: Vec<&Value> = refused.body["validationErrors"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|one| &one["index"])
        .collect();
    assert_eq!(indexes, [&json!(1), &json!(2)]);
    assert_eq!(counted(&metered).await, (0, 0));
    // The same event, whichever format it has.
    metered.post("/usagebatch", &json!([event(1, "a")])).await;
    for _ in 0..2 {
        let answer = send(json!([cloud(1, "a"), cloud(2, "b")])).await;
        let ids = json!(["a", "b"]);
        assert_eq!((answer.status, &answer.body["ids"]), (201, &ids), "{}", answer.body);
        assert_eq!(counted(&metered).await, (3, 2));
    }
    let answer = send(json!([cloud(5, "b"), cloud(4, "c")])).await;
    let expected = json!([{"index": 0, "id": "b"}]);
    assert_eq!((answer.status, &answer.body["conflicts"]), (207, &expected), "{}", answer.body);
    let many: Vec<Value> = (0..1_001).map(|number| cloud(1, &number.to_string())).collect();
    let answer = send(json!(many)).await;
    assert_eq!((answer.status, &answer.body["received"]), (413, &json!(1_001)));
    assert_eq!(counted(&metered).await, (7, 3));
}

on_both_engines![
    a_batch_with_conflicts_is_answered_the_same_again_and_counts_once,
    of_a_batch_that_is_refused_nothing_counts_and_mended_it_counts_once,
    batches_of_cloud_events_have_the_same_rules_and_the_same_keys,
];
