//! Opening what is configured: to serve, to read beside a server, or to change something without one.
//!
//! | on SQLite | the folder's lock | the file |
//! |---|---|---|
//! | [`Stores::open`] | taken | read and written, made if missing |
//! | [`open_to_write`] | the caller has it | read and written, made if missing |
//! | [`open_to_read`] | not looked at | read only |
//!
//! The log index, the derived tables and usage have databases of their own, which [`index`], [`tables`] and [`meter`]
//! open likewise.
//!
//! On PostgreSQL there is no lock: the server itself keeps its clients apart.
//!
//! Whoever opens a SQLite file to write it has the folder's lock, so every process that had it before is gone:
//! [`take_over`] ends the leases and takes back the jobs that such a process left behind, at once.
//!
//! Guarantees: nothing of a SQLite folder is written without its lock. Leaves to others: what is in the stores.

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

/// The database of jobs, coverage, leases and schedules.
const DATABASE: &str = "work.db";
/// The folder of blobs.
const BLOBS: &str = "blobs";

/// How often and how long a server waits for a command that has the folder: two seconds in all.
const TAKES_MAX: u32 = 40;
const TAKE_WAIT: Duration = Duration::from_millis(50);

/// Everything that a server has open.
pub(crate) struct Stores {
    pub(crate) queue: Queue,
    /// Nothing is kept there yet; it is opened so that a wrong setting shows at the start.
    _blobs: Arc<dyn BlobStore>,
    /// The last to go: the lock is held for as long as anything is open.
    pub(crate) folder: Option<DataFolder>,
}

impl Stores {
    /// Opens everything to be written, and takes the folder if the database is in it.
    pub(crate) async fn open(settings: &Settings) -> Result<Self> {
        let folder = match settings.postgres() {
            None => Some(take(&settings.data).await?),
            Some(_) => None,
        };
        preflight::folder(settings).await?;
        check_step_back(settings)?;
        let queue = open_to_write(settings).await?;
        Ok(Self { queue, _blobs: open_blobs(settings)?, folder })
    }
}

/// The blobs: unfenced, so that there is one way to open them.
pub(crate) fn open_blobs(settings: &Settings) -> Result<Arc<dyn BlobStore>> {
    Ok(match settings.s3() {
        Some(s3) => S3Blobs::connect(s3)?,
        None => FileBlobs::open_with(settings.data.join(BLOBS), settings.durability())?,
    })
}

/// Takes the folder. A command that has it for a moment is waited for; a server is not.
pub(crate) async fn take(data: &Path) -> Result<DataFolder> {
    let clock = SystemClock::shared();
    for take in 0..TAKES_MAX {
        match DataFolder::take(data) {
            Err(logmill_io::Error::FolderInUse { .. }) if !control::is_served(data).await => {
                if take == 0 {
                    tracing::info!(folder = %data.display(), "waits for the data folder");
                }
                clock.sleep(TAKE_WAIT).await;
            }
            taken => return Ok(taken?),
        }
    }
    Ok(DataFolder::take(data)?)
}

/// The queue, to be changed; on SQLite by who has the folder.
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

/// Ends the leases and takes back the jobs of processes that had the folder before; on PostgreSQL, where others may be
/// alive, nothing. Only for a caller that has the folder, before it takes anything itself.
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
            "took over from a process that ended without giving them back"
        );
    }
    Ok(())
}

/// The queue, to be looked at; beside a server or without one.
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

/// Refuses a folder without a database, so that a mistyped name makes no new one.
pub(crate) fn expect_database(data: &Path) -> Result<()> {
    let path = database(data);
    match path.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::NoDatabase { path }),
        Err(source) => Err(logmill_io::Error::File { doing: "look for", path, source }.into()),
    }
}

/// Refuses databases that hold less than they once did, all of those that a server opens, before it opens any: a person
/// who accepts one loss should know of the others.
fn check_step_back(settings: &Settings) -> Result<()> {
    if settings.postgres().is_some() || settings.accept_loss {
        return Ok(());
    }
    let data = &settings.data;
    let tables = (!settings.ingest.raw_only).then(|| tables::database(data));
    let meter = settings.meter.settings().map(|_| meter::database(data));
    let files = [database(data), index::database(data)].into_iter().chain(tables).chain(meter);
    let mut refused = Vec::new();
    for file in files {
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

/// How a database file of the data folder is opened to be written.
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
