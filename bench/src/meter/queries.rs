//! Queries meters, one request after the other.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::watch;

use super::usage::{TYPES, Usage, mixed};
use crate::http::{self, Connection};

const DAY_MS: u64 = 86_400_000;
/// Pause between two requests.
const PAUSE: Duration = Duration::from_millis(5);

/// Queries daily sums over all days of one customer after the other, until `stop` is set; returns the latencies.
pub async fn ask(
    address: String,
    usage: Usage,
    stop: watch::Receiver<bool>,
) -> anyhow::Result<Vec<u32>> {
    let mut connection = Connection::open(&address).await?;
    let mut latencies = Vec::new();
    for number in 0.. {
        if *stop.borrow() {
            break;
        }
        let mix = mixed(number);
        let path =
            path(&usage, Some(mix % usage.customers), TYPES[(mix >> 40) as usize % 5], "sum");
        let request = http::get(&address, &(path + "&window=daily"));
        let asked = Instant::now();
        connection.send(&request).await?;
        connection.skip().await?;
        latencies.push(u32::try_from(asked.elapsed().as_micros()).unwrap_or(u32::MAX));
        tokio::time::sleep(PAUSE).await;
    }
    Ok(latencies)
}

/// Returns how many events were counted, of all customers and types.
pub async fn counted(address: &str, usage: Usage) -> anyhow::Result<u64> {
    let mut connection = Connection::open(address).await?;
    let mut events = 0;
    for event_type in TYPES {
        for customer in 0..usage.customers {
            let path = path(&usage, Some(customer), event_type, "count");
            connection.send(&http::get(address, &path)).await?;
            let answer = connection.receive().await?.unwrap_or_default();
            let answer: Value = serde_json::from_slice(&answer)?;
            let lines = answer["data"].as_array().cloned().unwrap_or_default();
            events += lines.iter().filter_map(|line| line["count"].as_u64()).sum::<u64>();
        }
    }
    Ok(events)
}

fn path(usage: &Usage, customer: Option<u64>, event_type: &str, op: &str) -> String {
    let from = usage.start_ms / DAY_MS * DAY_MS;
    let to = (usage.start_ms + usage.length_ms) / DAY_MS * DAY_MS + DAY_MS;
    let customer = customer.map_or(String::new(), |number| format!("&customerId=cust_{number}"));
    format!("/meters/query?eventType={event_type}&op={op}&from={from}&to={to}{customer}")
}
