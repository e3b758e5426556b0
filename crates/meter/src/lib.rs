//! Metering: usage events become exact aggregates per customer and period, and signed webhooks.
//!
//! ```text
//!   event ─▶ Recorder ─▶ events, keys, partials ─▶ touched ─▶ due ─▶ aggregates ─▶ webhooks
//!                                   │
//!                                   └─▶ queries, thresholds
//! ```
//!
//! Rooms, from the bottom up; a module imports only what is above it in this list, or its own parts:
//!
//! - [`Decimal`], [`period`], [`settings`], [`event`] (checks received events), [`partial`] (mergeable summary of one
//!   series in fifteen minutes): values, without a database.
//! - `store`: what is stored, one module for each group of tables; it does not know the [`Meter`].
//! - [`webhooks`]: endpoints, messages and their deliveries.
//! - `ingest`: [`record`] stores each event once, [`Recorder`] many at a time; [`sources`]: which source each API key
//!   sends as.
//! - [`aggregate`]: what follows from usage: [`due`] periods, aggregates, [`alerts`].
//! - [`chains`]: usage of chains, and its correction when blocks are replaced.
//! - `read`: [`query`], [`list`], [`live`], [`trend`].
//! - `upkeep`: [`correct`], [`recount`], [`mend`] (operator actions), [`audit`] (checks that stored usage is what was
//!   written), [`service`] (what runs when).
//!
//! Guarantees: an acknowledged event counts once, however often it is sent and whichever process crashes. Numbers are
//! rounded only where they cannot be exact. Leaves to others: HTTP, chains, and where usage comes from.

use std::sync::Arc;

use logmill_io::{BlobStore, Clock, Sql};
use logmill_work::Queue;
use serde_json::Value as Json;

pub mod aggregate;
pub mod chains;
mod damage;
pub mod decimal;
mod error;
pub mod event;
mod ingest;
#[cfg(test)]
mod naive;
pub mod partial;
pub mod period;
mod read;
pub mod settings;
mod store;
mod upkeep;
pub mod webhooks;

pub use decimal::Decimal;
pub use error::{Error, Result};
pub use ingest::recorder::Recorder;
pub use ingest::{record, sources};
pub use read::{list, live, query, trend};
pub use settings::Settings;
pub use store::series::OTHER;
pub use store::{requests, stored_event};
pub use upkeep::{audit, correct, mend, recount, service};

use aggregate::AggregateCommitter;
use ingest::valid_times::ValidTimes;
use period::Calendar;
use store::archive::{Archive, SLICE_BYTES};
use store::keys::{KEYS_PER_BLOB, Keys};
use store::place_index::UNPLACED_MAX;
use store::requests::KeyedRequest;
use store::schema::{CHAIN_MIGRATIONS, MIGRATIONS};
use store::series::SeriesCache;
use webhooks::Webhooks;

/// Thresholds: a webhook message when usage of a period reaches one.
pub mod alerts {
    pub use crate::aggregate::alerts::{ALERT_JOB, Watcher};
}

/// Due periods: customers' periods with usage that no final aggregate reflects yet.
pub mod due {
    pub use crate::aggregate::due::{AGGREGATE_JOB, SweepResult, SweepScope};
}

/// Metering over one database. Clones share it.
#[derive(Clone, Debug)]
pub struct Meter {
    sql: Sql,
    queue: Queue,
    settings: Arc<Settings>,
    calendar: Arc<Calendar>,
    keys: Arc<Keys>,
    archive: Arc<Archive>,
    series: Arc<SeriesCache>,
    webhooks: Webhooks,
    sizes: Sizes,
    valid_times: Arc<ValidTimes>,
    /// Aggregates that are ready to be written.
    committer: Arc<AggregateCommitter>,
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
        sql.migrate(&CHAIN_MIGRATIONS).await?;
        let calendar = Arc::new(Calendar::new(&settings.zone)?);
        let keys = Arc::new(Keys::new(Arc::clone(&blobs), sizes.keys_per_blob));
        keys.reload(&sql).await?;
        let archive = Archive::new(blobs, sizes.slice_bytes, settings.metadata_bytes_max);
        Ok(Self {
            sql,
            queue,
            settings: Arc::new(settings),
            calendar,
            keys,
            archive: Arc::new(archive),
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

    /// Executes a request unless it was done before; returns the outcome. For idempotent work of several transactions:
    /// if this process dies in the middle, a repeated request does the rest.
    pub async fn once(
        &self,
        request: Option<&KeyedRequest>,
        work: impl Future<Output = Result<Json>>,
    ) -> Result<Json> {
        requests::once(&self.sql, request, work).await
    }

    fn clock(&self) -> &Arc<dyn Clock> {
        self.sql.clock()
    }
}
