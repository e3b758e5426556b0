//! Settings of an EVM chain and its nodes.
//!
//! Guarantees: plain data; `Debug` shows no secrets. Leaves to others: where they are read from.

use std::time::Duration;

use logmill_io::wire::Endpoint;

use crate::verify_level::VerifyLevel;

#[derive(Clone, Debug)]
pub struct EvmSettings {
    /// Name of the chain in logs and metrics.
    pub chain: String,
    pub verify: VerifyLevel,
    /// Whether the chain's profile decides the level instead ([`crate::profile`]).
    pub auto: bool,
    /// The id that the nodes must have; if `None`, that of the first node to answer.
    pub chain_id: Option<u64>,
    /// Number of blocks on top that make a block final, for chains without the tag `finalized`.
    pub confirmations: Option<u64>,
    pub request_timeout: Duration,
    pub response_bytes_max: usize,
    /// How long a request waits for resting nodes.
    pub patience: Duration,
    /// Maximum concurrent requests for blocks, over all nodes.
    pub concurrent_max: usize,
}

impl EvmSettings {
    /// Defaults for everything but the name.
    pub fn new(chain: impl Into<String>) -> Self {
        Self {
            chain: chain.into(),
            verify: VerifyLevel::Full,
            auto: false,
            chain_id: None,
            confirmations: None,
            request_timeout: Duration::from_secs(30),
            response_bytes_max: 128 << 20,
            patience: Duration::from_secs(30),
            concurrent_max: 8,
        }
    }
}

#[derive(Clone, Debug)]
pub struct NodeSettings {
    /// The URL for requests.
    pub address: Endpoint,
    /// Announces new blocks; used for nothing else.
    pub web_socket: Option<Endpoint>,
    /// Defaults to host and port.
    pub name: Option<String>,
    /// Share of the requests, relative to the other nodes.
    pub weight: u32,
    /// Maximum calls per second.
    pub requests_per_second: Option<u32>,
    /// Maximum concurrent requests.
    pub concurrent_max: usize,
    /// Maximum blocks per request.
    pub batch_blocks_max: u64,
}

impl NodeSettings {
    /// Defaults for everything but the address. A WebSocket address is used for new blocks, and the same address by
    /// HTTP for everything else.
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

    pub fn name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.address.place())
    }
}
