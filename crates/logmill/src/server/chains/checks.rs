//! Readiness of a chain of this server, and of its tables.
//!
//! Guarantees: a chain that was handed over is judged by the handle that took it over, and by no other. Leaves to
//! others: judging what was read ([`logmill_serve::readiness`]).

use std::sync::Arc;

use async_trait::async_trait;
use logmill_serve::Result;
use logmill_serve::readiness::chain::{HeadLimits, judge_head};
use logmill_serve::readiness::tables::{behind, failing, kept, replaced};
use logmill_serve::readiness::{Cause, Check, Finding};

use super::OpenChain;
use super::derive::DeriveTasks;

/// Whether the head of a chain is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeadDuty {
    /// A process follows it.
    Followed,
    /// Judged if any process has ever followed it.
    PerhapsFollowed,
    /// Not judged: no more blocks are expected.
    Archive,
}

#[derive(Debug)]
pub(crate) struct ChainCheck {
    pub(crate) chain: Arc<OpenChain>,
    pub(crate) limits: HeadLimits,
    pub(crate) duty: HeadDuty,
}

#[async_trait]
impl Check for ChainCheck {
    async fn check(&self) -> Result<Vec<Finding>> {
        if self.chain.is_handed_over() {
            return Ok(Vec::new());
        }
        let chain = &self.chain.chain;
        let chain_id = Some(chain.chain_id());
        let mut found = Vec::new();
        let mut head = None;
        match chain.view().await {
            Ok(view) => head = view.head().map(|head| head.number),
            Err(error) if error.is_fatal() => return Err(error.into()),
            Err(error) => {
                let why = format!("the chain cannot be read: {}", logmill_io::error_chain(&error));
                found.push(Finding::new(Cause::ChainUnreadable, chain_id, why));
            }
        }
        if let Some(degraded) = chain.index().health().degraded {
            found.push(Finding::new(Cause::IndexDegraded, chain_id, degraded.reason));
        }
        let report = self.chain.progress.report();
        let damaged = self.chain.damaged();
        if damaged > 0 {
            let why = format!(
                "{damaged} stored blocks are damaged: `logmill verify` lists them, `logmill repair` \
                 fetches them again"
            );
            found.push(Finding::new(Cause::BlocksDamaged, chain_id, why));
        }
        if let Some(why) = &report.stalled {
            found.push(Finding::new(Cause::IngestStopped, chain_id, why.as_str()));
        }
        let is_judged = match self.duty {
            HeadDuty::Followed => true,
            HeadDuty::PerhapsFollowed => report.seen_ms_ago.is_some(),
            HeadDuty::Archive => false,
        };
        if is_judged {
            found.extend(judge_head(chain.chain_id(), head, &report, self.limits));
        }
        Ok(found)
    }

    fn silence(&self) -> Finding {
        let chain_id = Some(self.chain.chain.chain_id());
        Finding::new(Cause::IndexStoreSilent, chain_id, "reading the chain")
    }
}

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
