//! Opens the configured stores: to serve, to read beside a server, or to change something without one.
//!
//! | on SQLite | the folder's lock | the file |
//! |---|---|---|
//! | [`Stores::open`] | taken | read and written, created if missing |
//! | [`open_to_write`] | held by the caller | read and written, created if missing |
//! | [`open_to_read`] | ignored | read only |
//!
//! The log index, the derived tables and usage have databases of their own, which [`index`], [`tables`] and [`meter`]
//! open in the same way.
//!
//! On PostgreSQL there is no lock: the database server isolates its clients.
//!
//! A process that opens a SQLite file to write it holds the folder's lock, so every earlier holder is gone:
//! [`take_over`] ends its leases and takes back its jobs at once.
//!
//! Guarantees: nothing in a SQLite folder is written without its lock. Leaves to others: the contents of the stores.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use logmill_io::blob::{FileBlobs, S3Blobs};
use logmill_io::meta::SqlMeta;
use logmill_io::sql::{DataFolder, SqliteSettings, check_step_back as check_file};
use logmill_io::{BlobStore, OsEntropy, Sql, SystemClock};
use logmill_work::{Queue, end_leases};

use crate::config::Settings;
use crate::control;
use crate::error::{Error, Result};
use crate::preflight;

pub(crate) mod index;
pub(crate) mod meter;
pub(crate) mod tables;

/// Database of jobs, coverage, leases and schedules.
const DATABASE: &str = "work.db";
const BLOBS: &str = "blobs";

/// Number of attempts to take a folder that a command holds, and the delay between them: two seconds in all.
const TAKES_MAX: u32 = 40;
const TAKE_WAIT: Duration = Duration::from_millis(50);

/// The open stores of a server.
pub(crate) struct Stores {
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
        let queue = open_to_write(settings).await?;
        Ok(Self { queue, _blobs: open_blobs(settings)?, folder })
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

/// Opens the queue for writing. On SQLite the caller holds the folder.
pub(crate) async fn open_to_write(settings: &Settings) -> Result<Queue> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let sql = match settings.postgres() {
        Some(postgres) => Sql::postgres(&postgres, clock, entropy).await?,
        None => Sql::sqlite(&sqlite(settings), clock, entropy).await?,
    };
    let queue = Queue::open(sql).await?;
    take_over(queue.sql(), Some(&queue)).await?;
    Ok(queue)
}

/// Ends the leases and takes back the jobs of earlier holders of the folder; does nothing on PostgreSQL, where other
/// processes may be alive. Only for a caller that holds the folder, before it claims anything itself.
async fn take_over(sql: &Sql, queue: Option<&Queue>) -> Result<()> {
    if sql.has_presence() {
        return Ok(());
    }
    let leases = end_leases(&*SqlMeta::shared(sql.clone())).await?;
    let jobs = match queue {
        Some(queue) => queue.reclaim_all().await?,
        None => 0,
    };
    if leases > 0 || jobs > 0 {
        tracing::info!(
            leases,
            jobs,
            "took over leases and jobs from a process that ended without releasing them"
        );
    }
    Ok(())
}

/// Opens the queue read-only; beside a server or without one.
pub(crate) async fn open_to_read(settings: &Settings) -> Result<Queue> {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let sql = match settings.postgres() {
        Some(postgres) => Sql::postgres(&postgres, clock, entropy).await?,
        None => {
            expect_database(&settings.data)?;
            let settings = SqliteSettings { read_only: true, ..sqlite(settings) };
            Sql::sqlite(&settings, clock, entropy).await?
        }
    };
    Ok(Queue::open_read_only(sql).await?)
}

/// Refuses a folder without a database, so that a mistyped name creates no new one.
pub(crate) fn expect_database(data: &Path) -> Result<()> {
    expect_file(database(data))
}

/// Refuses a database file that is missing. One that existed before is reported as stepped back, as at a start.
fn expect_file(path: PathBuf) -> Result<()> {
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => {
            check_file(&path)?;
            Err(Error::NoDatabase { path })
        }
        Err(source) => Err(logmill_io::Error::File { doing: "look for", path, source }.into()),
    }
}

/// SQLite files that a server opens; empty on PostgreSQL.
pub(crate) fn database_files(settings: &Settings) -> Vec<PathBuf> {
    if settings.postgres().is_some() {
        return Vec::new();
    }
    let data = &settings.data;
    let tables = (!settings.derives_nothing()).then(|| tables::database(data));
    let meter = settings.meter.settings().map(|_| meter::database(data));
    [database(data), index::database(data)].into_iter().chain(tables).chain(meter).collect()
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

fn sqlite(settings: &Settings) -> SqliteSettings {
    sqlite_file(settings, database(&settings.data))
}

/// Settings to open a database file of the data folder for writing.
fn sqlite_file(settings: &Settings, file: PathBuf) -> SqliteSettings {
    SqliteSettings {
        durability: settings.durability(),
        accept_loss: settings.accept_loss,
        ..SqliteSettings::file(file)
    }
}

fn database(data: &Path) -> PathBuf {
    data.join(DATABASE)
}
