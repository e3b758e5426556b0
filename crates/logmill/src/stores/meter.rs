//! Usage: where it is stored, and how it is opened.
//!
//! Embedded it is `meter.db` in the data folder, a file of its own, so that recording usage, the most frequent
//! commit, delays no other component; on PostgreSQL it is in the one database. Its jobs are in the same database, so
//! that they complete in the transactions that write their results.
//!
//! Guarantees: none beyond those of the stores. Leaves to others: the folder's lock, held by the process that writes.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use logmill_io::sql::SqliteSettings;
use logmill_io::{BlobStore, OsEntropy, Sql, SystemClock};
use logmill_work::Queue;

use crate::config::Settings;
use crate::error::Result;

const DATABASE: &str = "meter.db";

pub(crate) struct MeterStores {
    pub(crate) queue: Queue,
    pub(crate) blobs: Arc<dyn BlobStore>,
}

impl MeterStores {
    /// Opens for writing; creates the database if missing. On SQLite the caller holds the folder.
    pub(crate) async fn open_to_write(settings: &Settings) -> Result<Self> {
        let queue = Queue::open(open(settings, false).await?).await?;
        super::take_over(queue.sql(), Some(&queue)).await?;
        Ok(Self { queue, blobs: super::open_blobs(settings)? })
    }
}

/// Whether jobs of a kind are stored beside usage.
pub(crate) fn has_jobs_of(kind: &str) -> bool {
    kind.starts_with("meter.") || kind.starts_with("webhook.")
}

/// Opens the jobs beside usage read-only; `None` if they are among all jobs, or nothing was ever metered.
pub(crate) async fn jobs_to_read(settings: &Settings) -> Result<Option<Queue>> {
    if settings.postgres().is_some() || !database(&settings.data).try_exists().unwrap_or(false) {
        return Ok(None);
    }
    Ok(Some(Queue::open_read_only(open(settings, true).await?).await?))
}

/// Refuses a folder without usage, so that a mistyped name creates no new one.
pub(crate) fn expect_database(settings: &Settings) -> Result<()> {
    if settings.postgres().is_some() {
        return Ok(());
    }
    super::expect_file(database(&settings.data))
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
