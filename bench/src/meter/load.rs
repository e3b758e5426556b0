//! Sends usage over many connections, as fast as it is answered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::ensure;
use futures::future::try_join_all;

use super::usage::Usage;
use crate::cpu;
use crate::http::Connection;

/// When a load ends.
#[derive(Clone, Copy, Debug)]
pub enum LoadEnd {
    /// After this many events.
    Events(u64),
    /// After this time.
    Elapsed(Duration),
}

/// Result of a load.
#[derive(Clone, Debug)]
pub struct LoadResult {
    pub events: u64,
    pub seconds: f64,
    pub latencies_us: Vec<u32>,
    pub server_cpu_s: f64,
    pub client_cpu_s: f64,
}

/// Sends events starting at position `from` of the stream, `batch` at a time; single events go to their own path.
pub async fn run(
    address: &str,
    pid: u32,
    usage: Usage,
    from: u64,
    batch: u64,
    connections: usize,
    until: LoadEnd,
) -> anyhow::Result<LoadResult> {
    let next = Arc::new(AtomicU64::new(from));
    let started = Instant::now();
    let before = (cpu::of_process(pid)?, cpu::of_client()?);
    let senders = (0..connections).map(|_| {
        let (address, next) = (address.to_owned(), Arc::clone(&next));
        async move { tokio::spawn(send(address, usage, next, from, batch, started, until)).await? }
    });
    let latencies: Vec<Vec<u32>> = try_join_all(senders).await?;
    let seconds = started.elapsed().as_secs_f64();
    Ok(LoadResult {
        events: next.load(Ordering::SeqCst) - from,
        seconds,
        latencies_us: latencies.into_iter().flatten().collect(),
        server_cpu_s: cpu::of_process(pid)? - before.0,
        client_cpu_s: cpu::of_client()? - before.1,
    })
}

async fn send(
    address: String,
    usage: Usage,
    next: Arc<AtomicU64>,
    from: u64,
    batch: u64,
    started: Instant,
    until: LoadEnd,
) -> anyhow::Result<Vec<u32>> {
    let mut connection = Connection::open(&address).await?;
    let mut latencies = Vec::new();
    let (mut body, mut request) = (String::new(), Vec::new());
    loop {
        let over = match until {
            LoadEnd::Events(events) => next.load(Ordering::SeqCst) - from >= events,
            LoadEnd::Elapsed(length) => started.elapsed() >= length,
        };
        if over {
            return Ok(latencies);
        }
        let first = next.fetch_add(batch, Ordering::SeqCst);
        body.clear();
        let path = if batch == 1 {
            format!("/usage/{}", usage.single(first, &mut body))
        } else {
            for place in first..first + batch {
                body.push(if place == first { '[' } else { ',' });
                usage.write(place, &mut body);
            }
            body.push(']');
            "/usagebatch".to_owned()
        };
        request.clear();
        request.extend_from_slice(
            format!(
                "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n\
                 Content-Length: {}\r\n\r\n",
                body.len()
            )
            .as_bytes(),
        );
        request.extend_from_slice(body.as_bytes());
        let asked = Instant::now();
        connection.send(&request).await?;
        let (status, _) = connection.receive_any().await?;
        ensure!(status == 201, "usage was answered with {status}");
        latencies.push(u32::try_from(asked.elapsed().as_micros()).unwrap_or(u32::MAX));
    }
}
