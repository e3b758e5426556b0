//! The benchmark of derived tables: `derive --json PATH`; see `--help` and the README.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Parser;
use logmill_bench::derive::history::{ChainParameters, history};
use logmill_bench::derive::report::{self, DeriveMeasurement};
use logmill_bench::derive::settings::Settings;
use logmill_bench::derive::{self, TRANSFERS, engine};
use logmill_bench::index::engine::folder_bytes;
use logmill_bench::machine;
use logmill_bench::postgres::{Durability, Server};
use logmill_io::sql::{PostgresSettings, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::Chain;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    match run(Settings::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

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
    let temporary = tempfile::Builder::new().prefix("derive-bench-").tempdir()?;
    let parent = settings.folder.clone().unwrap_or_else(|| temporary.path().to_owned());
    let machine = machine::describe(&parent);
    let Settings { seed, blocks, logs_per_block, senders, .. } = settings;
    let stored =
        history(ChainParameters { seed, blocks, logs_per_block, senders }, &parent).await?;
    let mut all = Vec::new();
    for engine in &settings.engines {
        for set in &settings.sets {
            eprintln!("deriving {set} on {engine}");
            all.push(one(&settings, &stored.chain, engine, set, &parent).await?);
        }
    }
    let result = report::json(machine, &settings, (blocks, stored.logs), &all);
    if let Some(path) = &settings.json {
        let text = serde_json::to_string_pretty(&result)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("writing the result to {}", path.display()))?;
    }
    print!("{}", report::table(&result));
    Ok(())
}

async fn one(
    settings: &Settings,
    chain: &Chain,
    engine: &str,
    set: &str,
    parent: &Path,
) -> anyhow::Result<DeriveMeasurement> {
    let names = match set {
        "transfers" => Some(TRANSFERS),
        "all" => None,
        other => bail!("no set named {other:?}; there are transfers, all"),
    };
    let folder = tempfile::Builder::new().prefix("tables-").tempdir_in(parent)?;
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let server;
    let (sql, server) = match engine {
        "sqlite" => {
            let file = SqliteSettings::file(folder.path().join("tables.db"));
            (Sql::sqlite(&file, clock, entropy).await?, None)
        }
        "postgresql" => {
            let on = Durability { synchronous_commit: "on".to_owned(), fsync: "on".to_owned() };
            server = Server::start(&std::env::temp_dir(), &on)?;
            server.create("tables").await?;
            let url = server.url("tables");
            (Sql::postgres(&PostgresSettings::new(url), clock, entropy).await?, Some(&server))
        }
        other => bail!("no engine named {other:?}; there are sqlite, postgresql"),
    };
    let (derived, tables) = derive::derive(chain, sql, names, settings.chunk).await?;
    let chosen = derive::chosen(chain.chain_id(), names);
    let generations = tables.generations(chain.chain_id(), &chosen).await?;
    let rows = engine::rows(&tables, &generations).await?;
    let bytes = match server {
        None => folder_bytes(folder.path())?,
        Some(_) => {
            let text = "SELECT pg_database_size('tables')";
            tables.sql().query(text, Vec::new()).await?.row()?.count(0)?
        }
    };
    eprintln!("copying the same rows");
    let copied = engine::copy(tables.sql(), &generations).await?;
    let (engine, set) = (engine.to_owned(), set.to_owned());
    Ok(DeriveMeasurement { engine, set, derived, rows, copied, bytes })
}
