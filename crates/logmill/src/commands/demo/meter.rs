//! Metering: usage that is sent twice and counts once, a correction, and a recount.
//!
//! Guarantees: every figure is compared with a sum of what was sent. Leaves to others: HTTP and webhooks.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use logmill_io::blob::FileBlobs;
use logmill_io::sql::SqliteSettings;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{Clock, OsEntropy, Sql, SystemClock, Timestamp};
use logmill_meter::correct::{Change, Correction};
use logmill_meter::event::{Event, RawEvent, Sender};
use logmill_meter::period::BUCKET_MS;
use logmill_meter::query::{BY_CUSTOMER, Query};
use logmill_meter::record::{Outcome, ReceivedEvent};
use logmill_meter::settings::{EventType, Op};
use logmill_meter::webhooks::{WebhookSettings, Webhooks};
use logmill_meter::{Meter, Settings};
use logmill_work::Queue;
use serde_json::json;

use super::check;
use crate::error::{Error, Result};
use crate::output;

const EVENT_TYPE: &str = "api.calls";
const SOURCE: &str = "demo";
const EVENTS: u64 = 10_000;
const PER_BATCH: u64 = 500;
const CUSTOMERS: u64 = 7;

/// Sums by customer, as text.
type Sums = BTreeMap<String, String>;

pub(super) async fn show(folder: &Path) -> Result<String> {
    let clock = SystemClock::shared();
    let meter = open(folder, &clock).await?;
    let (began, started) = (clock.now(), clock.monotonic());
    for first in (0..EVENTS).step_by(usize::try_from(PER_BATCH).unwrap_or(1)) {
        for expected in [Outcome::Stored, Outcome::Repeated] {
            let events = (first..first + PER_BATCH).map(|number| event(&meter, &clock, number));
            let outcomes = meter.record(events.collect::<Result<Vec<_>>>()?).await?;
            check(outcomes.iter().all(|outcome| *outcome == expected), || {
                format!("not all events from {first} on are {expected:?}")
            })?;
        }
    }
    let took = clock.monotonic().saturating_sub(started);
    check_sums(&meter, &clock, began, None).await?;
    let cancelled = EVENTS / 2;
    let correction = Correction {
        source: SOURCE.to_owned(),
        id: cancelled.to_string(),
        change: Change::Cancel,
        reason: "to show it".to_owned(),
        actor: SOURCE.to_owned(),
    };
    meter.correct(&correction).await?;
    check_sums(&meter, &clock, began, Some(cancelled)).await?;
    let recounted = meter.recount(false, |_| {}).await?;
    check(recounted.differences.is_empty() && recounted.events == EVENTS, || {
        format!("a recount of {} events finds {:?}", recounted.events, recounted.differences)
    })?;
    Ok(format!(
        "meters: {EVENTS} events of {CUSTOMERS} customers sent twice and counted once in {}; sums are exact, a \
         cancelled event no longer counts, and a recount finds the same",
        output::duration(took),
    ))
}

async fn open(folder: &Path, clock: &Arc<dyn Clock>) -> Result<Meter> {
    let sqlite = SqliteSettings::file(folder.join("meter.db"));
    let sql = Sql::sqlite(&sqlite, Arc::clone(clock), OsEntropy::shared()).await?;
    let queue = Queue::open(sql).await?;
    let client = GuardedClient::new(Arc::clone(clock), GuardedSettings::default())?;
    let webhooks = Webhooks::open(queue.clone(), client, WebhookSettings::default()).await?;
    let mut settings = Settings::default();
    settings.events.insert(EVENT_TYPE.to_owned(), EventType::new(Op::Sum));
    let blobs = FileBlobs::open(folder.join("meter"))?;
    Ok(Meter::open(queue, blobs, webhooks, settings).await?)
}

fn customer(number: u64) -> String {
    format!("customer-{}", number % CUSTOMERS)
}

fn event(meter: &Meter, clock: &Arc<dyn Clock>, number: u64) -> Result<ReceivedEvent> {
    let received_at = clock.now();
    let sent = json!({
        "eventType": EVENT_TYPE, "customerId": customer(number), "value": number, "id": number.to_string(),
    });
    let text = sent.to_string();
    let raw: RawEvent<'_> = serde_json::from_str(&text)
        .map_err(|error| Error::Internal { what: format!("usage: {error}") })?;
    let sender = Sender { source: SOURCE, now: received_at, entropy: &OsEntropy };
    let checked = raw.check(meter.settings(), None, &sender).and_then(Event::in_time);
    let event = checked.map_err(|wrongs| Error::Demo { what: wrongs.join("; ") })?;
    Ok(ReceivedEvent { event, received_at })
}

/// Compares the metered usage with the sum of all events sent, except a cancelled one.
async fn check_sums(
    meter: &Meter,
    clock: &Arc<dyn Clock>,
    began: Timestamp,
    without: Option<u64>,
) -> Result<()> {
    let quarter = |time: Timestamp| time.millis().div_euclid(BUCKET_MS);
    let query = Query {
        event_type: EVENT_TYPE.to_owned(),
        customers: Vec::new(),
        op: None,
        quantile_milli: None,
        from: Timestamp(quarter(began) * BUCKET_MS),
        to: Timestamp((quarter(clock.now()) + 1) * BUCKET_MS),
        window: None,
        zone: None,
        group_by: vec![BY_CUSTOMER.to_owned()],
        filter: BTreeMap::new(),
    };
    let lines = meter.query(&query, &[]).await?.into_iter();
    let metered: Sums = lines
        .filter_map(|mut line| {
            let customer = line.group.remove(BY_CUSTOMER)??;
            Some((customer, line.value()?.to_string()))
        })
        .collect();
    let mut sums: BTreeMap<String, u64> = BTreeMap::new();
    for number in (0..EVENTS).filter(|number| Some(*number) != without) {
        *sums.entry(customer(number)).or_default() += number;
    }
    let sent: Sums = sums.into_iter().map(|(customer, sum)| (customer, sum.to_string())).collect();
    check(metered == sent, || format!("metered {metered:?}, but {sent:?} was sent"))
}
