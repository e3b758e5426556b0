//! Corrections by operators, and archived events.

use std::time::Duration;

use logmill_io::params;
use logmill_io::sql::Execute as _;
use logmill_meter::aggregate::AggregateState::Corrected;
use logmill_meter::aggregate::Aggregator;
use logmill_meter::correct::{Change, Correction};
use logmill_meter::due::{AGGREGATE_JOB, SweepScope};
use logmill_meter::list::EventFilter;
use logmill_meter::record::Outcome::Repeated;
use logmill_meter::settings::{EventType, Op};
use logmill_meter::{Decimal, Settings, Sizes};
use logmill_sim::meter_world::{World, at, body, settings};
use logmill_work::{Handler as _, RunningJob};
use serde_json::{Value, json};

const NOW: &str = "2026-01-13T08:20:00.000Z";

fn call(number: i64) -> Value {
    json!({"eventType": "api.calls", "customerId": "c", "value": number, "id": format!("e{number}")})
}

fn correction(id: &str, change: Change) -> Correction {
    Correction {
        source: "test".to_owned(),
        id: id.to_owned(),
        change,
        reason: "it was wrong".to_owned(),
        actor: "operator".to_owned(),
    }
}

async fn hourly(world: &World) -> (logmill_meter::aggregate::AggregateState, Value) {
    world.sweep(SweepScope::Finished).await;
    let hourly = world.aggregates("hourly").await.remove(0);
    (hourly.state, body(&hourly)["events"]["api.calls"].clone())
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_and_an_amended_event_correct_their_periods_and_leave_a_note() {
    let world = World::new(NOW, settings()).await;
    world.record(&[call(1), call(10), call(100)]).await;
    world.set("2026-01-13T10:00:00Z");
    assert_eq!(hourly(&world).await.1, 111);
    world.meter.correct(&correction("e10", Change::Cancel)).await.expect("it is cancelled");
    assert_eq!(hourly(&world).await, (Corrected, json!(101)));
    let to = Change::Amend(Decimal::from_integer(7));
    world.meter.correct(&correction("e1", to)).await.expect("it is amended");
    assert_eq!(hourly(&world).await, (Corrected, json!(107)));
    let event = world.meter.find_event("test", "e1").await.expect("a look").expect("the event");
    let notes = world.meter.corrections(&event).await.expect("notes");
    assert_eq!((notes[0].before.as_str(), notes[0].after.as_deref()), ("1", Some("7")));
    assert_eq!((notes[0].actor.as_str(), notes[0].reason.as_str()), ("operator", "it was wrong"));
    // The same correction is refused, and sending the event again still counts nothing.
    let again = world.meter.correct(&correction("e10", Change::Cancel)).await;
    assert!(again.is_err_and(|error| error.to_string().contains("already has this value")));
    assert_eq!(world.record(&[call(10)]).await, [Repeated]);
    let none = world.meter.correct(&correction("e11", Change::Cancel)).await;
    assert!(none.is_err_and(|error| error.to_string() == "there is no event e11 of source test"));
    assert_eq!(world.recounted().await, 3);
}

#[tokio::test(start_paused = true)]
async fn a_period_whose_last_event_is_cancelled_gets_a_corrected_aggregate() {
    let world = World::new(NOW, settings()).await;
    world.record(&[call(1)]).await;
    world.set("2026-01-13T10:00:00Z");
    assert_eq!(hourly(&world).await.1, 1);
    world.meter.correct(&correction("e1", Change::Cancel)).await.expect("it is cancelled");
    assert_eq!(hourly(&world).await, (Corrected, Value::Null));
    let hourly = world.aggregates("hourly").await.remove(0);
    assert_eq!((hourly.revision, body(&hourly)["events"].clone()), (2, json!({})));
    // Lists of events still contain it.
    let customer = Some("c".to_owned());
    let filter = EventFilter { customer, limit: 10, ..EventFilter::default() };
    let events = world.meter.events(&filter).await.expect("a page").items;
    assert_eq!((events.len(), events[0].event.state.name()), (1, "cancelled"));
    let filter = EventFilter { counting: true, ..filter };
    assert!(world.meter.events(&filter).await.expect("a page").items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn archived_events_are_found_corrected_and_counted_again() {
    let kept = Settings { retention: Some(Duration::from_secs(86_400)), ..settings() };
    let world = World::new(NOW, kept).await;
    world.record(&(0..100).map(call).collect::<Vec<_>>()).await;
    world.set("2026-01-20T00:00:00Z");
    assert_eq!(hourly(&world).await.1, 4950);
    world.meter.run_housekeeping().await.expect("house is kept");
    let left = "SELECT count(*) FROM meter_event";
    let left = async || {
        let found = world.meter.sql().query(left, params![]).await.expect("a count");
        found.row().expect("a row").int(0).expect("a number")
    };
    assert_eq!(left().await, 0);
    assert_eq!(world.recounted().await, 100);
    assert_eq!(world.record(&[call(5)]).await, [Repeated]);
    world.meter.correct(&correction("e50", Change::Cancel)).await.expect("it is cancelled");
    assert_eq!(hourly(&world).await, (Corrected, json!(4900)));
    assert_eq!(left().await, 1);
    world.meter.run_housekeeping().await.expect("house is kept");
    assert_eq!(left().await, 0);
    assert_eq!(world.recounted().await, 100);
    let event = world.meter.find_event("test", "e50").await.expect("a look").expect("the event");
    assert_eq!(event.state.name(), "cancelled");
    // Page by page, the newest first, without the one that does not count.
    let mut filter = EventFilter {
        customer: Some("c".to_owned()),
        limit: 30,
        counting: true,
        from: Some(at("2026-01-13T00:00:00Z")),
        ..EventFilter::default()
    };
    let mut found = Vec::new();
    loop {
        let page = world.meter.events(&filter).await.expect("a page");
        found.extend(page.items.iter().map(|listed| listed.event.value.to_string()));
        filter.after = page.next;
        if filter.after.is_none() {
            break;
        }
    }
    let expected: Vec<String> =
        (0..100).rev().filter(|number| *number != 50).map(|number| number.to_string()).collect();
    assert_eq!(found, expected);
}

#[tokio::test(start_paused = true)]
async fn a_recount_finds_and_repairs_wrong_partials() {
    let world = World::new(NOW, settings()).await;
    world.record(&[call(1), call(2)]).await;
    let text = "DELETE FROM meter_event WHERE id = 'e2'";
    use logmill_io::sql::Execute as _;
    world.meter.sql().execute(text, params![]).await.expect("damage");
    let found = world.meter.recount(false, |_| {}).await.expect("a recount");
    assert_eq!((found.wrong, found.repaired), (1, 0));
    assert_eq!(found.differences, ["c api.calls  at 2026-01-13T08:15:00.000Z"]);
    let found = world.meter.recount(true, |_| {}).await.expect("a recount");
    assert_eq!((found.wrong, found.repaired), (1, 1));
    assert_eq!(world.recounted().await, 1);
    world.meter.sql().execute("DELETE FROM meter_event", params![]).await.expect("damage");
    let found = world.meter.recount(true, |_| {}).await.expect("a recount");
    assert_eq!((found.wrong, found.repaired), (1, 1), "a partial of no events");
    assert_eq!(world.recounted().await, 0);
    world.record(&[call(3)]).await;
    let text = "DELETE FROM meter_unplaced";
    world.meter.sql().execute(text, params![]).await.expect("damage");
    let found = world.meter.recount(true, |_| {}).await.expect("a recount");
    assert_eq!(found.differences[0], "1 events have no index entry");
    assert_eq!(world.recounted().await, 1);
}

/// A time-weighted value cannot just be added when it arrives late: its bucket is recomputed from all events,
/// wherever they are by then.
#[tokio::test(start_paused = true)]
async fn late_events_are_merged_with_archived_ones_also_during_archiving() {
    let mut kept = Settings { retention: Some(Duration::from_secs(86_400)), ..settings() };
    kept.events.insert("seats".to_owned(), EventType::new(Op::TimeWeighted));
    let world = World::new(NOW, kept).await;
    let seats = |minute: i64| {
        json!({"eventType": "seats", "customerId": "c", "value": minute, "id": format!("s{minute}"),
            "timestamp": format!("2026-01-13T08:{minute:02}:00Z")})
    };
    world.record(&[seats(2), seats(4), seats(12)]).await;
    world.set("2026-01-20T00:00:00Z");
    world.meter.run_housekeeping().await.expect("house is kept");
    world.record(&[seats(3)]).await;
    assert_eq!(world.recounted().await, 4);
    for late in [5, 7, 9, 11] {
        let (late, later) = ([seats(late)], [seats(late + 1)]);
        let archive = async { world.meter.run_housekeeping().await.expect("house is kept") };
        tokio::join!(world.record(&late), archive, world.record(&later));
    }
    // The one at twelve minutes came twice.
    assert_eq!(world.recounted().await, 11);
    let found = world.meter.find_event("test", "s5").await.expect("a look");
    assert_eq!(found.map(|event| event.value.to_string()), Some("5".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn a_slice_of_large_events_has_fewer_of_them_and_all_are_found_again() {
    let kept = Settings { retention: Some(Duration::from_secs(86_400)), ..settings() };
    let sizes = Sizes { slice_bytes: 10_000, ..Sizes::default() };
    let world = World::with_sizes(NOW, kept, sizes).await;
    let large = |number: i64| {
        let mut event = call(number);
        event["metadata"] = json!({"text": "x".repeat(3_000)});
        event
    };
    world.record(&(0..20).map(large).collect::<Vec<_>>()).await;
    world.set("2026-01-20T00:00:00Z");
    world.meter.run_housekeeping().await.expect("house is kept");
    let text = "SELECT count(*), min(events), max(events), (SELECT count(*) FROM meter_event)
                FROM meter_archive";
    let found = world.meter.sql().query(text, params![]).await.expect("slices");
    let row = found.row().expect("a row");
    let found = [0, 1, 2, 3].map(|column| row.int(column).expect("a number"));
    assert_eq!(found, [7, 2, 3, 0], "three events are over nine thousand bytes");
    assert_eq!(world.recounted().await, 20);
}

#[tokio::test(start_paused = true)]
async fn a_recount_skips_times_without_events() {
    let kept = Settings { retention: Some(Duration::from_secs(86_400)), ..settings() };
    let world = World::new(NOW, kept).await;
    let long_ago = |number: i64, time: &str| {
        let mut event = call(number);
        event["timestamp"] = time.into();
        event
    };
    let old = [
        long_ago(1, "0001-01-01T00:00:00Z"),
        long_ago(2, "1970-01-01T00:00:00Z"),
        long_ago(3, "2026-01-13T08:00:00Z"),
    ];
    world.record(&old).await;
    world.set("2026-01-20T00:00:00Z");
    world.meter.run_housekeeping().await.expect("house is kept");
    let text = "SELECT count(*) FROM meter_archive";
    let slices = world.meter.sql().query(text, params![]).await.expect("slices");
    assert_eq!(slices.row().expect("a row").int(0).expect("a number"), 1);
    let mut steps = 0;
    let found = world.meter.recount(false, |_| steps += 1).await.expect("a recount");
    assert_eq!((found.events, found.wrong, steps), (3, 0, 3));
    // An event that arrives in between joins them.
    world.record(&[long_ago(4, "1970-01-01T00:05:00Z")]).await;
    world.meter.run_housekeeping().await.expect("house is kept");
    assert_eq!(world.recounted().await, 4);
}

/// Without a sweep: the correction itself triggers the aggregates of finished periods again.
#[tokio::test(start_paused = true)]
async fn a_correction_recomputes_final_aggregates_without_a_sweep() {
    let world = World::new(NOW, settings()).await;
    world.record(&[call(1), call(10)]).await;
    world.set("2026-01-13T10:00:00Z");
    assert_eq!(hourly(&world).await.1, 11);
    for (change, expected) in
        [(Change::Amend(Decimal::from_integer(7)), json!(8)), (Change::Cancel, json!(1))]
    {
        world.meter.correct(&correction("e10", change)).await.expect("it is corrected");
        assert_eq!(world.work().await, Vec::<String>::new());
        let hourly = world.aggregates("hourly").await.remove(0);
        assert_eq!(hourly.state, Corrected);
        assert_eq!(body(&hourly)["events"]["api.calls"], expected);
    }
    // The day has not ended: it waits for its sweep, or for a trigger.
    assert!(world.aggregates("daily").await.is_empty());
    world.sweep(SweepScope::All).await;
    assert_eq!(world.aggregates("hourly").await[0].revision, 3, "the sweep finds nothing new");
    assert_eq!(body(&world.aggregates("daily").await[0])["events"]["api.calls"], 1);
}

/// A correction that comes while its aggregate is being computed finds the job running, and cannot enqueue it.
#[tokio::test(start_paused = true)]
async fn usage_that_changes_while_its_aggregate_is_made_is_not_left_to_the_next_sweep() {
    let world = World::new(NOW, settings()).await;
    world.record(&[call(1)]).await;
    world.set("2026-01-13T10:00:00Z");
    world.meter.sweep(SweepScope::Finished).await.expect("a sweep");
    let lease = Duration::from_secs(120);
    let claim = || world.queue.claim(AGGREGATE_JOB, 10, lease, "test");
    let first = claim().await.expect("claims").remove(0);
    let sql = world.meter.sql();
    let meanwhile = "CREATE TRIGGER meanwhile AFTER INSERT ON meter_aggregate
        BEGIN UPDATE meter_due SET generation = generation + 1; END";
    sql.execute(meanwhile, params![]).await.expect("works");
    let aggregator = Aggregator(world.meter.clone());
    let run = |claim| aggregator.run(RunningJob { claim, queue: world.queue.clone() });
    run(first).await.expect("made");
    sql.execute("DROP TRIGGER meanwhile", params![]).await.expect("works");
    let again = claim().await.expect("claims");
    assert_eq!(again.len(), 1, "it is made again");
    run(again[0].clone()).await.expect("made");
    assert_eq!(claim().await.expect("claims"), [], "and that was all");
}
