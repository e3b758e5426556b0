//! Era1 files as a source: a chain that has ended.
//!
//! Guarantees: those of [`Era1`]. The newest block of the files is also the final one. Leaves to others: later
//! blocks.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use alloy_primitives::B256;
use async_trait::async_trait;
use futures::StreamExt;
use logmill_io::Clock;

use super::Era1;
use crate::block::Block;
use crate::error::Result;
use crate::source::{BlockSource, ChainInfo, ChainSource, Finality, Heads, NodeSource, NodeStatus};

#[derive(Debug)]
pub struct Era1Source {
    era1: Era1,
    clock: Arc<dyn Clock>,
    requests: AtomicU64,
    failures: AtomicU64,
}

impl Era1Source {
    pub fn new(era1: Era1, clock: Arc<dyn Clock>) -> Arc<Self> {
        let (requests, failures) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Self { era1, clock, requests, failures })
    }

    fn count<T>(&self, outcome: Result<T>) -> Result<T> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if outcome.is_err() {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }
}

#[async_trait]
impl BlockSource for Era1Source {
    async fn info(&self) -> Result<ChainInfo> {
        Ok(ChainInfo {
            chain_id: self.era1.settings().chain_id,
            finality: Finality::Tags,
            client: "era1 files".to_owned(),
        })
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        let mut stream = self.era1.blocks(range);
        let mut blocks = Vec::new();
        while let Some(block) = stream.next().await {
            match block {
                Ok(block) => blocks.push(block),
                Err(error) if blocks.is_empty() => return self.count(Err(error)),
                Err(_) => break,
            }
        }
        self.count(Ok(blocks))
    }

    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        self.count(self.era1.block_by_hash(hash).await)
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        vec![NodeStatus {
            name: self.era1.settings().folder.display().to_string(),
            healthy: true,
            head: self.era1.ranges().last().map(|range| range.end - 1),
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            lies: 0,
            lacks: Vec::new(),
            last_error: None,
        }]
    }
}

#[async_trait]
impl ChainSource for Era1Source {
    async fn heads(&self) -> Result<Heads> {
        let latest = self.count(self.era1.last().await)?;
        Ok(Heads { latest, safe: Some(latest), finalized: Some(latest) })
    }

    async fn changed(&self, at_most: Duration) {
        self.clock.sleep(at_most).await;
    }
}

/// Files answer no other requests.
impl NodeSource for Era1Source {}
