//! Whether databases, blobs and disk answer.
//!
//! Guarantees: a probe writes nothing, unless recording usage has just failed: then it tries to write until that
//! succeeds. Leaves to others: the time limit for an answer ([`super`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use logmill_io::meta::SqlMeta;
use logmill_io::{Batch, BlobName, BlobStore, Condition, Sql, disk};

use super::{Cause, Check, Finding};
use crate::error::Result;

/// How often a bucket is queried: every request to it may be billed.
const BUCKET_EVERY: Duration = Duration::from_secs(10);
/// How often files are checked.
const FILES_EVERY: Duration = Duration::from_secs(1);
/// How often the free space is checked.
const DISK_EVERY: Duration = Duration::from_secs(5);
/// Name of a blob that never exists.
const NO_BLOB: &str = "ready/probe";
/// The record that a probe writes after recording has failed.
const PROBE_KEY: &str = "ready/probe";
const MIB: u64 = 1 << 20;

#[derive(Debug)]
pub struct SqlCheck {
    cause: Cause,
    what: &'static str,
    sql: Sql,
    write_alarm: WriteAlarm,
}

/// A flag that is raised when a write to a store fails, and cleared when a probe can write again.
#[derive(Clone, Debug, Default)]
pub struct WriteAlarm(Arc<AtomicBool>);

impl WriteAlarm {
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl SqlCheck {
    /// `what` names the database for people.
    pub fn new(cause: Cause, what: &'static str, sql: Sql) -> Arc<Self> {
        Arc::new(Self { cause, what, sql, write_alarm: WriteAlarm::default() })
    }

    /// Check of the meter's database, with the flag that recording sets on failure.
    pub fn of_meter(sql: Sql, write_alarm: WriteAlarm) -> Arc<Self> {
        Arc::new(Self {
            cause: Cause::MeterStoreSilent,
            what: "the database of usage",
            sql,
            write_alarm,
        })
    }

    async fn try_write(&self) -> logmill_io::Result<()> {
        let batch = Batch::new().put(PROBE_KEY, "", Condition::Any);
        SqlMeta::shared(self.sql.clone()).commit(batch).await.map(|_| ())
    }
}

#[async_trait]
impl Check for SqlCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        let mut probed = self.sql.probe().await;
        if probed.as_ref().is_err_and(|error| !error.is_fatal()) {
            // A pooled connection may have been broken unnoticed: probe again.
            probed = self.sql.probe().await;
        }
        if let Err(error) = probed {
            if error.is_fatal() {
                return Err(error.into());
            }
            let why = format!("{} does not answer: {}", self.what, error.chain());
            return Ok(vec![Finding::new(self.cause, None, why)]);
        }
        if !self.write_alarm.0.load(Ordering::SeqCst) {
            return Ok(Vec::new());
        }
        match self.try_write().await {
            Ok(()) => {
                self.write_alarm.0.store(false, Ordering::SeqCst);
                Ok(Vec::new())
            }
            Err(error) if error.is_fatal() => Err(error.into()),
            Err(error) => {
                let why = format!("{} cannot be written: {}", self.what, error.chain());
                Ok(vec![Finding::new(Cause::MeterNotWritable, None, why)])
            }
        }
    }

    fn silence(&self) -> Finding {
        Finding::new(self.cause, None, self.what)
    }
}

#[derive(Debug)]
pub struct BlobCheck {
    blobs: Arc<dyn BlobStore>,
    every: Duration,
}

impl BlobCheck {
    pub fn new(blobs: Arc<dyn BlobStore>, is_bucket: bool) -> Arc<Self> {
        let every = if is_bucket { BUCKET_EVERY } else { FILES_EVERY };
        Arc::new(Self { blobs, every })
    }
}

#[async_trait]
impl Check for BlobCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        match self.blobs.get(&BlobName::new(NO_BLOB)?).await {
            Ok(_) => Ok(Vec::new()),
            Err(error) if error.is_fatal() => Err(error.into()),
            Err(error) => {
                let why = format!("the blob store does not answer: {}", error.chain());
                Ok(vec![Finding::new(Cause::BlobsSilent, None, why)])
            }
        }
    }

    fn silence(&self) -> Finding {
        Finding::new(Cause::BlobsSilent, None, "the blob store")
    }

    fn every(&self) -> Duration {
        self.every
    }
}

/// Whether the data folder exists and has free space.
#[derive(Debug)]
pub struct DiskCheck {
    pub folder: PathBuf,
    pub free_mib_min: u64,
}

#[async_trait]
impl Check for DiskCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        let folder = self.folder.clone();
        let free = logmill_io::compute(move || disk::free_bytes(&folder)).await;
        let why = match free.map(|free| free / MIB) {
            Ok(free) if free >= self.free_mib_min => return Ok(Vec::new()),
            Ok(free) => format!(
                "the disk of {} has {free} MiB left; ready.free_disk_mib requires {}",
                self.folder.display(),
                self.free_mib_min
            ),
            Err(error) => error.chain(),
        };
        Ok(vec![Finding::new(Cause::DiskLow, None, why)])
    }

    fn silence(&self) -> Finding {
        Finding::new(Cause::DiskLow, None, format!("the disk of {}", self.folder.display()))
    }

    fn every(&self) -> Duration {
        DISK_EVERY
    }
}
