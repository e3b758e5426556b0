//! `logmill index …`: asking the log index, looking after it, and healing it.
//!
//! Who only looks reads the index beside the process that writes it. Who changes something takes the data folder (on
//! SQLite), then the writer lease:
//!
//! ```text
//!   take the folder ──▶ in use ──▶ refused: stop the server first
//!         └ taken ──▶ take the lease ──▶ held ──▶ on SQLite its holder is dead: wait for its end
//!                          │               └──── on PostgreSQL somebody writes: refused
//!                          └ taken ──▶ change it ──▶ give the lease back
//! ```
//!
//! Guarantees: a change is made by the one writer, under its fence. No command makes an index. Leaves to others: what
//! is changed ([`finalized_log_index::Writer`]), and changes through a running server, which come with the part of
//! it that writes the index.

use std::future::Future;
use std::time::Duration;

use finalized_log_index::{LogIndex, Writer};
use logmill_io::{Entropy, OsEntropy, SystemClock};

use crate::cli;
use crate::cli::index::Chain;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::stores;
use crate::stores::index::{IndexStores, expect_database};

mod change;
mod look;
mod resolve;

/// How often the lease of a writer that is gone is asked for.
const LEASE_WAIT: Duration = Duration::from_millis(200);

/// Runs one command.
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

/// The index of a chain, to be looked at.
async fn open_to_read(settings: &Settings, chain: Chain) -> Result<(u64, LogIndex)> {
    let stores = IndexStores::open_to_read(settings).await?.without_warm_up();
    let chain = stores.choose(chain.id).await?;
    Ok((chain, stores.index(chain).await?))
}

/// Has the writer of a chain's index do something.
async fn with_writer<T>(
    settings: &Settings,
    chain: Chain,
    work: impl AsyncFnOnce(u64, &Writer) -> Result<T>,
) -> Result<T> {
    expect_database(settings)?;
    let folder = match settings.postgres() {
        Some(_) => None,
        None => Some(stores::take(&settings.data).await.map_err(needed)?),
    };
    let stores = IndexStores::open_to_write(settings).await?.without_warm_up();
    let chain = stores.choose(chain.id).await?;
    let index = stores.index(chain).await?;
    let writer = become_writer(&index, folder.is_some()).await;
    let writer = writer.map_err(Error::of_index(chain))?;
    let outcome = work(chain, &writer).await;
    if let Err(error) = writer.release().await {
        let why = output::brief(&logmill_io::chain(&error));
        output::note(&format!("the writer lease was not given back and ends by itself: {why}"));
    }
    // The last to go: nothing is written after it.
    drop(folder);
    outcome
}

/// Says what this command would need, where a server says that it is running already.
fn needed(error: Error) -> Error {
    match error {
        Error::Store(logmill_io::Error::FolderInUse { folder, pid }) => {
            Error::FolderNeeded { folder, pid }
        }
        other => other,
    }
}

/// Takes the writer lease. Who has the folder waits for the lease of a process that is gone.
async fn become_writer(index: &LogIndex, alone: bool) -> finalized_log_index::Result<Writer> {
    let clock = SystemClock::shared();
    let owner = format!("logmill index {}-{:x}", std::process::id(), OsEntropy.mark());
    let end = clock.monotonic() + index.settings().lease_ttl + LEASE_WAIT;
    let mut told = false;
    loop {
        match index.writer(&owner).await {
            Err(finalized_log_index::Error::Standby) if alone && clock.monotonic() < end => {}
            outcome => return outcome,
        }
        if !std::mem::replace(&mut told, true) {
            output::note("waits for the lease of a writer that did not give it back");
        }
        clock.sleep(LEASE_WAIT).await;
    }
}

/// A call of the index, whose error names the chain.
async fn of<T>(
    chain: u64,
    call: impl Future<Output = finalized_log_index::Result<T>>,
) -> Result<T> {
    call.await.map_err(Error::of_index(chain))
}

/// Blocks from a first to a last, for people.
fn blocks(range: &finalized_log_index::BlockRange) -> String {
    format!("{} to {}", range.start, range.end.saturating_sub(1))
}

/// An error about an argument that makes no sense for this index.
fn bad_argument(key: &str, why: String) -> Error {
    Error::BadValue { origin: "the command line".to_owned(), key: key.to_owned(), why }
}
