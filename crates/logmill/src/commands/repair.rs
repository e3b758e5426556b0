//! `logmill repair`: fetches stored final blocks again and replaces what differs.
//!
//! Guarantees: a repair is a job that the server runs, so that only the process that writes the index changes it.
//! Leaves to others: the repair itself ([`logmill_pipeline::repair`]).

use logmill_io::{Entropy, OsEntropy};
use logmill_pipeline::repair;

use crate::cli;
use crate::config::Settings;
use crate::error::Result;
use crate::output;
use crate::stores::index::IndexStores;
use crate::stores::{Databases, OpenMode};

use super::jobs;

/// Enqueues a job that fetches stored blocks again.
pub(crate) async fn run(args: &cli::Repair, settings: &Settings) -> Result<()> {
    let databases = Databases::open(settings, OpenMode::Read).await?;
    let stores = IndexStores::open(&databases).await?.without_warm_up();
    let chain = stores.choose(args.chain).await?;
    let (first, last) = (*args.range.start(), *args.range.end());
    let (chain, range) = (stores.chain(chain).await?, first..last.saturating_add(1));
    repair::check_range(&chain, &range)?;
    for job in repair::jobs(&chain, range, &format!("{:x}", OsEntropy.mark()))? {
        let (kind, key) = jobs::enqueue(settings, job).await?;
        output::line(&format!(
            "enqueued: the server will run it as a job; see logmill jobs show {kind} {key}"
        ))?;
    }
    Ok(())
}
