//! `Meter`: the whole of metering over one database.
//!
//! Guarantees: every change of usage locks the head first and commits once. Leaves to others: each part of it, in the
//! modules that are named in the crate's overview.

use std::sync::Arc;

use logmill_io::sql::Execute;
use logmill_io::{BlobStore, Clock, Sql, Tx, params};
use logmill_work::Queue;

use crate::aggregate::Together;
use crate::error::Result;
use crate::keys::{KEYS_PER_BLOB, Keys};
use crate::period::Calendar;
use crate::schema::MIGRATIONS;
use crate::series::SeriesCache;
use crate::settings::Settings;
use crate::webhooks::Webhooks;

/// Metering over one database. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Meter {
    pub(crate) sql: Sql,
    pub(crate) queue: Queue,
    pub(crate) blobs: Arc<dyn BlobStore>,
    pub(crate) settings: Arc<Settings>,
    pub(crate) calendar: Arc<Calendar>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) series: Arc<SeriesCache>,
    pub(crate) webhooks: Webhooks,
    /// Aggregates that are ready to be written.
    pub(crate) together: Arc<Together>,
}

impl Meter {
    /// Opens a meter, and makes its tables if they are missing. Jobs and webhooks are in the same database.
    pub async fn open(
        queue: Queue,
        blobs: Arc<dyn BlobStore>,
        webhooks: Webhooks,
        settings: Settings,
    ) -> Result<Self> {
        Self::open_with(queue, blobs, webhooks, settings, KEYS_PER_BLOB).await
    }

    /// The same with another size of blobs of keys.
    pub async fn open_with(
        queue: Queue,
        blobs: Arc<dyn BlobStore>,
        webhooks: Webhooks,
        settings: Settings,
        keys_per_blob: u64,
    ) -> Result<Self> {
        settings.check()?;
        let sql = queue.sql().clone();
        sql.migrate(&MIGRATIONS).await?;
        let calendar = Arc::new(Calendar::new(&settings.zone)?);
        let keys = Arc::new(Keys::new(Arc::clone(&blobs), keys_per_blob));
        keys.reload(&sql).await?;
        Ok(Self {
            sql,
            queue,
            blobs,
            settings: Arc::new(settings),
            calendar,
            keys,
            series: Arc::default(),
            webhooks,
            together: Arc::default(),
        })
    }

    /// How usage is metered.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The calendar of periods.
    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// The webhooks that tell of aggregates.
    pub fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    /// The database.
    pub fn sql(&self) -> &Sql {
        &self.sql
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.sql.clock()
    }
}

/// What the head says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The first number that is given next, or was just given.
    pub(crate) seq: i64,
    pub(crate) name: i64,
    pub(crate) keys_version: i64,
}

impl Head {
    /// Locks the head for this transaction: nobody else changes usage before it ends.
    pub(crate) async fn lock(tx: &Tx) -> logmill_io::Result<Self> {
        let text = "SELECT next_seq, next_name, keys_version FROM meter_head
                    WHERE id = 1 FOR UPDATE";
        let answer = tx.execute(text, params![]).await?;
        let row = answer.row()?;
        Ok(Self { seq: row.int(0)?, name: row.int(1)?, keys_version: row.int(2)? })
    }

    /// Writes the numbers that are next.
    pub(crate) async fn store(&self, tx: &Tx) -> logmill_io::Result<()> {
        let text = "UPDATE meter_head SET next_seq = $1, next_name = $2 WHERE id = 1";
        tx.execute(text, params![self.seq, self.name]).await?;
        Ok(())
    }
}
