//! Lists of events: nothing is left out, and a page costs about a page.

use logmill_io::params;
use logmill_io::sql::Execute as _;
use logmill_meter::list::EventFilter;
use serde_json::json;

use crate::fixture::{World, settings};

const NOW: &str = "2026-01-13T08:20:00.000Z";

#[tokio::test(start_paused = true)]
async fn no_series_of_a_customer_is_left_out_however_many_there_are() {
    let world = World::new(NOW, settings()).await;
    let usage = json!({"eventType": "test.last", "customerId": "c", "value": 1});
    world.record(&[usage]).await;
    // So many others, which come before it by name and by number.
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
