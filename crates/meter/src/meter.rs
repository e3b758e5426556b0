//! `Meter`: the whole of metering over one database.
//!
//! Guarantees: every change of usage locks the head first and commits once. Leaves to others: each part, in the modules
//! that the crate's overview names.

use std::sync::Arc;

use logmill_io::sql::Execute;
use logmill_io::{BlobStore, Clock, Sql, Tx, params};
use logmill_work::Queue;

use crate::aggregate::AggregateCommitter;
use crate::archive::SLICE_BYTES;
use crate::error::Result;
use crate::keys::{KEYS_PER_BLOB, Keys};
use crate::partials::Place;
use crate::period::Calendar;
use crate::places::UNPLACED_MAX;
use crate::schema::MIGRATIONS;
use crate::series::SeriesCache;
use crate::settings::Settings;
use crate::valid_times::ValidTimes;
use crate::webhooks::Webhooks;

/// Metering over one database. Clones share it.
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
    pub(crate) sizes: Sizes,
    pub(crate) valid_times: Arc<ValidTimes>,
    /// Aggregates that are ready to be written.
    pub(crate) committer: Arc<AggregateCommitter>,
}

/// How much is collected before it is sorted and sealed, indexed or archived.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Keys of a blob.
    pub keys_per_blob: u64,
    /// Events whose places are in lists.
    pub unplaced_max: u64,
    /// Size of a slice of archived events, unpacked.
    pub slice_bytes: usize,
}

impl Default for Sizes {
    fn default() -> Self {
        Self { keys_per_blob: KEYS_PER_BLOB, unplaced_max: UNPLACED_MAX, slice_bytes: SLICE_BYTES }
    }
}

impl Meter {
    /// The same meter, whose writes take turns with those of other lanes ([`Sql::in_lane`]). Recording by requests uses
    /// no lane.
    #[must_use]
    pub fn in_lane(&self, lane: u64) -> Self {
        let (sql, queue) = (self.sql.in_lane(lane), self.queue.in_lane(lane));
        Self { sql, queue, ..self.clone() }
    }

    /// Opens a meter, and creates its tables if they are missing. Jobs and webhooks are in the same database.
    pub async fn open(
        queue: Queue,
        blobs: Arc<dyn BlobStore>,
        webhooks: Webhooks,
        settings: Settings,
    ) -> Result<Self> {
        Self::open_with(queue, blobs, webhooks, settings, Sizes::default()).await
    }

    /// Like [`Meter::open`], with other sizes.
    pub async fn open_with(
        queue: Queue,
        blobs: Arc<dyn BlobStore>,
        webhooks: Webhooks,
        settings: Settings,
        sizes: Sizes,
    ) -> Result<Self> {
        settings.check()?;
        let sql = queue.sql().clone();
        sql.migrate(&MIGRATIONS).await?;
        sql.migrate(&crate::chains::ledger::MIGRATIONS).await?;
        let calendar = Arc::new(Calendar::new(&settings.zone)?);
        let keys = Arc::new(Keys::new(Arc::clone(&blobs), sizes.keys_per_blob));
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
            sizes,
            valid_times: Arc::default(),
            committer: Arc::default(),
        })
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    pub fn webhooks(&self) -> &Webhooks {
        &self.webhooks
    }

    pub fn sql(&self) -> &Sql {
        &self.sql
    }

    pub(crate) fn clock(&self) -> &Arc<dyn Clock> {
        self.sql.clock()
    }
}

/// The head row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The number of the next event.
    pub(crate) seq: i64,
    pub(crate) name: i64,
    pub(crate) keys_version: i64,
    /// Number of events whose places are in lists.
    pub(crate) unplaced: i64,
    /// The bucket and series below which partials are stored series by series.
    pub(crate) settled: (i64, i64),
}

impl Head {
    /// Locks the head for this transaction: no other transaction changes usage before it ends.
    pub(crate) async fn lock(tx: &Tx) -> logmill_io::Result<Self> {
        let text = "SELECT next_seq, next_name, keys_version, unplaced, settled_bucket,
                        settled_series
                    FROM meter_head WHERE id = 1 FOR UPDATE";
        let answer = tx.execute(text, params![]).await?;
        let row = answer.row()?;
        Ok(Self {
            seq: row.int(0)?,
            name: row.int(1)?,
            keys_version: row.int(2)?,
            unplaced: row.int(3)?,
            settled: (row.int(4)?, row.int(5)?),
        })
    }

    /// Writes the changed fields.
    pub(crate) async fn store(&self, tx: &Tx) -> logmill_io::Result<()> {
        let text = "UPDATE meter_head SET next_seq = $1, next_name = $2, unplaced = $3,
                        settled_bucket = $4, settled_series = $5 WHERE id = 1";
        let (bucket, series) = self.settled;
        tx.execute(text, params![self.seq, self.name, self.unplaced, bucket, series]).await?;
        Ok(())
    }

    /// Whether the partial of this place is stored series by series.
    pub(crate) fn is_settled(&self, place: Place) -> bool {
        (place.bucket, place.series) < self.settled
    }
}
