//! Preflight: what a start needs is tried before anything depends on it, and `logmill preflight` tries it alone.
//!
//! | what | how it is tried | if it is not there |
//! |---|---|---|
//! | data folder | a file is written, synced and removed | the start ends |
//! | database | connected and migrated | waited for, then the start ends |
//! | blob store | a blob is put, read and deleted | waited for, then the start ends |
//! | node | asked for its chain | the start goes on: usage and stored chains are served, ingest tries again |
//!
//! Guarantees: waiting is bounded by `ready.start_wait_ms`; an error names the setting to look at and what to do. What
//! would fail the same way again (a wrong password, another chain) ends the start at once. Leaves to others: what
//! happens to a store after the start ([`crate::readiness`]).

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logmill_io::{
    BlobName, BlobStore, Entropy, Error as StoreError, ErrorKind, OsEntropy, Sql, SystemClock, disk,
};

use crate::chains;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::stores;

/// The first wait between two tries, and the longest: it doubles.
const WAIT_FIRST: Duration = Duration::from_millis(250);
const WAIT_MAX: Duration = Duration::from_secs(5);
/// The file that is written to try the data folder.
const TRIED_FILE: &str = ".logmill-preflight";
/// What is written to try the blob store.
const TRIED_BYTES: &[u8] = b"logmill preflight";

/// `logmill preflight`: tries all of it and says how each went; an error if something is not there.
pub(crate) async fn run(settings: &Settings) -> Result<()> {
    let mut tried = Vec::new();
    let fine = |tried: Result<()>| tried.map(|()| "fine".to_owned());
    // A server that runs has tried both, and nobody else may write there.
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
        Some(said) => tried.push(("data folder", Ok(said.clone()))),
        None => tried.push(("data folder", fine(folder(settings).await))),
    }
    tried.push(("database", fine(database(settings).await)));
    if in_use.is_none() || settings.s3().is_some() {
        tried.push(("blob store", fine(blobs(settings).await)));
    }
    tried.push(("node", node(settings).await));
    let mut failed = Vec::new();
    let mut rows = Vec::new();
    for (what, tried) in tried {
        let said = tried.unwrap_or_else(|error| {
            let hint = error.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
            failed.push(what);
            format!("failed: {}{hint}", output::brief(&logmill_io::chain(&error)))
        });
        rows.push(vec![what.to_owned(), said]);
    }
    output::table(&rows)?;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Error::PreflightFailed { what: failed.join(", ") }),
    }
}

/// The data folder can be written, where anything is kept in it; on SQLite by whoever has its lock.
pub(crate) async fn folder(settings: &Settings) -> Result<()> {
    if !uses_folder(settings) {
        return Ok(());
    }
    let (folder, name) = (settings.data.clone(), format!("{TRIED_FILE}-{:x}", OsEntropy.mark()));
    let tried = logmill_io::compute(move || disk::try_write(&folder, &name)).await;
    tried.map_err(|source| Error::Preflight {
        setting: "data",
        what: format!("the data folder {} cannot be written", settings.data.display()),
        hint: folder_hint(&source),
        source: Box::new(source.into()),
    })
}

/// Whether anything is kept in the data folder.
pub(crate) fn uses_folder(settings: &Settings) -> bool {
    settings.postgres().is_none() || settings.s3().is_none()
}

/// The database can be reached and has its tables. SQLite is opened by whoever has the folder's lock.
pub(crate) async fn database(settings: &Settings) -> Result<()> {
    let Some(postgres) = settings.postgres() else { return Ok(()) };
    let connect = || async {
        let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
        Sql::postgres(&postgres, clock, entropy).await.map(|_| ())
    };
    let connected = patiently(settings.ready.start_wait(), "the database", connect).await;
    connected.map_err(|source| {
        if source.kind() != ErrorKind::Transient {
            // It says by itself what is wrong.
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

/// The blob store takes, gives and deletes.
pub(crate) async fn blobs(settings: &Settings) -> Result<()> {
    let blobs = stores::open_blobs(settings)?;
    let name = BlobName::new(format!("preflight/{:016x}", OsEntropy.mark()))?;
    let tried = || try_blobs(&blobs, &name);
    let tried = patiently(settings.ready.start_wait(), "the blob store", tried).await;
    tried.map_err(|source| {
        let (setting, what, hint) = match settings.s3() {
            None => {
                let what = format!("blobs cannot be kept below {}", settings.data.display());
                ("data", what, folder_hint(&source))
            }
            Some(s3) => {
                let (setting, hint) = bucket_hint(&source.chain());
                let how = match setting {
                    "blobs.bucket" => "does not exist",
                    "blobs.access_key" => "refuses us",
                    _ => "cannot be reached",
                };
                (setting, format!("the bucket {:?} {how}", s3.bucket), hint)
            }
        };
        Error::Preflight { setting, what, hint, source: Box::new(source.into()) }
    })
}

async fn try_blobs(blobs: &Arc<dyn BlobStore>, name: &BlobName) -> logmill_io::Result<()> {
    blobs.put(name, Bytes::from_static(TRIED_BYTES)).await?;
    let read = blobs.get(name).await?;
    if read.as_deref() != Some(TRIED_BYTES) {
        return Err(StoreError::corrupt(format!("{name} is not read as it was written")));
    }
    blobs.delete(name).await
}

/// The node answers for the right chain; how it introduces itself.
async fn node(settings: &Settings) -> Result<String> {
    if !settings.chain.is_given() {
        return Ok("none is set (chain.rpc_urls): no chain is followed".to_owned());
    }
    let met = chains::ask(settings, &SystemClock::shared(), settings.chain.id()).await;
    let (_, info) = met.map_err(|source| Error::Preflight {
        setting: "chain.rpc_urls",
        what: "no node can be used".to_owned(),
        hint: "check that a node runs there and is of the chain that chain.id names",
        source: Box::new(source),
    })?;
    Ok(format!("chain {}, {}", info.chain_id, info.client))
}

/// Tries until it works, fails for good, or took too long.
async fn patiently<T, F>(
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
            Err(error) if may_come(&error) && clock.monotonic() + wait < end => error,
            done => return done,
        };
        tracing::warn!(error = output::brief(&error.chain()), "waiting for {what}");
        clock.sleep(wait).await;
        wait = (wait * 2).min(WAIT_MAX);
    }
}

/// Whether something may just not be there yet: a server that starts, a bucket that is being made.
fn may_come(error: &StoreError) -> bool {
    let is_bucket = matches!(error, StoreError::Object { .. });
    error.kind() == ErrorKind::Transient || is_bucket && error.kind() == ErrorKind::NotFound
}

fn folder_hint(error: &StoreError) -> &'static str {
    crate::error::store_hint(error).unwrap_or("name another folder with --data")
}

/// Which setting to look at, and what to do, by the words of the server.
fn bucket_hint(said: &str) -> (&'static str, &'static str) {
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if says(&["NoSuchBucket"]) {
        return ("blobs.bucket", "create the bucket, or name another in blobs.bucket");
    }
    let keys = ["InvalidAccessKeyId", "SignatureDoesNotMatch", "AccessDenied", "403", "401"];
    if says(&keys) {
        let hint =
            "check blobs.access_key and blobs.secret_key, and that they may put, get and delete";
        return ("blobs.access_key", hint);
    }
    ("blobs.endpoint", "check that the S3 server runs, and blobs.endpoint and blobs.region")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    #[tokio::test]
    async fn what_may_come_up_is_waited_for_and_what_is_wrong_is_not() {
        let tries = AtomicU32::new(0);
        let silent = |limit_ms| StoreError::TooSlow { doing: "connect", limit_ms };
        let up_at_third = || {
            let number = tries.fetch_add(1, Ordering::SeqCst);
            async move { if number < 2 { Err(silent(1)) } else { Ok(number) } }
        };
        let came = patiently(Duration::from_secs(60), "it", up_at_third).await;
        assert_eq!(came.expect("it came up"), 2);

        let tries = AtomicU32::new(0);
        let wrong = || {
            tries.fetch_add(1, Ordering::SeqCst);
            async { Err::<(), _>(StoreError::invalid("a wrong password")) }
        };
        patiently(Duration::from_secs(60), "it", wrong).await.expect_err("wrong");
        assert_eq!(tries.load(Ordering::SeqCst), 1, "not tried again");

        let never = || async { Err::<(), _>(silent(7)) };
        let error = patiently(Duration::from_millis(10), "it", never).await.expect_err("never");
        assert!(matches!(error, StoreError::TooSlow { limit_ms: 7, .. }), "the last error");
    }

    #[test]
    fn a_bucket_that_fails_is_explained_by_its_setting() {
        for (said, setting) in [
            ("… <Code>NoSuchBucket</Code> …", "blobs.bucket"),
            ("… <Code>InvalidAccessKeyId</Code> …", "blobs.access_key"),
            ("… status 403 Forbidden …", "blobs.access_key"),
            ("… Connection refused (os error 111)", "blobs.endpoint"),
        ] {
            assert_eq!(bucket_hint(said).0, setting, "{said}");
        }
    }
}
