//! Aggregates: the seed's vectors, its traps, and corrections.

use logmill_meter::aggregate::AggregateState::{Corrected, Final, Provisional};
use logmill_meter::due::SweepScope;
use logmill_meter::period::PeriodKind;
use logmill_meter::settings::{AlertRule, EventType, Op};
use logmill_meter::{Decimal, Settings};
use logmill_sim::meter_world::{World, body, settings};
use serde_json::{Value, json};

const NOW: &str = "2026-01-13T08:20:00.000Z";

fn events(event_type: &str, values: &[&str]) -> Vec<Value> {
    let event = |value| json!({"eventType": event_type, "customerId": "cust_123", "value": value});
    values.iter().map(event).collect()
}

#[tokio::test(start_paused = true)]
async fn the_vectors_of_the_seed() {
    for (event_type, values, expected) in [
        ("api.calls", "10 20 30 40 50 60 70 80 90 100", json!(550)),
        ("storage.bytes", "1000 5000 2000 3000 6000 4000", json!(6000)),
        ("response.time.ms", "100 200 300 400 500 600 700 800 900 1000", json!(550)),
        ("test.min", "50 20 5 30", json!(5)),
        ("test.count", "1 1 1 1 1 1 1 1 1 1", json!(10)),
        ("test.first", "111 222 333", json!(111)),
        ("test.last", "111 222 999", json!(999)),
        ("api.calls", "-10 20 -5 15 -8 12 -3 9 -7 17", json!(40)),
        ("response.time.ms", "10.5 20.5 30.5 40.5 50.5 60.5 70.5 80.5 90.5 100.5", json!(55.5)),
        ("api.calls", "42", json!(42)),
        ("storage.bytes", "0 0 100 0", json!(100)),
        ("test.min", "3 -5 0", json!(-5)),
    ] {
        let world = World::new(NOW, settings()).await;
        let values: Vec<&str> = values.split(' ').collect();
        world.record(&events(event_type, &values)).await;
        world.sweep(SweepScope::All).await;
        for period in ["hourly", "daily", "weekly", "monthly"] {
            let aggregates = world.aggregates(period).await;
            assert_eq!(aggregates.len(), 1, "{period}");
            let body = body(&aggregates[0]);
            assert_eq!(body["events"][event_type], expected, "{event_type} of {values:?}");
            assert_eq!(body["eventCounts"][event_type], values.len(), "{event_type}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_aggregate_has_the_id_and_the_bounds_of_the_seed() {
    let world = World::new(NOW, settings()).await;
    world.record(&events("api.calls", &["1"])).await;
    world.sweep(SweepScope::All).await;
    for (period, key, start, end) in [
        ("hourly", "2026011308", "2026-01-13T08:00:00Z", "2026-01-13T09:00:00Z"),
        ("daily", "20260113", "2026-01-13T00:00:00Z", "2026-01-14T00:00:00Z"),
        ("weekly", "202603", "2026-01-12T00:00:00Z", "2026-01-19T00:00:00Z"),
        ("monthly", "202601", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z"),
    ] {
        let aggregate = &world.aggregates(period).await[0];
        assert_eq!(aggregate.id, format!("cust_123_{period}_{key}"));
        assert_eq!(aggregate.start, logmill_sim::meter_world::at(start));
        assert_eq!(aggregate.end, logmill_sim::meter_world::at(end));
    }
}

/// Trap 1 of the seed: a trigger in the middle of a period blocked its final aggregate.
#[tokio::test(start_paused = true)]
async fn a_trigger_in_the_middle_of_a_period_does_not_keep_it_from_becoming_final() {
    let world = World::new(NOW, settings()).await;
    world.record(&events("api.calls", &["1"])).await;
    world.sweep(SweepScope::All).await;
    let hourly = &world.aggregates("hourly").await[0];
    assert_eq!((hourly.state, hourly.revision), (Provisional, 1));
    world.record(&events("api.calls", &["2"])).await;
    world.set("2026-01-13T09:09:59Z");
    world.sweep(SweepScope::Finished).await;
    assert_eq!(world.aggregates("hourly").await[0].state, Provisional, "within the grace");
    world.set("2026-01-13T09:10:00Z");
    world.sweep(SweepScope::Finished).await;
    let hourly = &world.aggregates("hourly").await[0];
    assert_eq!((hourly.state, hourly.revision), (Final, 2));
    assert_eq!(body(hourly)["events"]["api.calls"], 3);
    // Nothing changed, so there is no new revision.
    world.sweep(SweepScope::All).await;
    assert_eq!(world.aggregates("hourly").await[0].revision, 2);
}

/// Trap 4: only the previous period was checked. Trap 2: on a Sunday the current week was taken for the last one.
#[tokio::test(start_paused = true)]
async fn every_finished_period_is_found_however_late_the_sweep_is() {
    let world = World::new("2026-01-11T23:30:00Z", settings()).await;
    for (now, id) in [
        ("2026-01-11T23:30:00Z", "sunday"),
        ("2026-01-12T00:10:00Z", "monday"),
        ("2026-01-20T05:00:00Z", "later"),
    ] {
        world.set(now);
        world
            .record(&[json!({"eventType": "api.calls", "customerId": "c", "value": 1, "id": id})])
            .await;
    }
    // The server was down for months.
    world.set("2026-05-01T00:00:00Z");
    world.sweep(SweepScope::Finished).await;
    let keys = |aggregates: Vec<logmill_meter::list::Aggregate>| -> Vec<String> {
        assert!(aggregates.iter().all(|aggregate| aggregate.state == Final));
        aggregates.into_iter().map(|aggregate| aggregate.key).collect()
    };
    assert_eq!(keys(world.aggregates("hourly").await), ["2026012005", "2026011200", "2026011123"]);
    assert_eq!(keys(world.aggregates("weekly").await), ["202604", "202603", "202602"]);
    assert_eq!(keys(world.aggregates("monthly").await), ["202601"]);
    assert_eq!(world.sweep(SweepScope::All).await.jobs(), 0, "nothing is left");
}

/// The examples of the document: at 11:15 the last hour is 10:00 to 10:59, and the last day is yesterday.
#[tokio::test(start_paused = true)]
async fn a_sweep_finalizes_the_previous_hour_and_yesterday_and_no_current_period() {
    let world = World::new("2026-01-12T10:30:00Z", settings()).await;
    for now in ["2026-01-12T10:30:00Z", "2026-01-13T10:30:00Z", "2026-01-13T11:05:00Z"] {
        world.set(now);
        let event = json!({"eventType": "api.calls", "customerId": "c", "value": 1, "id": now});
        world.record(&[event]).await;
    }
    world.set("2026-01-13T11:15:00Z");
    world.sweep(SweepScope::Finished).await;
    let made = async |period| {
        let made = world.aggregates(period).await.into_iter();
        let span = |one: logmill_meter::list::Aggregate| {
            let time = logmill_meter::period::format_time;
            (one.key, time(one.start), time(one.end))
        };
        made.map(span).collect::<Vec<_>>()
    };
    let span = |key: &str, start: &str, end: &str| {
        (key.to_owned(), format!("2026-01-{start}:00:00.000Z"), format!("2026-01-{end}:00:00.000Z"))
    };
    let hours = [span("2026011310", "13T10", "13T11"), span("2026011210", "12T10", "12T11")];
    assert_eq!(made("hourly").await, hours, "ends are the first moment after");
    assert_eq!(made("daily").await, [span("20260112", "12T00", "13T00")]);
    assert_eq!(made("weekly").await, [], "the week goes on");
    assert_eq!(made("monthly").await, []);
}

/// Trap 5: with a count configured every customer ever seen got an aggregate in every period.
#[tokio::test(start_paused = true)]
async fn a_period_without_usage_has_no_aggregate() {
    let world = World::new(NOW, settings()).await;
    world.record(&events("test.count", &["1"])).await;
    world.set("2026-01-15T00:00:00Z");
    world.sweep(SweepScope::Finished).await;
    world.record(&[json!({"eventType": "test.count", "customerId": "other", "value": 1})]).await;
    world.set("2026-01-16T12:00:00Z");
    world.sweep(SweepScope::Finished).await;
    let daily = world.aggregates("daily").await;
    let ids: Vec<&str> = daily.iter().map(|aggregate| aggregate.id.as_str()).collect();
    assert_eq!(ids, ["other_daily_20260115", "cust_123_daily_20260113"]);
}

#[tokio::test(start_paused = true)]
async fn a_late_event_is_included_within_the_grace_and_corrects_the_aggregate_after_it() {
    let world = World::new("2026-01-13T08:59:00Z", settings()).await;
    world.record(&events("api.calls", &["1"])).await;
    world.set("2026-01-13T09:05:00Z");
    let late = |id: &str| {
        json!({"eventType": "api.calls", "customerId": "cust_123", "value": 10, "id": id,
               "timestamp": "2026-01-13T08:59:59.999Z"})
    };
    world.record(&[late("joins")]).await;
    world.set("2026-01-13T09:15:00Z");
    world.sweep(SweepScope::Finished).await;
    let hourly = &world.aggregates("hourly").await[0];
    assert_eq!((hourly.state, body(hourly)["events"]["api.calls"].clone()), (Final, json!(11)));
    world.set("2026-01-20T00:00:00Z");
    world.record(&[late("corrects")]).await;
    world.sweep(SweepScope::Finished).await;
    let hourly = &world.aggregates("hourly").await[0];
    assert_eq!((hourly.state, body(hourly)["events"]["api.calls"].clone()), (Corrected, json!(21)));
    let said: Vec<(i64, &str)> = vec![(1, "final"), (2, "corrected")];
    let revisions = world.meter.revisions(&hourly.id).await.expect("revisions");
    let found: Vec<(i64, &str)> =
        revisions.iter().map(|revision| (revision.revision, revision.state.name())).collect();
    assert_eq!(found, said);
    let behind = world.meter.events_behind(hourly, 100, None).await.expect("events");
    let sum: Vec<String> =
        behind.items.iter().map(|listed| listed.event.value.to_string()).collect();
    assert_eq!(sum, ["10", "10", "1"]);
}

#[tokio::test(start_paused = true)]
async fn a_type_that_is_no_longer_configured_fails_its_job_and_is_not_left_out() {
    let mut world = World::new(NOW, settings()).await;
    world.record(&events("api.calls", &["1"])).await;
    world.record(&events("test.min", &["1"])).await;
    let mut without = settings();
    without.events.remove("test.min");
    world.meter = world.reopened(without).await;
    world.set("2026-01-13T10:00:00Z");
    world.meter.sweep(SweepScope::Finished).await.expect("a sweep");
    let failed = world.work().await;
    assert!(
        failed[0].contains("event type test.min has usage but is not configured"),
        "{failed:?}"
    );
    assert!(world.aggregates("hourly").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn time_weighted_values_hold_over_periods_without_events() {
    let mut settings = settings();
    settings.events.insert("seats".to_owned(), EventType::new(Op::TimeWeighted));
    let world = World::new("2026-01-13T08:30:00Z", settings).await;
    let seats = |value: i64, at: &str| {
        let mut event = json!({"eventType": "seats", "customerId": "c", "value": value});
        event["timestamp"] = at.into();
        event
    };
    world.record(&[seats(2, "2026-01-13T08:00:00Z"), seats(5, "2026-01-13T08:30:00Z")]).await;
    // A late value changes what was computed before it came.
    world.record(&[seats(4, "2026-01-13T08:15:00Z"), seats(3, "2026-01-13T08:20:00Z")]).await;
    world.set("2026-01-13T11:30:00Z");
    world.sweep(SweepScope::Finished).await;
    let hourly = world.aggregates("hourly").await;
    let areas: Vec<(String, Value)> = hourly
        .iter()
        .map(|aggregate| (aggregate.key.clone(), body(aggregate)["events"]["seats"].clone()))
        .collect();
    // 2 for 15 minutes, 4 for 5, 3 for 10, 5 for 30; then 5 for whole hours.
    assert_eq!(
        areas,
        [
            ("2026011310".to_owned(), json!(5 * 3600)),
            ("2026011309".to_owned(), json!(5 * 3600)),
            ("2026011308".to_owned(), json!(2 * 900 + 4 * 300 + 3 * 600 + 5 * 1800)),
        ]
    );
    world.recounted().await;
}

#[tokio::test(start_paused = true)]
async fn a_threshold_is_announced_once_per_period() {
    let alert = AlertRule {
        name: "many".to_owned(),
        event_type: "api.calls".to_owned(),
        op: None,
        period: PeriodKind::Daily,
        thresholds: vec![Decimal::from_integer(10), Decimal::from_integer(100)],
        customer: None,
    };
    let world = World::new(NOW, Settings { alerts: vec![alert], ..settings() }).await;
    let told = async || {
        let text = "SELECT threshold, period_key FROM meter_alert ORDER BY period_key, threshold";
        let found = world.meter.sql().query(text, vec![]).await.expect("alerts");
        found
            .rows
            .iter()
            .map(|row| format!("{} {}", row.text(1).expect("text"), row.text(0).expect("text")))
            .collect::<Vec<_>>()
    };
    for (values, expected) in [
        (["9"], vec![]),
        (["1"], vec!["20260113 10"]),
        (["5"], vec!["20260113 10"]),
        (["200"], vec!["20260113 10", "20260113 100"]),
    ] {
        world.record(&events("api.calls", &values)).await;
        world.meter.run_housekeeping().await.expect("house is kept");
        assert_eq!(world.work().await, Vec::<String>::new());
        assert_eq!(told().await, expected, "after {values:?}");
    }
    world.set("2026-01-14T00:00:00Z");
    world.record(&events("api.calls", &["50"])).await;
    world.sweep(SweepScope::Finished).await;
    assert_eq!(told().await, ["20260113 10", "20260113 100", "20260114 10"]);
}
