//! The benchmark of end-to-end indexing against Ponder: `ponder --json PATH`; see `--help` and the README.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, bail};
use clap::Parser;
use logmill_bench::machine;
use logmill_bench::ponder::chain::{self, TokenChain};
use logmill_bench::ponder::report::{self, Runs, Versions};
use logmill_bench::ponder::settings::{ENGINES, PONDER, Settings};
use logmill_bench::ponder::{Run, ours, peer};
use logmill_bench::postgres::{self, Durability, Server as Postgres};
use logmill_bench::rpc::server::{Client, Server};
use serde_json::{Map, Value, json};
use tokio::signal::unix::{SignalKind, signal};

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
    if let Some(unknown) = settings.engines.iter().find(|one| !ENGINES.contains(&one.as_str())) {
        bail!("no engine named {unknown:?}; there are {}", ENGINES.join(", "));
    }
    // A run takes minutes: find out now whether its result can be written.
    if let Some(path) = &settings.json {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("opening {} for the result", path.display()))?;
    }
    let folder = tempfile::Builder::new().prefix("ponder-bench-").tempdir()?;
    let machine = machine::describe(folder.path());
    let on = Durability { synchronous_commit: "on".to_owned(), fsync: "on".to_owned() };
    let database = Postgres::start(&std::env::temp_dir(), &on)?;
    let anvil = Server::anvil(&settings.anvil(), folder.path()).await?;
    let mut node = Client::open(&anvil.address).await?;
    eprintln!("making {} blocks", settings.blocks);
    let chain = chain::fill(&mut node, &settings).await?;
    let versions = versions(&settings, &mut node, &database).await?;
    let mut runs = Runs::new();
    for round in 0..settings.rounds.max(1) {
        let mut turn = settings.engines.clone();
        let places = turn.len().max(1);
        turn.rotate_left(round % places);
        for engine in turn {
            eprintln!("round {}: {engine}", round + 1);
            let run = one(&settings, &engine, &chain, &anvil, &database).await?;
            eprintln!("  {} events in {:.2} s", chain.transfers, run.seconds);
            runs.entry(engine).or_default().push(run);
        }
    }
    let result = report::json(machine, &versions, &settings, &chain, &runs);
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", report::table(&result));
    Ok(())
}

/// Runs one engine, after removing and flushing everything of earlier runs.
async fn one(
    settings: &Settings,
    engine: &str,
    chain: &TokenChain,
    anvil: &Server,
    database: &Postgres,
) -> anyhow::Result<Run> {
    let folder = tempfile::Builder::new().prefix("ponder-bench-").tempdir()?;
    database.connect("postgres").await?.batch_execute("CHECKPOINT").await?;
    let folder = folder.path();
    match engine {
        PONDER => peer::run(settings, chain, anvil, database, folder).await,
        "logmill-postgresql" => ours::run(settings, chain, anvil, Some(database), folder).await,
        _ => ours::run(settings, chain, anvil, None, folder).await,
    }
    .with_context(|| format!("indexing with {engine}"))
}

async fn versions(
    settings: &Settings,
    node: &mut Client,
    database: &Postgres,
) -> anyhow::Result<Versions> {
    let anvil = node.call("web3_clientVersion", json!([])).await?;
    let client = database.connect("postgres").await?;
    let postgresql = client.query_one("SHOW server_version", &[]).await?.get(0);
    let node_js = postgres::run(Command::new("node").arg("--version"));
    let node_js = node_js.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned());
    Ok(Versions {
        anvil: anvil.as_str().unwrap_or_default().to_owned(),
        node_js: node_js.context("Ponder needs Node.js")?,
        postgresql,
        packages: packages(&settings.project())?,
    })
}

/// The package versions that Ponder is installed with.
fn packages(project: &Path) -> anyhow::Result<Map<String, Value>> {
    let text = std::fs::read_to_string(project.join("package.json"))?;
    let package: Value = serde_json::from_str(&text)?;
    Ok(package["dependencies"].as_object().cloned().unwrap_or_default())
}
