//! Ponder as a separate process, in a separate database.
//!
//! Ponder writes into its current folder, so it gets a copy of its project, with a link to the installed packages.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};
use tokio::time::sleep;

use super::chain::TokenChain;
use super::settings::{PONDER, Settings};
use super::{IndexerStopwatch, LOOK_EVERY, Run};
use crate::http::{self, Connection};
use crate::postgres::Server as Postgres;
use crate::rpc::server::{Server, free_port};

/// The files of its project.
const PROJECT: [&str; 6] = [
    "package.json",
    "ponder.config.ts",
    "ponder.schema.ts",
    "tsconfig.json",
    "src/index.ts",
    "src/api/index.ts",
];
const PROGRAM: &str = "node_modules/ponder/dist/esm/bin/ponder.js";
/// The schema of its tables.
const SCHEMA: &str = "bench";
/// Time limit.
const DONE_MAX: Duration = Duration::from_secs(1_800);

/// Indexes everything once, into an empty database, and checks the result.
pub async fn run(
    settings: &Settings,
    chain: &TokenChain,
    node: &Server,
    database: &Postgres,
    folder: &Path,
) -> anyhow::Result<Run> {
    copy_project(settings, folder)?;
    let port = free_port()?;
    let mut command = Command::new("node");
    command
        .args([PROGRAM, "start", "--schema", SCHEMA, "--hostname", "127.0.0.1"])
        .args(["--port", &port.to_string()])
        .current_dir(folder)
        .env("PONDER_TELEMETRY_DISABLED", "1")
        .env("DATABASE_URL", database.url(PONDER))
        .env("BENCH_RPC_URL", format!("http://{}", node.address))
        .env("BENCH_COIN", &chain.coin);
    database.create(PONDER).await?;
    let watch = IndexerStopwatch::start(node, Some(database))?;
    let log = folder.join("ponder.log");
    let mut server = Server::start(command, port, &log).await?;
    let started = watch.elapsed();
    while !is_ready(&server).await {
        let output = || std::fs::read_to_string(&log).unwrap_or_default();
        server.expect_running().with_context(output)?;
        if watch.elapsed() > DONE_MAX {
            bail!("Ponder is not done: {}", output());
        }
        sleep(LOOK_EVERY).await;
    }
    let mut run = watch.done(&server, started)?;
    drop(server);
    run.rows = check(chain, database).await?;
    database.drop(PONDER).await?;
    Ok(run)
}

/// Ponder answers 503 at this path until all final blocks are indexed.
async fn is_ready(server: &Server) -> bool {
    let asked = async {
        let mut connection = Connection::open(&server.address).await?;
        connection.send(&http::get(&server.address, "/ready")).await?;
        connection.skip().await
    };
    asked.await.is_ok()
}

async fn check(chain: &TokenChain, database: &Postgres) -> anyhow::Result<Vec<(String, u64)>> {
    let client = database.connect(PONDER).await?;
    let mut rows = Vec::new();
    for table in ["transfer", "balance"] {
        let text = format!("SELECT count(*) FROM {SCHEMA}.{table}");
        let count: i64 = client.query_one(&text, &[]).await?.get(0);
        rows.push((table.to_owned(), u64::try_from(count)?));
    }
    let text = format!("SELECT account, value::text FROM {SCHEMA}.balance");
    let found = client.query(&text, &[]).await?;
    let balances = found.iter().map(|row| (row.get(0), row.get(1))).collect();
    chain.check(PONDER, rows[0].1, balances)?;
    Ok(rows)
}

fn copy_project(settings: &Settings, folder: &Path) -> anyhow::Result<()> {
    let packages = settings.ponder().join("node_modules").canonicalize();
    let packages = packages.context("Ponder is not installed: run tools/ponder.sh")?;
    std::fs::create_dir_all(folder.join("src/api"))?;
    for file in PROJECT {
        let from = settings.project().join(file);
        std::fs::copy(&from, folder.join(file))
            .with_context(|| format!("copying {}", from.display()))?;
    }
    Ok(std::os::unix::fs::symlink(packages, folder.join("node_modules"))?)
}
