//! `logmill meter damaged`, `restore-event` and `mark-lost`: operator commands for damaged usage.
//!
//! Guarantees: an event is restored from a row that matches its checksums, or removed with a note; removed events are
//! printed. Leaves to others: detection and repair ([`logmill_meter::audit`], [`logmill_meter::mend`]), and the
//! preparation (`docs/runbooks/damaged-usage.md`).

use std::path::Path;

use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use serde_json::json;

use crate::config::Settings;
use crate::error::Result;
use crate::output;
use crate::server::usage::open_for_command;
use crate::stores::{Database, Databases, OpenMode};

use super::folder::take_folder;

/// Actor recorded in the note about a removed event.
const ACTOR: &str = "logmill meter mark-lost";

/// Lists the findings of the audit.
pub(super) async fn list(settings: &Settings, as_json: bool) -> Result<()> {
    Database::Meter.expect(settings)?;
    let _folder = take_folder(settings)?;
    let databases = Databases::open(settings, OpenMode::Write).await?;
    let status = open_for_command(&databases).await?.meter.audit_status().await?;
    let damaged: Vec<String> = status.damaged.iter().map(ToString::to_string).collect();
    if as_json {
        let total = status.damaged_total;
        return output::json(&json!({"damaged": total, "damaged_records": damaged}));
    }
    damaged.iter().try_for_each(|record| output::line(record))?;
    output::line(&format!(
        "{} damaged records, {} events checked in this round, {} rounds finished",
        status.damaged_total, status.checked, status.rounds
    ))
}

/// Writes events again, from the archive or a copy.
pub(super) async fn restore(
    settings: &Settings,
    sequences: &[i64],
    copy: Option<&Path>,
) -> Result<()> {
    Database::Meter.expect(settings)?;
    let _folder = take_folder(settings)?;
    let opened = open_for_command(&Databases::open(settings, OpenMode::Write).await?).await?;
    let copy = match copy {
        Some(file) => {
            let file = SqliteSettings { read_only: true, ..SqliteSettings::file(file) };
            Some(Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await?)
        }
        None => None,
    };
    for seq in sequences {
        let event = Box::pin(opened.meter.restore_event(*seq, copy.as_ref())).await?;
        let id = output::one_line(&event.id);
        output::line(&format!("event {seq} is restored: {id} with value {}", event.value))?;
    }
    output::line("run `logmill meter recount` to check the rest")
}

pub(super) async fn mark_lost(
    settings: &Settings,
    sequences: Vec<i64>,
    reason: &str,
) -> Result<()> {
    Database::Meter.expect(settings)?;
    let _folder = take_folder(settings)?;
    let opened = open_for_command(&Databases::open(settings, OpenMode::Write).await?).await?;
    let sequences = sequences.into_iter().collect();
    let lost = Box::pin(opened.meter.mark_lost(&sequences, reason, ACTOR)).await?;
    for event in &lost {
        let row = output::one_line(&event.row);
        tracing::warn!(seq = event.seq, row, reason, "a damaged usage event was removed");
        output::line(&format!("event {} is lost; its damaged row was {row}", event.seq))?;
    }
    output::line("if the sender still has the event, have it sent again with a new id")
}
