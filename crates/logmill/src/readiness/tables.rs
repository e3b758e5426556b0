//! How far derived tables are.
//!
//! Guarantees: the answer comes from the tables' own database, so that a process that does not derive judges as the one
//! that does. Leaves to others: history that is still being derived, which answers mark as incomplete.

use std::sync::Arc;

use async_trait::async_trait;
use logmill_pipeline::derive::Standing;
use logmill_pipeline::derive::deriver::DeriveStatus;

use super::{Cause, Check, Finding};
use crate::chains::OpenChain;
use crate::derive::Derive;
use crate::error::Result;

/// How often deriving some blocks must have failed before it counts: a failure may pass.
const ATTEMPTS_MIN: u32 = 3;

/// Looks how far the tables of a chain are behind what is stored of it.
#[derive(Debug)]
pub(crate) struct TablesCheck {
    pub(crate) chain: Arc<OpenChain>,
    pub(crate) lag_blocks: u64,
}

#[async_trait]
impl Check for TablesCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        let chain_id = self.chain.chain.chain_id();
        let Some(derive) = &self.chain.derive else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        found.extend(failing(chain_id, &derive.deriver.status()));
        match self.read(derive).await {
            Ok(read) => found.extend(read),
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => {
                let why = format!("the tables cannot be read: {}", logmill_io::chain(&error));
                found.push(Finding::new(Cause::TablesStoreSilent, Some(chain_id), why));
            }
        }
        Ok(found)
    }

    fn silence(&self) -> Finding {
        let chain_id = Some(self.chain.chain.chain_id());
        Finding::new(Cause::TablesStoreSilent, chain_id, "reading how far the tables are")
    }
}

impl TablesCheck {
    /// What the tables' own database shows.
    async fn read(&self, derive: &Derive) -> Result<Vec<Finding>> {
        // What is stored, first: tables may only be ahead of it.
        let view = self.chain.chain.view().await;
        let last = self.chain.chain.index().last_replacement();
        // A chain that cannot be read is reported as such.
        let Some(head) = view.ok().and_then(|view| view.head()) else { return Ok(Vec::new()) };
        let standings = derive.reader.standings(&[]).await?;
        let mut found = Vec::new();
        found.extend(self.behind(derive, &standings, head.number));
        found.extend(replaced(self.chain.chain.chain_id(), &standings, last));
        Ok(found)
    }

    /// The processor that is furthest behind, if it is too far.
    fn behind(&self, derive: &Derive, standings: &[Standing], head: u64) -> Option<Finding> {
        let tops = derive.names().map(|name| {
            let standing = standings.iter().find(|standing| standing.processor == name);
            let top = standing.and_then(|standing| standing.all().ranges().next_back());
            (name, top.map(|range| range.end - 1))
        });
        let lag = |top: Option<u64>| top.map_or(u64::MAX, |top| head.saturating_sub(top));
        let (name, top) = tops.max_by_key(|(_, top)| lag(*top))?;
        if lag(top) <= self.lag_blocks {
            return None;
        }
        let why = match top {
            None => format!("{name} has derived nothing yet"),
            Some(top) => format!("{name} has derived up to block {top} of {head}"),
        };
        let chain_id = Some(self.chain.chain.chain_id());
        Some(Finding::new(Cause::TablesBehind, chain_id, why))
    }
}

/// The first processor whose tables still hold blocks that were replaced.
pub(super) fn replaced(chain_id: u64, standings: &[Standing], last: u64) -> Option<Finding> {
    standings.iter().find_map(|standing| {
        let why = format!("{}: {}", standing.processor, standing.stale(last)?);
        Some(Finding::new(Cause::TablesReplaced, Some(chain_id), why))
    })
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
