//! The benchmark of `eth_getLogs` over HTTP: `rpc --json PATH`; see `--help` and the README.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use logmill_bench::ingest::whole;
use logmill_bench::machine;
use logmill_bench::rpc::chain::{self, QuestionClass};
use logmill_bench::rpc::load::{self, Sample};
use logmill_bench::rpc::report::{self, DIRECT, Measurements, Samples};
use logmill_bench::rpc::server::{Client, Server};
use logmill_bench::rpc::settings::Settings;
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

const CHAIN_ID: u64 = 31_337;

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
    // A run takes minutes: find out now whether its result can be written.
    if let Some(path) = &settings.json {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("opening {} for the result", path.display()))?;
    }
    let folder = tempfile::Builder::new().prefix("rpc-bench-").tempdir()?;
    let machine = machine::describe(folder.path());
    let anvil = Server::anvil(&settings.anvil(), folder.path()).await?;
    let mut node = Client::open(&anvil.address).await?;
    eprintln!("making {} blocks", settings.blocks);
    let filled = chain::fill(&mut node, settings.blocks).await?;
    eprintln!("storing {} logs", filled.logs);
    let node_url = ["--rpc-url".to_owned(), format!("http://{}", anvil.address)];
    let data = folder.path().join("data");
    let logmill = Server::logmill(&settings.logmill(), &data, folder.path(), &node_url).await?;
    let catch_up = logmill.catch_up(filled.head, filled.last()).await?;
    let classes = filled.classes();
    eprintln!("comparing answers");
    let mut ours = Client::open(&logmill.address).await?;
    chain::compare(&classes, &mut ours, &mut node).await?;
    let version = node.call("web3_clientVersion", json!([])).await?;
    let mut samples = Samples::new();
    ask_servers(&settings, &classes, [("logmill", &logmill), ("anvil", &anvil)], &mut samples)
        .await?;
    logmill.stop()?;
    drop(anvil);
    let chain = whole::open(&data, CHAIN_ID).await?;
    for class in &classes {
        let length = Duration::from_secs_f64(settings.seconds);
        let sample = load::direct(&chain, class, length).await?;
        samples.insert((DIRECT, class.name, 1), vec![sample]);
    }
    let anvil_version = version.as_str().unwrap_or_default().to_owned();
    let catch_up_s = catch_up.as_secs_f64();
    let measured = Measurements { filled, samples, catch_up_s, anvil_version };
    let result = report::json(machine, &settings, &classes, &measured);
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", report::table(&result));
    Ok(())
}

/// Runs all loads, with the servers taking turns.
async fn ask_servers(
    settings: &Settings,
    classes: &[QuestionClass],
    servers: [(&'static str, &Server); 2],
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let length = Duration::from_secs_f64(settings.seconds);
    for round in 0..settings.rounds.max(1) {
        for class in classes {
            for connections in settings.connections.iter().copied() {
                let mut turn = servers;
                turn.rotate_left(round % 2);
                for (name, server) in turn {
                    eprintln!("round {}: {} {connections} {name}", round + 1, class.name);
                    let (address, pid) = (server.address.clone(), server.pid());
                    let requests = class.requests(&address);
                    let load = move || load::run(&address, pid, requests, connections, length);
                    let sample: Sample = tokio::task::spawn_blocking(load).await??;
                    samples.entry((name, class.name, connections)).or_default().push(sample);
                }
            }
        }
    }
    Ok(())
}
