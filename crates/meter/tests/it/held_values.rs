//! Values that persist: the value before a period, and the passing of time alone, change its
//! figures.

use logmill_meter::aggregate::AggregateState::{self, Corrected, Final};
use logmill_meter::correct::{Change, Correction};
use logmill_meter::due::SweepScope;
use logmill_meter::period::PeriodKind;
use logmill_meter::record::ReceivedEvent;
use logmill_meter::settings::{AlertRule, EventType, Op};
use logmill_meter::{Decimal, Settings};
use logmill_sim::meter_world::{World, at, body, settings};
use serde_json::{Value, json};

fn with_seats() -> Settings {
    let mut settings = settings();
    settings.events.insert("seats".to_owned(), EventType::new(Op::TimeWeighted));
    settings
}

fn seats(id: &str, value: i64, at: &str) -> Value {
    json!({"eventType": "seats", "customerId": "c", "value": value, "id": id, "timestamp": at})
}

/// The aggregates of hours, oldest first.
async fn hours(world: &World) -> Vec<(String, AggregateState, Value)> {
    let hourly = world.aggregates("hourly").await;
    let said = |aggregate| (body(aggregate)["events"]["seats"].clone(), aggregate);
    let said = hourly.iter().rev().map(said);
    said.map(|(value, of)| (of.key[8..].to_owned(), of.state, value)).collect()
}

fn hour(key: &str, state: AggregateState, value: Value) -> (String, AggregateState, Value) {
    (key.to_owned(), state, value)
}

/// Five seats since 08:10, and the hours until 11:00 are final.
async fn held() -> World {
    let world = World::new("2026-01-13T08:30:00Z", with_seats()).await;
    world.record(&[seats("a", 5, "2026-01-13T08:10:00Z")]).await;
    world.set("2026-01-13T11:30:00Z");
    world.sweep(SweepScope::Finished).await;
    let whole = json!(5 * 3600);
    assert_eq!(
        hours(&world).await,
        [
            hour("08", Final, json!(5 * 3000)),
            hour("09", Final, whole.clone()),
            hour("10", Final, whole)
        ]
    );
    world
}

async fn correct(world: &World, change: Change) {
    let (source, id) = ("test".to_owned(), "a".to_owned());
    let (reason, actor) = ("it was wrong".to_owned(), "operator".to_owned());
    let correction = Correction { source, id, change, reason, actor };
    world.meter.correct(&correction).await.expect("it is corrected");
}

#[tokio::test(start_paused = true)]
async fn a_corrected_value_changes_all_hours_in_which_it_held() {
    let world = held().await;
    correct(&world, Change::Amend(Decimal::from_integer(7))).await;
    world.sweep(SweepScope::Finished).await;
    let seven = |seconds: i64| json!(7 * seconds);
    assert_eq!(
        hours(&world).await,
        [
            hour("08", Corrected, seven(3000)),
            hour("09", Corrected, seven(3600)),
            hour("10", Corrected, seven(3600))
        ]
    );
    // A late event ends it in the middle of an hour.
    world.record(&[seats("b", 0, "2026-01-13T09:30:00Z")]).await;
    world.sweep(SweepScope::Finished).await;
    assert_eq!(
        hours(&world).await,
        [
            hour("08", Corrected, seven(3000)),
            hour("09", Corrected, seven(1800)),
            hour("10", Corrected, json!(0))
        ]
    );
    world.recounted().await;
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_value_is_removed_from_all_hours_in_which_it_held() {
    let world = held().await;
    correct(&world, Change::Cancel).await;
    world.sweep(SweepScope::Finished).await;
    let none = |key: &str| hour(key, Corrected, Value::Null);
    assert_eq!(hours(&world).await, [none("08"), none("09"), none("10")]);
    // There are no further aggregates.
    world.set("2026-01-13T13:30:00Z");
    world.sweep(SweepScope::Finished).await;
    assert_eq!(hours(&world).await.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn one_sweep_catches_up_after_a_long_time_without_sweeps() {
    let world = World::new("2026-01-13T08:30:00Z", with_seats()).await;
    world.record(&[seats("a", 5, "2026-01-13T08:00:00Z")]).await;
    world.set("2026-01-15T08:30:00Z");
    world.sweep(SweepScope::Finished).await;
    let hours = hours(&world).await;
    assert_eq!(hours.len(), 48);
    assert!(hours.iter().all(|(_, state, value)| (*state, value) == (Final, &json!(5 * 3600))));
    assert_eq!(world.aggregates("daily").await.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_trigger_computes_the_area_of_a_held_value_up_to_now() {
    let world = World::new("2026-01-13T08:30:00Z", with_seats()).await;
    world.record(&[seats("a", 5, "2026-01-13T08:00:00Z")]).await;
    for (now, seconds) in [("2026-01-13T08:30:00Z", 1_800), ("2026-01-13T08:40:00Z", 2_400)] {
        world.set(now);
        world.sweep(SweepScope::All).await;
        assert_eq!(hours(&world).await[0].2, json!(5 * seconds), "{now}");
    }
}

fn rule(name: &str) -> AlertRule {
    AlertRule {
        name: name.to_owned(),
        event_type: "seats".to_owned(),
        op: None,
        period: PeriodKind::Daily,
        thresholds: vec![Decimal::from_integer(100_000)],
        customer: None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_threshold_that_is_reached_by_time_alone_is_announced_once_per_period() {
    let settings = Settings { alerts: vec![rule("many")], ..with_seats() };
    let world = World::new("2026-01-13T00:05:00Z", settings).await;
    world.record(&[seats("a", 10, "2026-01-13T00:00:00Z")]).await;
    // Ten seats reach a hundred thousand after ten thousand seconds, at 02:46:40 of each day.
    for (now, told) in [
        ("2026-01-13T02:45:00Z", 0),
        ("2026-01-13T03:00:00Z", 1),
        ("2026-01-13T03:15:00Z", 1),
        ("2026-01-14T02:45:00Z", 1),
        ("2026-01-14T03:00:00Z", 2),
        // The day was over before the first check.
        ("2026-01-16T00:00:00Z", 3),
    ] {
        world.set(now);
        world.sweep(SweepScope::Finished).await;
        let text = "SELECT count(*) FROM meter_alert";
        let found = world.meter.sql().query(text, vec![]).await.expect("alerts");
        assert_eq!(found.rows[0].int(0).expect("a number"), told, "{now}");
    }
}

#[test]
fn two_alerts_with_the_same_name_are_refused() {
    let settings = Settings { alerts: vec![rule("many"), rule("many")], ..with_seats() };
    let refused = settings.check().expect_err("it is refused").to_string();
    assert_eq!(refused, "alert many: its name is used twice");
    let settings = Settings { alerts: vec![rule("many"), rule("more")], ..with_seats() };
    assert!(settings.check().is_ok());
}

#[tokio::test(start_paused = true)]
async fn usage_at_a_time_without_periods_is_refused_and_blocks_no_other_usage() {
    // Before 1893 local time in Germany was off the grid of quarter-hours.
    let settings = Settings { zone: "Europe/Berlin".to_owned(), ..settings() };
    let world = World::new("2026-01-13T08:30:00Z", settings).await;
    let call = |at_text: &str| {
        let event =
            json!({"eventType": "api.calls", "customerId": "c", "value": 1, "timestamp": at_text});
        ReceivedEvent { event: world.event(&event), received_at: at("2026-01-13T08:30:00Z") }
    };
    let old = vec![call("2026-01-13T08:00:00Z"), call("1890-06-01T12:00:00Z")];
    let refused = world.meter.out_of_time(&old).await.expect("a look");
    assert_eq!(refused.len(), 1);
    assert_eq!(refused[0].0, 1);
    assert!(refused[0].1.starts_with("timestamp is in no"), "{refused:?}");
    // Even if it was recorded, all other periods are computed.
    world.meter.record(old).await.expect("it is recorded");
    world.set("2026-01-13T10:30:00Z");
    world.sweep(SweepScope::Finished).await;
    let hourly = world.aggregates("hourly").await;
    assert_eq!(hourly.len(), 1);
    assert_eq!(body(&hourly[0])["events"]["api.calls"], 1);
}
