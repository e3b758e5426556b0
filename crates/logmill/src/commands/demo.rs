//! `logmill demo`: shows the existing features at work in a temporary folder, with nothing to set up.
//!
//! Guarantees: every claim is checked, and a failed check fails the demo; it leaves nothing behind, also when it fails
//! or is interrupted. Leaves to others: real nodes, and missing features, which it names.

use std::path::PathBuf;
use std::sync::Arc;

use logmill_io::blob::FileBlobs;
use logmill_io::sql::{DataFolder, SqliteSettings};
use logmill_io::{BlobName, Entropy, ErrorKind, OsEntropy, Sql, SystemClock};
use logmill_work::Queue;

use crate::error::{Error, Result};
use crate::output;
use crate::server::Signals;

mod chain;
mod coverage;
mod index;
mod jobs;
mod lease;
mod meter;
mod tables;

/// Shows all parts, one after the other.
pub(crate) async fn run() -> Result<()> {
    let mut signals = Signals::new()?;
    let folder = TemporaryFolder::new();
    tokio::select! {
        biased;
        _ = signals.next() => Err(Error::Interrupted),
        shown = show(&folder) => shown,
    }
}

async fn show(folder: &TemporaryFolder) -> Result<()> {
    let clock = SystemClock::shared();
    let started = clock.monotonic();
    output::note(&format!(
        "demo: SQLite and files in {}, removed at the end",
        folder.path.display()
    ));
    let taken = DataFolder::take(&folder.path)?;
    let settings = SqliteSettings::file(taken.path().join("work.db"));
    let sql = Sql::sqlite(&settings, Arc::clone(&clock), OsEntropy::shared()).await?;
    let queue = Queue::open(sql).await?;
    let mut shown = vec![
        jobs::show(&queue).await?,
        coverage::show(&queue).await?,
        lease::show(&queue).await?,
        show_blobs(taken.path().join("blobs")).await?,
        index::show(taken.path()).await?,
    ];
    let (chain, sim, message) = chain::show(taken.path(), &queue).await?;
    shown.push(message);
    shown.push(Box::pin(tables::show(taken.path(), &chain, &sim)).await?);
    shown.push(Box::pin(meter::show(taken.path())).await?);
    let took = clock.monotonic().saturating_sub(started);
    output::line(&format!("Checked in {}:", output::duration(took)))?;
    shown.iter().try_for_each(|text| output::line(&format!("- {text}")))?;
    output::line("Not implemented yet: bills.")
}

/// Blobs are complete, written once, and permanent.
async fn show_blobs(folder: PathBuf) -> Result<String> {
    let blobs = FileBlobs::open(folder)?;
    let name = BlobName::new("demo/chunk-1")?;
    blobs.put(&name, "sealed".into()).await?;
    blobs.put(&name, "sealed".into()).await?;
    let refused = blobs.put(&name, "other".into()).await;
    let refused = refused.is_err_and(|error| error.kind() == ErrorKind::Conflict);
    check(refused, || "a blob was overwritten with other bytes".to_owned())?;
    let read = blobs.get(&name).await?;
    check(read.as_deref() == Some(b"sealed"), || format!("a blob came back as {read:?}"))?;
    Ok("blobs: writing the same bytes again is fine, other bytes under the same name are refused"
        .to_owned())
}

/// Fails the demo if a claim does not hold.
fn check(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if holds { Ok(()) } else { Err(Error::Demo { what: otherwise() }) }
}

/// A folder that is removed when dropped.
struct TemporaryFolder {
    path: PathBuf,
}

impl TemporaryFolder {
    fn new() -> Self {
        let name = format!("logmill-demo-{:x}", OsEntropy.mark());
        Self { path: std::env::temp_dir().join(name) }
    }
}

impl Drop for TemporaryFolder {
    #[expect(
        clippy::disallowed_methods,
        reason = "the folder is the demo's own; no store is left in it"
    )]
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            output::note(&format!("demo: {} was not removed: {error}", self.path.display()));
        }
    }
}
