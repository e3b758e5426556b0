//! Derived tables: where they are stored, and how they are opened.
//!
//! Embedded they are `tables.db` in the data folder, a file of its own, so that large commits of tables delay neither
//! jobs nor the log index; on PostgreSQL they are in the one database.
//!
//! Guarantees: opening to read writes nothing. Leaves to others: the folder's lock, held by the process that writes.

use std::path::{Path, PathBuf};

use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_pipeline::async_workers::{contract_code, nft_items, reconcile, token_metadata};
use logmill_pipeline::derive::Tables;
use logmill_work::Queue;

use crate::config::Settings;
use crate::error::{Error, Result};

const DATABASE: &str = "tables.db";

/// Opens for writing; creates the database if missing. On SQLite the caller holds the folder.
pub(crate) async fn open_to_write(settings: &Settings) -> Result<Tables> {
    let tables = Tables::open(open(settings, false).await?).await?;
    super::take_over(tables.sql(), Some(tables.queue())).await?;
    Ok(tables)
}

/// Whether jobs of a kind are stored beside tables: those of collectors and of async workers.
pub(crate) fn has_jobs_of(kind: &str) -> bool {
    let workers = [
        "collect",
        contract_code::NAME,
        token_metadata::NAME,
        nft_items::NAME,
        "nft_item_metadata",
        reconcile::NAME,
    ];
    workers.iter().any(|name| {
        kind.strip_prefix(name)
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
    })
}

/// Opens the jobs beside tables read-only; `None` if they are among all jobs, or there are no tables yet.
pub(crate) async fn jobs_to_read(settings: &Settings) -> Result<Option<Queue>> {
    if settings.postgres().is_some() || !database(&settings.data).try_exists().unwrap_or(false) {
        return Ok(None);
    }
    Ok(Some(Queue::open_read_only(open(settings, true).await?).await?))
}

/// Refuses a folder without tables, so that a mistyped name creates no new one.
pub(crate) fn expect_database(settings: &Settings) -> Result<()> {
    if settings.postgres().is_some() {
        return Ok(());
    }
    super::expect_file(database(&settings.data))
}

/// Opens read-only, beside a writer or without one.
pub(crate) async fn open_to_read(settings: &Settings) -> Result<Tables> {
    let path = database(&settings.data);
    if settings.postgres().is_none() && !path.try_exists().unwrap_or(false) {
        return Err(Error::NoDatabase { path });
    }
    Ok(Tables::open_read_only(open(settings, true).await?).await?)
}

async fn open(settings: &Settings, read_only: bool) -> Result<Sql> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    Ok(match settings.postgres() {
        Some(postgres) => Sql::postgres(&postgres, clock, entropy).await?,
        None => {
            let file = super::sqlite_file(settings, database(&settings.data));
            Sql::sqlite(&SqliteSettings { read_only, ..file }, clock, entropy).await?
        }
    })
}

pub(super) fn database(data: &Path) -> PathBuf {
    data.join(DATABASE)
}
