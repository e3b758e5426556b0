//! The sections `[server]` and `[rpc]`: where HTTP is served, for whom, and how much of it.
//!
//! Guarantees: what passes [`Server::fault`] and [`Rpc::fault`] can be served; beyond this machine nothing is served
//! without keys. Leaves to others: serving ([`crate::http`]).

use std::net::SocketAddr;
use std::time::Duration;

use logmill_io::wire::guarded::Net;
use serde::Deserialize;

use super::{Fault, TIME_MS_MAX, count, within};
use crate::http::{self, Keys};
use crate::rpc;

/// The most connections, requests and filters: each costs memory.
const EACH_MAX: u64 = 1_000_000;
/// The largest body that may be allowed: it is held in memory.
const BODY_BYTES_MAX: u64 = 256 << 20;
/// The largest answer that may be allowed.
const RESPONSE_BYTES_MAX: u64 = 4 << 30;

/// Where HTTP is served, and for whom.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    listen: String,
    health_listen: String,
    keys: String,
    default_chain: u64,
    max_connections: usize,
    max_websockets: usize,
    max_waiting_per_address: usize,
    header_timeout_ms: u64,
    body_timeout_ms: u64,
    trusted_proxies: String,
    max_requests: usize,
    max_body_bytes: usize,
}

/// Limits of JSON-RPC.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Rpc {
    max_batch: usize,
    max_results: usize,
    max_blocks: u64,
    max_response_bytes: usize,
    timeout_ms: u64,
    filter_ttl_ms: u64,
    max_filters: usize,
    max_subscriptions: usize,
    pass_through: bool,
}

impl Server {
    /// Where to listen; none if nothing is to be served.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.listen.parse().ok()
    }

    /// Where to listen for questions about health alone; none if that is not wanted.
    pub(crate) fn health_listen(&self) -> Option<SocketAddr> {
        self.health_listen.parse().ok()
    }

    fn proxies(&self) -> Result<Vec<Net>, String> {
        let named = self.trusted_proxies.split(',').map(str::trim).filter(|text| !text.is_empty());
        named.map(|text| Net::parse(text).map_err(|error| error.to_string())).collect()
    }

    /// How much is served at a time, and for whom.
    pub(crate) fn limits(&self) -> http::Limits {
        http::Limits {
            connections: http::ConnectionLimits {
                max_connections: self.max_connections,
                max_websockets: self.max_websockets,
                max_waiting_per_address: self.max_waiting_per_address,
                header_timeout: Duration::from_millis(self.header_timeout_ms),
                body_timeout: Duration::from_millis(self.body_timeout_ms),
                trusted_proxies: self.proxies().unwrap_or_default(),
            },
            max_requests: self.max_requests,
            max_body_bytes: self.max_body_bytes,
            default_chain: (self.default_chain != 0).then_some(self.default_chain),
            keys: Keys::parse(&self.keys).unwrap_or_default(),
        }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let listen = match self.listen.parse::<SocketAddr>() {
            Ok(address) if !address.ip().is_loopback() && self.keys.is_empty() => {
                let why = format!("{address} can be reached from elsewhere, so keys are needed");
                Some(("server.keys", why))
            }
            Err(_) if !self.listen.is_empty() => {
                let why = format!("{:?} is not an address and port", self.listen);
                Some(("server.listen", why))
            }
            _ => None,
        };
        let keys = Keys::parse(&self.keys).err().map(|why| ("server.keys", why.to_owned()));
        let health_listen = match self.health_listen() {
            None if !self.health_listen.is_empty() => {
                Some(format!("{:?} is not an address and port", self.health_listen))
            }
            Some(_) if self.listen.is_empty() => Some("needs server.listen".to_owned()),
            _ => None,
        };
        let health_listen = health_listen.map(|why| ("server.health_listen", why));
        let proxies = self.proxies().err().map(|why| ("server.trusted_proxies", why));
        let connections = count(self.max_connections);
        let faults = [
            listen,
            health_listen,
            keys,
            proxies,
            within("server.max_connections", connections, 1, EACH_MAX),
            within("server.max_websockets", count(self.max_websockets), 0, connections),
            within(
                "server.max_waiting_per_address",
                count(self.max_waiting_per_address),
                1,
                EACH_MAX,
            ),
            within("server.header_timeout_ms", self.header_timeout_ms, 1, TIME_MS_MAX),
            within("server.body_timeout_ms", self.body_timeout_ms, 1, TIME_MS_MAX),
            within("server.max_requests", count(self.max_requests), 1, EACH_MAX),
            within("server.max_body_bytes", count(self.max_body_bytes), 1, BODY_BYTES_MAX),
        ];
        faults.into_iter().flatten().next()
    }
}

impl Rpc {
    /// Limits of calls.
    pub(crate) fn limits(&self) -> rpc::Limits {
        rpc::Limits {
            max_batch: self.max_batch,
            max_results: self.max_results,
            max_blocks: self.max_blocks,
            max_response_bytes: self.max_response_bytes,
            timeout: Duration::from_millis(self.timeout_ms),
            filter_ttl: Duration::from_millis(self.filter_ttl_ms),
            max_filters: self.max_filters,
            max_subscriptions: self.max_subscriptions,
            pass_through: self.pass_through,
        }
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        let bytes = count(self.max_response_bytes);
        let faults = [
            within("rpc.max_batch", count(self.max_batch), 1, EACH_MAX),
            within("rpc.max_results", count(self.max_results), 1, EACH_MAX),
            within("rpc.max_response_bytes", bytes, 1, RESPONSE_BYTES_MAX),
            within("rpc.timeout_ms", self.timeout_ms, 1, TIME_MS_MAX),
            within("rpc.filter_ttl_ms", self.filter_ttl_ms, 1, TIME_MS_MAX),
            within("rpc.max_filters", count(self.max_filters), 0, EACH_MAX),
            within("rpc.max_subscriptions", count(self.max_subscriptions), 0, EACH_MAX),
        ];
        faults.into_iter().flatten().next()
    }
}
