//! Keys move from memory to blobs, and from many short runs of blobs to few long ones, and are always found.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use logmill_io::sql::Execute as _;
use logmill_io::{BlobStore, Fault, Faults, FaultyStore, Tasks, params};
use logmill_meter::record::Outcome::{Conflict, Repeated};
use logmill_meter::record::ReceivedEvent;
use logmill_meter::{Decimal, Meter, Recorder, Sizes};
use logmill_sim::meter_world::{World, settings};
use serde_json::{Value, json};
use tokio::sync::Notify;

const NOW: &str = "2026-01-13T08:20:00.000Z";
const LATER: &str = "2026-01-13T10:20:00.000Z";

fn small() -> Sizes {
    Sizes { keys_per_blob: 10, ..Sizes::default() }
}

fn calls(numbers: Range<u32>, value: u32) -> Vec<Value> {
    let call = |number: u32| {
        let id = format!("e{number}");
        json!({"eventType": "api.calls", "customerId": "c", "value": number + value, "id": id})
    };
    numbers.map(call).collect()
}

async fn number(world: &World, text: &str) -> i64 {
    world.queue.sql().query(text, params![]).await.expect("rows").rows[0].int(0).expect("a number")
}

async fn runs(world: &World) -> i64 {
    number(world, "SELECT count(*) FROM meter_keys WHERE part = 0").await
}

/// The blobs of keys are exactly those in the table.
async fn assert_nothing_is_left_over(world: &World) {
    let text = "SELECT blob FROM meter_keys";
    let rows = world.queue.sql().query(text, params![]).await.expect("rows").rows;
    let entered: BTreeSet<String> =
        rows.iter().map(|row| row.text(0).expect("a name").to_owned()).collect();
    let stored = world.blobs.list("meter/keys/", None, 1_000).await.expect("a list");
    let stored: BTreeSet<String> =
        stored.into_iter().map(|meta| meta.name.as_str().to_owned()).collect();
    assert_eq!(stored, entered);
    assert_eq!(number(world, "SELECT count(*) FROM meter_keys_loose").await, 0);
}

async fn assert_all_are_known(world: &World, meter: &Meter, events: u32) {
    let again = world.record_with(meter, &calls(0..events, 0)).await;
    assert!(again.iter().all(|outcome| *outcome == Repeated), "{again:?}");
    let other = world.record_with(meter, &calls(0..events, 1)).await;
    assert!(other.iter().all(|outcome| *outcome == Conflict), "{other:?}");
}

#[tokio::test(start_paused = true)]
async fn many_runs_of_keys_become_few_and_every_key_stays() {
    let world = World::with_sizes(NOW, settings(), small()).await;
    let blobs = Arc::clone(&world.blobs);
    let behind = world.reopened_over(world.queue.sql(), &blobs, settings(), small()).await;
    for start in (0..2_000).step_by(25) {
        world.record(&calls(start..start + 25, 0)).await;
        world.meter.run_housekeeping().await.expect("house is kept");
        assert!(runs(&world).await <= 7 * 3 + 1, "after {start}");
        if start == 500 {
            // From now on its blobs are removed while it uses them.
            assert_all_are_known(&world, &behind, 500).await;
        }
    }
    // Three lengths: of 640 keys and more, of 80, of 10.
    assert!(number(&world, "SELECT max(part) FROM meter_keys").await >= 31);
    assert_nothing_is_left_over(&world).await;
    let fresh = world.reopened_over(world.queue.sql(), &blobs, settings(), small()).await;
    for meter in [&world.meter, &behind, &fresh] {
        assert_all_are_known(&world, meter, 2_000).await;
        let found = meter.find_event("test", "e1234").await.expect("a look");
        assert_eq!(found.map(|event| event.value), Some(Decimal::from_integer(1_234)));
        assert_eq!(meter.find_event("test", "e2000").await.expect("a look"), None);
    }
    assert_eq!(world.recounted().await, 2_000);
}

#[tokio::test(start_paused = true)]
async fn messages_that_cannot_be_removed_do_not_stop_the_rest_of_housekeeping() {
    let world = World::with_sizes(NOW, settings(), small()).await;
    world.record(&calls(0..75, 0)).await;
    let away = "ALTER TABLE webhook_message RENAME TO webhook_message_away";
    world.queue.sql().execute(away, params![]).await.expect("renamed");
    let error = world.meter.run_housekeeping().await.expect_err("there is no such table");
    assert!(error.to_string().contains("webhook_message"), "{error}");
    assert_eq!(runs(&world).await, 7, "keys are sealed");
}

/// Seven runs, and events for an eighth, which merges them into one.
async fn about_to_merge() -> World {
    let world = World::with_sizes(NOW, settings(), small()).await;
    world.record(&calls(0..75, 0)).await;
    world.meter.run_housekeeping().await.expect("house is kept");
    assert_eq!(runs(&world).await, 7);
    world.record(&calls(75..85, 0)).await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_crash_anywhere_while_keys_are_sealed_and_merged_loses_none_and_leaves_nothing() {
    let counted = Faults::none();
    let mut operations = 0..0;
    let mut operation = 0;
    let mut world = about_to_merge().await;
    let mut faults = Arc::clone(&counted);
    loop {
        let sql = world.queue.sql().with_faults(Arc::clone(&faults));
        let blobs: Arc<dyn BlobStore> =
            Arc::new(FaultyStore::new(Arc::clone(&world.blobs), Arc::clone(&faults)));
        let meter = world.reopened_over(&sql, &blobs, settings(), small()).await;
        let opened = faults.operations();
        let kept = meter.run_housekeeping().await;
        if operations.is_empty() {
            kept.expect("house is kept");
            operations = opened..faults.operations();
            operation = opened;
            assert!(operations.end - operations.start > 40, "{operations:?}");
        } else {
            // The process after a crash finds everything, and finishes.
            assert_all_are_known(&world, &world.meter, 85).await;
            world.meter.run_housekeeping().await.expect("house is kept");
            world.set(LATER);
            world.meter.run_housekeeping().await.expect("house is kept");
        }
        // Lookups in between took numbers, so a second run may have started.
        assert!(runs(&world).await <= 2, "{faults:?}");
        assert_nothing_is_left_over(&world).await;
        assert_all_are_known(&world, &world.meter, 85).await;
        assert_eq!(world.recounted().await, 85);
        if operation == operations.end {
            break;
        }
        let kind = Fault::ALL[usize::try_from(operation % 4).expect("small")];
        faults = Faults::at(operation, kind);
        operation += 1;
        world = about_to_merge().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_blob_that_is_entered_is_not_deleted_when_it_is_announced_again() {
    let world = about_to_merge().await;
    world.meter.run_housekeeping().await.expect("house is kept");
    let text = "INSERT INTO meter_keys_loose (blob, doomed, since_ms)
                SELECT blob, 0, 0 FROM meter_keys";
    let announced = world.queue.sql().write(|tx| async move { tx.execute(text, params![]).await });
    announced.await.expect("rows");
    world.set(LATER);
    world.meter.run_housekeeping().await.expect("house is kept");
    assert_nothing_is_left_over(&world).await;
    assert_all_are_known(&world, &world.meter, 85).await;
}

/// Holds the next operation of a store until it is released.
#[derive(Default)]
struct Gate {
    closed: AtomicBool,
    reached: Notify,
    open: Notify,
}

impl Gate {
    async fn pass(&self) {
        if self.closed.swap(false, Ordering::Relaxed) {
            self.reached.notify_one();
            self.open.notified().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_key_that_is_sealed_while_it_is_looked_for_is_found() {
    let world = World::with_sizes(NOW, settings(), small()).await;
    let gate = Arc::new(Gate::default());
    let passed = Arc::clone(&gate);
    let held = Faults::before_each(move |_| {
        let gate = Arc::clone(&passed);
        Box::pin(async move { gate.pass().await })
    });
    let blobs: Arc<dyn BlobStore> = Arc::new(FaultyStore::new(Arc::clone(&world.blobs), held));
    let slow = world.reopened_over(world.queue.sql(), &blobs, settings(), small()).await;
    world.record(&calls(0..10, 0)).await;
    world.meter.run_housekeeping().await.expect("house is kept");
    world.record(&calls(10..20, 0)).await;
    gate.closed.store(true, Ordering::Relaxed);
    let look = slow.find_event("test", "e15");
    let seal = async {
        gate.reached.notified().await;
        slow.run_housekeeping().await.expect("house is kept");
        gate.open.notify_one();
    };
    let (found, ()) = tokio::join!(look, seal);
    assert_eq!(runs(&world).await, 2, "it was sealed meanwhile");
    assert!(found.expect("a look").is_some());
}

#[tokio::test(start_paused = true)]
async fn many_keys_in_memory_are_sealed_soon_and_not_in_a_minute() {
    use logmill_io::Clock as _;
    let world = World::with_sizes(NOW, settings(), small()).await;
    let (recorder, recording) = Recorder::new(world.meter.clone());
    let mut tasks = Tasks::new();
    tasks.spawn(recording);
    for batch in 0..5 {
        let received_at = world.clock.now();
        let events = calls(batch * 10..batch * 10 + 10, 0);
        let events =
            events.iter().map(|json| ReceivedEvent { event: world.event(json), received_at });
        recorder.record(events.collect()).await.expect("recorded");
    }
    drop(recorder);
    tasks.join_next().await.expect("a task").expect("it ends").expect("nothing fails");
    let jobs = "SELECT count(*) FROM job WHERE kind = 'meter.housekeeping'";
    let jobs = number(&world, jobs).await;
    assert!((1..=4).contains(&jobs), "{jobs} jobs, one for each blob that is due");
}
