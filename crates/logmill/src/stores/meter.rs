//! Usage: where it lives, and how it is opened.
//!
//! Embedded it is `meter.db` in the data folder, a file of its own, so that recording usage, the most frequent commit
//! that there is, holds up nobody else; on PostgreSQL it is in the one database. Its jobs are in the same database,
//! so that they end in the transactions that write their results.
//!
//! Guarantees: none beyond those of the stores. Leaves to others: the folder's lock, which who opens to write has.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use logmill_io::sql::SqliteSettings;
use logmill_io::{BlobStore, OsEntropy, Sql, SystemClock};
use logmill_work::Queue;

use crate::config::Settings;
use crate::error::{Error, Result};

const DATABASE: &str = "meter.db";

/// What a meter stands on.
pub(crate) struct MeterStores {
    pub(crate) queue: Queue,
    pub(crate) blobs: Arc<dyn BlobStore>,
}

impl MeterStores {
    /// To be changed, on SQLite by who has the folder; made if missing.
    pub(crate) async fn open_to_write(settings: &Settings) -> Result<Self> {
        let queue = Queue::open(open(settings, false).await?).await?;
        super::take_over(queue.sql(), Some(&queue)).await?;
        Ok(Self { queue, blobs: super::open_blobs(settings)? })
    }
}

/// Whether jobs of a kind are kept beside usage.
pub(crate) fn has_jobs_of(kind: &str) -> bool {
    kind.starts_with("meter.") || kind.starts_with("webhook.")
}

/// The jobs beside usage, to be looked at; none where they are among all jobs, or nothing was ever metered.
pub(crate) async fn jobs_to_read(settings: &Settings) -> Result<Option<Queue>> {
    if settings.postgres().is_some() || !database(&settings.data).try_exists().unwrap_or(false) {
        return Ok(None);
    }
    Ok(Some(Queue::open_read_only(open(settings, true).await?).await?))
}

/// Refuses a folder without usage, so that a mistyped name makes no new one.
pub(crate) fn expect_database(settings: &Settings) -> Result<()> {
    if settings.postgres().is_some() {
        return Ok(());
    }
    let path = database(&settings.data);
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NoDatabase { path }),
        Err(source) => Err(logmill_io::Error::File { doing: "look for", path, source }.into()),
    }
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
