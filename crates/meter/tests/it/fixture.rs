//! A meter in memory, and the common operations of tests.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::blob::MemoryBlobs;
use logmill_io::sql::SqliteSettings;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{BlobStore, SeededEntropy, SimClock, Sql, SystemClock, Timestamp};
use logmill_meter::aggregate::Aggregator;
use logmill_meter::alerts::{ALERT_JOB, Watcher};
use logmill_meter::due::{AGGREGATE_JOB, SweepResult, SweepScope};
use logmill_meter::event::{Event, RawEvent, Sender};
use logmill_meter::list::{Aggregate, AggregateFilter};
use logmill_meter::period::parse_time;
use logmill_meter::record::{Outcome, ReceivedEvent};
use logmill_meter::settings::{EventType, Op};
use logmill_meter::webhooks::{WebhookSettings, Webhooks};
use logmill_meter::{Meter, Settings, Sizes};
use logmill_work::{Handler, Queue, RunningJob};
use serde_json::Value;

pub(crate) struct World {
    pub(crate) clock: Arc<SimClock>,
    pub(crate) queue: Queue,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) meter: Meter,
}

pub(crate) fn at(text: &str) -> Timestamp {
    parse_time(text).expect("a moment")
}

/// The event types of the seed.
pub(crate) fn settings() -> Settings {
    let mut settings = Settings::default();
    for (name, op) in [
        ("api.calls", Op::Sum),
        ("storage.bytes", Op::Max),
        ("response.time.ms", Op::Avg),
        ("test.min", Op::Min),
        ("test.count", Op::Count),
        ("test.first", Op::First),
        ("test.last", Op::Last),
    ] {
        settings.events.insert(name.to_owned(), EventType::new(op));
    }
    settings
}

/// Webhooks that are never delivered.
async fn webhooks(queue: &Queue) -> Webhooks {
    let client = GuardedClient::new(SystemClock::shared(), GuardedSettings::default());
    let client = client.expect("a client");
    Webhooks::open(queue.clone(), client, WebhookSettings::default()).await.expect("webhooks")
}

impl World {
    pub(crate) async fn new(now: &str, settings: Settings) -> Self {
        Self::with_sizes(now, settings, Sizes::default()).await
    }

    pub(crate) async fn with_sizes(now: &str, settings: Settings, sizes: Sizes) -> Self {
        let clock = SimClock::at(at(now));
        let entropy = SeededEntropy::shared(7);
        let sql = Sql::sqlite(&SqliteSettings::memory(), clock.clone(), entropy).await;
        let queue = Queue::open(sql.expect("a database")).await.expect("a queue");
        let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
        let webhooks = webhooks(&queue).await;
        let meter = Meter::open_with(queue.clone(), Arc::clone(&blobs), webhooks, settings, sizes);
        let meter = meter.await.expect("a meter");
        Self { clock, queue, blobs, meter }
    }

    /// A meter with other settings over the same stores, as after a restart.
    pub(crate) async fn reopened(&self, settings: Settings) -> Meter {
        self.reopened_over(self.queue.sql(), &self.blobs, settings, Sizes::default()).await
    }

    /// Like [`World::reopened`], over other handles to the same stores.
    pub(crate) async fn reopened_over(
        &self,
        sql: &Sql,
        blobs: &Arc<dyn BlobStore>,
        settings: Settings,
        sizes: Sizes,
    ) -> Meter {
        let queue = Queue::open(sql.clone()).await.expect("a queue");
        let webhooks = webhooks(&queue).await;
        let meter = Meter::open_with(queue, Arc::clone(blobs), webhooks, settings, sizes);
        meter.await.expect("a meter")
    }

    pub(crate) fn set(&self, now: &str) {
        use logmill_io::Clock as _;
        self.clock.jump(at(now).millis() - self.clock.now().millis());
    }

    pub(crate) fn event(&self, json: &Value) -> Event {
        self.checked(json).unwrap_or_else(|errors| panic!("{json}: {errors:?}"))
    }

    pub(crate) fn checked(&self, json: &Value) -> Result<Event, Vec<String>> {
        use logmill_io::Clock as _;
        let text = json.to_string();
        let raw: RawEvent<'_> = serde_json::from_str(&text).expect("an object");
        let entropy = &**self.meter.sql().entropy();
        let sender = Sender { source: "test", now: self.clock.now(), entropy };
        raw.check(self.meter.settings(), None, &sender).and_then(Event::in_time)
    }

    /// Records events as one batch.
    pub(crate) async fn record(&self, events: &[Value]) -> Vec<Outcome> {
        self.record_with(&self.meter, events).await
    }

    /// Records events with another meter.
    pub(crate) async fn record_with(&self, meter: &Meter, events: &[Value]) -> Vec<Outcome> {
        use logmill_io::Clock as _;
        let received_at = self.clock.now();
        let received: Vec<ReceivedEvent> = events
            .iter()
            .map(|json| ReceivedEvent { event: self.event(json), received_at })
            .collect();
        meter.record(received).await.expect("it is recorded")
    }

    /// Runs all jobs that aggregate and watch; returns the errors of those that failed.
    pub(crate) async fn work(&self) -> Vec<String> {
        let handlers: [(&str, Box<dyn Handler>); 2] = [
            (AGGREGATE_JOB, Box::new(Aggregator(self.meter.clone()))),
            (ALERT_JOB, Box::new(Watcher(self.meter.clone()))),
        ];
        let mut failed = Vec::new();
        for (kind, handler) in handlers {
            loop {
                let lease = Duration::from_secs(120);
                let claims = self.queue.claim(kind, 100, lease, "test").await.expect("claims");
                if claims.is_empty() {
                    break;
                }
                for claim in claims {
                    let queue = self.queue.clone();
                    if let Err(failure) = handler.run(RunningJob { claim, queue }).await {
                        failed.push(failure.error);
                    }
                }
            }
        }
        failed
    }

    /// Sweeps and runs the due jobs.
    pub(crate) async fn sweep(&self, which: SweepScope) -> SweepResult {
        let swept = self.meter.sweep(which).await.expect("a sweep");
        assert_eq!(self.work().await, Vec::<String>::new());
        swept
    }

    pub(crate) async fn aggregates(&self, period: &str) -> Vec<Aggregate> {
        let filter = AggregateFilter {
            period: Some(period.to_owned()),
            limit: 1_000,
            ..AggregateFilter::default()
        };
        self.meter.aggregates(&filter).await.expect("aggregates").items
    }

    /// Checks that everything in the database follows from the events; returns their number.
    pub(crate) async fn recounted(&self) -> u64 {
        let recounted = self.meter.recount(false, |_| {}).await.expect("a recount");
        assert_eq!(recounted.differences, Vec::<String>::new());
        recounted.events
    }
}

pub(crate) fn body(aggregate: &Aggregate) -> Value {
    serde_json::from_str(&aggregate.body).expect("JSON")
}
