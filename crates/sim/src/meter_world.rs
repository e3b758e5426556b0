//! A meter over stores that outlive it, and the operations that tests of usage share.
//!
//! Guarantees: jobs run when a test says so, one after the other, and no webhook is delivered. [`World`] is in memory,
//! at a time that the test sets. Leaves to others: databases, faults, and the expected figures.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::blob::MemoryBlobs;
use logmill_io::sql::SqliteSettings;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_io::{BlobStore, Clock, Entropy, SeededEntropy, SimClock, Sql, SystemClock, Timestamp};
use logmill_meter::aggregate::Aggregator;
use logmill_meter::alerts::{ALERT_JOB, Watcher};
use logmill_meter::due::{AGGREGATE_JOB, SweepResult, SweepScope};
use logmill_meter::event::{Event, RawEvent, Sender};
use logmill_meter::list::{Aggregate, AggregateFilter};
use logmill_meter::period::parse_time;
use logmill_meter::record::{Outcome, ReceivedEvent};
use logmill_meter::settings::{EventType, Op};
use logmill_meter::webhooks::{WebhookSettings, Webhooks};
use logmill_meter::{Error, Meter, Result, Settings, Sizes};
use logmill_work::{Handler, Queue, RunningJob};
use serde_json::Value;

/// Lease of the jobs that tests run.
pub const LEASE: Duration = Duration::from_secs(120);

/// A meter in memory.
pub struct World {
    pub clock: Arc<SimClock>,
    pub queue: Queue,
    pub blobs: Arc<dyn BlobStore>,
    pub meter: Meter,
}

pub fn at(text: &str) -> Timestamp {
    parse_time(text).expect("a moment")
}

/// The event types of the seed.
pub fn settings() -> Settings {
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

/// Opens a meter as a new process would.
pub async fn open(
    queue: &Queue,
    blobs: &Arc<dyn BlobStore>,
    settings: Settings,
    sizes: Sizes,
) -> Result<Meter> {
    let client = GuardedClient::new(SystemClock::shared(), GuardedSettings::default());
    let client = client.expect("a client");
    let webhooks = Webhooks::open(queue.clone(), client, WebhookSettings::default()).await?;
    Meter::open_with(queue.clone(), Arc::clone(blobs), webhooks, settings, sizes).await
}

/// Parses an event and checks it, except for its time.
pub fn check_event(
    json: &Value,
    settings: &Settings,
    now: Timestamp,
    entropy: &dyn Entropy,
) -> Result<Event, Vec<String>> {
    let text = json.to_string();
    let raw: RawEvent<'_> = serde_json::from_str(&text).expect("an object");
    raw.check(settings, None, &Sender { source: "test", now, entropy })
}

/// Computes the aggregates of all periods that have ended.
pub async fn aggregate(meter: &Meter, queue: &Queue) -> Result<()> {
    meter.sweep(SweepScope::Finished).await?;
    let failed = run_jobs(queue, AGGREGATE_JOB, &Aggregator(meter.clone())).await?;
    failed.into_iter().next().map_or(Ok(()), |error| Err(Error::invalid(error)))
}

/// Runs the due jobs of a kind, including those that become due meanwhile; returns the errors of those that failed.
async fn run_jobs(queue: &Queue, kind: &str, handler: &dyn Handler) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    loop {
        let claims = queue.claim(kind, 100, LEASE, "test").await?;
        if claims.is_empty() {
            return Ok(failed);
        }
        for claim in claims {
            let running = RunningJob { claim, queue: queue.clone() };
            failed.extend(handler.run(running).await.err().map(|failure| failure.error));
        }
    }
}

impl World {
    pub async fn new(now: &str, settings: Settings) -> Self {
        Self::with_sizes(now, settings, Sizes::default()).await
    }

    pub async fn with_sizes(now: &str, settings: Settings, sizes: Sizes) -> Self {
        let clock = SimClock::at(at(now));
        let entropy = SeededEntropy::shared(7);
        let sql = Sql::sqlite(&SqliteSettings::memory(), clock.clone(), entropy).await;
        let queue = Queue::open(sql.expect("a database")).await.expect("a queue");
        let blobs: Arc<dyn BlobStore> = Arc::new(MemoryBlobs::default());
        let meter = open(&queue, &blobs, settings, sizes).await.expect("a meter");
        Self { clock, queue, blobs, meter }
    }

    /// A meter with other settings over the same stores, as after a restart.
    pub async fn reopened(&self, settings: Settings) -> Meter {
        self.reopened_over(self.queue.sql(), &self.blobs, settings, Sizes::default()).await
    }

    /// Like [`World::reopened`], over other handles to the same stores.
    pub async fn reopened_over(
        &self,
        sql: &Sql,
        blobs: &Arc<dyn BlobStore>,
        settings: Settings,
        sizes: Sizes,
    ) -> Meter {
        let queue = Queue::open(sql.clone()).await.expect("a queue");
        open(&queue, blobs, settings, sizes).await.expect("a meter")
    }

    pub fn set(&self, now: &str) {
        self.clock.jump(at(now).millis() - self.clock.now().millis());
    }

    pub fn event(&self, json: &Value) -> Event {
        self.checked(json).unwrap_or_else(|errors| panic!("{json}: {errors:?}"))
    }

    pub fn checked(&self, json: &Value) -> Result<Event, Vec<String>> {
        let entropy = &**self.meter.sql().entropy();
        let checked = check_event(json, self.meter.settings(), self.clock.now(), entropy);
        checked.and_then(Event::in_time)
    }

    /// Records events as one batch.
    pub async fn record(&self, events: &[Value]) -> Vec<Outcome> {
        self.record_with(&self.meter, events).await
    }

    /// Records events with another meter.
    pub async fn record_with(&self, meter: &Meter, events: &[Value]) -> Vec<Outcome> {
        let received_at = self.clock.now();
        let received: Vec<ReceivedEvent> = events
            .iter()
            .map(|json| ReceivedEvent { event: self.event(json), received_at })
            .collect();
        meter.record(received).await.expect("it is recorded")
    }

    /// Runs all jobs that aggregate and watch; returns the errors of those that failed.
    pub async fn work(&self) -> Vec<String> {
        let handlers: [(&str, Box<dyn Handler>); 2] = [
            (AGGREGATE_JOB, Box::new(Aggregator(self.meter.clone()))),
            (ALERT_JOB, Box::new(Watcher(self.meter.clone()))),
        ];
        let mut failed = Vec::new();
        for (kind, handler) in handlers {
            failed.extend(run_jobs(&self.queue, kind, &*handler).await.expect("a queue"));
        }
        failed
    }

    /// Sweeps and runs the due jobs.
    pub async fn sweep(&self, which: SweepScope) -> SweepResult {
        let swept = self.meter.sweep(which).await.expect("a sweep");
        assert_eq!(self.work().await, Vec::<String>::new());
        swept
    }

    pub async fn aggregates(&self, period: &str) -> Vec<Aggregate> {
        let filter = AggregateFilter {
            period: Some(period.to_owned()),
            limit: 1_000,
            ..AggregateFilter::default()
        };
        self.meter.aggregates(&filter).await.expect("aggregates").items
    }

    /// Checks that everything in the database follows from the events; returns their number.
    pub async fn recounted(&self) -> u64 {
        let recounted = self.meter.recount(false, |_| {}).await.expect("a recount");
        assert_eq!(recounted.differences, Vec::<String>::new());
        recounted.events
    }
}

pub fn body(aggregate: &Aggregate) -> Value {
    serde_json::from_str(&aggregate.body).expect("JSON")
}
