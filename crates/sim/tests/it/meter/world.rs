//! A meter over a test database, and helpers. All usage is in the past, so that every period has ended whatever the
//! clock says.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::blob::MemoryBlobs;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{BlobStore, Entropy, SeededEntropy, SystemClock, Timestamp};
use logmill_meter::aggregate::Aggregator;
use logmill_meter::due::{AGGREGATE_JOB, SweepScope};
use logmill_meter::event::{Event, RawEvent, Sender};
use logmill_meter::list::{Aggregate, AggregateFilter};
use logmill_meter::settings::{EventType, Op};
use logmill_meter::webhooks::{WebhookSettings, Webhooks};
use logmill_meter::{Error, Meter, Settings, Sizes};
use logmill_work::{Handler as _, Queue, RunningJob};
use serde_json::Value;

pub(super) const LEASE: Duration = Duration::from_secs(120);
/// Small, so that keys are sealed and lists become entries.
const SIZES: Sizes = Sizes { keys_per_blob: 8, unplaced_max: 12, slice_bytes: 64 << 20 };

/// The operations that the naive fold supports, by event type.
pub(super) const OPS: [(&str, Op); 7] = [
    ("sum", Op::Sum),
    ("avg", Op::Avg),
    ("min", Op::Min),
    ("max", Op::Max),
    ("count", Op::Count),
    ("first", Op::First),
    ("last", Op::Last),
];

pub(super) fn settings() -> Settings {
    let mut settings = Settings { retention: Some(Duration::from_secs(1)), ..Settings::default() };
    for (name, op) in OPS {
        let mut event_type = EventType::new(op);
        event_type.dimensions = vec!["region".to_owned()];
        settings.events.insert(name.to_owned(), event_type);
    }
    settings
}

/// Opens a meter as a new process would.
pub(super) async fn open(queue: &Queue, blobs: &Arc<dyn BlobStore>) -> Result<Meter, Error> {
    open_with(queue, blobs, settings()).await
}

/// The same with other settings.
pub(super) async fn open_with(
    queue: &Queue,
    blobs: &Arc<dyn BlobStore>,
    settings: Settings,
) -> Result<Meter, Error> {
    let client = GuardedClient::new(SystemClock::shared(), GuardedSettings::default());
    let client = client.expect("a client");
    let webhooks = Webhooks::open(queue.clone(), client, WebhookSettings::default()).await?;
    let blobs = Arc::clone(blobs);
    Meter::open_with(queue.clone(), blobs, webhooks, settings, SIZES).await
}

pub(super) fn blobs() -> Arc<dyn BlobStore> {
    Arc::new(MemoryBlobs::default())
}

/// Parses a valid event.
pub(super) fn event(json: &Value) -> Event {
    let text = json.to_string();
    let raw: RawEvent<'_> = serde_json::from_str(&text).expect("an object");
    let entropy: Arc<dyn Entropy> = SeededEntropy::shared(1);
    let sender = Sender { source: "test", now: Timestamp(1_790_000_000_000), entropy: &*entropy };
    raw.check(&settings(), None, &sender).expect("it is right")
}

/// Computes all due aggregates.
pub(super) async fn aggregate(meter: &Meter, queue: &Queue) -> Result<(), Error> {
    meter.sweep(SweepScope::Finished).await?;
    loop {
        let claims = queue.claim(AGGREGATE_JOB, 100, LEASE, "test").await?;
        if claims.is_empty() {
            return Ok(());
        }
        for claim in claims {
            let running = RunningJob { claim, queue: queue.clone() };
            if let Err(failure) = Aggregator(meter.clone()).run(running).await {
                return Err(Error::invalid(failure.error));
            }
        }
    }
}

pub(super) async fn aggregates(meter: &Meter) -> Vec<Aggregate> {
    let filter = AggregateFilter { limit: 1_000, ..AggregateFilter::default() };
    meter.aggregates(&filter).await.expect("aggregates").items
}
