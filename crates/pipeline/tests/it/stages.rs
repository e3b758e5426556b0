//! A source that a test switches between several chains: for changes that a simulated chain does not allow, and to
//! build the chains only once for all runs.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use alloy_primitives::B256;
use async_trait::async_trait;
use logmill_chain::sim::{SimChain, SimSource};
use logmill_chain::{Block, BlockSource, ChainInfo, ChainSource, Heads, NodeStatus, Result};
use logmill_io::{SeededEntropy, SystemClock};

/// Chains, one of which is served.
#[derive(Debug)]
pub(crate) struct Stages {
    stages: Vec<(SimChain, Arc<SimSource>)>,
    at: AtomicUsize,
}

impl Stages {
    pub(crate) fn new(chains: &[SimChain]) -> Arc<Self> {
        let source = |chain: &SimChain| {
            let source =
                SimSource::new(chain.clone(), SystemClock::shared(), SeededEntropy::shared(1));
            (chain.clone(), source)
        };
        Arc::new(Self { stages: chains.iter().map(source).collect(), at: AtomicUsize::new(0) })
    }

    pub(crate) fn switch(&self, stage: usize) {
        self.at.store(stage, Ordering::SeqCst);
    }

    pub(crate) fn chain(&self) -> &SimChain {
        &self.now().0
    }

    fn now(&self) -> &(SimChain, Arc<SimSource>) {
        &self.stages[self.at.load(Ordering::SeqCst)]
    }
}

#[async_trait]
impl BlockSource for Stages {
    async fn info(&self) -> Result<ChainInfo> {
        self.now().1.info().await
    }

    async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        self.now().1.blocks(range).await
    }

    async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        self.now().1.block_by_hash(hash).await
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        self.now().1.nodes()
    }
}

#[async_trait]
impl ChainSource for Stages {
    async fn heads(&self) -> Result<Heads> {
        self.now().1.heads().await
    }

    async fn changed(&self, at_most: Duration) {
        self.now().1.changed(at_most).await;
    }
}
