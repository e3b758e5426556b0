//! The benchmark of the log index: `index --json PATH`; see `--help` and the README.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use clap::Parser;
use logmill_bench::index::append::AppendFile;
use logmill_bench::index::duckdb::DuckDb;
use logmill_bench::index::engine::Engine;
use logmill_bench::index::logmill::Logmill;
use logmill_bench::index::postgres::{Postgres, SERVER_SETTINGS};
use logmill_bench::index::settings::Settings;
use logmill_bench::index::sqlite::Sqlite;
use logmill_bench::index::{report, rounds};
use logmill_bench::machine;
use logmill_bench::postgres::{Durability, Server};
use tokio::signal::unix::{SignalKind, signal};

/// In the order of the report.
const ENGINES: [&str; 5] = ["logmill", "sqlite", "postgresql", "duckdb", "duckdb-art"];

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
    // A run takes minutes: find out now whether its result can be written.
    if let Some(path) = &settings.json {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(path);
        file.with_context(|| format!("opening {} for the result", path.display()))?;
    }
    let parent = settings.parent_folder();
    let machine = machine::describe(&parent);
    let folder = tempfile::Builder::new()
        .prefix("index-bench-")
        .tempdir_in(&parent)
        .with_context(|| format!("creating a folder in {}", parent.display()))?;
    let mut engines = Vec::new();
    for name in chosen(&settings)? {
        eprintln!("opening {name}");
        engines.push(open(name, folder.path(), &settings).await?);
    }
    let mut append = AppendFile::create(folder.path())?;

    let measured = rounds::run(&mut engines, &mut append, &settings).await?;

    let result = report::json(machine, &settings, &engines, &measured);
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", report::table(&result));
    Ok(())
}

/// All engines, or those named by `--engines`.
fn chosen(settings: &Settings) -> anyhow::Result<Vec<&'static str>> {
    for wanted in &settings.engines {
        ensure!(
            ENGINES.contains(&wanted.as_str()),
            "no engine named {wanted:?}; there are {}",
            ENGINES.join(", ")
        );
    }
    let is_chosen = |name: &&str| {
        settings.engines.is_empty() || settings.engines.iter().any(|wanted| wanted == *name)
    };
    Ok(ENGINES.into_iter().filter(is_chosen).collect())
}

/// Creates an empty store in a separate folder.
async fn open(name: &str, parent: &Path, settings: &Settings) -> anyhow::Result<Box<dyn Engine>> {
    let folder = parent.join(name);
    std::fs::create_dir(&folder)?;
    Ok(match name {
        "logmill" => Box::new(Logmill::create(&folder).await?),
        "sqlite" => Box::new(Sqlite::create(&folder)?),
        "duckdb" | "duckdb-art" => {
            Box::new(DuckDb::create(&settings.python(), &folder, name == "duckdb-art")?)
        }
        "postgresql" => {
            let durability =
                Durability { synchronous_commit: "on".to_owned(), fsync: "on".to_owned() };
            let parent = settings.parent_folder();
            let server = Server::start_with(&parent, &durability, SERVER_SETTINGS)?;
            Box::new(Postgres::create(Arc::new(server)).await?)
        }
        _ => bail!("no engine named {name:?}"),
    })
}
