//! What is set for an EVM chain and its nodes.
//!
//! Guarantees: plain data; printed, it shows no secrets. Leaves to others: where it is read from.

use std::time::Duration;

use logmill_io::wire::Endpoint;

use crate::verify::Verify;

/// The settings of a chain.
#[derive(Clone, Debug)]
pub struct EvmSettings {
    /// What the chain is called, in logs and metrics.
    pub chain: String,
    /// How much of each block is checked.
    pub verify: Verify,
    /// The id that the nodes must have; that of the first to answer if none is given.
    pub chain_id: Option<u64>,
    /// How many blocks on top make a block final, for chains without the tag `finalized`.
    pub confirmations: Option<u64>,
    /// The longest that one request may take.
    pub request_timeout: Duration,
    /// The largest answer.
    pub response_bytes_max: usize,
    /// How long a question waits for nodes that rest.
    pub patience: Duration,
    /// How many requests for blocks are on their way at once, over all nodes.
    pub concurrent_max: usize,
}

impl EvmSettings {
    /// The settings of a chain of this name, with everything else as it usually is.
    pub fn new(chain: impl Into<String>) -> Self {
        Self {
            chain: chain.into(),
            verify: Verify::Full,
            chain_id: None,
            confirmations: None,
            request_timeout: Duration::from_secs(30),
            response_bytes_max: 128 << 20,
            patience: Duration::from_secs(30),
            concurrent_max: 8,
        }
    }
}

/// The settings of a node.
#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// Where it is asked.
    pub address: Endpoint,
    /// Where it tells of new blocks; nothing else is taken from there.
    pub web_socket: Option<Endpoint>,
    /// What it is called; host and port if nothing is given.
    pub name: Option<String>,
    /// How much of the work it gets, beside the others.
    pub weight: u32,
    /// The most calls per second.
    pub requests_per_second: Option<u32>,
    /// The most requests at once.
    pub concurrent_max: usize,
    /// The most blocks in one request.
    pub batch_blocks_max: u64,
}

impl NodeSettings {
    /// A node at an address, with everything else as it usually is. That of a WebSocket is for new blocks, and the
    /// same by HTTP is for everything else.
    pub fn new(address: Endpoint) -> Self {
        let http = address.as_http();
        let web_socket = (http != address).then_some(address);
        Self {
            address: http,
            web_socket,
            name: None,
            weight: 1,
            requests_per_second: None,
            concurrent_max: 8,
            batch_blocks_max: 50,
        }
    }

    /// What it is called.
    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.place())
    }
}
