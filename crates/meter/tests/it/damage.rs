//! Stored events that differ from what was recorded: reads report them, and they can be repaired.

use std::path::Path;

use logmill_io::sql::{Durability, Execute, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_meter::audit::DamagedRecord;
use logmill_meter::correct::{Change, Correction};
use logmill_meter::due::SweepScope;
use logmill_meter::list::EventFilter;
use logmill_meter::{Decimal, Error, Meter, Settings, Sizes};
use logmill_sim::meter_world::{World, settings};
use serde_json::{Value, json};

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

/// Every column, with the smallest possible change.
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
        for filter in [all(), of_acme()] {
            let page = meter.events(&filter).await.expect("the others are listed");
            assert_eq!((page.damaged, page.items.len()), (vec![seq], 4), "{damage}: {filter:?}");
            assert!(page.items.iter().all(|item| item.event.seq != seq));
        }
        damaged(meter.find_event("test", "event-3").await, seq);
        damaged(meter.recount(true, |_| {}).await, seq);
        assert!(meter.audit_some(1_000).await.expect("an audit"), "it reads all of them");
        let status = meter.audit_status().await.expect("a status");
        assert!(status.damaged.contains(&DamagedRecord::Event(seq)), "{damage}: {status:?}");
        assert_eq!((status.checked, status.rounds), (5, 1));
    }
}

#[tokio::test(start_paused = true)]
async fn a_recount_ends_at_a_damaged_name_of_a_customer_or_series() {
    for (damage, record) in [
        ("meter_customer SET name = 'acmf'", "customer "),
        ("meter_customer SET checks = checks + 1", "customer "),
        ("meter_series SET dims = dims || ' '", "series "),
        ("meter_series SET customer = customer + 1", "series "),
    ] {
        let world = world().await;
        let meter = &world.meter;
        meter.recount(false, |_| {}).await.expect("nothing is damaged yet");
        meter.sql().execute(&format!("UPDATE {damage}"), params![]).await.expect("damage");
        let error = meter.recount(true, |_| {}).await.expect_err(damage).to_string();
        assert!(error.contains(record) && error.contains("damaged"), "{damage}: {error}");
    }
}

/// Two per page: every event is on exactly one page, including the damaged ones.
#[tokio::test(start_paused = true)]
async fn a_damaged_event_is_named_on_one_page_and_keeps_no_other_from_being_listed() {
    let world = world().await;
    let meter = &world.meter;
    let lost = [seq_of(meter, "event-5").await, seq_of(meter, "event-2").await];
    let text = "UPDATE meter_event SET amount = '7' WHERE id IN ('event-5', 'event-2')";
    meter.sql().execute(text, params![]).await.expect("damage");
    for filter in [all(), of_acme()] {
        let (mut ids, mut damaged, mut pages) = (Vec::new(), Vec::new(), 0);
        let mut filter = EventFilter { limit: 2, ..filter };
        loop {
            let page = meter.events(&filter).await.expect("a page");
            assert!(page.items.len() + page.damaged.len() <= 2);
            ids.extend(page.items.iter().map(|item| item.event.id.clone()));
            damaged.extend(page.damaged);
            pages += 1;
            let Some(next) = page.next else { break };
            filter.after = Some(next);
        }
        assert_eq!(ids, ["event-4", "event-3", "event-1"]);
        assert_eq!((damaged, pages), (lost.to_vec(), 3));
    }
}

async fn damage(world: &World, id: &str) -> i64 {
    let seq = seq_of(&world.meter, id).await;
    let text = "UPDATE meter_event SET amount = '70', source = 'tesu' WHERE seq = $1";
    world.meter.sql().execute(text, params![seq]).await.expect("damage");
    world.meter.audit_some(1_000).await.expect("an audit");
    assert_eq!(world.meter.audit_status().await.expect("a status").damaged_total, 1);
    seq
}

async fn is_mended(world: &World, events: u64) {
    let meter = &world.meter;
    let page = meter.events(&all()).await.expect("a page");
    assert!(page.damaged.is_empty());
    let recounted = meter.recount(false, |_| {}).await.expect("a recount");
    assert_eq!((recounted.wrong, recounted.events), (0, events), "{recounted:?}");
    assert_eq!(meter.audit_status().await.expect("a status").damaged_total, 0);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_event_is_restored_from_a_copy_with_the_corrections_since() {
    let (world, copy) = (world().await, world().await);
    let correction = Correction {
        source: "test".to_owned(),
        id: "event-3".to_owned(),
        change: Change::Amend(Decimal::parse("30").expect("a number")),
        reason: "a test".to_owned(),
        actor: "test".to_owned(),
    };
    world.meter.correct(&correction).await.expect("corrected");
    let seq = damage(&world, "event-3").await;
    let copied = copy.meter.sql();
    let error = world.meter.restore_event(seq, None).await.expect_err("nothing is archived");
    assert!(error.to_string().contains("in the archive"), "{error}");
    let text = "UPDATE meter_event SET checks = NULL WHERE seq = $1";
    copied.execute(text, params![seq + 1]).await.expect("a row of an earlier version");
    world.meter.restore_event(seq + 1, Some(copied)).await.expect_err("it is not damaged");
    let event = world.meter.restore_event(seq, Some(copied)).await.expect("restored");
    assert_eq!((event.id.as_str(), event.value.to_string().as_str()), ("event-3", "30"));
    is_mended(&world, 5).await;
    let found = world.meter.find_event("test", "event-3").await.expect("works");
    assert_eq!(found, Some(event));
    // A row that cannot be checked is not written, nor the row of another event.
    let seq = damage(&world, "event-4").await;
    world.meter.restore_event(seq, Some(copied)).await.expect_err("it has no checksum");
    let other = World::new(NOW, settings()).await;
    let events: Vec<Value> = (11..=15).map(event_of_another).collect();
    other.record(&events).await;
    let refused = world.meter.restore_event(seq, Some(other.meter.sql())).await;
    refused.expect_err("another database");
}

fn event_of_another(number: i64) -> Value {
    let mut event = event(number);
    event["timestamp"] = "2026-01-13T06:55:00Z".into();
    event
}

#[tokio::test(start_paused = true)]
async fn a_damaged_event_that_was_archived_is_restored_from_there() {
    let settings = Settings { retention: Some(std::time::Duration::from_secs(60)), ..settings() };
    let world = World::new(NOW, settings).await;
    world.record(&(1..=5).map(event).collect::<Vec<_>>()).await;
    world.set("2026-01-20T00:00:00Z");
    let left = async || {
        let found = world.meter.sql().query("SELECT count(*) FROM meter_event", params![]).await;
        found.expect("a count").row().expect("a row").int(0).expect("a number")
    };
    for _ in 0..10 {
        world.meter.run_housekeeping().await.expect("archived");
    }
    assert_eq!(left().await, 0, "all are archived");
    let correction = Correction {
        source: "test".to_owned(),
        id: "event-3".to_owned(),
        change: Change::Amend(Decimal::parse("30").expect("a number")),
        reason: "a test".to_owned(),
        actor: "test".to_owned(),
    };
    world.meter.correct(&correction).await.expect("it comes back to be corrected");
    let seq = damage(&world, "event-3").await;
    let lost = [seq].into();
    let refused =
        world.meter.mark_lost(&lost, "gone", "test").await.expect_err("the archive has it");
    assert!(refused.to_string().contains("restore it"), "{refused}");
    let event = world.meter.restore_event(seq, None).await.expect("restored");
    assert_eq!(event.value.to_string(), "30");
    let recounted = world.meter.recount(false, |_| {}).await.expect("a recount");
    assert_eq!((recounted.wrong, recounted.events), (0, 5), "{recounted:?}");
}

#[tokio::test(start_paused = true)]
async fn a_damaged_event_that_nothing_can_restore_is_removed_with_a_note_and_its_period_corrected()
{
    let world = world().await;
    world.set("2026-01-14T00:30:00Z");
    world.sweep(SweepScope::Finished).await;
    world.work().await;
    let daily = async || {
        let all = world.aggregates("daily").await;
        (
            all[0].revision,
            logmill_sim::meter_world::body(&all[0])["eventsExact"]["api.calls"].clone(),
        )
    };
    assert_eq!(daily().await, (1, json!("15")));
    let meter = &world.meter;
    let (first, second) = (damage(&world, "event-3").await, seq_of(meter, "event-4").await);
    meter.mark_lost(&[second].into(), "gone", "ops").await.expect_err("it is whole");
    meter.mark_lost(&[first].into(), "", "ops").await.expect_err("without a reason");
    // Two in one place: neither can be counted without the other.
    let text = "UPDATE meter_event SET metadata = NULL WHERE seq = $1";
    meter.sql().execute(text, params![second]).await.expect("damage");
    let lost = meter.mark_lost(&[first, second].into(), "the disk failed", "ops").await;
    let lost = lost.expect("removed");
    assert_eq!(lost.iter().map(|event| event.seq).collect::<Vec<_>>(), [first, second]);
    assert!(lost[0].row.contains("event-3"), "{lost:?}");
    is_mended(&world, 3).await;
    world.work().await;
    assert_eq!(daily().await, (2, json!("8")), "the aggregate is corrected");
    let text = "SELECT action, value_before, reason, actor FROM meter_correction
                WHERE event_seq = $1";
    let found = meter.sql().query(text, params![first]).await.expect("a note");
    let row = found.row().expect("one");
    let note: Vec<&str> = (0..4).map(|column| row.text(column).expect("text")).collect();
    assert_eq!(note, ["lost", "70", "the disk failed", "ops"]);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_aggregate_is_found_by_a_recount_and_written_again_as_it_was() {
    let world = world().await;
    world.set("2026-01-14T00:30:00Z");
    world.sweep(SweepScope::Finished).await;
    world.work().await;
    let meter = &world.meter;
    let recount = async |repair| {
        let recounted = meter.recount(repair, |_| {}).await.expect("a recount");
        (recounted.wrong, recounted.repaired)
    };
    let before = world.aggregates("daily").await;
    let messages = async || {
        let found = meter.sql().query("SELECT count(*) FROM webhook_message", params![]).await;
        found.expect("a count").row().expect("a row").int(0).expect("a number")
    };
    let sent = messages().await;
    assert_eq!(recount(false).await, (0, 0));
    let damages = [
        "meter_aggregate SET body = replace(body, '15', '16')",
        "meter_aggregate SET state = 7",
        "meter_aggregate SET inputs = CAST('x' AS BLOB)",
        "meter_revision SET body = replace(body, '15', '16')",
    ];
    for damage in damages {
        let text = format!("UPDATE {damage} WHERE id = $1");
        meter.sql().execute(&text, params![before[0].id.as_str()]).await.expect("damage");
        assert_eq!(recount(false).await, (1, 0), "{damage}");
        assert_eq!(recount(true).await, (1, 1), "{damage}");
        assert_eq!(recount(false).await, (0, 0), "{damage}");
        assert_eq!(world.aggregates("daily").await, before, "{damage}");
    }
    // Both rows are damaged: nothing says which figures were published.
    for table in ["meter_aggregate", "meter_revision"] {
        let text = format!("UPDATE {table} SET body = '{table}' WHERE id = $1");
        meter.sql().execute(&text, params![before[0].id.as_str()]).await.expect("damage");
    }
    assert_eq!(recount(true).await, (1, 0));
    assert_eq!(messages().await, sent, "nothing was announced");
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
        damaged(meter.run_housekeeping().await, seq);
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
    // Two events per job, and the archive after the last.
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
        // A database that does not open counts as noticed.
        let Ok(meter) = over_file(&world, &file).await else {
            noticed += 1;
            continue;
        };
        match meter.events(&all()).await {
            Ok(page) => {
                let is_known = |item| expected.contains(item);
                assert!(page.items.iter().all(is_known), "byte {place}: {:?}", page.items);
                assert_eq!(page.items.len() + page.damaged.len(), 5, "byte {place}");
                match page.damaged.is_empty() {
                    true => silent += 1,
                    false => noticed += 1,
                }
            }
            Err(_) => noticed += 1,
        }
    }
    assert!(noticed > 80, "{noticed} noticed, {silent} without effect");
}
