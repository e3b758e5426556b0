//! Lists of events: nothing is omitted, and the cost of a page is proportional to its size.

use std::cmp::Reverse;
use std::time::Duration;

use logmill_io::params;
use logmill_io::sql::Execute as _;
use logmill_meter::correct::{Change, Correction};
use logmill_meter::list::EventFilter;
use logmill_meter::{Decimal, Settings, Sizes};
use logmill_sim::meter_world::{World, settings};
use serde_json::{Value, json};

const NOW: &str = "2026-01-13T08:20:00.000Z";

#[tokio::test(start_paused = true)]
async fn no_series_of_a_customer_is_left_out_however_many_there_are() {
    let world = World::new(NOW, settings()).await;
    let usage = json!({"eventType": "test.last", "customerId": "c", "value": 1});
    world.record(&[usage]).await;
    // Many other series, which come before it by name and by number.
    let text = "INSERT INTO meter_series (id, customer, event_type, dims)
        WITH RECURSIVE numbers(n) AS (
            SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 100001)
        SELECT -n, (SELECT min(id) FROM meter_customer), 'api.calls', CAST(n AS TEXT) FROM numbers";
    world.meter.sql().execute(text, params![]).await.expect("many series");
    let customer = Some("c".to_owned());
    let filter = EventFilter { customer, limit: 10, ..EventFilter::default() };
    let found = world.meter.events(&filter).await.expect("a page").items;
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].event_type, "test.last");
}

/// An event within two quarter-hours, some at the same time; and one of long ago.
fn event(number: i64) -> Value {
    let (minute, second) = ((number / 3) % 15, (number / 45) % 60);
    let date = if number == 65 { "0001-01-01" } else { "2026-01-13" };
    let time = format!("{date}T{:02}:{minute:02}:{second:02}Z", 7 + number % 11 / 10);
    json!({"eventType": "api.calls", "customerId": "c", "value": number, "timestamp": time,
        "id": format!("e{number}")})
}

/// The oldest events are damaged: a read that reaches them has read more than the page.
#[tokio::test(start_paused = true)]
async fn a_page_reads_no_more_of_the_database_than_it_returns() {
    for unplaced_max in [10_000, 1] {
        let sizes = Sizes { unplaced_max, ..Sizes::default() };
        let world = World::with_sizes(NOW, settings(), sizes).await;
        let events: Vec<Value> = (0..450).map(event).collect();
        world.record(&events).await;
        let customer = Some("c".to_owned());
        let mut filter = EventFilter { customer, limit: 50, ..EventFilter::default() };
        let mut found = Vec::new();
        let text = "UPDATE meter_event SET amount = 'damage' WHERE seq IN (
                        SELECT seq FROM meter_event ORDER BY time_ms, seq LIMIT 300)";
        world.meter.sql().execute(text, params![]).await.expect("damage");
        for _ in 0..3 {
            let page = world.meter.events(&filter).await.expect("a page");
            found.extend(page.items.iter().map(|listed| (listed.event.time, listed.event.seq)));
            filter.after = page.next;
        }
        assert_eq!(found.len(), 150);
        assert!(found.is_sorted_by(|one, next| one > next));
        let next = world.meter.events(&filter).await.expect("a page");
        assert_eq!((next.items.len(), next.damaged.len()), (0, 50), "there they are");
    }
}

/// All pages together, as value and state.
async fn pages(world: &World, counting: bool, limit: usize) -> Vec<String> {
    let customer = Some("c".to_owned());
    let mut filter = EventFilter { customer, limit, counting, ..EventFilter::default() };
    let mut found = Vec::new();
    loop {
        let page = world.meter.events(&filter).await.expect("a page");
        assert!(page.items.len() <= limit);
        let shown = |listed: &logmill_meter::list::ListedEvent| {
            format!("{} {}", listed.event.value, listed.event.state.name())
        };
        found.extend(page.items.iter().map(shown));
        filter.after = page.next;
        if filter.after.is_none() {
            return found;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn pages_have_every_event_once_and_in_its_current_form() {
    let kept = Settings { retention: Some(Duration::from_secs(86_400)), ..settings() };
    let sizes = Sizes { slice_bytes: 1_500, ..Sizes::default() };
    let world = World::with_sizes("2026-01-13T08:20:00Z", kept, sizes).await;
    let mut expected: Vec<(Value, String)> = Vec::new();
    let correct = async |number: i64, change: Change, expected: &mut Vec<(Value, String)>| {
        let (source, id) = ("test".to_owned(), format!("e{number}"));
        let (reason, actor) = ("wrong".to_owned(), "operator".to_owned());
        let correction = Correction { source, id, change, reason, actor };
        world.meter.correct(&correction).await.expect("a correction");
        let place = expected.iter().position(|(event, _)| event["value"] == number);
        expected[place.expect("an event")].1 = match correction.change {
            Change::Cancel => format!("{number} cancelled"),
            Change::Amend(value) => format!("{value} amended"),
        };
    };
    let check = async |expected: &[(Value, String)], when: &str| {
        let mut all = expected.to_vec();
        // By time, then by arrival, the newest first.
        let order = |(event, _): &(Value, String)| {
            (event["timestamp"].to_string(), event["value"].as_i64())
        };
        all.sort_by_key(|one| Reverse(order(one)));
        let all: Vec<String> = all.into_iter().map(|(_, said)| said).collect();
        let counting: Vec<String> =
            all.iter().filter(|said| !said.ends_with("cancelled")).cloned().collect();
        for limit in [1, 7, 1_000] {
            assert_eq!(pages(&world, false, limit).await, all, "{when}, {limit}");
            assert_eq!(pages(&world, true, limit).await, counting, "{when}, {limit}");
        }
    };
    let record = async |numbers: std::ops::Range<i64>, expected: &mut Vec<(Value, String)>| {
        let events: Vec<Value> = numbers.map(event).collect();
        world.record(&events).await;
        let said = |event: Value| (event.clone(), format!("{} recorded", event["value"]));
        expected.extend(events.into_iter().map(said));
    };
    record(0..60, &mut expected).await;
    correct(3, Change::Cancel, &mut expected).await;
    check(&expected, "in the database").await;
    world.set("2026-01-20T00:00:00Z");
    world.meter.run_housekeeping().await.expect("house is kept");
    check(&expected, "archived").await;
    correct(10, Change::Cancel, &mut expected).await;
    correct(59, Change::Cancel, &mut expected).await;
    correct(20, Change::Amend(Decimal::from_integer(-1)), &mut expected).await;
    record(60..70, &mut expected).await;
    check(&expected, "archived and corrected").await;
    world.meter.run_housekeeping().await.expect("house is kept");
    check(&expected, "archived again").await;
    correct(10, Change::Amend(Decimal::from_integer(10)), &mut expected).await;
    correct(59, Change::Amend(Decimal::from_integer(-2)), &mut expected).await;
    check(&expected, "corrected again").await;
    assert_eq!(world.recounted().await, 70);
}
