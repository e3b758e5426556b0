//! Queries: their results, and that they stop where they would cost too much.

use std::collections::BTreeMap;

use logmill_io::params;
use logmill_io::sql::Execute as _;
use logmill_meter::Settings;
use logmill_meter::period::PeriodKind;
use logmill_meter::query::{BY_CUSTOMER, Limits, Query};
use logmill_meter::settings::{EventType, Op};
use logmill_sim::meter_world::{World, at, settings};
use serde_json::{Value, json};

const NOW: &str = "2026-01-13T08:20:00.000Z";

fn query(event_type: &str, from: &str, to: &str) -> Query {
    Query {
        event_type: event_type.to_owned(),
        customers: Vec::new(),
        op: None,
        quantile_milli: None,
        from: at(from),
        to: at(to),
        window: None,
        zone: None,
        group_by: Vec::new(),
        filter: BTreeMap::new(),
    }
}

fn with_type(name: &str, event_type: EventType) -> Settings {
    let mut settings = settings();
    settings.events.insert(name.to_owned(), event_type);
    settings
}

async fn asked(world: &World, query: &Query, limits: &Limits) -> Result<Vec<String>, String> {
    let lines = world.meter.query_within(query, &[], limits).await;
    let lines = lines.map_err(|error| error.to_string())?;
    let shown = |line: logmill_meter::query::QueryLine| {
        let value = line.value().map(|value| value.to_string()).unwrap_or_default();
        let group: Vec<String> = line.group.into_values().map(Option::unwrap_or_default).collect();
        format!("{} {value}", group.join(" "))
    };
    Ok(lines.into_iter().map(shown).collect())
}

/// The partial of the last customer is damaged: a query that reaches it has gone too far.
#[tokio::test(start_paused = true)]
async fn a_query_stops_as_soon_as_it_has_too_many_lines() {
    let seats = EventType::new(Op::TimeWeighted);
    let world = World::new(NOW, with_type("seats", seats)).await;
    for customer in ["a", "b", "c", "d", "e", "f", "g"] {
        world
            .record(&[json!({"eventType": "seats", "customerId": customer, "value": 1,
                "timestamp": "2026-01-01T00:00:00Z"})])
            .await;
    }
    for table in ["meter_partial", "meter_partial_recent"] {
        let text = format!(
            "UPDATE {table} SET state = $1 WHERE series = (SELECT max(id) FROM meter_series)"
        );
        world.meter.sql().execute(&text, params![b"damage".as_slice()]).await.expect("damage");
    }
    let mut held = query("seats", "2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z");
    held.window = Some(PeriodKind::Hourly);
    held.group_by = vec![BY_CUSTOMER.to_owned()];
    // Each customer has a line in each of 744 hours: the sixth has one too many.
    let lines = Limits { lines: 5 * 744, ..Limits::default() };
    let stopped = asked(&world, &held, &lines).await.expect_err("too much");
    assert!(stopped.starts_with("the query covers more than 3720 lines: "), "{stopped}");
    let steps = Limits { held: 5 * 744, ..Limits::default() };
    let stopped = asked(&world, &held, &steps).await.expect_err("too much");
    assert!(stopped.contains("more than 3720 values carried into windows"), "{stopped}");
    let all = asked(&world, &held, &Limits::default()).await.expect_err("damage");
    assert!(all.contains("corrupt"), "{all}");
}

#[tokio::test(start_paused = true)]
async fn large_partials_are_bounded_by_their_bytes_and_not_by_their_number() {
    let world = World::new(NOW, with_type("users", EventType::new(Op::Unique))).await;
    for quarter in 0..4_i64 {
        let events: Vec<Value> = (0..1_000)
            .map(|number| {
                json!({"eventType": "users", "customerId": "c", "value": number + quarter * 1_000,
                    "timestamp": format!("2026-01-13T06:{:02}:00Z", quarter * 15)})
            })
            .collect();
        world.record(&events).await;
    }
    let mut users = query("users", "2026-01-13T06:00:00Z", "2026-01-13T07:00:00Z");
    assert_eq!(asked(&world, &users, &Limits::default()).await.expect("lines"), [" 4000"]);
    let few = Limits { bytes: 20_000, ..Limits::default() };
    let stopped = asked(&world, &users, &few).await.expect_err("too much");
    assert!(
        stopped.starts_with("the query covers more than 20000 bytes of partials: "),
        "{stopped}"
    );
    let few = Limits { kept_bytes: 40_000, ..Limits::default() };
    let stopped = asked(&world, &users, &few).await.expect_err("too much");
    assert!(stopped.starts_with("the query covers more than 40000 bytes in lines: "), "{stopped}");
    // A count keeps none of these bytes.
    users.op = Some(Op::Count);
    assert_eq!(asked(&world, &users, &few).await.expect("lines"), [" 4000"]);
}

/// More partials than the first pages have rows, of series that begin and end in the middle of them.
#[tokio::test(start_paused = true)]
async fn an_answer_is_the_same_over_many_pages() {
    let world = World::new(NOW, settings()).await;
    let start = at("2026-01-01T00:00:00Z").millis();
    let mut events = Vec::new();
    let mut sums: BTreeMap<(i64, &str), i64> = BTreeMap::new();
    for (customer, quarters) in [("a", 300_i64), ("b", 1), ("c", 700), ("d", 256), ("e", 90)] {
        for quarter in 0..quarters {
            let time = start + quarter * 15 * 60_000;
            events.push(json!({"eventType": "api.calls", "customerId": customer, "value": quarter,
                "timestamp": time.to_string()}));
            *sums.entry((quarter / 96, customer)).or_default() += quarter;
        }
    }
    for some in events.chunks(500) {
        world.record(some).await;
    }
    let mut daily = query("api.calls", "2026-01-01T00:00:00Z", "2026-01-13T00:00:00Z");
    daily.window = Some(PeriodKind::Daily);
    daily.group_by = vec![BY_CUSTOMER.to_owned()];
    let expected: Vec<String> =
        sums.iter().map(|((_, customer), sum)| format!("{customer} {sum}")).collect();
    assert_eq!(asked(&world, &daily, &Limits::default()).await.expect("lines"), expected);
    let few = Limits { rows: 1_346, ..Limits::default() };
    let stopped = asked(&world, &daily, &few).await.expect_err("too much");
    assert!(stopped.starts_with("the query covers more than 1346 rows: "), "{stopped}");
}

fn by_field(op: Op) -> EventType {
    EventType {
        dimensions: vec!["path".to_owned()],
        unique_field: Some("user".to_owned()),
        ..EventType::new(op)
    }
}

#[tokio::test(start_paused = true)]
async fn unique_items_are_compared_by_their_whole_text_and_a_missing_one_adds_nothing() {
    let world = World::new(NOW, with_type("users", by_field(Op::Unique))).await;
    let long = "x".repeat(300);
    let users = [
        json!({"user": format!("{long}1")}),
        json!({"user": format!("{long}2")}),
        json!({"user": format!("{long}2")}),
        json!({"user": null}),
        json!({"path": "/"}),
        Value::Null,
    ];
    let event = |metadata: &Value| {
        json!({"eventType": "users", "customerId": "c", "value": 1, "metadata": metadata,
            "timestamp": "2026-01-13T08:05:00Z"})
    };
    world.record(&users.each_ref().map(event)).await;
    let mut users = query("users", "2026-01-13T08:00:00Z", "2026-01-13T08:15:00Z");
    assert_eq!(asked(&world, &users, &Limits::default()).await.expect("lines"), [" 2"]);
    users.op = Some(Op::Count);
    assert_eq!(asked(&world, &users, &Limits::default()).await.expect("lines"), [" 6"]);
    assert_eq!(world.recounted().await, 6);
}

#[tokio::test(start_paused = true)]
async fn long_values_of_a_dimension_are_groups_of_their_own_and_are_found_by_the_whole() {
    let world = World::new(NOW, with_type("hits", by_field(Op::Sum))).await;
    // The cut is in the middle of a character.
    let long = |end: &str| format!("x{}{end}", "ä".repeat(150));
    let event = |(path, value): (String, i64)| {
        json!({"eventType": "hits", "customerId": "c", "value": value, "metadata": {"path": path},
            "timestamp": "2026-01-13T08:05:00Z"})
    };
    let exact = "y".repeat(200);
    world.record(&[(long("1"), 1), (long("2"), 20), (exact.clone(), 300)].map(event)).await;
    let mut hits = query("hits", "2026-01-13T08:00:00Z", "2026-01-13T08:15:00Z");
    hits.group_by = vec!["path".to_owned()];
    let lines = asked(&world, &hits, &Limits::default()).await.expect("lines");
    assert_eq!(lines.len(), 3, "{lines:?}");
    for line in &lines {
        let group = line.split(' ').next().expect("a group");
        assert!(group.len() <= 200, "{group}");
        // The shown value finds the group again.
        hits.filter = BTreeMap::from([("path".to_owned(), [group.to_owned()].into())]);
        assert_eq!(asked(&world, &hits, &Limits::default()).await.expect("lines"), [line.as_str()]);
    }
    hits.group_by.clear();
    for (path, expected) in [(long("1"), " 1"), (long("2"), " 20"), (exact, " 300")] {
        hits.filter = BTreeMap::from([("path".to_owned(), [path].into())]);
        assert_eq!(asked(&world, &hits, &Limits::default()).await.expect("a line"), [expected]);
    }
    hits.filter = BTreeMap::from([("path".to_owned(), [long("3")].into())]);
    assert!(asked(&world, &hits, &Limits::default()).await.expect("no line").is_empty());
}

/// Adds customers with one series each, and with the partial of the customer `first` at the same
/// time.
async fn add_customers(world: &World, count: i64) {
    let numbers = format!(
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
    );
    let first = "SELECT id FROM meter_series WHERE customer = (
        SELECT id FROM meter_customer WHERE name = 'first')";
    for text in [
        format!("{numbers} INSERT INTO meter_customer (id, name) SELECT 1000000 + i, 'x' || i FROM n"),
        format!(
            "{numbers} INSERT INTO meter_series (id, customer, event_type, dims)
             SELECT 1000000 + n.i, 1000000 + n.i, s.event_type, s.dims FROM n CROSS JOIN meter_series s
             WHERE s.id = ({first})"
        ),
        format!(
            "{numbers} INSERT INTO meter_partial_recent (bucket, series, revision, state)
             SELECT p.bucket, 1000000 + n.i, p.revision, p.state
             FROM n CROSS JOIN meter_partial_recent p WHERE p.series = ({first})"
        ),
        format!(
            "{numbers} INSERT INTO meter_partial (series, bucket, revision, state)
             SELECT 1000000 + n.i, p.bucket, p.revision, p.state
             FROM n CROSS JOIN meter_partial p WHERE p.series = ({first})"
        ),
    ] {
        world.meter.sql().execute(&text, params![]).await.expect("added");
    }
}

#[tokio::test(start_paused = true)]
async fn a_total_is_bounded_by_what_it_reads_and_not_by_the_number_of_customers() {
    const MORE: i64 = 25_000;
    let mut settings = with_type("seats", EventType::new(Op::TimeWeighted));
    settings.events.insert("calls".to_owned(), EventType::new(Op::Sum));
    for name in ["calls", "seats"] {
        let world = World::new(NOW, settings.clone()).await;
        let event = |minute: u64, value: u64| {
            json!({"eventType": name, "customerId": "first", "value": value,
                "timestamp": format!("2026-01-13T05:{minute:02}:00Z")})
        };
        world.record(&[event(0, 2), event(20, 3)]).await;
        add_customers(&world, MORE).await;
        let mut total = query(name, "2026-01-13T05:15:00Z", "2026-01-13T06:15:00Z");
        // Seats: 2 for five minutes, starting before the range, then 3 until the end.
        let one = if name == "calls" { 3 } else { 2 * 300 + 3 * 55 * 60 };
        let sum = format!(" {}", one * (MORE + 1));
        assert_eq!(asked(&world, &total, &Limits::default()).await.expect("a line"), [sum]);
        let few = Limits { rows: 30_000, ..Limits::default() };
        let stopped = asked(&world, &total, &few).await.expect_err("too much");
        assert!(stopped.starts_with("the query covers more than 30000 rows: "), "{stopped}");
        // The number of lines is the limit where every customer has one.
        total.group_by = vec![BY_CUSTOMER.to_owned()];
        let lines = Limits { lines: 1_000, ..Limits::default() };
        let stopped = asked(&world, &total, &lines).await.expect_err("too much");
        assert!(stopped.starts_with("the query covers more than 1000 lines: "), "{stopped}");
        total.customers = vec!["first".to_owned(), "x7".to_owned(), "first".to_owned()];
        let named = asked(&world, &total, &Limits::default()).await.expect("two lines");
        assert_eq!(named, [format!("first {one}"), format!("x7 {one}")]);
    }
}
