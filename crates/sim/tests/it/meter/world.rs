//! A meter over a test database, and helpers. All usage is in the past, so that every period has ended whatever the
//! clock says.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::blob::MemoryBlobs;
use logmill_io::{BlobStore, Entropy, SeededEntropy};
use logmill_meter::event::Event;
use logmill_meter::list::{Aggregate, AggregateFilter};
use logmill_meter::settings::{EventType, Op};
use logmill_meter::{Meter, Result, Settings, Sizes};
pub(super) use logmill_sim::meter_world::{LEASE, aggregate};
use logmill_sim::{START, meter_world};
use logmill_work::Queue;
use serde_json::Value;

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
pub(super) async fn open(queue: &Queue, blobs: &Arc<dyn BlobStore>) -> Result<Meter> {
    open_with(queue, blobs, settings()).await
}

/// The same with other settings.
pub(super) async fn open_with(
    queue: &Queue,
    blobs: &Arc<dyn BlobStore>,
    settings: Settings,
) -> Result<Meter> {
    meter_world::open(queue, blobs, settings, SIZES).await
}

pub(super) fn blobs() -> Arc<dyn BlobStore> {
    Arc::new(MemoryBlobs::default())
}

/// Parses a valid event.
pub(super) fn event(json: &Value) -> Event {
    let entropy: Arc<dyn Entropy> = SeededEntropy::shared(1);
    meter_world::check_event(json, &settings(), START, &*entropy).expect("it is right")
}

pub(super) async fn aggregates(meter: &Meter) -> Vec<Aggregate> {
    let filter = AggregateFilter { limit: 1_000, ..AggregateFilter::default() };
    meter.aggregates(&filter).await.expect("aggregates").items
}
