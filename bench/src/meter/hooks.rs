//! Receivers of webhooks: they count, and answer immediately. One of ten is dead.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::http::Connection;

/// The answer to a delivery.
const DONE: &[u8] = b"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n";
/// Silence after which the deliveries count as complete.
const QUIET: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Deliveries received so far.
#[derive(Debug, Default)]
pub struct ReceivedDeliveries {
    /// All deliveries, and the distinct ones by endpoint and id.
    pub all: u64,
    pub different: HashSet<(usize, String)>,
    pub first: Option<Instant>,
    pub last: Option<Instant>,
}

/// The receivers behind the live endpoints.
#[derive(Debug)]
pub struct Receivers {
    pub received: Arc<Mutex<ReceivedDeliveries>>,
    ports: Vec<u16>,
}

impl Receivers {
    /// Listens for every endpoint that is not dead.
    pub async fn start(endpoints: usize) -> anyhow::Result<Self> {
        let received = Arc::new(Mutex::new(ReceivedDeliveries::default()));
        let mut ports = Vec::new();
        for number in 0..endpoints {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            ports.push(listener.local_addr()?.port());
            // A port without a listener refuses connections.
            if is_dead(number) {
                continue;
            }
            let received = Arc::clone(&received);
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    let received = Arc::clone(&received);
                    tokio::spawn(async move {
                        let Ok(connection) = Connection::of(stream) else { return };
                        let _ = receive(connection, number, &received).await;
                    });
                }
            });
        }
        Ok(Self { received, ports })
    }

    /// Registers all endpoints with the server.
    pub async fn register(&self, address: &str) -> anyhow::Result<()> {
        let mut connection = Connection::open(address).await?;
        for number in 0..self.ports.len() {
            let body = json!({ "url": self.url(number) }).to_string();
            let request = format!(
                "POST /webhooks/endpoints HTTP/1.1\r\nHost: {address}\r\n\
                 Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
            connection.send(request.as_bytes()).await?;
            let (status, answer) = connection.receive_any().await?;
            let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
            ensure!(status == 201, "registering an endpoint was answered with {status}: {answer}");
        }
        Ok(())
    }

    /// Number of endpoints with a listener.
    pub fn live(&self) -> usize {
        self.ports.len() - self.ports.len() / 10
    }

    /// Whether the endpoint with this URL has a listener.
    pub fn is_live(&self, url: &str) -> bool {
        (0..self.ports.len()).any(|number| !is_dead(number) && self.url(number) == url)
    }

    /// Some received deliveries: their URL and message id.
    pub fn some(&self, count: usize) -> Vec<(String, String)> {
        let received = self.received.lock().unwrap_or_else(|error| error.into_inner());
        let some = received.different.iter().take(count);
        some.map(|(number, id)| (self.url(*number), id.clone())).collect()
    }

    fn url(&self, number: usize) -> String {
        format!("http://127.0.0.1:{}/hook", self.ports[number])
    }

    /// Waits until deliveries stop; returns all deliveries, distinct ones, and the seconds from first to last.
    pub async fn settle(&self, expected: u64, limit: Duration) -> anyhow::Result<(u64, u64, f64)> {
        let started = Instant::now();
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            let received = self.received.lock().unwrap_or_else(|error| error.into_inner());
            let different = received.different.len() as u64;
            let quiet = received.last.is_some_and(|last| last.elapsed() > QUIET);
            if different >= expected || quiet || started.elapsed() > limit {
                let first = received.first.context("no webhook arrived")?;
                let last = received.last.context("no webhook arrived")?;
                return Ok((received.all, different, last.duration_since(first).as_secs_f64()));
            }
        }
    }
}

/// One of ten endpoints is dead.
fn is_dead(number: usize) -> bool {
    number % 10 == 9
}

async fn receive(
    mut connection: Connection,
    endpoint: usize,
    received: &Mutex<ReceivedDeliveries>,
) -> anyhow::Result<()> {
    while let Some((head, _)) = connection.request().await? {
        let header = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
        let id = header("webhook-id: ").context("a webhook without an id")?.trim().to_owned();
        let signature = header("webhook-signature: v1,");
        ensure!(signature.is_some_and(|signature| !signature.is_empty()), "it is not signed");
        let now = Instant::now();
        {
            let mut received = received.lock().unwrap_or_else(|error| error.into_inner());
            received.all += 1;
            received.different.insert((endpoint, id));
            received.first.get_or_insert(now);
            received.last = Some(now);
        }
        connection.send(DONE).await?;
    }
    Ok(())
}
