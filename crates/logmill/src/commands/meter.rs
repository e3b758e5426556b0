//! `logmill meter …`: operator commands for usage.
//!
//! | command | on PostgreSQL | on SQLite |
//! |---|---|---|
//! | `recount` | beside servers | needs exclusive access to the data folder |
//! | `trigger` | here | here, or as a job of the server that holds the folder |
//! | `sources` | beside servers | needs exclusive access to the data folder |
//! | `damaged`, `restore-event`, `mark-lost` | beside servers | needs exclusive access to the data folder |
//!
//! Guarantees: a recount that finds a difference ends with exit code 1, even if it repaired it. Usage of chains that
//! have rules is compared with their stored blocks. Leaves to others: counting ([`logmill_meter::recount`]).

use logmill_io::{Entropy, OsEntropy};
use logmill_meter::due::SweepScope;
use logmill_meter::recount::RecountReport;
use logmill_meter::recount::chains::StoredUsage;
use logmill_meter::service::sweep_job;
use serde_json::json;

use crate::cli;
use crate::config::Settings;
use crate::control;
use crate::error::{Error, Result};
use crate::output;
use crate::server::usage::{OpenMeter, open_for_command};
use crate::stores::{Database, Databases, OpenMode};

use super::jobs;
use folder::take_folder;

mod damaged_events;
mod folder;
mod sources;
mod stored_chain;

/// Events between two progress lines.
const PROGRESS_EVERY: u64 = 100_000;

pub(crate) async fn run(command: cli::Meter, settings: &Settings) -> Result<()> {
    match command {
        cli::Meter::Recount { repair, json } => recount(settings, repair, json).await,
        cli::Meter::Trigger => trigger(settings).await,
        cli::Meter::Damaged { json } => damaged_events::list(settings, json).await,
        cli::Meter::RestoreEvent { sequences, from } => {
            damaged_events::restore(settings, &sequences, from.as_deref()).await
        }
        cli::Meter::MarkLost { sequences, reason } => {
            damaged_events::mark_lost(settings, sequences, &reason).await
        }
        cli::Meter::Sources { force, json } => sources::list(settings, force, json).await,
    }
}

async fn recount(settings: &Settings, repair: bool, as_json: bool) -> Result<()> {
    Database::Meter.expect(settings)?;
    let _folder = take_folder(settings)?;
    let databases = Databases::open(settings, OpenMode::Write).await?;
    let OpenMeter { meter, .. } = open_for_command(&databases).await?;
    let chains = stored_chain::chains(&databases.read_only(), &meter).await?;
    let chains: Vec<&dyn StoredUsage> =
        chains.iter().map(|chain| chain as &dyn StoredUsage).collect();
    let mut reported = 0;
    let report = meter.recount_with(repair, &chains, |events| {
        if events >= reported + PROGRESS_EVERY {
            reported = events;
            output::progress(&format!("{events} events counted"), false);
        }
    });
    let report = Box::pin(report).await?;
    if reported > 0 {
        output::progress(&format!("{} events counted", report.events), true);
    }
    show(&report, as_json)?;
    match (report.wrong, report.chains.wrong) {
        (0, 0) => Ok(()),
        (0, blocks) => Err(Error::ChainMiscounted { blocks }),
        (partials, _) => Err(Error::Miscounted { partials, repaired: report.repaired }),
    }
}

fn show(report: &RecountReport, as_json: bool) -> Result<()> {
    let RecountReport { events, partials, wrong, differences, repaired, chains } = report;
    if as_json {
        return output::json(&json!({
            "events": events,
            "partials": partials,
            "wrong": wrong,
            "differences": differences,
            "repaired": repaired,
            "chains": {
                "blocks": chains.blocks,
                "events": chains.events,
                "wrong": chains.wrong,
                "former": chains.former,
                "unchecked": chains.unchecked,
                "differences": chains.differences,
            },
        }));
    }
    let row = |name: &str, value: &u64| vec![name.to_owned(), value.to_string()];
    output::table(&[
        row("events", events),
        row("partials", partials),
        row("wrong", wrong),
        row("repaired", repaired),
        row("chain blocks compared", &chains.blocks),
        row("chain events compared", &chains.events),
        row("chain events of former rules", &chains.former),
        row("chain events not compared", &chains.unchecked),
        row("chain blocks wrong", &chains.wrong),
    ])?;
    differences
        .iter()
        .chain(&chains.differences)
        .try_for_each(|place| output::line(&output::one_line(place)))
}

async fn trigger(settings: &Settings) -> Result<()> {
    Database::Meter.expect(settings)?;
    if settings.meter.settings().is_none() {
        return Err(Error::NothingMetered);
    }
    if settings.postgres().is_none() && control::is_served(&settings.data).await {
        jobs::enqueue(settings, sweep_job(&format!("{:x}", OsEntropy.mark()))).await?;
        return output::line("requested; the running server enqueues the jobs");
    }
    let _folder = take_folder(settings)?;
    let databases = Databases::open(settings, OpenMode::Write).await?;
    let swept = Box::pin(open_for_command(&databases).await?.meter.sweep(SweepScope::All)).await?;
    output::line(&format!(
        "{} jobs for {} customers; a server computes the aggregates",
        swept.jobs(),
        swept.customers
    ))
}
