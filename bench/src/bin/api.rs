//! The benchmark of the read API: `api --json PATH`; see `--help` and the README.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Parser;
use logmill_bench::api::draw::{self, DrawnTransfer};
use logmill_bench::api::endpoint::{ENDPOINTS, Endpoint};
use logmill_bench::api::report::{self, Measurements, Samples};
use logmill_bench::api::settings::Settings;
use logmill_bench::derive::engine::served_rows;
use logmill_bench::derive::history::history;
use logmill_bench::ponder::ours::{checkpoints, is_derived};
use logmill_bench::rpc::load;
use logmill_bench::rpc::server::Server;
use logmill_bench::{derive, http, machine};
use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::derive::{Reader, Tables};
use tokio::signal::unix::{SignalKind, signal};

/// File name of the tables, as in the server.
const TABLES: &str = "tables.db";
/// Blocks per transaction of the derivers: the server's default.
const CHUNK: u64 = 1_000;
/// Time limit for the server to see that everything is derived.
const READY_MAX: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(100);

#[tokio::main]
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
    let known = |name: &&String| !ENDPOINTS.iter().any(|endpoint| endpoint.name == **name);
    if let Some(unknown) = settings.endpoints.iter().find(known) {
        let names: Vec<&str> = ENDPOINTS.iter().map(|endpoint| endpoint.name).collect();
        bail!("no endpoint named {unknown:?}; there are {}", names.join(", "));
    }
    // A run takes minutes: find out now whether its result can be written.
    if let Some(path) = &settings.json {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("opening {} for the result", path.display()))?;
    }
    let temporary = tempfile::Builder::new().prefix("api-bench-").tempdir()?;
    let parent = settings.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    let machine = machine::describe(&parent);
    let made = settings.made();
    let stored = history(made, &parent).await?;
    let (chain_id, folder) = (stored.chain.chain_id(), stored.folder);
    eprintln!("deriving");
    // Tables that are already derived are kept; derivation continues from there.
    derive::derive(&stored.chain, open(&folder, false).await?, None, CHUNK).await?;
    drop(stored.chain);
    let reader = Reader::new(Tables::open_read_only(open(&folder, true).await?).await?, chain_id);
    let rows = served_rows(&reader).await?;
    eprintln!("drawing questions");
    let drawn = draw::draw(&reader, made.blocks, settings.seed, settings.questions).await?;
    let server = Server::logmill(&settings.logmill(), &folder, temporary.path(), &[]).await?;
    ready(&server, made.blocks - 1).await?;
    eprintln!("checking answers");
    check(&settings, &reader, &server, &drawn).await?;
    let samples = ask(&settings, chain_id, &server, &drawn).await?;
    server.stop()?;
    let tables_bytes = std::fs::metadata(folder.join(TABLES))?.len();
    let measured = Measurements { samples, blocks: made.blocks, rows, tables_bytes };
    let result = report::json(machine, &settings, &measured);
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", report::table(&result));
    Ok(())
}

async fn open(folder: &Path, read_only: bool) -> anyhow::Result<Sql> {
    let file = SqliteSettings { read_only, ..SqliteSettings::file(folder.join(TABLES)) };
    Ok(Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await?)
}

/// Waits until the server has seen that all tables are complete. Fails if it derives anything again: then a busy
/// server would be measured.
async fn ready(server: &Server, last: u64) -> anyhow::Result<()> {
    let start = Instant::now();
    loop {
        let status = server.get("/status").await?;
        let checkpoints = checkpoints(&status);
        let is_building = checkpoints.iter().any(|one| one["state"] == "building");
        ensure!(!is_building, "the server is deriving tables again: {status}");
        if is_derived(&status, last) {
            return Ok(());
        }
        ensure!(
            start.elapsed() < READY_MAX,
            "the server has not seen all tables in time: {status}"
        );
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn asked(settings: &Settings) -> impl Iterator<Item = &'static Endpoint> {
    ENDPOINTS.iter().filter(|endpoint| settings.asks(endpoint.name))
}

/// Sends some of the questions and compares the answers with the tables.
async fn check(
    settings: &Settings,
    reader: &Reader,
    server: &Server,
    drawn: &[DrawnTransfer],
) -> anyhow::Result<()> {
    for one in drawn.iter().take(settings.checked) {
        let facts = draw::facts(reader, one).await?;
        for endpoint in asked(settings) {
            let path = endpoint.path(reader.chain_id(), one);
            let answer = server.get(&path).await.with_context(|| path.clone())?;
            endpoint.check(one, &facts, &answer).context(path)?;
        }
    }
    Ok(())
}

/// Runs all loads.
async fn ask(
    settings: &Settings,
    chain_id: u64,
    server: &Server,
    drawn: &[DrawnTransfer],
) -> anyhow::Result<Samples> {
    let length = Duration::from_secs_f64(settings.seconds);
    let mut samples = Samples::new();
    for round in 0..settings.rounds.max(1) {
        for endpoint in asked(settings) {
            for connections in settings.connections.iter().copied() {
                eprintln!("round {}: {} {connections}", round + 1, endpoint.name);
                let (address, pid) = (server.address.clone(), server.pid());
                let request = |one| http::get(&address, &endpoint.path(chain_id, one));
                let requests = drawn.iter().map(request).collect();
                let load = move || load::run(&address, pid, requests, connections, length);
                let sample = tokio::task::spawn_blocking(load).await??;
                samples.entry((endpoint.name, connections)).or_default().push(sample);
            }
        }
    }
    Ok(samples)
}
