//! From usage to aggregates over HTTP: the seed's test vectors and its pitfalls.

use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::{Metered, settings};

async fn post_all(metered: &Metered, customer: &str, event_type: &str, values: &[&str]) {
    let events: Vec<Value> = values
        .iter()
        .map(|value| json!({"eventType": event_type, "customerId": customer, "value": value}))
        .collect();
    let answer = metered.post("/usagebatch", &json!(events)).await;
    assert_eq!(answer.status, 201, "{}", answer.body);
}

async fn the_vectors_of_the_seed_hold(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let tens = ["10", "20", "30", "40", "50", "60", "70", "80", "90", "100"];
    let hundreds = ["100", "200", "300", "400", "500", "600", "700", "800", "900", "1000"];
    let halves = ["10.5", "20.5", "30.5", "40.5", "50.5", "60.5", "70.5", "80.5", "90.5", "100.5"];
    let signs = ["-10", "20", "-5", "15", "-8", "12", "-3", "9", "-7", "17"];
    let firsts = ["111", "222", "333", "444", "999"];
    let cases: [(&str, &str, &[&str], Value); 12] = [
        ("sum", "api.calls", &tens, json!(550)),
        ("max", "storage.bytes", &["1000", "5000", "2000", "6000", "3000"], json!(6000)),
        ("avg", "response.time.ms", &hundreds, json!(550)),
        ("min", "test.min", &["50", "5", "25", "15"], json!(5)),
        ("count", "test.count", &tens, json!(10)),
        ("first", "test.first", &firsts, json!(111)),
        ("last", "test.last", &firsts, json!(999)),
        ("signs", "api.calls", &signs, json!(40)),
        ("decimals", "response.time.ms", &halves, json!(55.5)),
        ("single", "api.calls", &["42"], json!(42)),
        ("zeros", "storage.bytes", &["0", "100", "0", "50"], json!(100)),
        ("negative-min", "test.min", &["10", "-5", "0"], json!(-5)),
    ];
    for (customer, event_type, values, _) in &cases {
        post_all(&metered, customer, event_type, values).await;
    }
    let aggregates = metered.aggregated("period=daily").await;
    assert_eq!(aggregates.len(), cases.len());
    for (customer, event_type, values, expected) in cases {
        let found = aggregates.iter().find(|aggregate| aggregate["customerId"] == customer);
        let found = found.unwrap_or_else(|| panic!("nothing of {customer}"));
        assert_eq!(found["events"], json!({event_type: expected}), "{customer}");
        assert_eq!(found["eventCounts"], json!({event_type: values.len()}), "{customer}");
        assert_eq!(found["state"], "provisional");
        assert_eq!(found["_id"], format!("{customer}_daily_20260113"));
        assert_eq!(found["periodStart"], "2026-01-13T00:00:00.000Z");
        assert_eq!(found["periodEnd"], "2026-01-13T23:59:59.999Z");
        assert_eq!(found["periodKey"], "20260113");
    }
}

async fn a_trigger_tells_what_it_found(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let answer = metered.post("/aggregations/trigger", &json!(null)).await;
    let nothing = json!({"message": "No events to aggregate", "jobsQueued": 0});
    assert_eq!((answer.status, answer.body), (200, nothing));
    post_all(&metered, "a", "api.calls", &["1", "2"]).await;
    post_all(&metered, "b", "api.calls", &["1"]).await;
    let answer = metered.post("/aggregations/trigger", &json!(null)).await;
    let expected = json!({
        "message": "Aggregation jobs queued", "jobsCreated": 8, "jobsUpdated": 0, "jobsQueued": 8,
        "customersFound": 2, "periodsConfigured": 4, "eventsScanned": 3,
    });
    assert_eq!((answer.status, answer.body), (202, expected));
    let answer = metered.post("/aggregations/trigger", &json!({})).await;
    let again = (&answer.body["jobsCreated"], &answer.body["jobsUpdated"]);
    assert_eq!((answer.status, again), (202, (&json!(0), &json!(8))));
}

async fn without_periods_nothing_is_triggered(engine: Engine) {
    let mut settings = settings();
    settings.periods.clear();
    let metered = Metered::with(&engine, settings, |_| {}).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1})).await;
    let answer = metered.post("/aggregations/trigger", &json!(null)).await;
    assert_eq!(answer.status, 503, "{}", answer.body);
    assert!(answer.body["error"].as_str().is_some_and(|why| why.contains("no periods")));
}

async fn a_trigger_in_the_middle_of_a_period_does_not_stand_in_the_way_of_the_final_one(
    engine: Engine,
) {
    let metered = Metered::new(&engine).await;
    post_all(&metered, "c", "api.calls", &["1"]).await;
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("provisional"), &json!(1))
    );
    metered.set("2026-01-13T23:59:59.999Z");
    post_all(&metered, "c", "api.calls", &["10"]).await;
    // The period is over, but not its grace.
    metered.set("2026-01-14T00:05:00Z");
    let daily = metered.aggregated("period=daily").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("provisional"), &json!(11))
    );
    // Late, but within the grace.
    let late = json!({"customerId": "c", "value": 100, "timestamp": "2026-01-13T23:00:00Z"});
    metered.send("api.calls", late).await;
    metered.set("2026-01-14T00:10:00Z");
    let daily = metered.aggregated("period=daily&customerId=c").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("final"), &json!(111))
    );
    // After the grace: a correction.
    let later = json!({"customerId": "c", "value": 1000, "timestamp": "2026-01-13T23:00:00Z"});
    metered.send("api.calls", later).await;
    let daily = metered.aggregated("period=daily&customerId=c").await;
    assert_eq!(
        (&daily[0]["state"], &daily[0]["events"]["api.calls"]),
        (&json!("corrected"), &json!(1111))
    );
    let whole = metered.found("/aggregations/c_daily_20260113").await;
    let said: Vec<(&str, i64)> = whole["revisions"]
        .as_array()
        .expect("revisions")
        .iter()
        .filter_map(|one| Some((one["state"].as_str()?, one["events"]["api.calls"].as_i64()?)))
        .collect();
    let expected = [("provisional", 1), ("provisional", 11), ("final", 111), ("corrected", 1111)];
    assert_eq!(said, expected);
}

async fn a_customer_without_usage_in_a_period_has_no_aggregate_of_it(engine: Engine) {
    let metered = Metered::new(&engine).await;
    post_all(&metered, "c", "test.count", &["1"]).await;
    metered.set("2026-01-20T08:00:00Z");
    post_all(&metered, "d", "test.count", &["1"]).await;
    let daily = metered.aggregated("period=daily").await;
    let ids: Vec<&str> = daily.iter().filter_map(|one| one["_id"].as_str()).collect();
    assert_eq!(ids, ["d_daily_20260120", "c_daily_20260113"]);
}

async fn sundays_are_of_the_week_that_ends_with_them(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.set("2026-01-04T12:00:00Z");
    post_all(&metered, "c", "api.calls", &["1"]).await;
    let weekly = metered.aggregated("period=weekly").await;
    assert_eq!(weekly[0]["periodKey"], "202601");
    assert_eq!(weekly[0]["periodStart"], "2025-12-29T00:00:00.000Z");
    assert_eq!(weekly[0]["state"], "provisional");
}

async fn the_events_behind_an_aggregate_are_those_that_it_counts(engine: Engine) {
    let metered = Metered::new(&engine).await;
    post_all(&metered, "c", "api.calls", &["1", "2", "3"]).await;
    post_all(&metered, "d", "api.calls", &["4"]).await;
    let hourly = metered.aggregated("period=hourly&customerId=c").await;
    let id = hourly[0]["_id"].as_str().expect("an id");
    let mut values = Vec::new();
    let mut path = format!("/aggregations/{id}/events?limit=2");
    loop {
        let answer = metered.get(&path).await;
        assert_eq!(answer.status, 200, "{}", answer.body);
        let page = answer.body.as_array().expect("a page").clone();
        values.extend(page.iter().filter_map(|event| event["value"].as_i64()));
        let Some(link) = answer.headers.get("link") else { break };
        let link = link.to_str().expect("text");
        path = link.trim_start_matches('<').split('>').next().expect("an address").to_owned();
    }
    assert_eq!(values, [3, 2, 1]);
    assert_eq!(metered.get("/aggregations/nobody_daily_20260113/events").await.status, 404);
    assert_eq!(metered.get("/aggregations/nobody_daily_20260113").await.status, 404);
}

async fn a_customer_may_have_any_name(engine: Engine) {
    let metered = Metered::new(&engine).await;
    let name = "a/b c?ü%";
    metered.send("api.calls", json!({"customerId": name, "value": 1})).await;
    let encoded = "a%2Fb%20c%3F%C3%BC%25";
    let daily = metered.aggregated(&format!("period=daily&customerId={encoded}")).await;
    assert_eq!(daily[0]["customerId"], name);
    let found = metered.found(&format!("/aggregations/{encoded}_daily_20260113")).await;
    assert_eq!(found["customerId"], name);
    let behind = metered.found(&format!("/aggregations/{encoded}_daily_20260113/events")).await;
    assert_eq!(behind[0]["customerId"], name);
}

async fn a_mean_whose_digits_do_not_end_is_the_nearest_double_with_its_fraction(engine: Engine) {
    let metered = Metered::new(&engine).await;
    post_all(&metered, "c", "response.time.ms", &["3", "3", "4"]).await;
    post_all(&metered, "d", "response.time.ms", &["0.000000000000000001", "0", "0"]).await;
    post_all(&metered, "e", "response.time.ms", &["1", "2"]).await;
    let daily = metered.aggregated("period=daily").await;
    let of = |customer: &str| {
        let found = daily.iter().find(|one| one["customerId"] == customer).expect("an aggregate");
        let said = ["events", "eventsExact", "eventsMean"];
        let [number, exact, mean] = said.map(|name| found[name]["response.time.ms"].clone());
        (number, exact, mean, found["approximate"].clone())
    };
    let approximate = json!(["response.time.ms"]);
    let mean = |sum: &str| json!({"sum": sum, "count": 3});
    let expected = (
        json!(3.333_333_333_333_333_5),
        json!(format!("3.{}", "3".repeat(36))),
        mean("10"),
        approximate,
    );
    assert_eq!(of("c"), expected);
    let tiny = of("d");
    // This JSON parser may be off in the last digit.
    assert!(tiny.0.to_string().starts_with("3.33333333333333"), "{}", tiny.0);
    assert_eq!(tiny.2, mean("0.000000000000000001"));
    assert_eq!(of("e"), (json!(1.5), json!("1.5"), Value::Null, Value::Null));
    let query = "/meters/query?eventType=response.time.ms&from=2026-01-13T00:00:00Z&customerId=c";
    let line = metered.found(query).await["data"][0].take();
    assert_eq!(line["value"], json!(3.333_333_333_333_333_5));
    assert_eq!((&line["exact"], &line["mean"]), (&json!(false), &mean("10")));
}

async fn a_correction_reaches_a_final_aggregate_without_a_trigger(engine: Engine) {
    let metered = Metered::new(&engine).await;
    metered.send("api.calls", json!({"customerId": "c", "value": 1, "id": "a"})).await;
    metered.set("2026-01-14T00:30:00Z");
    assert_eq!(metered.aggregated("period=daily").await[0]["state"], "final");
    let amend = json!({"id": "a", "value": 5, "reason": "x"});
    assert_eq!(metered.post("/events/amend", &amend).await.status, 200);
    metered.work().await;
    for id in ["c_daily_20260113", "c_hourly_2026011308"] {
        let now = metered.found(&format!("/aggregations/{id}")).await;
        let said = (&now["state"], &now["events"]["api.calls"]);
        assert_eq!(said, (&json!("corrected"), &json!(5)), "{id}");
    }
}

on_both_engines![
    the_vectors_of_the_seed_hold,
    a_trigger_tells_what_it_found,
    without_periods_nothing_is_triggered,
    a_trigger_in_the_middle_of_a_period_does_not_stand_in_the_way_of_the_final_one,
    a_customer_without_usage_in_a_period_has_no_aggregate_of_it,
    sundays_are_of_the_week_that_ends_with_them,
    the_events_behind_an_aggregate_are_those_that_it_counts,
    a_customer_may_have_any_name,
    a_mean_whose_digits_do_not_end_is_the_nearest_double_with_its_fraction,
    a_correction_reaches_a_final_aggregate_without_a_trigger,
];
