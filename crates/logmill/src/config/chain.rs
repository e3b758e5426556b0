//! The sections `[chain]` and `[ingest]`: which chain to follow, through which nodes, and how.
//!
//! Guarantees: settings that pass [`Chain::fault`] and [`Ingest::fault`] can be used; no error contains a node's
//! address. Leaves to others: connecting to the nodes ([`crate::server::chains`]).

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use logmill_chain::VerifyLevel;
use logmill_chain::evm::{EvmSettings, NodeSettings};
use logmill_io::wire::{Endpoint, Scheme};
use logmill_pipeline::ingest::IngestSettings;
use logmill_pipeline::process::Roles;
use serde::Deserialize;

use super::{InvalidKey, TIME_MS_MAX, count, non_empty, within};

const WORKERS_MAX: u64 = 1_000;
/// Maximum blocks per fetch.
const BATCH_MAX: u64 = 10_000;
/// Maximum blocks of the tip: each is held in memory.
const UNFINAL_MAX: u64 = 1 << 20;
const CONFIRMATIONS_MAX: u64 = 1 << 20;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chain {
    rpc_urls: String,
    historic_rpc_urls: String,
    era1: String,
    id: u64,
    verify: VerifySetting,
    confirmations: u64,
    request_timeout_ms: u64,
}

/// [`VerifyLevel`] as written in the configuration.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum VerifySetting {
    Auto,
    Full,
    Bloom,
    Off,
}

impl VerifySetting {
    /// The level; `None` if it depends on the chain.
    fn level(self) -> Option<VerifyLevel> {
        match self {
            Self::Auto => None,
            Self::Full => Some(VerifyLevel::Full),
            Self::Bloom => Some(VerifyLevel::Bloom),
            Self::Off => Some(VerifyLevel::Off),
        }
    }
}

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ingest {
    forward: bool,
    history: bool,
    pub(crate) raw_only: bool,
    latest_worker_count: usize,
    latest_batch_size: u64,
    latest_batch_max: u64,
    history_worker_count: usize,
    history_batch_size: u64,
    history_stop_height: u64,
    senders: Senders,
    max_reorg_depth: u64,
    max_unfinal_blocks: usize,
    poll_ms: u64,
    error_wait_ms: u64,
    pub(crate) audit_blocks_per_second: u64,
}

/// Whether the senders of transactions are stored with them.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Senders {
    Auto,
    Store,
    Recover,
}

impl Chain {
    /// Whether a node or an era1 folder is configured.
    pub(crate) fn is_given(&self) -> bool {
        !self.rpc_urls.is_empty() || !self.era1.is_empty()
    }

    /// The nodes through which the head is followed.
    pub(crate) fn nodes(&self) -> Result<Vec<NodeSettings>, String> {
        nodes(&self.rpc_urls)
    }

    /// The nodes that history is fetched from; empty if they are the same.
    pub(crate) fn historic_nodes(&self) -> Result<Vec<NodeSettings>, String> {
        nodes(&self.historic_rpc_urls)
    }

    /// The folder of era1 files.
    pub(crate) fn era1(&self) -> Option<PathBuf> {
        non_empty(&self.era1).map(PathBuf::from)
    }

    /// The id that the nodes must report; `None` accepts any.
    pub(crate) fn id(&self) -> Option<u64> {
        (self.id != 0).then_some(self.id)
    }

    pub(crate) fn evm(&self) -> EvmSettings {
        EvmSettings {
            verify: self.verify.level().unwrap_or(VerifyLevel::Full),
            auto: self.verify.level().is_none(),
            chain_id: self.id(),
            confirmations: (self.confirmations != 0).then_some(self.confirmations),
            request_timeout: Duration::from_millis(self.request_timeout_ms),
            ..EvmSettings::new("evm")
        }
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let faults = [
            self.nodes().err().map(|why| ("chain.rpc_urls", why)),
            self.historic_nodes().err().map(|why| ("chain.historic_rpc_urls", why)),
            within("chain.confirmations", self.confirmations, 0, CONFIRMATIONS_MAX),
            within("chain.request_timeout_ms", self.request_timeout_ms, 1, TIME_MS_MAX),
            (self.rpc_urls.is_empty() && !self.historic_rpc_urls.is_empty()).then(|| {
                let why = "needs chain.rpc_urls too: nodes for history cannot be used without nodes for the head";
                ("chain.historic_rpc_urls", why.to_owned())
            }),
            (self.rpc_urls.is_empty() && !self.era1.is_empty() && self.id == 0).then(|| {
                (
                    "chain.id",
                    "must be set: era1 files do not contain the chain id".to_owned(),
                )
            }),
        ];
        faults.into_iter().flatten().next()
    }
}

impl Ingest {
    /// `derives`: whether this process derives tables.
    pub(super) fn settings(&self, derives: bool) -> IngestSettings {
        IngestSettings {
            latest_workers: self.latest_worker_count,
            latest_batch: self.latest_batch_size,
            latest_batch_max: self.latest_batch_max,
            history_workers: self.history_worker_count,
            history_batch: self.history_batch_size,
            history_stop: self.history_stop_height,
            store_senders: match self.senders {
                Senders::Auto => derives,
                Senders::Store => true,
                Senders::Recover => false,
            },
            max_reorg_depth: self.max_reorg_depth,
            max_unfinal_blocks: self.max_unfinal_blocks,
            poll: Duration::from_millis(self.poll_ms),
            error_wait: Duration::from_millis(self.error_wait_ms),
        }
    }

    /// The lowest block of history to fetch, if this process fetches history.
    pub(crate) fn lowest(&self) -> Option<u64> {
        self.history.then_some(self.history_stop_height)
    }

    pub(crate) fn roles(&self) -> Roles {
        Roles { forward: self.forward, history: self.history }
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let faults = [
            within("ingest.latest_worker_count", count(self.latest_worker_count), 1, WORKERS_MAX),
            within("ingest.latest_batch_size", self.latest_batch_size, 1, BATCH_MAX),
            within("ingest.latest_batch_max", self.latest_batch_max, 1, BATCH_MAX),
            within("ingest.history_worker_count", count(self.history_worker_count), 1, WORKERS_MAX),
            within("ingest.history_batch_size", self.history_batch_size, 1, BATCH_MAX),
            within("ingest.max_reorg_depth", self.max_reorg_depth, 1, UNFINAL_MAX),
            within("ingest.max_unfinal_blocks", count(self.max_unfinal_blocks), 1, UNFINAL_MAX),
            within("ingest.poll_ms", self.poll_ms, 1, TIME_MS_MAX),
            within("ingest.error_wait_ms", self.error_wait_ms, 1, TIME_MS_MAX),
            within("ingest.audit_blocks_per_second", self.audit_blocks_per_second, 0, 1_000_000),
        ];
        faults.into_iter().flatten().next()
    }
}

/// Parses a comma-separated list of nodes: each an address, then options.
fn nodes(text: &str) -> Result<Vec<NodeSettings>, String> {
    let nodes = text.split(',').map(str::trim).filter(|node| !node.is_empty());
    nodes.enumerate().map(|(position, text)| node(text, position)).collect()
}

fn node(text: &str, position: usize) -> Result<NodeSettings, String> {
    let at = |what: String| format!("node {}: {what}", position + 1);
    let mut words = text.split_whitespace();
    let address = words.next().unwrap_or_default();
    let endpoint = Endpoint::parse(address).map_err(|error| at(error.to_string()))?;
    let mut node = NodeSettings::new(endpoint);
    node.web_socket = node.web_socket.or_else(|| socket_of_this_machine(address));
    for option in words {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || value.parse::<u32>().ok().filter(|number| *number > 0);
        let number = || number().ok_or_else(|| at(format!("{name} must be a number above 0")));
        match name {
            "weight" => node.weight = number()?,
            "rps" => node.requests_per_second = Some(number()?),
            "concurrent" => node.concurrent_max = usize::try_from(number()?).unwrap_or(1),
            "ws" => {
                let to = Endpoint::parse(value).map_err(|error| at(format!("ws: {error}")))?;
                if to.scheme() != Scheme::WebSocket {
                    return Err(at("ws must be a ws:// or wss:// address".to_owned()));
                }
                node.web_socket = Some(to);
            }
            _ => {
                return Err(at(
                    "unknown option; known are weight=N, rps=N, concurrent=N and ws=ADDRESS"
                        .to_owned(),
                ));
            }
        }
    }
    Ok(node)
}

/// WebSocket address of a node on this machine, for notifications of new blocks. Development nodes, and Logmill, serve
/// WebSockets at their HTTP address; a node without one does no harm. Remote nodes may charge for connections, so they
/// are not tried without a setting.
fn socket_of_this_machine(address: &str) -> Option<Endpoint> {
    let rest = address.strip_prefix("http://")?;
    let place = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let is_port = |port: &str| port.bytes().all(|digit| digit.is_ascii_digit());
    let host =
        place.rsplit_once(':').filter(|(_, port)| is_port(port)).map_or(place, |(host, _)| host);
    let is_loopback = |ip: IpAddr| ip.is_loopback();
    let ip = host.trim_matches(['[', ']']).parse();
    let is_here = host == "localhost" || ip.is_ok_and(is_loopback);
    is_here.then(|| Endpoint::parse(&format!("ws://{rest}")).ok())?
}

/// Nodes without credentials, paths and queries.
pub(super) fn redacted_nodes(text: &str) -> String {
    match nodes(text) {
        Ok(nodes) => {
            nodes.iter().map(|node| node.address.to_string()).collect::<Vec<_>>().join(",")
        }
        Err(_) => "***".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_parsed_with_their_options() {
        let read = nodes("http://a:1/key, https://b/ weight=3 rps=20 concurrent=2 ws=wss://b/ws,");
        let read = read.expect("fine");
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].weight, read[0].requests_per_second), (1, None));
        assert_eq!((read[1].weight, read[1].requests_per_second), (3, Some(20)));
        assert_eq!(read[1].concurrent_max, 2);
        assert!(read[1].web_socket.is_some());
        assert!(read[0].web_socket.is_none());
        for (here, address) in [
            (true, "http://127.0.0.1:8545"),
            (true, "http://localhost/key"),
            (true, "http://user:pass@[::1]:8545/"),
            (false, "http://localhost.example:8545"),
            (false, "https://127.0.0.1:8545"),
            (false, "http://10.0.0.1:8545/127.0.0.1"),
            (false, "http://127.0.0.1@node.example/"),
        ] {
            let node = nodes(address).expect("fine").remove(0);
            assert_eq!(node.web_socket.is_some(), here, "{address}");
        }
        assert_eq!(nodes("").expect("none").len(), 0);
    }

    #[test]
    fn wrong_nodes_are_refused_without_their_secrets() {
        for text in [
            "ftp://host/SECRETKEY",
            "http://a/SECRETKEY weight=0",
            "http://a/SECRETKEY speed=1",
            "http://a/SECRETKEY ws=SECRETKEY",
            "http://a/SECRETKEY ws=http://b/SECRETKEY",
            "http://a/SECRETKEY\u{1b}",
        ] {
            let why = nodes(text).expect_err(text);
            assert!(!why.contains("SECRETKEY"), "{why}");
            assert!(!redacted_nodes(text).contains("SECRETKEY"));
        }
        assert_eq!(redacted_nodes("http://me:pw@a:1/KEY,ws://b/x?k=v"), "http://a:1,http://b:80");
    }
}
