//! Trends: lines through final aggregates, compared with a naive computation, and rejected requests.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::documented::check_answer;
use super::engine::{Engine, on_both_engines};
use super::ground::Metered;

/// First day, and number of days; all are final.
const FIRST_DAY: usize = 4;
const DAYS: usize = 5;

/// Days from the first one, with values in hundredths.
type Usage = [(usize, i128)];

async fn used(metered: &Metered, customer: &str, event_type: &str, usage: &Usage) {
    for (day, cents) in usage {
        let timestamp = format!("2026-01-{:02}T10:00:00Z", FIRST_DAY + day);
        let value = hundredths(*cents, 2);
        let event = json!({"customerId": customer, "value": value, "timestamp": timestamp});
        metered.send(event_type, event).await;
    }
}

/// A decimal number with this many places, without trailing zeros.
fn hundredths(number: i128, places: usize) -> String {
    let digits = format!("{:0width$}", number.abs(), width = places + 1);
    let (whole, rest) = digits.split_at(digits.len() - places);
    let text = format!("{}{whole}.{rest}", if number < 0 { "-" } else { "" });
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Slope and forecast by the textbook formulas, in hundred-thousandths: the mean of all points, and the slope around
/// it.
fn by_hand(points: &BTreeMap<usize, i128>) -> (String, String) {
    let scale = 1_000;
    let n = points.len() as i128;
    let all = || points.iter().map(|(x, y)| (*x as i128, y * scale));
    let (sum_x, sum_y) = all().fold((0, 0), |(sx, sy), (x, y)| (sx + x, sy + y));
    // Relative to their means, times n, to stay in whole numbers.
    let above: i128 = all().map(|(x, y)| (n * x - sum_x) * (n * y - sum_y)).sum();
    let below: i128 = all().map(|(x, _)| (n * x - sum_x) * (n * x - sum_x)).sum();
    assert_eq!(above % below, 0, "the test chooses points whose slope has few digits");
    let slope = above / below;
    let forecast = sum_y + slope * (n * DAYS as i128 - sum_x);
    assert_eq!(forecast % n, 0, "the test chooses points whose forecast has few digits");
    (hundredths(slope, 5), hundredths(forecast / n, 5))
}

async fn trend(metered: &Metered, query: &str) -> Value {
    let answer = metered.get(&format!("/meters/trend?period=daily&points={DAYS}&{query}")).await;
    assert_eq!(answer.status, 200, "{query}: {}", answer.body);
    check_answer("/meters/trend", "get", &answer);
    answer.body
}

async fn a_line_goes_through_final_aggregates_as_by_hand(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let cases: [(&str, &str, &Usage); 6] = [
        ("rising", "api.calls", &[(0, 1_000), (1, 2_050), (2, 2_900), (3, 4_125), (4, 5_000)]),
        ("falling", "api.calls", &[(0, -4), (0, 900), (1, 55), (2, 1), (3, 30), (4, -7_777)]),
        // Without usage a sum is zero.
        ("with a gap", "api.calls", &[(0, 700), (1, 100), (4, 3_300)]),
        ("counted", "test.count", &[(0, 1), (0, 1), (0, 1), (3, 1), (4, 1)]),
        // The maximum of no usage is missing, not zero.
        ("highest", "storage.bytes", &[(0, 1_000), (1, 9_000), (3, 2_000), (4, 77_000)]),
        // Before the first usage there is no point.
        ("new", "api.calls", &[(3, 500), (4, 825)]),
    ];
    for (customer, event_type, usage) in cases {
        used(&metered, customer, event_type, usage).await;
    }
    metered.aggregated("period=daily").await;
    for (customer, event_type, usage) in cases {
        let mut points: BTreeMap<usize, i128> = BTreeMap::new();
        for (day, cents) in usage {
            let point = points.entry(*day).or_default();
            *point += if event_type == "test.count" { 100 } else { *cents };
        }
        if event_type != "storage.bytes" {
            let first = usage[0].0;
            (first..DAYS).for_each(|day| *points.entry(day).or_default() += 0);
        }
        let (slope, forecast) = by_hand(&points);
        let query = format!("eventType={event_type}&customerId={}", customer.replace(' ', "%20"));
        let found = trend(&metered, &query).await;
        let shown: Vec<(String, &Value)> = found["points"]
            .as_array()
            .expect("points")
            .iter()
            .map(|point| {
                let start = point["start"].as_str().expect("a time");
                (start[8..10].to_owned(), &point["valueExact"])
            })
            .collect();
        let values: Vec<(String, Value)> = points
            .iter()
            .map(|(day, cents)| (format!("{:02}", FIRST_DAY + day), hundredths(*cents, 2).into()))
            .collect();
        assert!(
            shown
                .iter()
                .map(|(day, value)| (day, *value))
                .eq(values.iter().map(|(day, value)| (day, value))),
            "{customer}: {shown:?}, not {values:?}"
        );
        assert_eq!(found["slope"]["valueExact"], slope, "{customer}: {found}");
        assert_eq!(found["forecast"]["valueExact"], forecast, "{customer}: {found}");
        assert_eq!(found["forecast"]["start"], "2026-01-09T00:00:00.000Z");
        assert_eq!(found["forecast"]["end"], "2026-01-10T00:00:00.000Z");
        assert_eq!(
            (&found["slope"]["exact"], &found["forecast"]["exact"]),
            (&json!(true), &json!(true))
        );
    }
}

async fn digits_without_end_are_the_nearest_double_and_large_numbers_stay_exact(engine: Engine) {
    let metered = Metered::new(&engine).await;
    used(&metered, "c", "api.calls", &[(2, 100), (3, 100), (4, 200)]).await;
    let large = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
    for day in [7, 8] {
        let timestamp = format!("2026-01-{day:02}T10:00:00Z");
        let event = json!({"customerId": "large", "value": large, "timestamp": timestamp});
        metered.send("api.calls", event).await;
    }
    metered.aggregated("period=daily").await;
    let found = trend(&metered, "eventType=api.calls&customerId=c").await;
    // After 1, 1, 2 the forecast is 7/3.
    let third = format!("2.{}", "3".repeat(36));
    let expected = json!({"value": 2.333_333_333_333_333_5, "valueExact": third, "exact": false});
    for (name, value) in expected.as_object().expect("an object") {
        assert_eq!(&found["forecast"][name], value, "{found}");
    }
    assert_eq!(found["slope"], json!({"value": 0.5, "valueExact": "0.5", "exact": true}));
    let found = trend(&metered, "eventType=api.calls&customerId=large").await;
    assert_eq!(found["forecast"]["valueExact"], large);
    assert_eq!(found["forecast"]["value"], Value::Null);
}

async fn only_final_aggregates_count(engine: Engine) {
    let metered = Metered::new(&engine).await;
    used(&metered, "c", "api.calls", &[(8, 300)]).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1_000})).await;
    metered.aggregated("period=daily").await;
    let found = trend(&metered, "eventType=api.calls&customerId=c").await;
    assert_eq!(found["points"].as_array().map(Vec::len), Some(1), "today is not final: {found}");
    assert_eq!((&found["slope"], &found["forecast"]), (&Value::Null, &Value::Null));
    let found = trend(&metered, "eventType=api.calls&customerId=nobody").await;
    assert_eq!((&found["points"], &found["forecast"]), (&json!([]), &Value::Null));
    // Once the day is final, the next one is forecast.
    metered.set("2026-01-14T00:30:00Z");
    metered.aggregated("period=daily").await;
    let found = trend(&metered, "eventType=api.calls&customerId=c").await;
    assert_eq!(
        (&found["slope"]["value"], &found["forecast"]["value"]),
        (&json!(997), &json!(1_997))
    );
    assert_eq!(found["forecast"]["start"], "2026-01-14T00:00:00.000Z");
}

async fn a_trend_that_makes_no_sense_is_refused_by_name(engine: Engine) {
    let metered = Metered::new(&engine).await;
    for (query, named) in [
        ("customerId=c&period=daily", "eventType"),
        ("eventType=api.calls&period=daily", "customerId"),
        ("eventType=api.calls&customerId=c", "period"),
        ("eventType=api.calls&customerId=&period=daily", "customerId"),
        ("eventType=x&customerId=c&period=daily", "Must be one of"),
        ("eventType=api.calls&customerId=c&period=minutely", "must be one of"),
        ("eventType=api.calls&customerId=c&period=daily&points=1", "points"),
        ("eventType=api.calls&customerId=c&period=daily&points=367", "points"),
        ("eventType=api.calls&customerId=c&period=daily&points=few", "points"),
        ("eventType=api.calls&customerId=c&period=daily&window=daily", "window"),
    ] {
        let answer = metered.get(&format!("/meters/trend?{query}")).await;
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        let error = answer.body["error"].as_str().expect("an error");
        assert!(error.contains(named), "{query}: {error}");
    }
}

on_both_engines![
    a_line_goes_through_final_aggregates_as_by_hand,
    digits_without_end_are_the_nearest_double_and_large_numbers_stay_exact,
    only_final_aggregates_count,
    a_trend_that_makes_no_sense_is_refused_by_name,
];
