//! Every operation from usage to answers, compared with a naive computation: aggregates, and queries with windows,
//! groups, filters and a time zone with a clock change.

use std::collections::BTreeMap;

use logmill_meter::period::{PeriodKind, parse_time};
use logmill_meter::settings::{EventType, Op};
use serde_json::{Value, json};

use super::engine::{Engine, on_both_engines};
use super::ground::{Metered, settings};
use super::naive::{Expected, OPS, PLACES, Sent, Span, fold, scaled};

const NOW: &str = "2026-04-01T08:20:00.000Z";
/// The days in Berlin, the third of which has 23 hours.
const DAYS: [&str; 8] = [
    "2026-03-25T23:00:00Z",
    "2026-03-26T23:00:00Z",
    "2026-03-27T23:00:00Z",
    "2026-03-28T23:00:00Z",
    "2026-03-29T22:00:00Z",
    "2026-03-30T22:00:00Z",
    "2026-03-31T22:00:00Z",
    "2026-04-01T22:00:00Z",
];
const WEEKS: [&str; 3] = ["2026-03-22T23:00:00Z", "2026-03-29T22:00:00Z", "2026-04-05T22:00:00Z"];
const FROM: &str = "2026-03-28T12:00:00Z";
const TO: &str = "2026-03-31T21:30:00Z";
const CUSTOMERS: [&str; 3] = ["a", "b", "c"];
const REGIONS: [&str; 3] = ["ap", "eu", "us"];
const HOUR_MS: i64 = 3_600_000;

fn ms(text: &str) -> i64 {
    parse_time(text).expect("a moment").millis()
}

/// Five days of events; some share a time, and some values are negative.
fn events() -> Vec<Sent> {
    let mut seed = 5_u64;
    let mut draw = |below: u64| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % below
    };
    let mut pick = |list: [&'static str; 3]| list[usize::try_from(draw(3)).expect("small")];
    let (customers, regions): (Vec<_>, Vec<_>) =
        (0..260).map(|_| (pick(CUSTOMERS), pick(REGIONS))).unzip();
    let places = customers.into_iter().zip(regions);
    places
        .map(|(customer, region)| Sent {
            customer,
            region,
            user: draw(40),
            cents: i64::try_from(draw(100_000)).expect("small") - 20_000,
            time_ms: ms("2026-03-27T01:00:00Z")
                + i64::try_from(draw(3_000)).expect("small") * 120_000,
        })
        .collect()
}

/// A meter with one event type per operation, each with all events.
async fn filled(engine: &Engine, events: &[Sent]) -> Metered {
    let mut settings = settings();
    "Europe/Berlin".clone_into(&mut settings.zone);
    settings.periods = vec![PeriodKind::Daily, PeriodKind::Weekly];
    settings.events.clear();
    for name in OPS {
        let op: Op = serde_json::from_value(json!(name)).expect("an operation");
        let event_type = EventType {
            dimensions: vec!["region".to_owned()],
            unique_field: Some("user".to_owned()),
            ..EventType::new(op)
        };
        settings.events.insert(format!("m.{name}"), event_type);
    }
    let metered = Metered::with(engine, settings, |_| {}).await;
    metered.set(NOW);
    for name in OPS {
        let batch: Vec<Value> = events
            .iter()
            .map(|sent| {
                let sign = if sent.cents < 0 { "-" } else { "" };
                let cents = sent.cents.abs();
                json!({
                    "eventType": format!("m.{name}"), "customerId": sent.customer,
                    "value": format!("{sign}{}.{:02}", cents / 100, cents % 100),
                    "timestamp": sent.time_ms,
                    "metadata": {"region": sent.region, "user": format!("u{}", sent.user)},
                })
            })
            .collect();
        let answer = metered.post("/usagebatch", &json!(batch)).await;
        assert_eq!(answer.status, 201, "{}", answer.body);
    }
    metered
}

/// A query, and the same selection for the naive computation.
struct Question {
    query: &'static str,
    customers: &'static [&'static str],
    regions: &'static [&'static str],
    by_customer: bool,
    by_region: bool,
    windows: Windows,
}

#[derive(Clone, Copy)]
enum Windows {
    One,
    Days,
    Hours,
}

impl Question {
    fn new(query: &'static str, windows: Windows) -> Self {
        let by_customer = query.contains("groupBy=customerId");
        let by_region = query.contains("groupBy=region");
        Self { query, customers: &CUSTOMERS, regions: &REGIONS, by_customer, by_region, windows }
    }

    fn of(self, customers: &'static [&'static str], regions: &'static [&'static str]) -> Self {
        Self { customers, regions, ..self }
    }

    fn spans(&self) -> Vec<Span> {
        let (from, to) = (ms(FROM), ms(TO));
        let bounds: Vec<i64> = match self.windows {
            Windows::One => vec![from, to],
            Windows::Days => DAYS.map(ms).to_vec(),
            Windows::Hours => {
                (from / HOUR_MS..=to / HOUR_MS + 1).map(|hour| hour * HOUR_MS).collect()
            }
        };
        let cut = |pair: &[i64]| Span { start_ms: pair[0].max(from), end_ms: pair[1].min(to) };
        bounds.windows(2).map(cut).filter(|span| span.start_ms < span.end_ms).collect()
    }

    /// The selected events by group.
    fn groups<'a>(&self, events: &'a [Sent]) -> BTreeMap<String, Vec<&'a Sent>> {
        let mut groups: BTreeMap<String, Vec<&Sent>> = BTreeMap::new();
        for sent in events {
            if self.customers.contains(&sent.customer) && self.regions.contains(&sent.region) {
                let mut group = json!({});
                if self.by_customer {
                    group["customerId"] = sent.customer.into();
                }
                if self.by_region {
                    group["region"] = sent.region.into();
                }
                groups.entry(group.to_string()).or_default().push(sent);
            }
        }
        groups
    }

    /// Runs the query and compares every line.
    async fn check(&self, metered: &Metered, events: &[Sent], op: &str, quantile_milli: usize) {
        let path = format!(
            "/meters/query?eventType=m.{op}&op={op}&quantileMilli={quantile_milli}&from={FROM}&to={TO}{}",
            self.query
        );
        let answer = metered.found(&path).await;
        let mut expected: BTreeMap<(i64, String), (Span, Expected, usize)> = BTreeMap::new();
        for (group, events) in self.groups(events) {
            for span in self.spans() {
                if let (Some(value), count) = fold(op, quantile_milli, &events, span) {
                    expected.insert((span.start_ms, group.clone()), (span, value, count));
                }
            }
        }
        let lines = answer["data"].as_array().expect("lines");
        assert_eq!(lines.len(), expected.len(), "{path}");
        for line in lines {
            let start_ms = ms(line["start"].as_str().expect("a moment"));
            let end_ms = ms(line["end"].as_str().expect("a moment"));
            let found = expected.get(&(start_ms, line["group"].to_string()));
            let (span, value, count) = found.unwrap_or_else(|| panic!("{path}: {line}"));
            assert_eq!((end_ms, &line["count"]), (span.end_ms, &json!(count)), "{path}: {line}");
            let answered = line["valueExact"].as_str().expect("digits");
            let exact = line["exact"].as_bool().expect("a word on it");
            value.check(answered, exact, &format!("{path}: {line}"));
        }
    }
}

async fn queries_of_every_operation_equal_a_computation_by_hand(engine: Engine) {
    let events = events();
    let metered = filled(&engine, &events).await;
    let questions = [
        Question::new("", Windows::One),
        Question::new("&customerId=a", Windows::One).of(&["a"], &REGIONS),
        Question::new("&groupBy=region", Windows::One),
        Question::new("&groupBy=customerId&filter.region=eu", Windows::One).of(&CUSTOMERS, &["eu"]),
        Question::new("&window=daily&zone=Europe/Berlin", Windows::Days),
        Question::new("&window=daily&groupBy=region&customerId=a&customerId=c", Windows::Days)
            .of(&["a", "c"], &REGIONS),
        Question::new(
            "&window=hourly&zone=UTC&filter.region=eu&filter.region=us&groupBy=customerId&groupBy=region",
            Windows::Hours,
        )
        .of(&CUSTOMERS, &["eu", "us"]),
    ];
    for question in &questions {
        for op in OPS {
            question.check(&metered, &events, op, 950).await;
        }
        for quantile_milli in [1, 250, 500, 1_000] {
            question.check(&metered, &events, "percentile", quantile_milli).await;
        }
    }
}

/// Expected figures of an aggregate, by event type.
type Figures = BTreeMap<String, (Expected, usize)>;

/// All aggregates of one kind of period, by customer and start.
fn aggregated(events: &[Sent], bounds: &[&str]) -> BTreeMap<(String, i64), Figures> {
    let mut all = BTreeMap::new();
    for customer in CUSTOMERS {
        let own: Vec<&Sent> = events.iter().filter(|sent| sent.customer == customer).collect();
        for pair in bounds.windows(2) {
            let (start_ms, end_ms) = (ms(pair[0]), ms(pair[1]).min(ms(NOW)));
            let figures: Figures = OPS
                .into_iter()
                .filter_map(|op| {
                    let (value, count) = fold(op, 950, &own, Span { start_ms, end_ms });
                    Some((format!("m.{op}"), (value?, count)))
                })
                .collect();
            if !figures.is_empty() {
                all.insert((customer.to_owned(), start_ms), figures);
            }
        }
    }
    all
}

fn check_aggregate(one: &Value, figures: &Figures) {
    let counts: BTreeMap<&str, usize> =
        figures.iter().map(|(name, (_, count))| (name.as_str(), *count)).collect();
    assert_eq!(one["eventCounts"], json!(counts), "{one}");
    for (name, (value, _)) in figures {
        let approximate = one["approximate"].as_array().into_iter().flatten();
        let exact = !approximate.into_iter().any(|other| other == name);
        let answered = one["eventsExact"][name].as_str().expect("digits");
        value.check(answered, exact, &format!("{name} of {one}"));
        // The JSON number has the same value, or is missing.
        if let Some(number) = one["events"][name].as_number() {
            assert_eq!(scaled(&number.to_string(), PLACES), scaled(answered, PLACES), "{name}");
        }
    }
}

async fn aggregates_of_every_operation_equal_a_computation_by_hand(engine: Engine) {
    let events = events();
    let metered = filled(&engine, &events).await;
    // A value that still holds makes the next day due when its own day becomes final.
    for _ in DAYS {
        metered.aggregated("").await;
    }
    for (period, bounds) in [("daily", &DAYS[..]), ("weekly", &WEEKS[..])] {
        let found = metered.found(&format!("/aggregations?period={period}&limit=1000")).await;
        let found = found.as_array().expect("an array");
        let expected = aggregated(&events, bounds);
        assert_eq!(found.len(), expected.len(), "{period}");
        for one in found {
            let text = |name: &str| one[name].as_str().expect("text");
            let (start_ms, end_ms) = (ms(text("periodStart")), ms(text("periodEnd")) + 1);
            check_aggregate(one, &expected[&(text("customerId").to_owned(), start_ms)]);
            let state = if end_ms <= ms(NOW) { "final" } else { "provisional" };
            assert_eq!(one["state"], state, "{one}");
        }
    }
    assert!(events.iter().any(|sent| sent.cents < 0));
}

async fn many_different_things_are_counted_by_an_estimate_within_its_error(engine: Engine) {
    let mut settings = settings();
    let visitors =
        EventType { unique_field: Some("user".to_owned()), ..EventType::new(Op::Unique) };
    settings.events.insert("visitors".to_owned(), visitors);
    let metered = Metered::with(&engine, settings, |_| {}).await;
    let query = "/meters/query?eventType=visitors&from=2026-01-13T00:00:00Z";
    // Exact up to 4096, then with a standard error of 0.81 %; the test allows five standard errors.
    for (from, until, exact) in [(0, 4_000, true), (0, 4_096, true), (4_096, 9_000_u64, false)] {
        for start in (from..until).step_by(1_000) {
            let batch: Vec<Value> = (start..(start + 1_000).min(until))
                .map(|user| {
                    // Spread over an hour, so that partials are merged.
                    let timestamp = format!("2026-01-13T07:{:02}:00Z", user % 60);
                    json!({
                        "eventType": "visitors", "customerId": "c", "value": 1, "id": format!("{until}-{user}"),
                        "timestamp": timestamp, "metadata": {"user": format!("u{user}")},
                    })
                })
                .collect();
            assert_eq!(metered.post("/usagebatch", &json!(batch)).await.status, 201);
        }
        let line = metered.found(query).await["data"][0].take();
        let counted = line["value"].as_u64().expect("a number");
        let off = counted.abs_diff(until) * 10_000;
        let most = if exact { 0 } else { until * 405 };
        assert!(off <= most && line["exact"] == exact, "{until}: {line}");
    }
}

on_both_engines![
    queries_of_every_operation_equal_a_computation_by_hand,
    aggregates_of_every_operation_equal_a_computation_by_hand,
    many_different_things_are_counted_by_an_estimate_within_its_error,
];
