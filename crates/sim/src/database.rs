//! Databases for tests: the same test body runs on SQLite and on PostgreSQL, with a clock that can be moved.
//!
//! Guarantees: every [`Database`] starts empty and belongs to one test. [`Database::advance`] moves the clock that
//! statements see, so that no test waits for a lease to expire. Leaves to others: what is tested.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use logmill_io::sql::{Durability, PostgresSettings, SqliteSettings};
use logmill_io::{
    Clock, Entropy, OsEntropy, SeededEntropy, SimClock, Sql, SystemClock, Timestamp, millis,
};
use tempfile::TempDir;

use crate::postgres::PostgresServer;

/// Start of simulated time: an arbitrary time in 2026.
pub const START: Timestamp = Timestamp(1_790_000_000_000);

/// A database of one test.
#[derive(Debug)]
pub struct Database {
    kind: Kind,
    skewed_ms: AtomicI64,
}

#[derive(Debug)]
enum Kind {
    Memory { sql: Sql, clock: Arc<SimClock> },
    File { folder: TempDir, clock: Arc<SimClock> },
    Postgres { url: String, schema: String },
}

impl Database {
    /// SQLite in memory, on the caller's thread.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub async fn memory() -> Self {
        let clock = SimClock::at(START);
        let entropy = SeededEntropy::shared(1);
        let sql =
            Sql::sqlite(&SqliteSettings::memory(), clock.clone() as Arc<dyn Clock>, entropy).await;
        let sql = sql.expect("a database in memory opens");
        Self { kind: Kind::Memory { sql, clock }, skewed_ms: AtomicI64::new(0) }
    }

    /// SQLite in a file, with its writer thread.
    ///
    /// # Panics
    /// If there is no temporary folder.
    pub fn file() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let clock = SimClock::at(START);
        Self { kind: Kind::File { folder, clock }, skewed_ms: AtomicI64::new(0) }
    }

    /// A separate schema on a server.
    pub fn postgres(server: &PostgresServer) -> Self {
        let schema = format!("test_{:016x}", OsEntropy.next_u64());
        let kind = Kind::Postgres { url: server.url(), schema };
        Self { kind, skewed_ms: AtomicI64::new(0) }
    }

    /// Opens a handle as a new process would. A memory database returns the same handle, the others are opened again.
    ///
    /// # Panics
    /// If the database cannot be opened.
    pub async fn open(&self) -> Sql {
        match &self.kind {
            Kind::Memory { sql, .. } => sql.clone(),
            Kind::File { folder, clock } => {
                let mut settings = SqliteSettings::file(folder.path().join("test.db"));
                settings.durability = Durability::Relaxed;
                let clock = clock.clone() as Arc<dyn Clock>;
                let sql = Sql::sqlite(&settings, clock, OsEntropy::shared()).await;
                sql.expect("a database in a file opens")
            }
            Kind::Postgres { .. } => {
                let settings = self.postgres_settings().expect("just matched");
                let sql =
                    Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
                let sql = sql.expect("the server answers");
                sql.skew_clock(self.skewed_ms.load(Ordering::SeqCst));
                sql
            }
        }
    }

    /// Connection settings, if it is on a server.
    pub fn postgres_settings(&self) -> Option<PostgresSettings> {
        let Kind::Postgres { url, schema } = &self.kind else {
            return None;
        };
        let mut settings = PostgresSettings::new(url.clone());
        settings.schema = Some(schema.clone());
        settings.durability = Durability::Relaxed;
        Some(settings)
    }

    /// Moves the clock that statements see, for the given handles and for those opened from now on.
    pub fn advance(&self, by: Duration, handles: &[&Sql]) {
        self.jump(millis(by), handles);
    }

    /// Moves the clock back, as an operator does with a clock that was ahead.
    pub fn set_back(&self, by: Duration, handles: &[&Sql]) {
        self.jump(-millis(by), handles);
    }

    fn jump(&self, by_ms: i64, handles: &[&Sql]) {
        match &self.kind {
            Kind::Memory { clock, .. } | Kind::File { clock, .. } => clock.jump(by_ms),
            Kind::Postgres { .. } => {
                self.skewed_ms.fetch_add(by_ms, Ordering::SeqCst);
                handles.iter().for_each(|sql| sql.skew_clock(by_ms));
            }
        }
    }
}
