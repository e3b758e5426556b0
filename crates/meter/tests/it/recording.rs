//! Events count once, whatever is sent, and however often.

use logmill_meter::record::Outcome::{Conflict, Repeated, Stored};
use logmill_meter::settings::{EventType, Op};
use logmill_meter::{Decimal, OTHER, Settings, Sizes};
use serde_json::{Value, json};

use logmill_meter::due::SweepScope;
use logmill_sim::meter_world::{World, body, settings};

const NOW: &str = "2026-01-13T08:20:00.000Z";

fn call(id: &str, value: &Value) -> Value {
    json!({"eventType": "api.calls", "customerId": "cust_123", "value": value, "id": id})
}

#[tokio::test(start_paused = true)]
async fn an_event_that_is_sent_again_counts_once_and_another_with_its_id_is_refused() {
    let world = World::new(NOW, settings()).await;
    let first = world.record(&[call("a", &json!(1)), call("b", &json!(2))]).await;
    assert_eq!(first, [Stored, Stored]);
    let again = [call("b", &json!(2)), call("a", &json!(5)), call("c", &json!(3))];
    assert_eq!(world.record(&again).await, [Repeated, Conflict, Stored]);
    world.set("2026-01-13T09:30:00Z");
    world.sweep(SweepScope::Finished).await;
    let hourly = world.aggregates("hourly").await;
    assert_eq!(body(&hourly[0])["events"]["api.calls"], 6);
    assert_eq!(world.recounted().await, 3);
}

#[tokio::test(start_paused = true)]
async fn of_one_batch_the_first_with_an_id_is_recorded() {
    let world = World::new(NOW, settings()).await;
    let batch = [
        call("a", &json!(1)),
        call("a", &json!(1)),
        call("a", &json!("1.0")),
        call("a", &json!(2)),
    ];
    assert_eq!(world.record(&batch).await, [Stored, Repeated, Repeated, Conflict]);
    assert_eq!(world.recounted().await, 1);
}

#[tokio::test(start_paused = true)]
async fn the_same_content_is_the_same_however_its_json_is_written() {
    let world = World::new(NOW, settings()).await;
    let with = |metadata: &str| {
        let text = format!(
            r#"{{"eventType":"api.calls","customerId":"c","value":1,"id":"x","metadata":{metadata}}}"#
        );
        let raw: logmill_meter::event::RawEvent<'_> =
            serde_json::from_str(&text).expect("an object");
        let entropy = logmill_io::SeededEntropy::shared(1);
        let sender = logmill_meter::event::Sender {
            source: "s",
            now: logmill_sim::meter_world::at(NOW),
            entropy: &*entropy,
        };
        raw.check(world.meter.settings(), None, &sender).map(|event| event.content)
    };
    let one = with(r#"{"a":1,"b":{"c":[1,2],"d":"ä"}}"#).expect("it is right");
    assert_eq!(with(r#"{ "b": {"d":"\u00e4", "c": [1, 2]}, "a" : 1 }"#), Ok(one));
    assert_ne!(with(r#"{"a":1,"b":{"c":[2,1],"d":"ä"}}"#), Ok(one));
    // Numbers are compared as written: two that a float cannot tell apart are different.
    assert_ne!(
        with(r#"{"a":10000000000000000000001}"#).ok(),
        with(r#"{"a":10000000000000000000002}"#).ok()
    );
}

#[tokio::test(start_paused = true)]
async fn keys_are_found_in_every_table_and_blob_that_they_move_to() {
    let world =
        World::with_sizes(NOW, settings(), Sizes { keys_per_blob: 10, ..Sizes::default() }).await;
    for start in (0..50).step_by(5) {
        let batch: Vec<Value> =
            (start..start + 5).map(|number| call(&format!("e{number}"), &json!(number))).collect();
        world.record(&batch).await;
        if start == 25 {
            world.meter.run_housekeeping().await.expect("house is kept");
        }
    }
    let all: Vec<Value> =
        (0..50).map(|number| call(&format!("e{number}"), &json!(number))).collect();
    assert!(world.record(&all).await.iter().all(|outcome| *outcome == Repeated));
    world.meter.run_housekeeping().await.expect("house is kept");
    assert!(world.record(&all).await.iter().all(|outcome| *outcome == Repeated));
    // A meter with empty caches finds them too.
    let other = world.reopened(settings()).await;
    let event = other.find_event("test", "e7").await.expect("a look");
    assert_eq!(event.map(|event| event.value), Some(Decimal::from_integer(7)));
    assert_eq!(other.find_event("test", "e50").await.expect("a look"), None);
    assert_eq!(world.recounted().await, 50);
}

#[tokio::test(start_paused = true)]
async fn validation_errors_have_the_wording_of_the_seed() {
    let world = World::new(NOW, settings()).await;
    let long = "x".repeat(201);
    for (event, wrong) in [
        (json!({"customerId": "c", "value": 1}), "eventType is required"),
        (json!({"eventType": 5, "customerId": "c", "value": 1}), "eventType must be a string"),
        (json!({"eventType": "api.calls", "value": 1}), "customerId is required"),
        (json!({"eventType": "api.calls", "customerId": "", "value": 1}), "customerId is required"),
        (
            json!({"eventType": "api.calls", "customerId": 5, "value": 1}),
            "customerId must be a string",
        ),
        (json!({"eventType": "api.calls", "customerId": "c"}), "value is required"),
        (json!({"eventType": "api.calls", "customerId": "c", "value": null}), "value is required"),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": "NaN"}),
            "value must be a finite number",
        ),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": "Infinity"}),
            "value must be a finite number",
        ),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": true}),
            "value must be a finite number",
        ),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": [1]}),
            "value must be a finite number",
        ),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": 1, "metadata": [1]}),
            "metadata must be an object if provided",
        ),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": 1, "metadata": "x"}),
            "metadata must be an object if provided",
        ),
        (
            json!({"eventType": "api.calls", "customerId": long, "value": 1}),
            "customerId must have at most 200 bytes and no control characters",
        ),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": "0.0000000000000000001"}),
            "value has 19 decimal places: this event type takes at most 18",
        ),
        (
            json!({"eventType": "api.calls", "customerId": "c", "value": 1, "timestamp": "2026-01-13T08:26:00Z"}),
            "timestamp is more than 300 seconds ahead of now",
        ),
        (
            json!({"eventType": "nope", "customerId": "c", "value": 1}),
            "Invalid event type: nope. Must be one of: api.calls, response.time.ms, storage.bytes, \
                 test.count, test.first, test.last, test.min",
        ),
    ] {
        let errors = world.checked(&event).expect_err("it is wrong");
        assert!(errors.contains(&wrong.to_owned()), "{event}: {errors:?}");
    }
    let deep = (0..9).fold(json!(1), |inner, _| json!({ "a": inner }));
    let event = json!({"eventType": "api.calls", "customerId": "c", "value": 1, "metadata": deep});
    assert!(world.checked(&event).is_err(), "it is too deep");
}

#[tokio::test(start_paused = true)]
async fn values_of_256_bits_negative_ones_and_decimals_add_up_exactly() {
    let world = World::new(NOW, settings()).await;
    let most = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    let values = [json!(most), json!(most), json!("-0.000000000000000001"), json!(0), json!(1e3)];
    let batch: Vec<Value> = values
        .iter()
        .enumerate()
        .map(|(number, value)| call(&format!("v{number}"), value))
        .collect();
    world.record(&batch).await;
    world.set("2026-01-13T10:00:00Z");
    world.sweep(SweepScope::Finished).await;
    let hourly = &world.aggregates("hourly").await[0];
    assert_eq!(
        body(hourly)["eventsExact"]["api.calls"],
        "231584178474632390847141970017375815706539969331281128078915168015826259280869.999999999999999999"
    );
    // A JSON reader would round it, so it is not returned as a number.
    assert_eq!(body(hourly)["events"]["api.calls"], Value::Null);
}

#[tokio::test(start_paused = true)]
async fn groups_beyond_the_limit_count_as_other_and_the_total_stays_exact() {
    let mut settings = Settings { groups_max: 3, ..settings() };
    let mut by_region = EventType::new(Op::Sum);
    by_region.dimensions = vec!["region".to_owned()];
    settings.events.insert("by.region".to_owned(), by_region);
    let world = World::new(NOW, settings).await;
    let batch: Vec<Value> = (0..10)
        .map(|number| {
            json!({"eventType": "by.region", "customerId": "c", "value": number,
                   "metadata": {"region": format!("r{number}"), "other": "x"}})
        })
        .collect();
    world.record(&batch).await;
    world.set("2026-01-13T10:00:00Z");
    world.sweep(SweepScope::Finished).await;
    assert_eq!(body(&world.aggregates("hourly").await[0])["events"]["by.region"], 45);
    let text = "SELECT dims FROM meter_series ORDER BY id";
    let found = world.meter.sql().query(text, vec![]).await.expect("series");
    let dims: Vec<&str> = found.rows.iter().map(|row| row.text(0).expect("a group")).collect();
    assert_eq!(dims, [r#"{"region":"r0"}"#, r#"{"region":"r1"}"#, r#"{"region":"r2"}"#, OTHER]);
}
