//! Preflight checks: a start tests everything it needs before anything depends on it; `logmill preflight` only runs the
//! checks.
//!
//! | requirement | check | on failure |
//! |---|---|---|
//! | data folder | a file is written, synced and removed | the start fails |
//! | PostgreSQL | connected and migrated | retried, then the start fails |
//! | disk space | compared with `ready.free_disk_mib` | the start continues with a warning, and is not ready |
//! | SQLite | each file is compared with its sidecar; `logmill preflight` also reads the whole file | the start fails |
//! | blob store | a blob is put, read and deleted | retried, then the start fails |
//! | node | asked for its chain id | the start continues: usage and stored chains are served, ingest retries |
//!
//! Guarantees: waiting is bounded by `ready.start_wait_ms`; an error names the setting to check and what to do. A
//! permanent failure (a wrong password, another chain) ends the start at once. Leaves to others: failures of a store
//! after the start ([`crate::readiness`]).

use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logmill_io::sql::check_database as check_file;
use logmill_io::{
    BlobName, BlobStore, Entropy, Error as StoreError, ErrorKind, OsEntropy, Sql, SystemClock, disk,
};

use crate::chains;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::stores;

/// The first delay between two attempts, which doubles, and the longest.
const WAIT_FIRST: Duration = Duration::from_millis(250);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The file that is written to test the data folder.
const PROBE_FILE: &str = ".logmill-preflight";
const MIB: u64 = 1 << 20;
/// The blob that is written to test the blob store.
const PROBE_BYTES: &[u8] = b"logmill preflight";

/// `logmill preflight`: runs all checks and prints the result of each; an error if one fails.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    let mut checks = Vec::new();
    let fine = |checked: Result<()>| checked.map(|()| "fine".to_owned());
    // A running server has checked folder and files, and no other process may write there.
    let taken = match settings.postgres() {
        None => Some(stores::take(&settings.data).await),
        Some(_) => None,
    };
    let in_use = match taken {
        Some(Err(Error::Store(error @ StoreError::FolderInUse { .. }))) => Some(error.to_string()),
        Some(Err(error)) => return Err(error),
        Some(Ok(_)) | None => None,
    };
    match &in_use {
        Some(in_use) => checks.push(("data folder", Ok(in_use.clone()))),
        None => checks.push(("data folder", fine(check_folder(settings).await))),
    }
    checks.push(("disk space", check_free_space(settings).await));
    match stores::database_files(settings) {
        files if files.is_empty() => {
            checks.push(("database", fine(check_database(settings).await)));
        }
        files => checks.push(("database", check_database_files(files).await)),
    }
    if in_use.is_none() || settings.s3().is_some() {
        checks.push(("blob store", fine(check_blobs(settings).await)));
    }
    checks.push(("node", check_nodes(settings).await));
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for (what, checked) in checks {
        let text = checked.unwrap_or_else(|error| {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            failed.push(what);
            format!("failed: {}{hint}", output::brief(&logmill_io::error_chain(&error)))
        });
        rows.push(vec![what.to_owned(), text]);
    }
    output::table(&rows)?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::PreflightFailed { what: failed.join(", ") }),
    }
}

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
async fn check_free_space(settings: &Settings) -> Result<String> {
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
    let connect = || async {
        let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
        Sql::postgres(&postgres, clock, entropy).await.map(|_| ())
    };
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

/// Reads all SQLite files completely; names those that exist.
async fn check_database_files(files: Vec<PathBuf>) -> Result<String> {
    let mut existing = Vec::new();
    let mut broken = Vec::new();
    for file in files {
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned());
        let exists = file.metadata().is_ok_and(|found| found.len() > 0);
        let checked = logmill_io::compute(move || check_file(&file)).await;
        match checked {
            Ok(()) => existing.extend(name.filter(|_| exists)),
            Err(error) => broken.push(error),
        }
    }
    match broken.len() {
        0 if existing.is_empty() => Ok("fine: none exists yet; a start creates them".to_owned()),
        0 => Ok(format!("fine: {}", existing.join(", "))),
        1 => Err(broken.remove(0).into()),
        _ => Err(Error::BrokenDatabases { databases: broken }),
    }
}

/// Checks that the blob store can put, get and delete.
pub(crate) async fn check_blobs(settings: &Settings) -> Result<()> {
    let blobs = stores::open_blobs(settings)?;
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

/// Checks that the nodes of every followed chain answer and serve the right chain; describes them.
async fn check_nodes(settings: &Settings) -> Result<String> {
    let followed = settings.followed();
    if followed.is_empty() {
        return Ok("not set (chain.rpc_urls): no chain is followed".to_owned());
    }
    let clock = SystemClock::shared();
    let requests = followed.iter().map(|chain| chains::identify(chain, &clock, chain.chain.id()));
    let mut descriptions = Vec::new();
    for (chain, identified) in followed.iter().zip(futures::future::join_all(requests).await) {
        let (_, info) = identified.map_err(|source| Error::Preflight {
            setting: "chain.rpc_urls",
            what: match chain.chain.id() {
                Some(id) => format!("no node of chain {id} can be used"),
                None => "no node can be used".to_owned(),
            },
            hint: "check that a node runs at this address and serves the chain of chain.id",
            source: Box::new(source),
        })?;
        descriptions.push(format!("chain {}, {}", info.chain_id, info.client));
    }
    Ok(descriptions.join("; "))
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
    let mut wait = WAIT_FIRST;
    loop {
        let error = match attempt().await {
            Err(error) if may_pass(&error) && clock.monotonic() + wait < end => error,
            outcome => return outcome,
        };
        tracing::warn!(error = output::brief(&error.chain()), "waiting for {what}");
        clock.sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
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
