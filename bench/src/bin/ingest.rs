//! The benchmark of ingest: `ingest --json PATH`; see `--help` and the README.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use logmill_bench::ingest::report::Round;
use logmill_bench::ingest::settings::Settings;
use logmill_bench::ingest::stages::FileContents;
use logmill_bench::ingest::whole::IngestResult;
use logmill_bench::ingest::{chain, node, report, stages, whole};
use logmill_bench::{cpu, machine};
use logmill_chain::era1::Era1Source;
use logmill_chain::evm::{EvmSettings, EvmSource, NodeSettings};
use logmill_io::wire::{Endpoint, HttpClient};
use logmill_io::{OsEntropy, SystemClock};
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
    if settings.be_node {
        return node::run(&settings).await;
    }
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
    let temporary = tempfile::Builder::new().prefix("ingest-bench-").tempdir()?;
    let parent = settings.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    let machine = machine::describe(&parent);
    let making = settings.clone();
    let files = tokio::task::spawn_blocking(move || chain::files(&making, &parent)).await??;
    let node = match settings.node_blocks {
        0 => None,
        _ => {
            eprintln!("making the JSON of {} blocks", settings.node_blocks);
            Some(node::Node::start(&settings).await?)
        }
    };
    let mut rounds = Vec::new();
    for round in 0..settings.rounds.max(1) {
        eprintln!("round {}", round + 1);
        rounds.push(measure_round(&settings, &files, node.as_ref()).await?);
    }
    let result = report::json(machine, &settings, &rounds);
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", report::table(&result));
    Ok(())
}

async fn measure_round(
    settings: &Settings,
    files: &Path,
    node: Option<&node::Node>,
) -> anyhow::Result<Round> {
    eprintln!("reading");
    let (read, held) = stages::read(files).await?;
    eprintln!("converting");
    let convert = stages::convert(files).await?;
    eprintln!("building");
    let build = stages::build(files).await?;
    eprintln!("everything, from files");
    let era1 = from_files(files, held, false).await?;
    eprintln!("everything, from files, with senders");
    let with_senders = from_files(files, held, true).await?;
    let mut from_node = None;
    if let Some(node) = node {
        eprintln!("everything, from the node");
        let clock = SystemClock::shared();
        let address = Endpoint::parse(&format!("http://{}", node.address))?;
        let http = HttpClient::new(Arc::clone(&clock))?;
        let nodes = vec![NodeSettings::new(address)];
        let evm = EvmSettings::new("evm");
        let source = EvmSource::new(nodes, evm, &http, clock, &OsEntropy::shared())?;
        let folder = tempfile::Builder::new().prefix("ingest-bench-").tempdir()?;
        let before = cpu::of_process(node.pid())?;
        let last = settings.node_blocks - 1;
        let whole = whole::ingest(Arc::new(source), folder.path(), last, false).await?;
        from_node = Some((whole, cpu::of_process(node.pid())? - before));
    }
    Ok(Round { held, read, convert, build, era1, with_senders, node: from_node })
}

async fn from_files(
    files: &Path,
    held: FileContents,
    store_senders: bool,
) -> anyhow::Result<IngestResult> {
    let source = Era1Source::new(stages::open(files).await?, SystemClock::shared());
    let folder = tempfile::Builder::new().prefix("ingest-bench-").tempdir()?;
    let mut era1 = whole::ingest(source, folder.path(), held.blocks - 1, store_senders).await?;
    ensure!(era1.logs == held.logs, "{} logs were stored of {}", era1.logs, held.logs);
    era1.transactions = Some(held.transactions);
    Ok(era1)
}
