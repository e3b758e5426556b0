//! What each tier of the meter's storage saves: `meter_tiers [EVENTS]`; see the README and decision 0029.
//!
//! Records the same usage on SQLite with all tiers, and with one of them taken away. Bytes written are the sum of all
//! write calls of the process, and so do not depend on what else the machine does; seconds do.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use logmill_io::blob::MemoryBlobs;
use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{
    BlobStore, BlobStoreExt, Clock, SeededEntropy, SimClock, Sql, SystemClock, Timestamp, Tx,
};
use logmill_meter::event::{Event, RawEvent, Sender};
use logmill_meter::period::parse_time;
use logmill_meter::record::ReceivedEvent;
use logmill_meter::settings::{EventType, Op};
use logmill_meter::webhooks::{WebhookSettings, Webhooks};
use logmill_meter::{Meter, Settings, Sizes};
use logmill_work::Queue;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const CUSTOMERS: u64 = 1_000;
const TYPES: u64 = 5;
const BATCH: u64 = 10_000;
const QUARTER_MS: i64 = 15 * 60 * 1_000;
/// Events in a quarter of an hour of live usage.
const EVENTS_PER_QUARTER: u64 = 50_000;
const DAYS: i64 = 30;

#[derive(Clone, Copy, PartialEq)]
enum Variant {
    AllTiers,
    /// A unique index of keys beside everything else.
    KeysIndexed,
    /// Every transaction writes the index entries of its events.
    PlacesAtOnce,
    /// Partials are written to the table that is ordered by series.
    PartialsBySeries,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let events: u64 = std::env::args().nth(1).map_or(Ok(500_000), |text| text.parse())?;
    for live in [true, false] {
        for (name, variant) in [
            ("all tiers", Variant::AllTiers),
            ("keys in a unique index", Variant::KeysIndexed),
            ("places without lists", Variant::PlacesAtOnce),
            ("partials by series alone", Variant::PartialsBySeries),
        ] {
            let folder = tempfile::tempdir()?;
            let (bytes, cpu, seconds) = measure(folder.path(), variant, live, events).await?;
            let load = if live { "live" } else { "over 30 days" };
            println!(
                "{load}, {name}: {:.0} bytes written an event, {:.1} us of CPU, {:.0} events/s",
                per(bytes, events),
                cpu * 1e6 / count(events),
                count(events) / seconds
            );
        }
    }
    Ok(())
}

async fn measure(
    folder: &Path,
    variant: Variant,
    live: bool,
    events: u64,
) -> Result<(u64, f64, f64)> {
    let start = parse_time("2026-01-31T00:00:00Z")?;
    let clock = SimClock::at(start);
    let settings = SqliteSettings::file(folder.join("meter.db"));
    let sql = Sql::sqlite(&settings, clock.clone(), SeededEntropy::shared(1)).await?;
    let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
    let mut sizes = Sizes { keys_per_blob: 100_000, ..Sizes::default() };
    if variant == Variant::PlacesAtOnce {
        sizes.unplaced_max = 1;
    }
    let meter = open(&sql, &blobs, None, sizes).await?;
    match variant {
        Variant::KeysIndexed => {
            run(&sql, "CREATE UNIQUE INDEX key ON meter_event (key_hi, key_lo)").await?
        }
        Variant::PartialsBySeries => {
            run(&sql, "UPDATE meter_head SET settled_bucket = 9000000000000000000").await?;
        }
        Variant::AllTiers | Variant::PlacesAtOnce => {}
    }
    let (bytes, cpu, began) = (written()?, cpu_seconds()?, Instant::now());
    let mut random = 1_u64;
    for first in (0..events).step_by(BATCH as usize) {
        if live && first > 0 && first % EVENTS_PER_QUARTER == 0 {
            clock.jump(QUARTER_MS);
        }
        let batch = batch(&meter, &clock, first..events.min(first + BATCH), live, &mut random)?;
        meter.record(batch).await?;
        if first % EVENTS_PER_QUARTER == 0 {
            meter.run_housekeeping().await?;
        }
    }
    let figures = (written()? - bytes, cpu_seconds()? - cpu, began.elapsed().as_secs_f64());
    if variant == Variant::AllTiers {
        archive(&sql, &clock, &blobs, events).await?;
    }
    Ok(figures)
}

/// Moves all events to the archive, and prints what they take in the database and there.
async fn archive(
    sql: &Sql,
    clock: &SimClock,
    blobs: &Arc<dyn BlobStore>,
    events: u64,
) -> Result<()> {
    let pages = "SELECT sum(pgsize) FROM dbstat WHERE name IN ('meter_event', 'meter_place')";
    let before = match sql.query(pages, Vec::new()).await {
        Ok(found) => found.row()?.int(0)?,
        Err(_) => 0,
    };
    clock.jump(24 * 3_600 * 1_000);
    let meter = open(sql, blobs, Some(Duration::from_secs(3_600)), Sizes::default()).await?;
    meter.run_housekeeping().await?;
    let left = sql.query("SELECT count(*) FROM meter_event", Vec::new()).await?.row()?.int(0)?;
    let found = sql.query("SELECT blob FROM meter_archive", Vec::new()).await?;
    let mut packed = 0;
    for row in &found.rows {
        packed += blobs.read(&logmill_io::BlobName::new(row.text(0)?)?).await?.len() as u64;
    }
    println!(
        "archive: {:.0} bytes an event in the database, {:.0} in blobs; {left} events left",
        per(u64::try_from(before)?, events),
        per(packed, events)
    );
    Ok(())
}

async fn open(
    sql: &Sql,
    blobs: &Arc<dyn BlobStore>,
    retention: Option<Duration>,
    sizes: Sizes,
) -> Result<Meter> {
    let mut settings = Settings { retention, ..Settings::default() };
    for number in 0..TYPES {
        settings.events.insert(format!("type{number}"), EventType::new(Op::Sum));
    }
    let queue = Queue::open(sql.clone()).await?;
    let client = GuardedClient::new(SystemClock::shared(), GuardedSettings::default())?;
    let webhooks = Webhooks::open(queue.clone(), client, WebhookSettings::default()).await?;
    Ok(Meter::open_with(queue, Arc::clone(blobs), webhooks, settings, sizes).await?)
}

fn batch(
    meter: &Meter,
    clock: &SimClock,
    numbers: std::ops::Range<u64>,
    live: bool,
    random: &mut u64,
) -> Result<Vec<ReceivedEvent>> {
    let received_at = clock.now();
    let mut batch = Vec::new();
    for number in numbers {
        let mut draw = |below: u64| {
            *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (*random >> 33) % below
        };
        let (customer, event_type, value) = (draw(CUSTOMERS), draw(TYPES), draw(1_000));
        let back = if live { 0 } else { draw(DAYS.unsigned_abs() * 86_400_000) };
        let time = Timestamp(received_at.millis() - i64::try_from(back)?);
        let text = format!(
            "{{\"eventType\":\"type{event_type}\",\"customerId\":\"customer{customer}\",\
             \"value\":{value},\"id\":\"event-{number}\",\"timestamp\":{}}}",
            time.millis()
        );
        let raw: RawEvent<'_> = serde_json::from_str(&text)?;
        let entropy = &**meter.sql().entropy();
        let sender = Sender { source: "bench", now: received_at, entropy };
        let event = raw.check(meter.settings(), None, &sender).and_then(Event::in_time);
        let event = event.map_err(|errors| errors.join("; "))?;
        batch.push(ReceivedEvent { event, received_at });
    }
    Ok(batch)
}

async fn run(sql: &Sql, text: &'static str) -> Result<()> {
    sql.write(|tx: Tx| async move { tx.execute(text, Vec::new()).await }).await?;
    Ok(())
}

/// Bytes that this process has written so far.
fn written() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("wchar: "));
    Ok(line.ok_or("no wchar in /proc/self/io")?.parse()?)
}

/// User and system time of this process.
fn cpu_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or_default().split(' ').collect();
    let ticks: u64 = fields[12].parse::<u64>()? + fields[13].parse::<u64>()?;
    Ok(count(ticks) / 100.0)
}

fn per(bytes: u64, events: u64) -> f64 {
    count(bytes) / count(events)
}

fn count(number: u64) -> f64 {
    number as f64
}
