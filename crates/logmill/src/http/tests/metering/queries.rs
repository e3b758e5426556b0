//! Queries of meters: windows, zones, groups and filters, and what is refused.
//!
//! Guarantees: none but to its readers. Leaves to others: how figures are computed, which the meter tests itself.

use logmill_meter::settings::{EventType, Op};
use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::{Metered, settings};

async fn filled(engine: &Engine) -> Metered {
    let mut settings = settings();
    let regional = EventType { dimensions: vec!["region".to_owned()], ..EventType::new(Op::Sum) };
    settings.events.insert("regional".to_owned(), regional);
    let metered = Metered::with(engine, settings, |_| {}).await;
    for (hour, customer, region, value) in
        [(5, "a", "eu", 1), (5, "a", "us", 2), (6, "a", "eu", 4), (7, "b", "eu", 8)]
    {
        let timestamp = format!("2026-01-13T0{hour}:10:00Z");
        let metadata = json!({"region": region});
        let body = json!({
            "customerId": customer, "value": value, "timestamp": timestamp, "metadata": metadata,
        });
        metered.send("regional", body).await;
    }
    metered
}

fn values(answer: &Value) -> Vec<i64> {
    let lines = answer["data"].as_array().expect("lines").iter();
    lines.map(|line| line["value"].as_i64().expect("a number")).collect()
}

const DAY: &str = "/meters/query?eventType=regional&from=2026-01-13T00:00:00Z";

async fn any_window_group_and_filter_can_be_asked(engine: Engine) {
    let metered = filled(&engine).await;
    for (query, expected) in [
        ("", vec![15]),
        ("&customerId=a", vec![7]),
        ("&customerId=a&customerId=b", vec![15]),
        ("&customerId=nobody", vec![]),
        ("&op=count", vec![4]),
        ("&op=max&filter.region=eu", vec![8]),
        ("&filter.region=eu&filter.region=us", vec![15]),
        ("&filter.region=us", vec![2]),
        ("&window=hourly", vec![3, 4, 8]),
        ("&window=hourly&to=2026-01-13T06:00:00Z", vec![3]),
        ("&groupBy=region", vec![13, 2]),
        ("&groupBy=customerId", vec![7, 8]),
        ("&groupBy=customerId&groupBy=region", vec![5, 2, 8]),
    ] {
        let answer = metered.found(&format!("{DAY}{query}")).await;
        assert_eq!(values(&answer), expected, "{query}: {answer}");
    }
    let answer = metered.found(&format!("{DAY}&window=hourly&groupBy=region&customerId=a")).await;
    assert_eq!(answer["to"], "2026-01-13T08:30:00.000Z", "the end of this quarter");
    let expected = json!({
        "start": "2026-01-13T05:00:00.000Z", "end": "2026-01-13T06:00:00.000Z",
        "group": {"region": "eu"}, "value": 1, "valueExact": "1", "exact": true, "count": 1,
        "final": true, "provisional": null,
    });
    assert_eq!(answer["data"][0], expected);
}

async fn a_zone_moves_the_bounds_of_days(engine: Engine) {
    let metered = filled(&engine).await;
    let from = "/meters/query?eventType=regional&from=2026-01-12T00:00:00Z&window=daily";
    // In Auckland the day begins at 11:00 of UTC; in Los Angeles at 08:00.
    for (zone, starts) in [
        ("UTC", vec!["2026-01-13T00:00:00.000Z"]),
        ("Pacific/Auckland", vec!["2026-01-12T11:00:00.000Z"]),
        ("America/Los_Angeles", vec!["2026-01-12T08:00:00.000Z"]),
    ] {
        let answer = metered.found(&format!("{from}&zone={zone}")).await;
        let lines = answer["data"].as_array().expect("lines").iter();
        let found: Vec<&str> = lines.filter_map(|line| line["start"].as_str()).collect();
        assert_eq!(found, starts, "{zone}");
    }
}

async fn a_query_that_makes_no_sense_is_refused_by_name(engine: Engine) {
    let metered = filled(&engine).await;
    for (path, named) in [
        ("/meters/query?from=0", "eventType"),
        ("/meters/query?eventType=regional", "from"),
        ("/meters/query?eventType=x&from=0", "Must be one of"),
        ("/meters/query?eventType=regional&from=0&op=total", "op"),
        ("/meters/query?eventType=regional&from=0&op=unique", "also"),
        ("/meters/query?eventType=regional&from=1", "quarter"),
        ("/meters/query?eventType=regional&from=0&to=0", "from is before to"),
        ("/meters/query?eventType=regional&from=0&window=minutely", "window"),
        ("/meters/query?eventType=regional&from=0&window=hourly", "windows"),
        ("/meters/query?eventType=regional&from=0&zone=Mars&window=daily", "time zone"),
        ("/meters/query?eventType=regional&from=0&groupBy=colour", "colour"),
        ("/meters/query?eventType=regional&from=0&filter.colour=red", "colour"),
        ("/meters/query?eventType=regional&from=0&filter.=red", "filter."),
        ("/meters/query?eventType=regional&from=0&quantileMilli=0", "quantileMilli"),
        ("/meters/query?eventType=regional&from=0&x=1", "x"),
    ] {
        let answer = metered.get(path).await;
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        let error = answer.body["error"].as_str().expect("an error");
        assert!(error.contains(named), "{path}: {error}");
    }
}

on_both_engines![
    any_window_group_and_filter_can_be_asked,
    a_zone_moves_the_bounds_of_days,
    a_query_that_makes_no_sense_is_refused_by_name,
];
