//! `logmill verify` and `logmill repair`: stored history, checked again, and fetched again.
//!
//! Guarantees: to verify changes nothing and goes on beside a server; exit code 1 if a block is damaged. A repair is a
//! job that the server does, so that only the process that writes the index changes it. Leaves to others: checks and
//! repairs ([`logmill_pipeline`]).

use logmill_io::{Entropy, OsEntropy};
use logmill_pipeline::audit::audit;
use logmill_pipeline::repair;

use crate::cli;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::jobs::Jobs;
use crate::jobs::change::Enqueue;
use crate::output;
use crate::stores::index::IndexStores;

/// Blocks between two lines of progress.
const TOLD_EVERY: u64 = 1_000;

/// Checks stored blocks against their headers.
pub(crate) async fn verify(asked: &cli::Verify, settings: &Settings) -> Result<()> {
    let stores = IndexStores::open_to_read(settings).await?.without_warm_up();
    let chain = stores.chain(stores.choose(asked.chain).await?).await?;
    let range = asked.from.unwrap_or(0)..asked.to.map_or(u64::MAX, |to| to.saturating_add(1));
    let mut count = 0_u64;
    let report = audit(&chain, range, |number| {
        count += 1;
        if count.is_multiple_of(TOLD_EVERY) {
            output::progress(&format!("{count} blocks checked, now at {number}"), false);
        }
    })
    .await?;
    if count >= TOLD_EVERY {
        output::progress(&format!("{count} blocks checked"), true);
    }
    if asked.json {
        output::json(&report)?;
    } else {
        let row = |name: &str, value: u64| vec![name.to_owned(), value.to_string()];
        output::table(&[
            row("verified in full", report.verified),
            row("verified in part", report.less_verified),
            row("logs only", report.logs_only),
            row("damaged", report.damaged),
        ])?;
        for finding in &report.findings {
            output::line(&format!("block {}: {}", finding.number, finding.what))?;
        }
    }
    match report.is_clean() {
        true => Ok(()),
        false => Err(Error::Damaged { blocks: report.damaged }),
    }
}

/// Has stored blocks fetched again.
pub(crate) async fn repair(asked: &cli::Repair, settings: &Settings) -> Result<()> {
    let stores = IndexStores::open_to_read(settings).await?.without_warm_up();
    let chain = stores.choose(asked.chain).await?;
    let (first, last) = (*asked.range.start(), *asked.range.end());
    repair::check_range(&stores.chain(chain).await?, &(first..last.saturating_add(1)))?;
    let job =
        repair::job(chain, first..last.saturating_add(1), &format!("{:x}", OsEntropy.mark()))?;
    let (kind, key) = (job.kind.clone(), job.key.clone());
    let enqueue = Enqueue::new(job.kind, job.key, job.payload, 0)?;
    Jobs::open(settings, &kind).await?.change(&enqueue).await?;
    output::line(&format!(
        "asked for; the server does it as soon as it runs: logmill jobs show {kind} {key}"
    ))
}
