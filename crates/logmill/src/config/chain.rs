//! The sections `[chain]` and `[ingest]`: which chain is followed, by which nodes, and how.
//!
//! Guarantees: what passes [`Chain::fault`] and [`Ingest::fault`] can be started; no error repeats a node's address.
//! Leaves to others: reaching the nodes ([`crate::chains`]).

use std::path::PathBuf;
use std::time::Duration;

use logmill_chain::Verify;
use logmill_chain::evm::{EvmSettings, NodeSettings};
use logmill_io::wire::{Endpoint, Scheme};
use logmill_pipeline::ingest::{IngestSettings, Roles};
use serde::Deserialize;

use super::{Fault, TIME_MS_MAX, count, given, within};

/// The most workers of one kind.
const WORKERS_MAX: u64 = 1_000;
/// The most blocks of one fetch.
const BATCH_MAX: u64 = 10_000;
/// The most blocks of the tip: each is held in memory.
const UNFINAL_MAX: u64 = 1 << 20;
/// The most confirmations that make sense.
const CONFIRMATIONS_MAX: u64 = 1 << 20;

/// Which chain is followed.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chain {
    rpc_urls: String,
    historic_rpc_urls: String,
    era1: String,
    id: u64,
    verify: Verify,
    confirmations: u64,
    request_timeout_ms: u64,
}

/// How it is followed.
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

/// Whether senders of transactions are stored.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Senders {
    Auto,
    Store,
    Recover,
}

impl Chain {
    /// Whether any source is named.
    pub(crate) fn is_given(&self) -> bool {
        !self.rpc_urls.is_empty() || !self.era1.is_empty()
    }

    /// The nodes that the head is followed by.
    pub(crate) fn nodes(&self) -> Result<Vec<NodeSettings>, String> {
        nodes(&self.rpc_urls)
    }

    /// The nodes that history is fetched from, if they are others.
    pub(crate) fn historic_nodes(&self) -> Result<Vec<NodeSettings>, String> {
        nodes(&self.historic_rpc_urls)
    }

    /// The folder of history files.
    pub(crate) fn era1(&self) -> Option<PathBuf> {
        given(&self.era1).map(PathBuf::from)
    }

    /// The id that the chain must have.
    pub(crate) fn id(&self) -> Option<u64> {
        (self.id != 0).then_some(self.id)
    }

    /// How nodes are asked.
    pub(crate) fn evm(&self) -> EvmSettings {
        EvmSettings {
            verify: self.verify,
            chain_id: self.id(),
            confirmations: (self.confirmations != 0).then_some(self.confirmations),
            request_timeout: Duration::from_millis(self.request_timeout_ms),
            ..EvmSettings::new("evm")
        }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let faults = [
            self.nodes().err().map(|why| ("chain.rpc_urls", why)),
            self.historic_nodes().err().map(|why| ("chain.historic_rpc_urls", why)),
            within("chain.confirmations", self.confirmations, 0, CONFIRMATIONS_MAX),
            within("chain.request_timeout_ms", self.request_timeout_ms, 1, TIME_MS_MAX),
            (self.rpc_urls.is_empty() && !self.historic_rpc_urls.is_empty()).then(|| {
                let why = "nodes of history need nodes of the head beside them (chain.rpc_urls)";
                ("chain.historic_rpc_urls", why.to_owned())
            }),
            (self.rpc_urls.is_empty() && !self.era1.is_empty() && self.id == 0).then(|| {
                (
                    "chain.id",
                    "files do not say which chain they are of: it must be given".to_owned(),
                )
            }),
        ];
        faults.into_iter().flatten().next()
    }
}

impl Ingest {
    /// How ingest works, in a process that derives tables or does not.
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

    /// The lowest block that history is to have, if it is this process that brings it.
    pub(crate) fn lowest(&self) -> Option<u64> {
        self.history.then_some(self.history_stop_height)
    }

    /// What this process is to do.
    pub(crate) fn roles(&self) -> Roles {
        Roles { forward: self.forward, history: self.history }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
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

/// Nodes as they are written: addresses with commas between, each with options after it.
fn nodes(text: &str) -> Result<Vec<NodeSettings>, String> {
    let given = text.split(',').map(str::trim).filter(|node| !node.is_empty());
    given.enumerate().map(|(position, text)| node(text, position)).collect()
}

fn node(text: &str, position: usize) -> Result<NodeSettings, String> {
    let at = |what: String| format!("node {}: {what}", position + 1);
    let mut words = text.split_whitespace();
    let address = Endpoint::parse(words.next().unwrap_or_default());
    let mut node = NodeSettings::new(address.map_err(|error| at(error.to_string()))?);
    for option in words {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        let number = || value.parse::<u32>().ok().filter(|number| *number > 0);
        let number = || number().ok_or_else(|| at(format!("{name} needs a number above 0")));
        match name {
            "weight" => node.weight = number()?,
            "rps" => node.requests_per_second = Some(number()?),
            "concurrent" => node.concurrent_max = usize::try_from(number()?).unwrap_or(1),
            "ws" => {
                let to = Endpoint::parse(value).map_err(|error| at(format!("ws: {error}")))?;
                if to.scheme() != Scheme::WebSocket {
                    return Err(at("ws needs an address of ws or wss".to_owned()));
                }
                node.web_socket = Some(to);
            }
            _ => {
                return Err(at(
                    "options are weight=N, rps=N, concurrent=N and ws=ADDRESS".to_owned()
                ));
            }
        }
    }
    Ok(node)
}

/// Nodes as they may be shown: without credentials, paths and queries.
pub(super) fn shown_nodes(text: &str) -> String {
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
    fn nodes_are_read_with_their_options() {
        let read = nodes("http://a:1/key, https://b/ weight=3 rps=20 concurrent=2 ws=wss://b/ws,");
        let read = read.expect("fine");
        assert_eq!(read.len(), 2);
        assert_eq!((read[0].weight, read[0].requests_per_second), (1, None));
        assert_eq!((read[1].weight, read[1].requests_per_second), (3, Some(20)));
        assert_eq!(read[1].concurrent_max, 2);
        assert!(read[1].web_socket.is_some());
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
            assert!(!shown_nodes(text).contains("SECRETKEY"));
        }
        assert_eq!(shown_nodes("http://me:pw@a:1/KEY,ws://b/x?k=v"), "http://a:1,http://b:80");
    }
}
