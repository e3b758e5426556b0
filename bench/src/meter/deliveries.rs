//! Measures only deliveries: every message is published and waits before the first is sent.
//!
//! The kind of first attempts is paused as an operator would do it; usage is sent, aggregated and published. Once all
//! deliveries are pending, the kind is resumed, and arrivals are counted from the first to the last. So the figure
//! includes neither usage nor aggregates, but the work on the dead endpoint and on the log of attempts.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use serde_json::{Value, json};

use super::hooks::Receivers;
use crate::http::{self, Connection};
use crate::rpc::server::Server;
use crate::{cpu, postgres};

const DAY_MS: u64 = 86_400_000;
/// Number of days with usage.
const DAYS: u64 = 10;
/// Kind of the jobs of first attempts.
const KIND: &str = "webhook.first";
/// Events per request.
const BATCH: u64 = 1_000;
/// Time limits of publishing and of delivering.
const PUBLISH_MAX: Duration = Duration::from_secs(300);
const DELIVER_MAX: Duration = Duration::from_secs(300);
/// Time limit for recording the last delivery after its arrival.
const RECORD_MAX: Duration = Duration::from_secs(30);
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Number of deliveries whose log of attempts is checked.
const SAMPLES: usize = 20;

/// A server whose deliveries are measured, and how to control it.
pub struct DeliveryBench<'a> {
    pub server: &'a Server,
    pub program: PathBuf,
    pub config: &'a Path,
    pub data: &'a Path,
    pub database: Option<&'a postgres::Server>,
    pub now_ms: u64,
}

impl DeliveryBench<'_> {
    /// Measures about this many deliveries to live endpoints; those to dead ones come on top.
    pub async fn run(&self, deliveries: u64, endpoints: usize) -> anyhow::Result<Value> {
        let receivers = Receivers::start(endpoints).await?;
        receivers.register(&self.server.address).await?;
        let live = receivers.live() as u64;
        let customers = deliveries.div_ceil(live * DAYS);
        let messages = customers * DAYS;
        self.jobs("pause")?;
        self.send(customers).await?;
        let mut connection = Connection::open(&self.server.address).await?;
        let (status, answer) =
            post(&mut connection, &self.server.address, "/aggregations/trigger", "").await?;
        ensure!(status == 202, "a trigger was answered with {status}: {answer}");
        let published = self.published(messages, endpoints).await?;
        let before = self.cpu()?;
        let resumed = Instant::now();
        self.jobs("resume")?;
        let expected = messages * live;
        let (all, different, seconds) = receivers.settle(expected, DELIVER_MAX).await?;
        let after_last = self.cpu()?;
        ensure!(different == expected, "{different} of {expected} deliveries arrived");
        self.recorded(&receivers).await?;
        let recorded_s = resumed.elapsed().as_secs_f64();
        let after = self.cpu()?;
        self.sample(&receivers).await?;
        let each = |now: f64, before: f64| (now - before) * 1e6 / different as f64;
        Ok(json!({
            "messages": messages,
            "endpoints": endpoints,
            "endpoints_alive": live,
            "published_s": published.as_secs_f64(),
            "received": all,
            "different": different,
            "seconds": seconds,
            "deliveries_per_s": different as f64 / seconds,
            "recorded_s": recorded_s,
            "cores_used": (after_last.iter().sum::<f64>() - before.iter().sum::<f64>()) / seconds,
            "server_cpu_us_per_delivery": each(after[0], before[0]),
            "client_cpu_us_per_delivery": each(after[1], before[1]),
            "database_cpu_us_per_delivery": each(after[2], before[2]),
        }))
    }

    /// CPU seconds of the server, of this process, and of the database.
    fn cpu(&self) -> anyhow::Result<[f64; 3]> {
        let database = self.database.map(|server| cpu::of_server(server.postmaster()));
        Ok([
            cpu::of_process(self.server.pid())?,
            cpu::of_client()?,
            database.transpose()?.unwrap_or_default(),
        ])
    }

    /// Pauses or resumes first attempts.
    fn jobs(&self, change: &str) -> anyhow::Result<()> {
        let mut command = Command::new(&self.program);
        command.args(["jobs", change, KIND]).arg("--config").arg(self.config);
        command.arg("--data").arg(self.data);
        postgres::run(&mut command).with_context(|| format!("{change} {KIND}"))?;
        Ok(())
    }

    /// Sends one event of every customer on every day.
    async fn send(&self, customers: u64) -> anyhow::Result<()> {
        let mut connection = Connection::open(&self.server.address).await?;
        let first_ms = self.now_ms / DAY_MS * DAY_MS - DAYS * DAY_MS;
        let all = customers * DAYS;
        for start in (0..all).step_by(BATCH as usize) {
            let events: Vec<Value> = (start..all.min(start + BATCH))
                .map(|number| {
                    json!({
                        "eventType": super::usage::TYPES[0],
                        "customerId": format!("cust_{}", number / DAYS),
                        "value": number % 1_000,
                        "id": format!("hook-{number}"),
                        "timestamp": first_ms + number % DAYS * DAY_MS + DAY_MS / 2,
                    })
                })
                .collect();
            let body = Value::Array(events).to_string();
            let (status, answer) =
                post(&mut connection, &self.server.address, "/usagebatch", &body).await?;
            ensure!(status == 201, "usage was answered with {status}: {answer}");
        }
        Ok(())
    }

    /// Waits until every message is pending at every endpoint.
    async fn published(&self, messages: u64, endpoints: usize) -> anyhow::Result<Duration> {
        let started = Instant::now();
        loop {
            let status = self.server.get("/webhooks/endpoints").await?;
            let pending = |of: &Value| of["pending"].as_u64().unwrap_or(0);
            let all = status.as_array().context("no list of endpoints")?;
            if all.len() == endpoints && all.iter().all(|one| pending(one) == messages) {
                return Ok(started.elapsed());
            }
            if started.elapsed() > PUBLISH_MAX {
                bail!("{messages} messages are not published: {status}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until every delivery to a live endpoint is recorded as delivered.
    async fn recorded(&self, receivers: &Receivers) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let status = self.server.get("/webhooks/endpoints").await?;
            let open = status.as_array().into_iter().flatten().filter(|one| {
                one["url"].as_str().is_some_and(|url| receivers.is_live(url)) && one["pending"] != 0
            });
            if open.count() == 0 {
                return Ok(());
            }
            ensure!(started.elapsed() < RECORD_MAX, "deliveries are not recorded: {status}");
            tokio::time::sleep(LOOK_EVERY / 5).await;
        }
    }

    /// Checks for some deliveries that arrived that their attempts are in the log.
    async fn sample(&self, receivers: &Receivers) -> anyhow::Result<()> {
        let endpoints = self.server.get("/webhooks/endpoints").await?;
        for (url, id) in receivers.some(SAMPLES) {
            let mut all = endpoints.as_array().into_iter().flatten();
            let endpoint = all.find(|one| one["url"] == url.as_str()).context("no endpoint")?;
            let endpoint = endpoint["id"].as_str().context("an endpoint without an id")?;
            let path = format!("/webhooks/deliveries/{id}/{endpoint}/attempts");
            let attempts = self.server.get(&path).await?;
            let attempts = attempts.get("data").unwrap_or(&attempts);
            let logged = attempts
                .as_array()
                .is_some_and(|all| all.last().is_some_and(|last| last["status"] == 204));
            ensure!(logged, "the log of {path} has no success: {attempts}");
        }
        Ok(())
    }
}

async fn post(
    connection: &mut Connection,
    address: &str,
    path: &str,
    body: &str,
) -> anyhow::Result<(u16, Value)> {
    let request = http::post(address, body);
    let request = String::from_utf8(request)?.replacen("POST / ", &format!("POST {path} "), 1);
    connection.send(request.as_bytes()).await?;
    let (status, answer) = connection.receive_any().await?;
    Ok((status, serde_json::from_slice(&answer).unwrap_or_default()))
}
