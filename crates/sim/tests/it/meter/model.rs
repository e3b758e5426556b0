//! Whatever is sent, in whatever order and split, corrected, archived, sealed and restarted: aggregates and queries
//! equal a naive fold over the events that count.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use logmill_io::{BlobStore, Timestamp};
use logmill_meter::correct::{Change, Correction};
use logmill_meter::list::Aggregate;
use logmill_meter::period::PeriodKind;
use logmill_meter::query::Query;
use logmill_meter::record::{Outcome, ReceivedEvent};
use logmill_meter::{Decimal, Meter};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::Queue;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::world::{OPS, aggregate, aggregates, blobs, event, open};
use crate::work::{in_real_time, simulate};

/// 2026-03-28T00:00Z: two days before the clocks in Berlin change, near the end of a month.
const START: i64 = 1_774_656_000_000;
const MINUTES: i64 = 5 * 24 * 60;

#[derive(Clone, Debug)]
struct GeneratedEvent {
    id: u8,
    customer: u8,
    event_type: usize,
    value: i16,
    minute: i64,
    region: Option<u8>,
}

#[derive(Clone, Debug)]
enum Step {
    Record(Vec<GeneratedEvent>),
    Cancel(u8),
    Amend(u8, i16),
    Aggregate,
    KeepHouse,
    Restart,
}

fn sent() -> impl Strategy<Value = GeneratedEvent> {
    (any::<u8>(), 0..3_u8, 0..OPS.len(), any::<i16>(), 0..MINUTES, prop::option::of(0..3_u8))
        .prop_map(|(id, customer, event_type, value, minute, region)| GeneratedEvent {
            id,
            customer,
            event_type,
            value,
            minute,
            region,
        })
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => prop::collection::vec(sent(), 1..12).prop_map(Step::Record),
        1 => any::<u8>().prop_map(Step::Cancel),
        1 => (any::<u8>(), any::<i16>()).prop_map(|(id, value)| Step::Amend(id, value)),
        2 => Just(Step::Aggregate),
        2 => Just(Step::KeepHouse),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..14)
}

/// A recorded event: its input, its position in the order of events, and its current value.
#[derive(Clone, Debug)]
struct RecordedEvent {
    sent: GeneratedEvent,
    order: (i64, i64, usize),
    value: Option<i64>,
}

#[derive(Default)]
struct Model {
    events: BTreeMap<u8, RecordedEvent>,
    recorded: usize,
}

impl GeneratedEvent {
    fn time(&self) -> i64 {
        START + self.minute * 60_000
    }

    fn json(&self) -> Value {
        let mut json = json!({
            "eventType": OPS[self.event_type].0,
            "customerId": format!("c{}", self.customer),
            "value": self.value,
            "id": format!("id{}", self.id),
            "timestamp": self.time().to_string(),
        });
        if let Some(region) = self.region {
            json["metadata"] = json!({ "region": format!("r{region}") });
        }
        json
    }

    fn same(&self, other: &Self) -> bool {
        format!("{self:?}") == format!("{other:?}")
    }
}

impl Model {
    fn record(&mut self, sent: &GeneratedEvent, received: i64) -> Outcome {
        match self.events.get(&sent.id) {
            Some(kept) if kept.sent.same(sent) => Outcome::Repeated,
            Some(_) => Outcome::Conflict,
            None => {
                self.recorded += 1;
                let order = (sent.time(), received, self.recorded);
                let value = Some(i64::from(sent.value));
                self.events.insert(sent.id, RecordedEvent { sent: sent.clone(), order, value });
                Outcome::Stored
            }
        }
    }

    /// The value of an event type over the events that pass the filter, with their number.
    fn fold(
        &self,
        event_type: usize,
        passes: impl Fn(&GeneratedEvent) -> bool,
    ) -> Option<(Decimal, u64)> {
        let mut events: Vec<(&RecordedEvent, i64)> = self
            .events
            .values()
            .filter(|kept| kept.sent.event_type == event_type && passes(&kept.sent))
            .filter_map(|kept| Some((kept, kept.value?)))
            .collect();
        events.sort_by_key(|(kept, _)| kept.order);
        let values: Vec<i64> = events.iter().map(|(_, value)| *value).collect();
        let (first, last) = (*values.first()?, *values.last()?);
        let sum: i64 = values.iter().sum();
        let count = u64::try_from(values.len()).expect("few");
        let whole = Decimal::from_integer;
        let value = match OPS[event_type].0 {
            "sum" => whole(sum),
            "avg" => whole(sum).div(count).expect("it has events").0,
            "min" => whole(values.iter().copied().min()?),
            "max" => whole(values.iter().copied().max()?),
            "count" => whole(i64::try_from(count).expect("few")),
            "first" => whole(first),
            _ => whole(last),
        };
        Some((value, count))
    }
}

struct MeterRun {
    queue: Queue,
    blobs: Arc<dyn BlobStore>,
    meter: Meter,
    model: Model,
    received: i64,
}

impl MeterRun {
    async fn new(database: &Database) -> Self {
        let queue = crate::work::open(database).await;
        let blobs = blobs();
        let meter = open(&queue, &blobs).await.expect("a meter");
        Self { queue, blobs, meter, model: Model::default(), received: START }
    }

    async fn step(&mut self, step: &Step) {
        match step {
            Step::Record(sent) => self.record(sent).await,
            Step::Cancel(id) => self.correct(*id, Change::Cancel, None).await,
            Step::Amend(id, value) => {
                let value = i64::from(*value);
                let change = Change::Amend(Decimal::from_integer(value));
                self.correct(*id, change, Some(value)).await;
            }
            Step::Aggregate => aggregate(&self.meter, &self.queue).await.expect("aggregates"),
            Step::KeepHouse => self.meter.run_housekeeping().await.expect("house is kept"),
            Step::Restart => {
                self.meter = open(&self.queue, &self.blobs).await.expect("a meter");
            }
        }
    }

    async fn record(&mut self, sent: &[GeneratedEvent]) {
        self.received += 1;
        let received_at = Timestamp(self.received);
        let received: Vec<ReceivedEvent> = sent
            .iter()
            .map(|sent| ReceivedEvent { event: event(&sent.json()), received_at })
            .collect();
        let outcomes = self.meter.record(received).await.expect("it is recorded");
        let expected: Vec<Outcome> =
            sent.iter().map(|sent| self.model.record(sent, received_at.millis())).collect();
        assert_eq!(outcomes, expected);
    }

    async fn correct(&mut self, id: u8, change: Change, value: Option<i64>) {
        let correction = Correction {
            source: "test".to_owned(),
            id: format!("id{id}"),
            change,
            reason: "a test".to_owned(),
            actor: "nobody".to_owned(),
        };
        // There may be no such event, or the correction may change nothing.
        if self.meter.correct(&correction).await.is_ok() {
            self.model.events.get_mut(&id).expect("it was recorded").value = value;
        }
    }

    async fn check(&self) {
        aggregate(&self.meter, &self.queue).await.expect("aggregates");
        let recounted = self.meter.recount(false, |_| {}).await.expect("a recount");
        assert_eq!(recounted.differences, Vec::<String>::new());
        let expected = u64::try_from(self.model.events.len()).expect("few");
        assert_eq!(recounted.events, expected);
        let found = aggregates(&self.meter).await;
        for aggregate in &found {
            self.check_aggregate(aggregate);
        }
        self.check_none_is_missing(&found);
        self.check_queries().await;
    }

    fn check_aggregate(&self, aggregate: &Aggregate) {
        let body: Value = serde_json::from_str(&aggregate.body).expect("JSON");
        let inside = |sent: &GeneratedEvent| {
            format!("c{}", sent.customer) == aggregate.customer
                && (aggregate.start.millis()..aggregate.end.millis()).contains(&sent.time())
        };
        for (index, (name, _)) in OPS.iter().enumerate() {
            let expected = self.model.fold(index, inside);
            let value = expected.map(|(value, _)| value.to_string());
            assert_eq!(body["eventsExact"][name].as_str(), value.as_deref(), "{aggregate:?}");
            let count = expected.map(|(_, count)| count);
            assert_eq!(body["eventCounts"][name].as_u64(), count, "{aggregate:?}");
        }
    }

    fn check_none_is_missing(&self, found: &[Aggregate]) {
        let ids: BTreeSet<&str> = found.iter().map(|aggregate| aggregate.id.as_str()).collect();
        for kept in self.model.events.values().filter(|kept| kept.value.is_some()) {
            for kind in &self.meter.settings().periods {
                let time = Timestamp(kept.sent.time());
                let period = self.meter.calendar().period_at(kind, time).expect("a period");
                let id = format!("c{}_{}_{}", kept.sent.customer, kind.name(), period.key);
                assert!(ids.contains(id.as_str()), "{id}");
            }
        }
    }

    /// Days in Berlin by region; one of them has 23 hours.
    async fn check_queries(&self) {
        for (index, (name, _)) in OPS.iter().enumerate() {
            let query = Query {
                event_type: (*name).to_owned(),
                customers: vec!["c0".to_owned(), "c1".to_owned()],
                op: None,
                quantile_milli: None,
                from: Timestamp(START),
                to: Timestamp(START + MINUTES * 60_000),
                window: Some(PeriodKind::Daily),
                zone: Some("Europe/Berlin".to_owned()),
                group_by: vec!["region".to_owned()],
                filter: BTreeMap::new(),
            };
            let lines = self.meter.query(&query, &[]).await.expect("an answer");
            let mut events = 0;
            for line in &lines {
                let region = line.group["region"].clone();
                let inside = |sent: &GeneratedEvent| {
                    sent.customer < 2
                        && (line.start.millis()..line.end.millis()).contains(&sent.time())
                        && sent.region.map(|region| format!("r{region}")) == region
                };
                let expected = self.model.fold(index, inside);
                assert_eq!(line.value().map(|value| (value, line.count)), expected, "{line:?}");
                events += line.count;
            }
            let all = self.model.fold(index, |sent| sent.customer < 2);
            assert_eq!(events, all.map_or(0, |(_, count)| count));
        }
    }
}

async fn live(database: Database, steps: &[Step]) {
    let mut life = MeterRun::new(&database).await;
    for step in steps {
        life.step(step).await;
    }
    life.check().await;
}

#[test]
fn on_sqlite_aggregates_and_queries_equal_a_naive_fold() {
    proptest!(ProptestConfig::with_cases(logmill_io::proof_cases(60)), |(steps in steps())| {
        simulate(async { live(Database::memory().await, &steps).await });
    });
}

#[test]
fn on_postgresql_aggregates_and_queries_equal_a_naive_fold() {
    let server = PostgresServer::start();
    proptest!(ProptestConfig::with_cases(logmill_io::proof_cases(12)), |(steps in steps())| {
        in_real_time(live(Database::postgres(&server), &steps));
    });
}
