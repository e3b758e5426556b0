//! Opens the configured stores: to serve, to read beside a server, or to change something without one.
//!
//! [`databases`] connects to the databases; [`index`], [`tables`] and [`meter`] open what is in them. Blobs are files
//! or in S3. With SQLite, a server or a command that writes takes the folder's lock first; with PostgreSQL there is
//! none: the database server isolates its clients.
//!
//! Guarantees: nothing in a SQLite folder is written without its lock. Leaves to others: the contents of the stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use logmill_io::blob::{FileBlobs, S3Blobs};
use logmill_io::sql::{DataFolder, check_step_back as check_file};
use logmill_io::{BlobStore, SystemClock};
use logmill_work::Queue;

use crate::config::Settings;
use crate::control;
use crate::error::{Error, Result};
use crate::job_kinds;

pub(crate) mod databases;
pub(crate) mod index;
pub(crate) mod meter;
pub(crate) mod preflight;
pub(crate) mod tables;

pub(crate) use databases::{Database, Databases, OpenMode};

const BLOBS: &str = "blobs";

/// Number of attempts to take a folder that a command holds, and the delay between them: two seconds in all.
const TAKES_MAX: u32 = 40;
const TAKE_WAIT: Duration = Duration::from_millis(50);

/// The open stores of a server.
pub(crate) struct Stores {
    pub(crate) databases: Databases,
    pub(crate) queue: Queue,
    /// Nothing is stored there yet; it is opened so that a wrong setting fails at the start.
    _blobs: Arc<dyn BlobStore>,
    /// Dropped last: the lock is held for as long as anything is open.
    pub(crate) folder: Option<DataFolder>,
}

impl Stores {
    /// Opens everything for writing, and takes the folder if the database is in it.
    pub(crate) async fn open(settings: &Settings) -> Result<Self> {
        let folder = match settings.postgres() {
            None => Some(take(&settings.data).await?),
            Some(_) => None,
        };
        preflight::check_folder(settings).await?;
        preflight::warn_of_low_disk(settings).await;
        check_step_back(settings)?;
        let databases = Databases::open(settings, OpenMode::Write).await?;
        let queue = databases.queue(Database::Work).await?;
        Ok(Self { databases, queue, _blobs: open_blobs(settings)?, folder })
    }
}

/// Blob store without fencing, so that there is one way to open it.
pub(crate) fn open_blobs(settings: &Settings) -> Result<Arc<dyn BlobStore>> {
    Ok(match settings.s3() {
        Some(s3) => S3Blobs::connect(s3)?,
        None => FileBlobs::open_with(settings.data.join(BLOBS), settings.durability())?,
    })
}

/// Takes the folder. Waits for a command that holds it briefly, but not for a server.
pub(crate) async fn take(data: &Path) -> Result<DataFolder> {
    let clock = SystemClock::shared();
    for take in 0..TAKES_MAX {
        match DataFolder::take(data) {
            Err(logmill_io::Error::FolderInUse { .. }) if !control::is_served(data).await => {
                if take == 0 {
                    tracing::info!(folder = %data.display(), "waiting for the data folder: another process holds it");
                }
                clock.sleep(TAKE_WAIT).await;
            }
            taken => return Ok(taken?),
        }
    }
    Ok(DataFolder::take(data)?)
}

/// The database that holds jobs of a kind.
pub(crate) fn database_of_jobs(kind: &str) -> Database {
    match kind {
        _ if job_kinds::is_beside_usage(kind) => Database::Meter,
        _ if job_kinds::is_beside_tables(kind) => Database::Tables,
        _ => Database::Work,
    }
}

/// SQLite files that a server opens; empty on PostgreSQL.
pub(crate) fn database_files(settings: &Settings) -> Vec<PathBuf> {
    if settings.postgres().is_some() {
        return Vec::new();
    }
    let tables = (!settings.derives_nothing()).then_some(Database::Tables);
    let meter = settings.meter.settings().map(|_| Database::Meter);
    let opened = [Database::Work, Database::Index].into_iter().chain(tables).chain(meter);
    opened.map(|database| database.file(&settings.data)).collect()
}

/// Refuses databases that hold less than they once did. Checks all databases of a server before it opens any: an
/// operator who accepts one loss should know of the others.
fn check_step_back(settings: &Settings) -> Result<()> {
    if settings.accept_loss {
        return Ok(());
    }
    let mut refused = Vec::new();
    for file in database_files(settings) {
        match check_file(&file) {
            Err(error @ logmill_io::Error::SteppedBack { .. }) => refused.push(error),
            checked => checked?,
        }
    }
    match refused.len() {
        0 => Ok(()),
        1 => Err(refused.remove(0).into()),
        _ => Err(Error::SteppedBack { databases: refused }),
    }
}
