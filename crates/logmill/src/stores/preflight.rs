//! Preflight checks of the stores: a start tests everything it needs before anything depends on it.
//!
//! | requirement | check | on failure |
//! |---|---|---|
//! | data folder | a file is written, synced and removed | the start fails |
//! | PostgreSQL | connected and migrated | retried, then the start fails |
//! | disk space | compared with `ready.free_disk_mib` | the start continues with a warning, and is not ready |
//! | SQLite | each file is compared with its sidecar; `logmill preflight` also reads the whole file | the start fails |
//! | blob store | a blob is put, read and deleted | retried, then the start fails |
//!
//! Guarantees: waiting is bounded by `ready.start_wait_ms`; an error names the setting to check and what to do. A
//! permanent failure (a wrong password, another chain) ends the start at once. Leaves to others: failures of a store
//! after the start ([`logmill_serve::readiness`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logmill_io::{
    BlobName, BlobStore, Entropy, Error as StoreError, ErrorKind, OsEntropy, SystemClock, disk,
};
use logmill_work::Backoff;

use super::open_blobs;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;

/// Delays between two attempts.
const WAITS: Backoff = Backoff::Exponential {
    first: Duration::from_millis(250),
    max: Duration::from_secs(5),
    jitter_percent: 0,
};
/// The file that is written to test the data folder.
const PROBE_FILE: &str = ".logmill-preflight";
const MIB: u64 = 1 << 20;
/// The blob that is written to test the blob store.
const PROBE_BYTES: &[u8] = b"logmill preflight";

/// Checks that the data folder can be written, if anything is kept in it. On SQLite the caller holds its lock.
pub(crate) async fn check_folder(settings: &Settings) -> Result<()> {
    if !uses_folder(settings) {
        return Ok(());
    }
    let (folder, name) = (settings.data.clone(), format!("{PROBE_FILE}-{:x}", OsEntropy.mark()));
    let tried = logmill_io::compute(move || disk::try_write(&folder, &name)).await;
    tried.map_err(|source| Error::Preflight {
        setting: "data",
        what: format!("the data folder {} cannot be written", settings.data.display()),
        hint: folder_hint(&source),
        source: Box::new(source.into()),
    })
}

/// Checks that the disk of the data folder has the free space that readiness requires; describes the free space.
pub(crate) async fn check_free_space(settings: &Settings) -> Result<String> {
    if !uses_folder(settings) {
        return Ok("fine: nothing is kept in the data folder".to_owned());
    }
    let free = logmill_io::compute({
        let folder = settings.data.clone();
        move || disk::free_bytes(&folder)
    });
    let free_mib = free.await? / MIB;
    let wanted = settings.ready.free_disk_mib;
    if free_mib < wanted {
        return Err(Error::DiskLow { folder: settings.data.clone(), free_mib, wanted });
    }
    Ok(format!("fine: {free_mib} MiB free"))
}

/// Warns if disk space is low. The start continues: stored data can be read, and `/ready` gives the reason.
pub(crate) async fn warn_of_low_disk(settings: &Settings) {
    if let Err(error) = check_free_space(settings).await {
        tracing::warn!(
            error = output::brief(&logmill_io::error_chain(&error)),
            "disk space is low"
        );
    }
}

/// Whether anything is kept in the data folder.
pub(crate) fn uses_folder(settings: &Settings) -> bool {
    settings.postgres().is_none() || settings.s3().is_none()
}

/// Checks that PostgreSQL can be reached, and migrates its tables. SQLite is opened by the holder of the folder's lock.
pub(crate) async fn check_database(settings: &Settings) -> Result<()> {
    let Some(postgres) = settings.postgres() else { return Ok(()) };
    let connect = || async { super::databases::connect(&postgres).await.map(|_| ()) };
    let connected = retry_within(settings.ready.start_wait(), "the database", connect).await;
    connected.map_err(|source| {
        if source.kind() != ErrorKind::Transient {
            // Its message says what is wrong.
            return source.into();
        }
        let hint = crate::error::store_hint(&source);
        Error::Preflight {
            setting: "database.url",
            what: "the PostgreSQL database cannot be used".to_owned(),
            hint: hint.unwrap_or("check that PostgreSQL runs, and database.url"),
            source: Box::new(source.into()),
        }
    })
}

/// Checks that the blob store can put, get and delete.
pub(crate) async fn check_blobs(settings: &Settings) -> Result<()> {
    let blobs = open_blobs(settings)?;
    let name = BlobName::new(format!("preflight/{:016x}", OsEntropy.mark()))?;
    let tried = || try_blobs(&blobs, &name);
    let tried = retry_within(settings.ready.start_wait(), "the blob store", tried).await;
    tried.map_err(|source| {
        let (setting, what, hint) = match settings.s3() {
            None => {
                let what = format!("blobs cannot be stored below {}", settings.data.display());
                ("data", what, folder_hint(&source))
            }
            Some(s3) => {
                let (setting, hint) = bucket_hint(&source.chain());
                let how = match setting {
                    "blobs.bucket" => "does not exist",
                    "blobs.access_key" => "refuses access",
                    _ => "cannot be reached",
                };
                (setting, format!("the bucket {:?} {how}", s3.bucket), hint)
            }
        };
        Error::Preflight { setting, what, hint, source: Box::new(source.into()) }
    })
}

async fn try_blobs(blobs: &Arc<dyn BlobStore>, name: &BlobName) -> logmill_io::Result<()> {
    blobs.put(name, Bytes::from_static(PROBE_BYTES)).await?;
    let read = blobs.get(name).await?;
    if read.as_deref() != Some(PROBE_BYTES) {
        return Err(StoreError::corrupt(format!(
            "{name} was read with other bytes than were written"
        )));
    }
    blobs.delete(name).await
}

/// Retries until an attempt succeeds, fails permanently, or `at_most` has passed.
async fn retry_within<T, F>(
    at_most: Duration,
    what: &'static str,
    mut attempt: impl FnMut() -> F,
) -> logmill_io::Result<T>
where
    F: Future<Output = logmill_io::Result<T>>,
{
    let clock = SystemClock::shared();
    let end = clock.monotonic() + at_most;
    let mut failed = 0;
    loop {
        failed += 1;
        let wait = WAITS.wait(failed, &OsEntropy);
        let error = match attempt().await {
            Err(error) if may_pass(&error) && clock.monotonic() + wait < end => error,
            outcome => return outcome,
        };
        tracing::warn!(error = output::brief(&error.chain()), "waiting for {what}");
        clock.sleep(wait).await;
    }
}

/// Whether the error may pass by itself: a server that is starting, a bucket that is being created.
fn may_pass(error: &StoreError) -> bool {
    let is_bucket = matches!(error, StoreError::Object { .. });
    error.kind() == ErrorKind::Transient || is_bucket && error.kind() == ErrorKind::NotFound
}

fn folder_hint(error: &StoreError) -> &'static str {
    crate::error::store_hint(error).unwrap_or("name another folder with --data")
}

/// The setting to check and what to do, derived from the error message of the server.
fn bucket_hint(message: &str) -> (&'static str, &'static str) {
    let contains = |words: &[&str]| words.iter().any(|word| message.contains(word));
    if contains(&["NoSuchBucket"]) {
        return ("blobs.bucket", "create the bucket, or name another in blobs.bucket");
    }
    let keys = ["InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403", "401"];
    if contains(&keys) {
        let hint =
            "check blobs.access_key and blobs.secret_key, and that they allow put, get and delete";
        return ("blobs.access_key", hint);
    }
    ("blobs.endpoint", "check that the S3 server runs, and blobs.endpoint and blobs.region")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn a_transient_failure_is_retried_and_a_permanent_one_is_not() {
        let tries = AtomicU32::new(0);
        let silent = |limit_ms| StoreError::TooSlow { doing: "connect", limit_ms };
        let up_at_third = || {
            let number = tries.fetch_add(1, Ordering::SeqCst);
            async move { if number < 2 { Err(silent(1)) } else { Ok(number) } }
        };
        let came = retry_within(Duration::from_secs(60), "it", up_at_third).await;
        assert_eq!(came.expect("it came up"), 2);

        let tries = AtomicU32::new(0);
        let wrong = || {
            tries.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(StoreError::invalid("a wrong password")) }
        };
        retry_within(Duration::from_secs(60), "it", wrong).await.expect_err("wrong");
        assert_eq!(tries.load(Ordering::SeqCst), 1, "not tried again");

        let never = || async { Err::<(), _>(silent(7)) };
        let error = retry_within(Duration::from_millis(10), "it", never).await.expect_err("never");
        assert!(matches!(error, StoreError::TooSlow { limit_ms: 7, .. }), "the last error");
    }

    #[test]
    fn a_bucket_error_is_explained_by_the_setting_to_check() {
        for (message, setting) in [
            ("… <Code>NoSuchBucket</Code> …", "blobs.bucket"),
            ("… <Code>InvalidAccessKeyId</Code> …", "blobs.access_key"),
            ("… status 403 Forbidden …", "blobs.access_key"),
            ("… Connection refused (os error 111)", "blobs.endpoint"),
        ] {
            assert_eq!(bucket_hint(message).0, setting, "{message}");
        }
    }
}
