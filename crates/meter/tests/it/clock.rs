//! A clock that jumps, back and forth: announced results stay, nothing is announced twice, and nothing is
//! forgotten.

use std::time::Duration;

use logmill_io::params;
use logmill_meter::aggregate::AggregateState::{Corrected, Final};
use logmill_meter::due::SweepScope;
use logmill_meter::list::EventFilter;
use logmill_meter::period::PeriodKind;
use logmill_meter::record::Outcome::{Repeated, Stored};
use logmill_meter::settings::{AlertRule, EventType, Op};
use logmill_meter::{Decimal, Settings, Sizes};
use logmill_sim::meter_world::{World, body, settings};
use serde_json::{Value, json};

const NOW: &str = "2026-01-13T08:20:00.000Z";

fn call(id: &str, value: i64) -> Value {
    json!({"eventType": "api.calls", "customerId": "c", "value": value, "id": id})
}

fn call_at(id: &str, value: i64, timestamp: &str) -> Value {
    let mut event = call(id, value);
    event["timestamp"] = timestamp.into();
    event
}

/// The ids of events, of one customer or of all, newest first.
async fn listed(world: &World, customer: Option<&str>) -> Vec<String> {
    let filter =
        EventFilter { customer: customer.map(str::to_owned), limit: 100, ..EventFilter::default() };
    let found = world.meter.events(&filter).await.expect("events");
    found.items.into_iter().map(|listed| listed.event.id).collect()
}

async fn count(world: &World, what: &str) -> i64 {
    let text = format!("SELECT count(*) FROM {what}");
    let found = world.meter.sql().query(&text, params![]).await.expect("a count");
    found.row().expect("a row").int(0).expect("a number")
}

/// Checks that every revision that is not provisional was announced once; returns their number.
async fn told_once(world: &World) -> i64 {
    let revisions = count(world, "meter_revision WHERE state > 0").await;
    assert_eq!(count(world, "webhook_message").await, revisions);
    revisions
}

#[tokio::test(start_paused = true)]
async fn events_that_come_while_the_clock_jumps_count_once_and_are_listed_as_they_came() {
    let world = World::new(NOW, settings()).await;
    assert_eq!(world.record(&[call("a", 1)]).await, [Stored]);
    world.set("2026-01-13T07:20:00Z");
    assert_eq!(world.record(&[call("b", 2), call("a", 1)]).await, [Stored, Repeated]);
    world.set("2026-01-14T10:20:00Z");
    assert_eq!(world.record(&[call("c", 4), call("b", 2)]).await, [Stored, Repeated]);
    world.set("2026-01-13T09:20:00Z");
    assert_eq!(world.record(&[call("d", 8), call("c", 4)]).await, [Stored, Repeated]);
    assert_eq!(listed(&world, None).await, ["d", "c", "b", "a"], "as they came");
    assert_eq!(listed(&world, Some("c")).await, ["c", "d", "a", "b"], "as they happened");
    world.set("2026-02-01T01:00:00Z");
    world.sweep(SweepScope::Finished).await;
    let daily: Vec<(String, Value)> = world
        .aggregates("daily")
        .await
        .iter()
        .map(|one| (one.key.clone(), body(one)["events"]["api.calls"].clone()))
        .collect();
    let expected = [("20260114".to_owned(), json!(4)), ("20260113".to_owned(), json!(11))];
    assert_eq!(daily, expected);
    assert_eq!(world.recounted().await, 4);
}

#[tokio::test(start_paused = true)]
async fn the_bounds_of_time_follow_the_clock() {
    let past_max = Some(Duration::from_secs(3_600));
    let world = World::new(NOW, Settings { past_max, ..settings() }).await;
    let event = call_at("a", 1, NOW);
    for (now, is_taken) in [
        (NOW, true),
        ("2026-01-13T08:15:00Z", true),
        ("2026-01-13T08:14:59.999Z", false),
        ("2026-01-13T09:20:00Z", true),
        ("2026-01-13T09:20:00.001Z", false),
        (NOW, true),
    ] {
        world.set(now);
        assert_eq!(world.checked(&event).is_ok(), is_taken, "{now}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_period_that_was_final_stays_final_when_the_clock_goes_back() {
    let world = World::new(NOW, settings()).await;
    world.record(&[call("a", 1)]).await;
    world.set("2026-01-13T09:15:00Z");
    world.sweep(SweepScope::Finished).await;
    let hourly = async || {
        let hourly = world.aggregates("hourly").await;
        (hourly[0].state, hourly[0].revision, body(&hourly[0])["events"]["api.calls"].clone())
    };
    assert_eq!((hourly().await, told_once(&world).await), ((Final, 1, json!(1)), 1));
    world.set("2026-01-13T08:30:00Z");
    world.sweep(SweepScope::Finished).await;
    world.sweep(SweepScope::All).await;
    assert_eq!((hourly().await, told_once(&world).await), ((Final, 1, json!(1)), 1));
    // By the clock it came in time, but its period was already announced.
    world.record(&[call("b", 2)]).await;
    world.sweep(SweepScope::All).await;
    assert_eq!((hourly().await, told_once(&world).await), ((Corrected, 2, json!(3)), 2));
    for now in ["2026-01-13T09:15:00Z", "2026-01-13T07:00:00Z", "2026-01-13T09:30:00Z"] {
        world.set(now);
        world.sweep(SweepScope::Finished).await;
        world.sweep(SweepScope::All).await;
    }
    assert_eq!((hourly().await, told_once(&world).await), ((Corrected, 2, json!(3)), 2));
    world.recounted().await;
}

#[tokio::test(start_paused = true)]
async fn a_jump_over_many_periods_makes_each_of_them_final_once() {
    let world = World::new("2026-01-01T00:20:00Z", settings()).await;
    for day in 1..=20 {
        world.set(&format!("2026-01-{day:02}T12:00:00Z"));
        world.record(&[call(&format!("e{day}"), day)]).await;
    }
    // Jumps by years, alternately back to before the start, and forward again.
    for now in ["2031-01-01T00:00:00Z", "2025-01-01T00:00:00Z", "2027-06-01T00:00:00Z"] {
        world.set(now);
        world.sweep(SweepScope::Finished).await;
        world.sweep(SweepScope::All).await;
        let daily = world.aggregates("daily").await;
        assert!(daily.iter().all(|one| (one.state, one.revision) == (Final, 1)), "{now}");
        let values: Vec<Value> =
            daily.iter().rev().map(|one| body(one)["events"]["api.calls"].clone()).collect();
        assert_eq!(values, (1..=20).map(|day| json!(day)).collect::<Vec<_>>(), "{now}");
        // Hours, days, weeks and a month.
        assert_eq!(told_once(&world).await, 20 + 20 + 4 + 1, "{now}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_held_value_is_corrected_for_its_whole_period_whatever_the_clock_says() {
    let mut settings = settings();
    settings.events.insert("seats".to_owned(), EventType::new(Op::TimeWeighted));
    settings.periods = vec![PeriodKind::Hourly];
    let world = World::new(NOW, settings).await;
    let seats = |value: i64, timestamp: &str| {
        let mut event = json!({"eventType": "seats", "customerId": "c", "value": value});
        event["timestamp"] = timestamp.into();
        event
    };
    let area = async || {
        let hourly = world.aggregates("hourly").await;
        let first = hourly.iter().find(|one| one.key == "2026011308").expect("the first hour");
        (first.state, body(first)["events"]["seats"].clone())
    };
    world.record(&[seats(2, "2026-01-13T08:00:00Z")]).await;
    world.set("2026-01-13T09:15:00Z");
    world.sweep(SweepScope::Finished).await;
    assert_eq!(area().await, (Final, json!(2 * 3_600)));
    world.set("2026-01-13T08:30:00Z");
    world.record(&[seats(4, "2026-01-13T08:15:00Z")]).await;
    let corrected = (Corrected, json!(2 * 900 + 4 * 2_700));
    world.sweep(SweepScope::All).await;
    assert_eq!(area().await, corrected);
    world.set("2026-01-13T09:15:00Z");
    world.sweep(SweepScope::Finished).await;
    assert_eq!(area().await, corrected);
}

#[tokio::test(start_paused = true)]
async fn a_threshold_is_announced_once_however_the_clock_jumps() {
    let alert = AlertRule {
        name: "many".to_owned(),
        event_type: "api.calls".to_owned(),
        op: None,
        period: PeriodKind::Daily,
        thresholds: vec![Decimal::from_integer(10)],
        customer: None,
    };
    let world = World::new(NOW, Settings { alerts: vec![alert], ..settings() }).await;
    for (number, (now, told)) in [
        (NOW, 1),
        ("2026-01-12T08:20:00Z", 2),
        ("2026-01-13T09:20:00Z", 2),
        ("2026-01-14T09:20:00Z", 3),
        ("2026-01-12T09:20:00Z", 3),
    ]
    .into_iter()
    .enumerate()
    {
        world.set(now);
        world.record(&[call(&format!("e{number}"), 20)]).await;
        world.meter.run_housekeeping().await.expect("house is kept");
        assert_eq!(world.work().await, Vec::<String>::new());
        assert_eq!(count(&world, "meter_alert").await, told, "{now}");
        assert_eq!(count(&world, "webhook_message").await, told, "{now}");
    }
}

#[tokio::test(start_paused = true)]
async fn events_archived_while_the_clock_was_ahead_still_count_once() {
    let retention = Some(Duration::from_secs(30 * 24 * 3_600));
    let sizes = Sizes { keys_per_blob: 10, ..Sizes::default() };
    let world = World::with_sizes(NOW, Settings { retention, ..settings() }, sizes).await;
    let events: Vec<Value> = (0..25).map(|number| call(&format!("e{number}"), number)).collect();
    world.record(&events).await;
    world.set("2036-01-13T08:20:00Z");
    world.meter.run_housekeeping().await.expect("house is kept");
    assert_eq!(count(&world, "meter_event").await, 0, "all are archived");
    world.set("2026-01-13T08:25:00Z");
    assert!(world.record(&events).await.iter().all(|outcome| *outcome == Repeated));
    assert_eq!(world.record(&[call("new", 100)]).await, [Stored]);
    world.meter.run_housekeeping().await.expect("house is kept");
    world.set("2026-01-13T09:15:00Z");
    world.sweep(SweepScope::Finished).await;
    assert_eq!(body(&world.aggregates("hourly").await[0])["events"]["api.calls"], 400);
    assert_eq!(listed(&world, Some("c")).await.len(), 26);
    assert_eq!(world.recounted().await, 26);
    let found = world.meter.find_event("test", "e7").await.expect("a look");
    assert_eq!(found.map(|event| event.value), Some(Decimal::from_integer(7)));
}
