//! Lists: filters, pages, and rejected requests.

use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::Metered;

async fn filled(engine: &Engine) -> Metered {
    let metered = Metered::new(engine).await;
    for (hour, customer, event_type) in [
        (5, "a", "api.calls"),
        (6, "b", "api.calls"),
        (7, "a", "test.min"),
        (7, "a", "api.calls"),
        (8, "b", "test.min"),
    ] {
        let timestamp = format!("2026-01-13T0{hour}:10:00Z");
        let body = json!({"customerId": customer, "value": hour, "timestamp": timestamp});
        metered.send(event_type, body).await;
    }
    metered
}

fn values(page: &Value) -> Vec<i64> {
    page.as_array().expect("a page").iter().filter_map(|event| event["value"].as_i64()).collect()
}

async fn events_are_filtered_by_what_is_asked(engine: Engine) {
    let metered = filled(&engine).await;
    for (query, expected) in [
        ("", vec![8, 7, 7, 6, 5]),
        ("?customerId=a", vec![7, 7, 5]),
        ("?customerId=a&eventType=api.calls", vec![7, 5]),
        ("?eventType=test.min", vec![8, 7]),
        ("?customerId=nobody", vec![]),
        ("?from=2026-01-13T07:00:00Z", vec![8, 7, 7]),
        ("?customerId=b&to=2026-01-13T08:10:00Z", vec![6]),
        ("?customerId=b&to=2026-01-13T08:10:00.001Z", vec![8, 6]),
        ("?limit=2", vec![8, 7]),
    ] {
        let found = metered.found(&format!("/events{query}")).await;
        assert_eq!(values(&found), expected, "{query}");
    }
}

async fn pages_follow_each_other_without_gap_or_overlap(engine: Engine) {
    let metered = filled(&engine).await;
    metered.aggregated("").await;
    for (list, count) in [("/events?", 5), ("/events?customerId=a&", 3), ("/aggregations?", 10)] {
        let whole = metered.found(list.trim_end_matches(['?', '&'])).await;
        assert_eq!(whole.as_array().map(Vec::len), Some(count), "{list}");
        let mut pages = Vec::new();
        let mut cursor = String::new();
        loop {
            let answer = metered.get(&format!("{list}limit=2{cursor}")).await;
            assert_eq!(answer.status, 200, "{}", answer.body);
            pages.extend(answer.body.as_array().expect("a page").clone());
            let Some(next) = answer.headers.get("x-next-cursor") else { break };
            cursor = format!("&cursor={}", next.to_str().expect("text"));
        }
        assert_eq!(Value::Array(pages), whole, "{list}");
    }
}

async fn aggregations_are_filtered_by_what_is_asked(engine: Engine) {
    let metered = filled(&engine).await;
    metered.aggregated("").await;
    for (query, count) in [
        ("", 10),
        ("?customerId=a", 5),
        ("?customerId=a&period=hourly", 2),
        ("?period=daily", 2),
        ("?period=hourly&from=2026-01-13T07:00:00Z", 2),
        ("?period=hourly&to=2026-01-13T07:00:00Z", 2),
        ("?customerId=nobody", 0),
    ] {
        let found = metered.found(&format!("/aggregations{query}")).await;
        assert_eq!(found.as_array().map(Vec::len), Some(count), "{query}");
    }
}

async fn what_makes_no_sense_is_a_400_that_names_it(engine: Engine) {
    let metered = filled(&engine).await;
    for (path, named) in [
        ("/events?limit=many", "limit"),
        ("/events?limit=1.5", "limit"),
        ("/events?limit=-", "limit"),
        ("/events?from=soon", "from"),
        ("/events?to=2026-01", "to"),
        ("/events?cursor=x", "cursor"),
        ("/events?customer=a", "customer"),
        ("/events?limit=1&limit=2", "limit"),
        ("/aggregations?eventType=a", "eventType"),
        ("/aggregations?cursor=AAAA", "cursor"),
        ("/aggregations/x?y=1", "y"),
    ] {
        let answer = metered.get(path).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        let error = answer.body["error"].as_str().expect("an error");
        assert!(error.contains(named), "{path}: {error}");
    }
    let events = metered.get("/events?limit=1").await;
    let cursor = events.headers["x-next-cursor"].to_str().expect("text");
    let other = metered.get(&format!("/aggregations?cursor={cursor}")).await;
    assert_eq!(other.status, 400, "a cursor of another list");
}

async fn a_limit_out_of_bounds_is_brought_within_them(engine: Engine) {
    let metered = filled(&engine).await;
    let whole = metered.found("/events").await;
    let count = |found: &Value| found.as_array().expect("a list").len();
    assert!((2..1_000).contains(&count(&whole)), "{whole}");
    for (limit, expected) in [
        ("0", 1),
        ("-1", 1),
        ("-99999999999999999999999999", 1),
        ("1", 1),
        ("1001", count(&whole)),
        ("99999999999999999999999999", count(&whole)),
    ] {
        let answer = metered.get(&format!("/events?limit={limit}")).await;
        assert_eq!((answer.status, count(&answer.body)), (200, expected), "{limit}");
        let more = answer.headers.contains_key("x-next-cursor");
        assert_eq!(more, expected < count(&whole), "what is left out is on the next page: {limit}");
        let answer = metered.get(&format!("/aggregations?limit={limit}")).await;
        assert_eq!(answer.status, 200, "{limit}: {}", answer.body);
    }
}

async fn a_period_that_does_not_exist_is_a_422_and_never_an_empty_list(engine: Engine) {
    let metered = filled(&engine).await;
    let answer = metered.get("/aggregations?period=nope").await;
    assert_eq!(answer.status, 422, "{}", answer.body);
    let error = answer.body["error"].as_str().expect("an error");
    assert!(error.contains("period") && error.contains("daily"), "{error}");
    assert_eq!(metered.found("/aggregations?period=yearly").await, json!([]));
}

on_both_engines![
    a_limit_out_of_bounds_is_brought_within_them,
    a_period_that_does_not_exist_is_a_422_and_never_an_empty_list,
    events_are_filtered_by_what_is_asked,
    pages_follow_each_other_without_gap_or_overlap,
    aggregations_are_filtered_by_what_is_asked,
    what_makes_no_sense_is_a_400_that_names_it,
];
