//! The databases of a process: jobs, log index, derived tables and usage.
//!
//! | | SQLite | PostgreSQL |
//! |---|---|---|
//! | databases | a file each, opened where it is needed | one for all, connected once |
//! | connections | a writer thread and some readers per file | one pool, and one session for wake-ups and presence |
//! | [`OpenMode::Write`] | the caller holds the folder; files are created if missing | tables are created if missing |
//! | [`OpenMode::Read`] | files are opened read-only, beside a server or without one | tables must exist |
//!
//! A process that opens a SQLite file to write it holds the folder's lock, so every earlier holder is gone:
//! [`take_over`] ends its leases and takes back its jobs at once.
//!
//! Guarantees: a process has at most `database.connections` connections to PostgreSQL and that one session, whatever
//! it opens from its [`Databases`]. Leaves to others: the folder's lock, and what is in the databases.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use logmill_io::meta::SqlMeta;
use logmill_io::sql::{PostgresSettings, SqliteSettings, check_step_back as check_file};
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_work::{Queue, end_leases};
use tokio::sync::OnceCell;

use crate::config::Settings;
use crate::error::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenMode {
    Read,
    Write,
}

/// Each is a file of its own with SQLite, because one thread writes a file: commits of one delay no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Database {
    /// Jobs, coverage, leases and schedules.
    Work,
    Index,
    /// Derived tables, with the jobs of collectors and of async workers.
    Tables,
    /// Usage, with its jobs, so that they complete in the transactions that write their results.
    Meter,
}

impl Database {
    pub(crate) fn file(self, data: &Path) -> PathBuf {
        data.join(match self {
            Self::Work => "work.db",
            Self::Index => "index.db",
            Self::Tables => "tables.db",
            Self::Meter => "meter.db",
        })
    }

    /// Refuses a folder without this database, so that a mistyped name creates no new one. A file that existed before
    /// is reported as stepped back, as at a start.
    pub(crate) fn expect(self, settings: &Settings) -> Result<()> {
        if settings.postgres().is_some() {
            return Ok(());
        }
        let path = self.file(&settings.data);
        match path.try_exists() {
            Ok(true) => Ok(()),
            Ok(false) => {
                check_file(&path)?;
                Err(Error::NoDatabase { path })
            }
            Err(source) => Err(logmill_io::Error::File { doing: "look for", path, source }.into()),
        }
    }
}

/// The databases of a process. Clones share the connections to PostgreSQL.
#[derive(Clone)]
pub(crate) struct Databases {
    pub(crate) settings: Arc<Settings>,
    pub(crate) mode: OpenMode,
    shared: Option<SharedDatabase>,
}

/// The PostgreSQL database.
#[derive(Clone)]
struct SharedDatabase {
    sql: Sql,
    /// Opened at first use. Every queue has a session, so there is only one.
    queue: Arc<OnceCell<Queue>>,
}

impl Databases {
    /// Connects to PostgreSQL. With SQLite, a caller that is going to write holds the folder.
    pub(crate) async fn open(settings: &Settings, mode: OpenMode) -> Result<Self> {
        let shared = match settings.postgres() {
            Some(postgres) => {
                let (sql, queue) = (connect(&postgres).await?, Arc::default());
                Some(SharedDatabase { sql, queue })
            }
            None => None,
        };
        Ok(Self { settings: Arc::new(settings.clone()), mode, shared })
    }

    /// The same databases, to be opened read-only.
    pub(crate) fn read_only(&self) -> Self {
        Self { mode: OpenMode::Read, ..self.clone() }
    }

    /// Whether a file exists; with PostgreSQL, the one database always does.
    pub(crate) fn exists(&self, database: Database) -> bool {
        let file = || database.file(&self.settings.data);
        self.shared.is_some() || file().try_exists().unwrap_or(false)
    }

    /// A database without jobs.
    pub(crate) async fn sql(&self, database: Database) -> Result<Sql> {
        let sql = self.connection(database).await?;
        if self.mode == OpenMode::Write {
            take_over(&sql, None).await?;
        }
        Ok(sql)
    }

    /// The jobs in a database. To read them, it must exist.
    pub(crate) async fn queue(&self, database: Database) -> Result<Queue> {
        match &self.shared {
            Some(shared) => {
                shared.queue.get_or_try_init(|| self.open_queue(database)).await.cloned()
            }
            None => self.open_queue(database).await,
        }
    }

    async fn open_queue(&self, database: Database) -> Result<Queue> {
        if self.mode == OpenMode::Read {
            database.expect(&self.settings)?;
            return Ok(Queue::open_read_only(self.connection(database).await?).await?);
        }
        let queue = Queue::open(self.connection(database).await?).await?;
        take_over(queue.sql(), Some(&queue)).await?;
        Ok(queue)
    }

    async fn connection(&self, database: Database) -> Result<Sql> {
        if let Some(shared) = &self.shared {
            return Ok(shared.sql.clone());
        }
        let settings = SqliteSettings {
            read_only: self.mode == OpenMode::Read,
            durability: self.settings.durability(),
            accept_loss: self.settings.accept_loss,
            ..SqliteSettings::file(database.file(&self.settings.data))
        };
        Ok(Sql::sqlite(&settings, SystemClock::shared(), OsEntropy::shared()).await?)
    }
}

/// Connects to PostgreSQL and creates the store tables if they are missing.
pub(crate) async fn connect(settings: &PostgresSettings) -> logmill_io::Result<Sql> {
    Sql::postgres(settings, SystemClock::shared(), OsEntropy::shared()).await
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
