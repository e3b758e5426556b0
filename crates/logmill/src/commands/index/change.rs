//! Maintenance of a log index: garbage collection, and pruning of history.
//!
//! Guarantees: a dry run changes no data. Leaves to others: when to run, and healing ([`super::resolve`]).

use finalized_log_index::{Cause, GcMode, GcReport, LogIndex};

use super::{bad_argument, of, open_to_read, with_writer};
use crate::cli::index::Chain;
use crate::config::Settings;
use crate::error::Result;
use crate::output;

/// Finds garbage, and deletes it unless it is a dry run.
pub(super) async fn gc(settings: &Settings, chain: Chain, dry_run: bool) -> Result<()> {
    let mode = if dry_run { GcMode::DryRun } else { GcMode::Delete };
    with_writer(settings, chain, async |chain, writer| {
        let report = of(chain, writer.collect_garbage(mode)).await?;
        output::table(&report_rows(&report))?;
        let degraded = writer.index().health().degraded;
        if degraded.is_some_and(|degraded| degraded.cause == Cause::Backlog) && report.deleted {
            output::line(
                "next: run `logmill index resolve keep`, because garbage had stopped ingest",
            )?;
        }
        Ok(())
    })
    .await
}

fn report_rows(report: &GcReport) -> Vec<Vec<String>> {
    let deleted = if report.deleted { "yes" } else { "no, this is a dry run" };
    let rows = [
        ("orphan chunks", report.orphan_chunks.len().to_string()),
        ("orphan chunk bytes", report.orphan_chunk_bytes.to_string()),
        ("abandoned attempts", report.attempts_given_up.to_string()),
        ("stale changes", report.stale_changes.to_string()),
        ("stale tail records", report.stale_tail_records.to_string()),
        ("chunks in flight, kept", report.chunks_in_flight.to_string()),
        ("deleted", deleted.to_owned()),
    ];
    rows.map(|(name, value)| vec![name.to_owned(), value]).to_vec()
}

/// Removes the chunks that lie completely below a block.
pub(super) async fn prune(
    settings: &Settings,
    chain: Chain,
    below: u64,
    dry_run: bool,
) -> Result<()> {
    if dry_run {
        let (_, index) = open_to_read(settings, chain).await?;
        return plan_prune(&index, below).map(|_| ());
    }
    with_writer(settings, chain, async |chain, writer| {
        if plan_prune(writer.index(), below)? == 0 {
            return Ok(());
        }
        let removed = of(chain, writer.prune_below(below)).await?;
        let floor = writer.index().pruned_below();
        output::line(&format!(
            "done: {removed} chunks removed; queries below {floor} are refused"
        ))?;
        output::line("next: run `logmill index gc` to delete their bytes")
    })
    .await
}

/// Prints what would be removed; returns the number of chunks.
fn plan_prune(index: &LogIndex, below: u64) -> Result<usize> {
    let head = index.health().head;
    if head.is_none_or(|head| below > head) {
        let head =
            head.map_or("no block is indexed".to_owned(), |head| format!("the head is {head}"));
        return Err(bad_argument("--below", format!("{below} would remove everything: {head}")));
    }
    let chunks = index.chunks();
    let going: Vec<_> = chunks.iter().filter(|chunk| chunk.blocks.end <= below).collect();
    let (Some(first), Some(last)) = (going.first(), going.last()) else {
        output::line(&format!("no chunk lies completely below block {below}: nothing to prune"))?;
        return Ok(0);
    };
    let bytes: u64 = going.iter().map(|chunk| chunk.bytes).sum();
    output::line(&format!(
        "plan: remove {} chunks within blocks {} to {}, {bytes} bytes",
        going.len(),
        first.blocks.start,
        last.blocks.end - 1
    ))?;
    Ok(going.len())
}
