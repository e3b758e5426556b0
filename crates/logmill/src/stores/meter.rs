//! Usage: where it is stored, and how it is opened.
//!
//! Embedded it is `meter.db` in the data folder, a file of its own, so that recording usage, the most frequent
//! commit, delays no other component; on PostgreSQL it is in the one database. Its jobs are in the same database, so
//! that they complete in the transactions that write their results.
//!
//! Guarantees: none beyond those of the stores. Leaves to others: the folder's lock, held by the process that writes.

use std::sync::Arc;

use logmill_io::BlobStore;
use logmill_work::Queue;

use super::{Database, Databases};
use crate::error::Result;

pub(crate) struct MeterStores {
    pub(crate) queue: Queue,
    pub(crate) blobs: Arc<dyn BlobStore>,
}

impl MeterStores {
    pub(crate) async fn open(databases: &Databases) -> Result<Self> {
        let queue = databases.queue(Database::Meter).await?;
        Ok(Self { queue, blobs: super::open_blobs(&databases.settings)? })
    }
}
