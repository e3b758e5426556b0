//! Stored events that are not what was recorded: whoever reads them says so.

use std::path::Path;

use logmill_io::sql::{Durability, Execute, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_meter::audit::DamagedRecord;
use logmill_meter::correct::{Change, Correction};
use logmill_meter::list::EventFilter;
use logmill_meter::{Decimal, Error, Meter, Settings, Sizes};
use serde_json::{Value, json};

use crate::fixture::{World, settings};

const NOW: &str = "2026-01-13T08:00:00Z";

fn event(number: i64) -> Value {
    json!({"eventType": "api.calls", "customerId": "acme", "value": number,
        "timestamp": "2026-01-13T07:55:00Z", "id": format!("event-{number}"),
        "metadata": {"region": "north"}})
}

async fn world() -> World {
    let sizes = Sizes { unplaced_max: 1, ..Sizes::default() };
    let world = World::with_sizes(NOW, settings(), sizes).await;
    let events: Vec<Value> = (1..=5).map(event).collect();
    world.record(&events).await;
    world
}

fn all() -> EventFilter {
    EventFilter { limit: 100, ..EventFilter::default() }
}

fn of_acme() -> EventFilter {
    EventFilter { customer: Some("acme".to_owned()), ..all() }
}

async fn seq_of(meter: &Meter, id: &str) -> i64 {
    let text = "SELECT seq FROM meter_event WHERE id = $1";
    let found = meter.sql().query(text, params![id]).await.expect("a number");
    found.row().expect("a row").int(0).expect("a number")
}

#[track_caller]
fn damaged<T: std::fmt::Debug>(read: Result<T, Error>, seq: i64) {
    let error = read.expect_err("it is damaged").to_string();
    assert!(error.contains(&format!("event with sequence {seq} is damaged")), "{error}");
    assert!(error.contains("docs/runbooks/damaged-usage.md"), "{error}");
}

/// Every column, changed as little as it can be.
const DAMAGE: [&str; 12] = [
    "bucket = bucket + 1",
    "series = series + 1",
    "time_ms = time_ms + 1",
    "received_ms = received_ms + 64",
    "source = 'tesu'",
    "id = 'event-7'",
    "amount = '7'",
    "metadata = NULL",
    "metadata = '{\"region\":\"nortj\"}'",
    "state = 1",
    "key_hi = key_hi + 1",
    "content = content + 4096",
];

#[tokio::test(start_paused = true)]
async fn a_change_to_any_column_is_an_error_that_names_the_event() {
    for damage in DAMAGE {
        let world = world().await;
        let meter = &world.meter;
        let seq = seq_of(meter, "event-3").await;
        meter.events(&all()).await.expect("nothing is damaged yet");
        let text = format!("UPDATE meter_event SET {damage} WHERE seq = {seq}");
        meter.sql().execute(&text, params![]).await.expect("damage");
        damaged(meter.events(&all()).await, seq);
        damaged(meter.events(&of_acme()).await, seq);
        damaged(meter.find_event("test", "event-3").await, seq);
        damaged(meter.recount(true, |_| {}).await, seq);
        assert!(meter.audit_some(1_000).await.expect("an audit"), "it reads all of them");
        let status = meter.audit_status().await.expect("a status");
        assert!(status.damaged.contains(&DamagedRecord::Event(seq)), "{damage}: {status:?}");
        assert_eq!((status.checked, status.rounds), (5, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn damaged_events_are_neither_archived_nor_are_their_keys_sealed() {
    let settings = Settings { retention: Some(std::time::Duration::from_secs(60)), ..settings() };
    for damage in ["amount = '7'", "key_lo = key_lo + 1"] {
        let world = World::new(NOW, settings.clone()).await;
        let events: Vec<Value> = (1..=5).map(event).collect();
        world.record(&events).await;
        let seq = seq_of(&world.meter, "event-3").await;
        let text = format!("UPDATE meter_event SET {damage} WHERE seq = {seq}");
        world.meter.sql().execute(&text, params![]).await.expect("damage");
        world.set("2026-01-20T00:00:00Z");
        // As after a restart, so that keys are read from the database.
        let meter = world.reopened(settings.clone()).await;
        damaged(meter.keep_house().await, seq);
        let left = meter.sql().query("SELECT count(*) FROM meter_event", params![]).await;
        assert_eq!(left.expect("a count").row().expect("a row").int(0).expect("a number"), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn corrections_write_checksums_and_rows_without_are_read() {
    let world = world().await;
    let meter = &world.meter;
    let text = "UPDATE meter_event SET checks = NULL WHERE id = 'event-2'";
    meter.sql().execute(text, params![]).await.expect("a row of an earlier version");
    for (id, change) in [
        ("event-1", Change::Cancel),
        ("event-2", Change::Amend(Decimal::parse("70").expect("a number"))),
        ("event-3", Change::Amend(Decimal::parse("1.50").expect("a number"))),
    ] {
        let correction = Correction {
            source: "test".to_owned(),
            id: id.to_owned(),
            change,
            reason: "a test".to_owned(),
            actor: "test".to_owned(),
        };
        meter.correct(&correction).await.expect("corrected");
    }
    assert_eq!(meter.events(&all()).await.expect("all are whole").items.len(), 5);
    assert!(meter.audit_some(1_000).await.expect("an audit"));
    let status = meter.audit_status().await.expect("a status");
    assert_eq!((status.damaged_total, status.unchecked), (0, 0), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn the_audit_goes_round_in_parts_and_forgets_what_is_whole_again() {
    let world = world().await;
    let meter = &world.meter;
    let text = "UPDATE meter_event SET checks = NULL WHERE id = 'event-5'";
    meter.sql().execute(text, params![]).await.expect("a row of an earlier version");
    let seq = seq_of(meter, "event-2").await;
    let set = |amount: &'static str| async move {
        let text = "UPDATE meter_event SET amount = $2 WHERE seq = $1";
        meter.sql().execute(text, params![seq, amount]).await.expect("a change");
    };
    set("3").await;
    let text =
        "DELETE FROM meter_place WHERE seq IN (SELECT seq FROM meter_event WHERE id = 'event-4')";
    meter.sql().execute(text, params![]).await.expect("damage");
    let lost = seq_of(meter, "event-4").await;
    // Two events a job, and the archive after the last.
    let mut jobs = 1;
    while !meter.audit_some(2).await.expect("an audit") {
        jobs += 1;
    }
    assert_eq!(jobs, 3);
    let status = meter.audit_status().await.expect("a status");
    let expected = [DamagedRecord::Event(seq), DamagedRecord::Place(lost)];
    assert_eq!(status.damaged, expected);
    assert_eq!((status.damaged_total, status.checked, status.unchecked), (2, 5, 1));
    assert!(status.round_ended.is_some());
    set("2").await;
    meter.recount(true, |_| {}).await.expect("the entry is made");
    meter.audit_some(2).await.expect("an audit");
    assert_eq!(meter.audit_status().await.expect("a status").damaged_total, 0);
}

async fn over_file(world: &World, file: &Path) -> Result<Meter, String> {
    let settings = SqliteSettings { durability: Durability::Relaxed, ..SqliteSettings::file(file) };
    let sql = Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared()).await;
    let sql = sql.map_err(|error| error.chain())?;
    let sizes = Sizes { unplaced_max: 1, ..Sizes::default() };
    Ok(world.reopened_over(&sql, &world.blobs, world.meter.settings().clone(), sizes).await)
}

/// All bits of the stored row of one event, in the file.
#[expect(clippy::disallowed_methods, reason = "the test damages a file of the store")]
#[tokio::test(flavor = "multi_thread")]
async fn no_flipped_bit_of_a_row_in_the_file_changes_what_is_listed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("meter.db");
    let world = World::new(NOW, settings()).await;
    let meter = over_file(&world, &file).await.expect("a meter");
    let events: Vec<Value> = (1..=5).map(event).collect();
    world.record_with(&meter, &events).await;
    let expected = meter.events(&all()).await.expect("a page").items;
    assert_eq!(expected.len(), 5);
    drop(meter);
    let whole = std::fs::read(&file).expect("the file");
    let id = b"testevent-3";
    let at = whole.windows(id.len()).position(|bytes| bytes == id).expect("the row");
    // From the header of the record to the checksums at its end.
    let (mut silent, mut noticed) = (0, 0);
    for place in at - 48..at + 64 {
        let mut bytes = whole.clone();
        bytes[place] ^= 1 << (place % 8);
        std::fs::write(&file, &bytes).expect("damage");
        let _ = std::fs::remove_file(folder.path().join("meter.db-state"));
        // A database that does not open is noticed too.
        let Ok(meter) = over_file(&world, &file).await else {
            noticed += 1;
            continue;
        };
        match meter.events(&all()).await {
            Ok(page) => {
                assert!(page.items == expected, "byte {place}: {:?}", page.items);
                silent += 1;
            }
            Err(_) => noticed += 1,
        }
    }
    assert!(noticed > 80, "{noticed} noticed, {silent} without effect");
}
