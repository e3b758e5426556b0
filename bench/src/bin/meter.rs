//! The benchmark of metering: `meter --json PATH`; see `--help` and the README.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use logmill_bench::http::Connection;
use logmill_bench::meter::deliveries::DeliveryBench;
use logmill_bench::meter::hooks::Receivers;
use logmill_bench::meter::load::{self, LoadEnd, LoadResult};
use logmill_bench::meter::queries;
use logmill_bench::meter::settings::{MeasurementPart, Settings};
use logmill_bench::meter::usage::{TYPES, Usage};
use logmill_bench::postgres::{self, Durability};
use logmill_bench::rpc::server::Server;
use logmill_bench::{cpu, machine};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

const DAY_MS: u64 = 86_400_000;
/// Time limit of all deliveries.
const DELIVERIES_MAX: Duration = Duration::from_secs(300);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    match run(Settings::parse().settled()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures until done or interrupted; in both cases temporary folders and processes are gone on return.
async fn run(settings: Settings) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        biased;
        _ = interrupt.recv() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
        result = measure(settings) => result,
    }
}

async fn measure(settings: Settings) -> anyhow::Result<()> {
    let temporary = tempfile::Builder::new().prefix("meter-bench-").tempdir()?;
    let machine = machine::describe(temporary.path());
    let mut engines = Vec::new();
    for engine in &settings.engines {
        let folder = temporary.path().join(engine);
        std::fs::create_dir(&folder)?;
        let mut result = match settings.only {
            Some(MeasurementPart::Deliveries) => json!({ "engine": engine }),
            None => measure_engine(&settings, engine, &folder).await?,
        };
        result["deliveries_alone"] = deliver_alone(&settings, engine, &folder).await?;
        engines.push(result);
    }
    let result = json!({
        "benchmark": "meter",
        "machine": machine,
        "settings": {
            "events": settings.events,
            "customers": settings.customers,
            "event_types": TYPES.len(),
            "duplicates_percent": settings.duplicates_percent,
            "days": settings.days,
            "live": settings.live,
            "connections": settings.connections,
            "single_connections": settings.single_connections,
            "endpoints": settings.endpoints,
            "deliveries": settings.deliveries,
        },
        "engines": engines,
    });
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", table(&result));
    Ok(())
}

async fn measure_engine(settings: &Settings, engine: &str, folder: &Path) -> anyhow::Result<Value> {
    let cluster = cluster(engine, folder)?;
    let config = folder.join("logmill.toml");
    std::fs::write(&config, config_text(cluster.as_ref(), &["daily", "monthly"]))?;
    let more = ["--config".to_owned(), config.display().to_string()];
    let data = folder.join("data");
    let server = Server::logmill(&settings.logmill(), &data, folder, &more).await?;
    let now = u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?;
    let length_ms = settings.days * DAY_MS;
    let usage = Usage {
        customers: settings.customers,
        duplicates_percent: settings.duplicates_percent,
        // Only whole days in the past.
        start_ms: (now / DAY_MS) * DAY_MS - length_ms,
        length_ms,
        live: settings.live,
    };
    let server_cpu = || match &cluster {
        Some(cluster) => cpu::of_server(cluster.postmaster()),
        None => Ok(0.0),
    };
    let mut loads = Vec::new();
    let mut sent = 0;
    for (batch, connections, until) in [
        (1_000, settings.connections, LoadEnd::Events(settings.events)),
        (100, settings.connections, LoadEnd::Elapsed(Duration::from_secs_f64(settings.seconds))),
        (
            1,
            settings.single_connections,
            LoadEnd::Elapsed(Duration::from_secs_f64(settings.seconds)),
        ),
    ] {
        eprintln!("{engine}: batches of {batch}");
        let (stop, stopped) = watch::channel(false);
        let asking = tokio::spawn(queries::ask(server.address.clone(), usage, stopped));
        let before = server_cpu()?;
        let load = load::run(&server.address, server.pid(), usage, sent, batch, connections, until)
            .await?;
        let database_cpu_s = server_cpu()? - before;
        stop.send(true)?;
        let queries = asking.await??;
        sent += load.events;
        loads.push(load_json(batch, connections, &load, &queries, database_cpu_s));
    }
    eprintln!("{engine}: counting");
    let (expected, counted) =
        (usage.different(0..sent), queries::counted(&server.address, usage).await?);
    ensure!(counted == expected, "{counted} events were counted, {expected} were sent");
    eprintln!("{engine}: queries alone");
    let (stop, stopped) = watch::channel(false);
    let asking = tokio::spawn(queries::ask(server.address.clone(), usage, stopped));
    tokio::time::sleep(Duration::from_secs_f64(settings.seconds)).await;
    stop.send(true)?;
    let alone = asking.await??;
    let deliveries = deliver(settings, &server).await?;
    server.stop()?;
    Ok(json!({
        "engine": engine,
        "loads": loads,
        "events_counted": counted,
        "query_alone_us": quantiles(&alone),
        "deliveries": deliveries,
    }))
}

/// Starts the database server of an engine that needs one.
fn cluster(engine: &str, folder: &Path) -> anyhow::Result<Option<postgres::Server>> {
    match engine {
        "sqlite" => Ok(None),
        "postgresql" => {
            let durability = Durability { synchronous_commit: "on".into(), fsync: "on".into() };
            Ok(Some(postgres::Server::start(folder, &durability)?))
        }
        other => bail!("no engine named {other:?}; there are sqlite, postgresql"),
    }
}

/// Measures deliveries without computing the aggregates they report, on a separate server.
async fn deliver_alone(settings: &Settings, engine: &str, folder: &Path) -> anyhow::Result<Value> {
    eprintln!("{engine}: deliveries alone");
    let folder = folder.join("deliveries");
    std::fs::create_dir(&folder)?;
    let cluster = cluster(engine, &folder)?;
    let config = folder.join("logmill.toml");
    std::fs::write(&config, config_text(cluster.as_ref(), &["daily"]))?;
    let data = folder.join("data");
    let more = ["--config".to_owned(), config.display().to_string()];
    let server = Server::logmill(&settings.logmill(), &data, &folder, &more).await?;
    let measured = DeliveryBench {
        server: &server,
        program: settings.logmill(),
        config: &config,
        data: &data,
        database: cluster.as_ref(),
        now_ms: u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?,
    };
    let result = measured.run(settings.deliveries, settings.endpoints).await;
    server.stop()?;
    result
}

/// Triggers the aggregation of all periods, and measures how fast the messages arrive.
async fn deliver(settings: &Settings, server: &Server) -> anyhow::Result<Value> {
    // No messages are sent for periods that have not ended.
    if settings.live {
        return Ok(Value::Null);
    }
    eprintln!("deliveries");
    let receivers = Receivers::start(settings.endpoints).await?;
    receivers.register(&server.address).await?;
    let mut connection = Connection::open(&server.address).await?;
    let request = format!(
        "POST /aggregations/trigger HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\n\r\n",
        server.address
    );
    let before = (cpu::of_process(server.pid())?, cpu::of_client()?);
    connection.send(request.as_bytes()).await?;
    let (status, body) = connection.receive_any().await?;
    let counts: Value = serde_json::from_slice(&body).unwrap_or_default();
    ensure!(status == 202, "a trigger was answered with {status}: {counts}");
    let (all, different, seconds) = receivers.settle(u64::MAX, DELIVERIES_MAX).await?;
    Ok(json!({
        "jobs": counts["jobsQueued"],
        "received": all,
        "different": different,
        "endpoints": settings.endpoints,
        "endpoints_alive": receivers.live(),
        "seconds": seconds,
        "deliveries_per_s": different as f64 / seconds,
        "server_cpu_s": cpu::of_process(server.pid())? - before.0,
        "client_cpu_s": cpu::of_client()? - before.1,
    }))
}

fn config_text(cluster: Option<&postgres::Server>, periods: &[&str]) -> String {
    let mut text = String::new();
    if let Some(cluster) = cluster {
        text.push_str(&format!("[database]\nurl = {:?}\n", cluster.url("postgres")));
        // Webhooks on PostgreSQL need a key; this one protects nothing.
        text.push_str(&format!("[secrets]\nkeys = {:?}\n", "5a".repeat(32)));
    }
    text.push_str(&format!("[meter]\nperiods = {periods:?}\n"));
    for event_type in TYPES {
        text.push_str(&format!("[meter.events.\"{event_type}\"]\nop = \"sum\"\n"));
    }
    text.push_str("[meter.delivery]\nallowed = [\"127.0.0.1/32\"]\n");
    text
}

fn load_json(
    batch: u64,
    connections: usize,
    load: &LoadResult,
    queries: &[u32],
    database_cpu_s: f64,
) -> Value {
    let events = load.events as f64;
    json!({
        "batch": batch,
        "connections": connections,
        "events": load.events,
        "seconds": load.seconds,
        "events_per_s": events / load.seconds,
        "server_cpu_us_per_event": load.server_cpu_s * 1e6 / events,
        "client_cpu_us_per_event": load.client_cpu_s * 1e6 / events,
        "database_cpu_us_per_event": database_cpu_s * 1e6 / events,
        "answer_us": quantiles(&load.latencies_us),
        "query_us": quantiles(queries),
    })
}

fn quantiles(latencies: &[u32]) -> Value {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let at = |per_mille: usize| {
        sorted.get((sorted.len() * per_mille / 1_000).min(sorted.len().saturating_sub(1)))
    };
    json!({ "p50": at(500), "p99": at(990), "count": sorted.len() })
}

fn table(result: &Value) -> String {
    let mut text = String::new();
    for engine in result["engines"].as_array().into_iter().flatten() {
        let name = engine["engine"].as_str().unwrap_or_default();
        for load in engine["loads"].as_array().into_iter().flatten() {
            text.push_str(&format!(
                "{name}: batches of {}: {:.0} events/s, answer p99 {} us, query p50 {} p99 {} us, \
                 cpu us/event server {:.1} client {:.1} database {:.1}\n",
                load["batch"],
                load["events_per_s"].as_f64().unwrap_or_default(),
                load["answer_us"]["p99"],
                load["query_us"]["p50"],
                load["query_us"]["p99"],
                load["server_cpu_us_per_event"].as_f64().unwrap_or_default(),
                load["client_cpu_us_per_event"].as_f64().unwrap_or_default(),
                load["database_cpu_us_per_event"].as_f64().unwrap_or_default(),
            ));
        }
        let alone = &engine["deliveries_alone"];
        let number = |key: &str| alone[key].as_f64().unwrap_or_default();
        text.push_str(&format!(
            "{name}: deliveries alone: {} of {} in {:.1} s: {:.0}/s; {:.2} cores, cpu us/delivery \
             server {:.0} client {:.0} database {:.0}; recorded after {:.1} s\n",
            alone["different"],
            alone["received"],
            number("seconds"),
            number("deliveries_per_s"),
            number("cores_used"),
            number("server_cpu_us_per_delivery"),
            number("client_cpu_us_per_delivery"),
            number("database_cpu_us_per_delivery"),
            number("recorded_s"),
        ));
        if engine["events_counted"].is_null() {
            continue;
        }
        text.push_str(&format!(
            "{name}: {} events counted once; queries alone p50 {} p99 {} us; \
             {} of {} deliveries with their aggregates in {:.1} s: {:.0}/s\n",
            engine["events_counted"],
            engine["query_alone_us"]["p50"],
            engine["query_alone_us"]["p99"],
            engine["deliveries"]["different"],
            engine["deliveries"]["received"],
            engine["deliveries"]["seconds"].as_f64().unwrap_or_default(),
            engine["deliveries"]["deliveries_per_s"].as_f64().unwrap_or_default(),
        ));
    }
    text
}
