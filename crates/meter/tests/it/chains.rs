//! Usage of chains arrives late: a period is final when all of it is present.

use std::collections::BTreeMap;
use std::time::Duration;

use logmill_io::Timestamp;
use logmill_meter::Settings;
use logmill_meter::aggregate::AggregateState::{self, Final, Provisional};
use logmill_meter::due::SweepScope;
use logmill_meter::query::Query;
use logmill_sim::meter_world::{World, at, settings};
use serde_json::json;

/// Calls come from chain 5, or from any chain; bytes come from none.
async fn world(chains: Vec<u64>, wait: Option<Duration>) -> World {
    let chain_types = [("api.calls".to_owned(), chains)].into();
    let settings = Settings { chain_types, chain_wait: wait, ..settings() };
    let world = World::new("2026-01-13T08:20:00Z", settings).await;
    for (customer, event_type) in
        [("mixed", "api.calls"), ("mixed", "storage.bytes"), ("plain", "storage.bytes")]
    {
        let event = json!({"eventType": event_type, "customerId": customer, "value": 1});
        world.record(&[event]).await;
    }
    world.set("2026-01-13T09:30:00Z");
    world
}

/// The states of the hour, for both customers.
async fn states(world: &World) -> Vec<(String, AggregateState)> {
    world.sweep(SweepScope::Finished).await;
    let mut hours = world.aggregates("hourly").await;
    hours.sort_by(|one, other| one.customer.cmp(&other.customer));
    hours.into_iter().map(|hour| (hour.customer, hour.state)).collect()
}

async fn is_final(world: &World) -> bool {
    let query = Query {
        event_type: "api.calls".to_owned(),
        customers: Vec::new(),
        op: None,
        quantile_milli: None,
        from: at("2026-01-13T08:00:00Z"),
        to: at("2026-01-13T09:00:00Z"),
        window: None,
        zone: None,
        group_by: Vec::new(),
        filter: BTreeMap::new(),
    };
    world.meter.query(&query, &[]).await.expect("an answer")[0].is_final
}

fn both(mixed: AggregateState) -> Vec<(String, AggregateState)> {
    vec![("mixed".to_owned(), mixed), ("plain".to_owned(), Final)]
}

#[tokio::test(start_paused = true)]
async fn a_period_is_final_once_usage_of_its_chains_is_complete() {
    let world = world(vec![5], None).await;
    let complete = async |chain, before: &str| {
        world.meter.chain_is_complete(chain, at(before)).await.expect("it is said");
    };
    world.meter.chain_is_complete(5, Timestamp(0)).await.expect("it is said");
    // Another chain has no influence.
    complete(7, "2026-01-13T09:30:00Z").await;
    complete(5, "2026-01-13T08:59:59.999Z").await;
    assert_eq!((states(&world).await, is_final(&world).await), (both(Provisional), false));
    complete(5, "2026-01-13T09:00:00Z").await;
    // A report that is behind does not take back an earlier one.
    complete(5, "2026-01-13T08:00:00Z").await;
    assert_eq!((states(&world).await, is_final(&world).await), (both(Final), true));
}

#[tokio::test(start_paused = true)]
async fn a_period_waits_for_a_chain_as_long_as_configured() {
    let world = world(Vec::new(), Some(Duration::from_secs(24 * 3_600))).await;
    world.meter.chain_is_complete(5, Timestamp(0)).await.expect("it is said");
    assert_eq!(states(&world).await, both(Provisional));
    world.set("2026-01-14T08:59:00Z");
    assert_eq!(states(&world).await, both(Provisional));
    world.set("2026-01-14T09:00:00Z");
    assert_eq!(states(&world).await, both(Final));
}

#[tokio::test(start_paused = true)]
async fn periods_do_not_wait_if_no_chain_is_relayed() {
    let world = world(vec![5], None).await;
    assert_eq!((states(&world).await, is_final(&world).await), (both(Final), true));
}
