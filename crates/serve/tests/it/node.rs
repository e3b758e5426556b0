//! A fake node: returns configured answers and records its requests.

use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use logmill_chain::{
    Block, BlockSource, ChainInfo, ChainSource, Error, Heads, NodeSource, NodeStatus,
};

/// A node's answer; `Ok(None)` means that it never answers.
type NodeAnswer = logmill_chain::Result<Option<String>>;

/// Answers by method and parameters.
type Answers = dyn Fn(&str, &str) -> NodeAnswer + Send + Sync;

pub(super) struct FakeNode {
    answers: Box<Answers>,
    requests: Mutex<Vec<String>>,
}

impl FakeNode {
    pub(super) fn new(
        answers: impl Fn(&str, &str) -> NodeAnswer + Send + Sync + 'static,
    ) -> std::sync::Arc<Self> {
        std::sync::Arc::new(Self { answers: Box::new(answers), requests: Mutex::default() })
    }

    /// Number of requests received.
    pub(super) fn requests(&self) -> usize {
        self.requests.lock().expect("no panic").len()
    }
}

impl std::fmt::Debug for FakeNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeNode")
    }
}

#[async_trait]
impl BlockSource for FakeNode {
    async fn info(&self) -> logmill_chain::Result<ChainInfo> {
        Err(Error::NotYet { number: 0 })
    }

    async fn blocks(&self, _: std::ops::Range<u64>) -> logmill_chain::Result<Vec<Block>> {
        Err(Error::NotYet { number: 0 })
    }

    async fn block_by_hash(
        &self,
        _: alloy_primitives::B256,
    ) -> logmill_chain::Result<Option<Block>> {
        Ok(None)
    }

    fn nodes(&self) -> Vec<NodeStatus> {
        vec![NodeStatus {
            name: "node.example".to_owned(),
            healthy: true,
            head: Some(5),
            requests: 1,
            failures: 0,
            lies: 0,
            lacks: Vec::new(),
            last_error: None,
        }]
    }
}

#[async_trait]
impl ChainSource for FakeNode {
    async fn heads(&self) -> logmill_chain::Result<Heads> {
        Err(Error::NotYet { number: 0 })
    }

    async fn changed(&self, _: Duration) {}
}

#[async_trait]
impl NodeSource for FakeNode {
    async fn pass(&self, method: &str, params: &str) -> logmill_chain::Result<String> {
        self.requests.lock().expect("no panic").push(method.to_owned());
        match (self.answers)(method, params)? {
            Some(answer) => Ok(answer),
            None => std::future::pending().await,
        }
    }
}
