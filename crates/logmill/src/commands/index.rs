//! `logmill index …`: query, maintain and repair the log index.
//!
//! Commands that only read open the index beside the process that writes it. Commands that change something take the
//! data folder (on SQLite), then the writer lease:
//!
//! ```text
//!   take the folder ──▶ in use ──▶ `resolve`: done by the server, if it writes the index; else refused
//!         └ taken ──▶ take the lease ──▶ held ──▶ on SQLite its holder is dead: wait until the lease ends
//!                          │               └──── on PostgreSQL a server writes: as if the folder were in use
//!                          └ taken ──▶ change it ──▶ release the lease
//! ```
//!
//! Guarantees: a change is made by the one writer, under its fence. No command creates an index. Leaves to others:
//! the changes themselves ([`finalized_log_index::Writer`]).

use std::future::Future;
use std::time::Duration;

use finalized_log_index::{LogIndex, Writer};
use logmill_io::{Entropy, OsEntropy, SystemClock};

use crate::cli;
use crate::cli::index::Chain;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::stores::index::{IndexStores, expect_database};
use crate::stores::{self, Databases, OpenMode};

mod change;
mod look;
mod resolve;

/// Interval between attempts to take the lease of a dead writer.
const LEASE_WAIT: Duration = Duration::from_millis(200);

pub(crate) async fn run(command: cli::Index, settings: &Settings) -> Result<()> {
    match command {
        cli::Index::Status { chain, json } => look::status(settings, chain, json).await,
        cli::Index::Logs(logs) => look::logs(settings, logs).await,
        cli::Index::Gc { chain, dry_run } => change::gc(settings, chain, dry_run).await,
        cli::Index::Prune { below, chain, dry_run } => {
            change::prune(settings, chain, below, dry_run).await
        }
        cli::Index::Resolve(resolve) => resolve::run(settings, resolve).await,
    }
}

/// Opens the index of a chain read-only.
async fn open_to_read(settings: &Settings, chain: Chain) -> Result<(u64, LogIndex)> {
    let databases = Databases::open(settings, OpenMode::Read).await?;
    let stores = IndexStores::open(&databases).await?.without_warm_up();
    let chain = stores.choose(chain.id).await?;
    Ok((chain, stores.index(chain).await?))
}

/// Runs a change with the writer of a chain's index.
async fn with_writer<T>(
    settings: &Settings,
    chain: Chain,
    work: impl AsyncFnOnce(u64, &Writer) -> Result<T>,
) -> Result<T> {
    expect_database(settings)?;
    let folder = match settings.postgres() {
        Some(_) => None,
        None => Some(stores::take(&settings.data).await.map_err(folder_needed)?),
    };
    let databases = Databases::open(settings, OpenMode::Write).await?;
    let stores = IndexStores::open(&databases).await?.without_warm_up();
    let chain = stores.choose(chain.id).await?;
    let index = stores.index(chain).await?;
    let writer = become_writer(&index, folder.is_some()).await;
    let writer = writer.map_err(Error::of_index(chain))?;
    let outcome = work(chain, &writer).await;
    if let Err(error) = writer.release().await {
        let why = output::brief(&logmill_io::error_chain(&error));
        output::note(&format!("the writer lease was not released and will expire: {why}"));
    }
    // Dropped last: nothing is written after it.
    drop(folder);
    outcome
}

/// Turns "a server is running" into the error that says what this command needs.
fn folder_needed(error: Error) -> Error {
    match error {
        Error::Store(logmill_io::Error::FolderInUse { folder, pid }) => {
            Error::FolderNeeded { folder, pid }
        }
        other => other,
    }
}

/// Takes the writer lease. A caller that holds the folder waits until the lease of a dead process ends.
async fn become_writer(index: &LogIndex, alone: bool) -> finalized_log_index::Result<Writer> {
    let clock = SystemClock::shared();
    let owner = format!("logmill index {}-{:x}", std::process::id(), OsEntropy.mark());
    let end = clock.monotonic() + index.settings().lease_ttl + LEASE_WAIT;
    let mut is_noted = false;
    loop {
        match index.writer(&owner).await {
            Err(finalized_log_index::Error::Standby) if alone && clock.monotonic() < end => {}
            outcome => return outcome,
        }
        if !std::mem::replace(&mut is_noted, true) {
            output::note("waiting for the lease of a writer that did not release it");
        }
        clock.sleep(LEASE_WAIT).await;
    }
}

/// Awaits a call of the index; its error names the chain.
async fn of<T>(
    chain: u64,
    call: impl Future<Output = finalized_log_index::Result<T>>,
) -> Result<T> {
    call.await.map_err(Error::of_index(chain))
}

/// A range of blocks as text, both ends included.
fn blocks(range: &finalized_log_index::BlockRange) -> String {
    format!("{} to {}", range.start, range.end.saturating_sub(1))
}

/// An error about an argument that does not fit this index.
fn bad_argument(key: &str, why: String) -> Error {
    Error::BadValue { origin: "the command line".to_owned(), key: key.to_owned(), why }
}
