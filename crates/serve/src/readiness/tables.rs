//! Progress of derived tables.
//!
//! Guarantees: the result comes from the tables' own database, so that a process that does not derive judges like the
//! one that does. Leaves to others: history that is still being derived, which responses mark as incomplete.

use finalized_log_index::ReplacementPosition;
use logmill_pipeline::derive::GenerationProgress;
use logmill_pipeline::derive::deriver::DeriveStatus;

use super::{Cause, Finding};

/// Failed attempts on the same blocks before they count: a failure may pass.
const ATTEMPTS_MIN: u32 = 3;

/// The processor that is furthest behind, if it is too far behind. Tables that are kept take no new blocks: that they
/// are behind follows from [`Cause::TablesKept`], and is not reported beside it.
pub fn behind<'a>(
    chain_id: u64,
    names: impl Iterator<Item = &'a str>,
    standings: &[GenerationProgress],
    head: u64,
    lag_blocks: u64,
) -> Option<Finding> {
    let tops = names.filter_map(|name| {
        let standing = standings.iter().find(|standing| standing.processor == name);
        if standing.is_some_and(|standing| standing.kept.is_some()) {
            return None;
        }
        let top = standing.and_then(|standing| standing.all().ranges().next_back());
        Some((name, top.map(|range| range.end - 1)))
    });
    let lag = |top: Option<u64>| top.map_or(u64::MAX, |top| head.saturating_sub(top));
    let (name, top) = tops.max_by_key(|(_, top)| lag(*top))?;
    if lag(top) <= lag_blocks {
        return None;
    }
    let why = match top {
        None => format!("{name} has derived nothing yet"),
        Some(top) => format!("{name} has derived up to block {top} of {head}"),
    };
    Some(Finding::new(Cause::TablesBehind, Some(chain_id), why))
}

/// The first processor whose tables still hold blocks that were replaced.
pub fn replaced(
    chain_id: u64,
    standings: &[GenerationProgress],
    last: ReplacementPosition,
) -> Option<Finding> {
    standings.iter().find_map(|standing| {
        let why = format!("{}: {}", standing.processor, standing.stale(last)?);
        Some(Finding::new(Cause::TablesReplaced, Some(chain_id), why))
    })
}

/// The first processor whose tables were built with settings that have changed since.
pub fn kept(chain_id: u64, standings: &[GenerationProgress]) -> Option<Finding> {
    let why = standings.iter().find_map(|standing| standing.kept.clone())?;
    Some(Finding::new(Cause::TablesKept, Some(chain_id), why))
}

/// The first blocks that a processor cannot derive.
pub fn failing(chain_id: u64, status: &DeriveStatus) -> Option<Finding> {
    status.checkpoints.iter().find_map(|row| {
        let failing = row.failing.iter().find(|failing| failing.attempts >= ATTEMPTS_MIN)?;
        let blocks = match failing.start == failing.end {
            true => "the newest blocks".to_owned(),
            false => format!("blocks {} to {}", failing.start, failing.end - 1),
        };
        let why = format!("{} cannot derive {blocks}: {}", row.name, failing.error);
        Some(Finding::new(Cause::DeriveFailing, Some(chain_id), why))
    })
}
