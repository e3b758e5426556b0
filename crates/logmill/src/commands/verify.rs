//! `logmill verify`: checks stored blocks against their headers.
//!
//! Guarantees: it changes nothing and runs beside a server; exit code 1 if a block is damaged, or if there was none to
//! verify. Leaves to others: the checks ([`logmill_pipeline::audit`]).

use logmill_pipeline::audit::audit;

use crate::cli;
use crate::config::Settings;
use crate::error::{Error, Result};
use crate::output;
use crate::stores::index::IndexStores;
use crate::stores::{Databases, OpenMode};

/// Blocks between two progress lines.
const PROGRESS_EVERY: u64 = 1_000;

/// Checks stored blocks against their headers.
pub(crate) async fn run(args: &cli::Verify, settings: &Settings) -> Result<()> {
    let databases = Databases::open(settings, OpenMode::Read).await?;
    let stores = IndexStores::open(&databases).await?.without_warm_up();
    let chain = stores.chain(stores.choose(args.chain).await?).await?;
    let range = args.from.unwrap_or(0)..args.to.map_or(u64::MAX, |to| to.saturating_add(1));
    let mut count = 0_u64;
    let report = audit(&chain, range, |number| {
        count += 1;
        if count.is_multiple_of(PROGRESS_EVERY) {
            output::progress(&format!("{count} blocks checked, now at {number}"), false);
        }
    })
    .await?;
    if count >= PROGRESS_EVERY {
        output::progress(&format!("{count} blocks checked"), true);
    }
    if args.json {
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
    if count == 0 {
        return Err(Error::NothingVerified { chain_id: chain.chain_id() });
    }
    match report.is_clean() {
        true => Ok(()),
        false => Err(Error::Damaged { blocks: report.damaged }),
    }
}
