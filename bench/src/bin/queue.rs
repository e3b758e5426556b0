//! The queue benchmark: `queue --json PATH`; see `--help` and the README.

use std::process::ExitCode;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use logmill_bench::engine::Engine;
use logmill_bench::postgres::{Durability, Server};
use logmill_bench::settings::Settings;
use logmill_bench::{logmill, machine, peers, report, rounds};
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

/// Measures until done or interrupted; in both cases the server and the folders are gone on return.
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
    let engines = chosen(&settings)?;
    // A run takes minutes: find out now whether its result can be written.
    if let Some(path) = &settings.json {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("opening {} for the result", path.display()))?;
    }
    let parent = settings.parent_folder();
    let machine = machine::describe(&parent);
    let sqlite = tempfile::Builder::new()
        .prefix("queue-bench-sqlite-")
        .tempdir_in(&parent)
        .with_context(|| format!("creating a folder in {}", parent.display()))?;
    let durability = Durability {
        synchronous_commit: settings.synchronous_commit.as_str().to_owned(),
        fsync: settings.fsync.as_str().to_owned(),
    };
    let server = Server::start(&parent, &durability)?;
    let version: String = server
        .connect("postgres")
        .await?
        .query_one("SELECT current_setting('server_version')", &[])
        .await?
        .get(0);

    let measured = rounds::run(&server, sqlite.path(), &engines, &settings).await?;

    let result = report::json(machine, &version, &settings, &engines, &measured);
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", report::table(&result));
    Ok(())
}

/// All engines, or those named by `--engines`.
fn chosen(settings: &Settings) -> anyhow::Result<Vec<Box<dyn Engine>>> {
    let mut engines: Vec<Box<dyn Engine>> = logmill::engines(settings.logmill_batch);
    engines.extend(peers::engines(settings));
    let names: Vec<&str> = engines.iter().map(|engine| engine.name()).collect();
    for wanted in &settings.engines {
        ensure!(
            names.contains(&wanted.as_str()),
            "no engine named {wanted:?}; there are {}",
            names.join(", ")
        );
    }
    if !settings.engines.is_empty() {
        engines.retain(|engine| settings.engines.iter().any(|name| name == engine.name()));
    }
    Ok(engines)
}
