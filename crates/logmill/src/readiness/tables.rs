//! Progress of derived tables.
//!
//! Guarantees: the result comes from the tables' own database, so that a process that does not derive judges like the
//! one that does. Leaves to others: history that is still being derived, which responses mark as incomplete.

use std::sync::Arc;

use async_trait::async_trait;
use finalized_log_index::ReplacementPosition;
use logmill_pipeline::derive::GenerationProgress;
use logmill_pipeline::derive::deriver::DeriveStatus;

use super::{Cause, Check, Finding};
use crate::chains::OpenChain;
use crate::derive::DeriveTasks;
use crate::error::Result;

/// Failed attempts on the same blocks before they count: a failure may pass.
const ATTEMPTS_MIN: u32 = 3;

/// Compares the tables of a chain with its stored blocks.
#[derive(Debug)]
pub(crate) struct TablesCheck {
    pub(crate) chain: Arc<OpenChain>,
    pub(crate) lag_blocks: u64,
}

#[async_trait]
impl Check for TablesCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        if self.chain.is_handed_over() {
            return Ok(Vec::new());
        }
        let chain_id = self.chain.chain.chain_id();
        let Some(derive) = &self.chain.derive else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        found.extend(failing(chain_id, &derive.deriver.status()));
        match self.read(derive).await {
            Ok(read) => found.extend(read),
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => {
                let why = format!("the tables cannot be read: {}", logmill_io::error_chain(&error));
                found.push(Finding::new(Cause::TablesStoreSilent, Some(chain_id), why));
            }
        }
        Ok(found)
    }

    fn silence(&self) -> Finding {
        let chain_id = Some(self.chain.chain.chain_id());
        Finding::new(Cause::TablesStoreSilent, chain_id, "reading the progress of the tables")
    }
}

impl TablesCheck {
    /// Findings from the tables' own database.
    async fn read(&self, derive: &DeriveTasks) -> Result<Vec<Finding>> {
        // Reads the stored blocks first: tables may then only be ahead of them.
        let view = self.chain.chain.view().await;
        let last = self.chain.chain.index().replacement_position();
        // A chain that cannot be read is reported by its own check.
        let Some(head) = view.ok().and_then(|view| view.head()) else { return Ok(Vec::new()) };
        let standings = derive.reader.progress(&[]).await?;
        let mut found = Vec::new();
        let chain_id = self.chain.chain.chain_id();
        found.extend(behind(chain_id, derive.names(), &standings, head.number, self.lag_blocks));
        found.extend(replaced(chain_id, &standings, last));
        found.extend(kept(chain_id, &standings));
        Ok(found)
    }
}

/// The processor that is furthest behind, if it is too far behind. Tables that are kept take no new blocks: that they
/// are behind follows from [`Cause::TablesKept`], and is not reported beside it.
pub(super) fn behind<'a>(
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
pub(super) fn replaced(
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
pub(super) fn kept(chain_id: u64, standings: &[GenerationProgress]) -> Option<Finding> {
    let why = standings.iter().find_map(|standing| standing.kept.clone())?;
    Some(Finding::new(Cause::TablesKept, Some(chain_id), why))
}

/// The first blocks that a processor cannot derive.
pub(super) fn failing(chain_id: u64, status: &DeriveStatus) -> Option<Finding> {
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
