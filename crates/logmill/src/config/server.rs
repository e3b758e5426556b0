//! The sections `[server]` and `[rpc]`: where HTTP is served, for which clients, and within which limits.
//!
//! Guarantees: settings that pass [`Server::fault`] and [`Rpc::fault`] can be used; nothing is served to other machines
//! without keys. Leaves to others: serving ([`logmill_serve::http`]).

use std::net::SocketAddr;
use std::time::Duration;

use logmill_io::wire::guarded::Net;
use logmill_serve::http::{self, Keys, Origins};
use logmill_serve::rpc;
use logmill_serve::rpc::forward::{ForwardLimits, NAMED_MAX, may_be_named};
use serde::Deserialize;

use super::{InvalidKey, TIME_MS_MAX, count, within};

/// Maximum of each limit on connections, requests, filters and the like: each costs memory.
const EACH_MAX: u64 = 1_000_000;
/// Maximum of the body limit: a body is held in memory.
const BODY_BYTES_MAX: u64 = 256 << 20;
/// Maximum of the answer limit.
const RESPONSE_BYTES_MAX: u64 = 4 << 30;

/// Maximum of the limit on passed-on answers of nodes.
const PASSED_BYTES_MAX: u64 = 32 << 20;

#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Server {
    listen: String,
    health_listen: String,
    keys: String,
    cors_origins: String,
    compress_min_bytes: usize,
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
    pass_through_methods: String,
    pass_through_max_calls: usize,
    pass_through_call_bytes: usize,
    pass_through_answer_bytes: usize,
    pass_through_timeout_ms: u64,
    pass_through_cache_bytes: usize,
}

impl Server {
    /// Address to listen on; `None` if nothing is served.
    pub(crate) fn listen(&self) -> Option<SocketAddr> {
        self.listen.parse().ok()
    }

    /// Address of the separate health listener, if set.
    pub(crate) fn health_listen(&self) -> Option<SocketAddr> {
        self.health_listen.parse().ok()
    }

    fn proxies(&self) -> Result<Vec<Net>, String> {
        let named = self.trusted_proxies.split(',').map(str::trim).filter(|text| !text.is_empty());
        named.map(|text| Net::parse(text).map_err(|error| error.to_string())).collect()
    }

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
            compress_min_bytes: self.compress_min_bytes,
            keys: Keys::parse(&self.keys)
                .unwrap_or_default()
                .with_origins(Origins::parse(&self.cors_origins).unwrap_or_default()),
        }
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let listen = match self.listen.parse::<SocketAddr>() {
            Ok(address) if !address.ip().is_loopback() && self.keys.is_empty() => {
                let why = format!("other machines can reach {address}, so keys must be set");
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
            Some(_) if self.listen.is_empty() => Some("needs server.listen to be set".to_owned()),
            _ => None,
        };
        let health_listen = health_listen.map(|why| ("server.health_listen", why));
        let origins = match Origins::parse(&self.cors_origins) {
            Err(why) => Some(why),
            Ok(origins) if origins.is_any() && self.keys.is_empty() => Some(
                "* lets every web page send requests, so keys must be set (server.keys)".to_owned(),
            ),
            Ok(_) => None,
        };
        let origins = origins.map(|why| ("server.cors_origins", why));
        let proxies = self.proxies().err().map(|why| ("server.trusted_proxies", why));
        let connections = count(self.max_connections);
        let faults = [
            listen,
            health_listen,
            keys,
            origins,
            within(
                "server.compress_min_bytes",
                count(self.compress_min_bytes),
                0,
                RESPONSE_BYTES_MAX,
            ),
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
    /// Limits of calls; a chain counts as syncing when it is behind by more than `sync_lag_blocks`.
    pub(crate) fn limits(&self, sync_lag_blocks: u64) -> rpc::Limits {
        rpc::Limits {
            sync_lag_blocks,
            max_batch: self.max_batch,
            max_results: self.max_results,
            max_blocks: self.max_blocks,
            max_response_bytes: self.max_response_bytes,
            timeout: Duration::from_millis(self.timeout_ms),
            filter_ttl: Duration::from_millis(self.filter_ttl_ms),
            max_filters: self.max_filters,
            max_subscriptions: self.max_subscriptions,
            forward: ForwardLimits {
                is_on: self.pass_through,
                named: self.named().map(str::to_owned).collect(),
                max_calls: self.pass_through_max_calls,
                max_call_bytes: self.pass_through_call_bytes,
                max_answer_bytes: self.pass_through_answer_bytes,
                timeout: Duration::from_millis(self.pass_through_timeout_ms),
                cache_bytes: self.pass_through_cache_bytes,
            },
        }
    }

    /// The methods that are passed on besides the read methods.
    fn named(&self) -> impl Iterator<Item = &str> {
        self.pass_through_methods.split(',').map(str::trim).filter(|name| !name.is_empty())
    }

    fn fault_of_names(&self) -> Option<InvalidKey> {
        let name = "rpc.pass_through_methods";
        if self.named().count() > NAMED_MAX {
            return Some((name, format!("more than {NAMED_MAX} names")));
        }
        self.named().find_map(|text| may_be_named(text).err()).map(|why| (name, why))
    }

    pub(super) fn fault(&self) -> Option<InvalidKey> {
        let bytes = count(self.max_response_bytes);
        let faults = [
            within("rpc.max_batch", count(self.max_batch), 1, EACH_MAX),
            within("rpc.max_results", count(self.max_results), 1, EACH_MAX),
            within("rpc.max_response_bytes", bytes, 1, RESPONSE_BYTES_MAX),
            within("rpc.timeout_ms", self.timeout_ms, 1, TIME_MS_MAX),
            within("rpc.filter_ttl_ms", self.filter_ttl_ms, 1, TIME_MS_MAX),
            within("rpc.max_filters", count(self.max_filters), 0, EACH_MAX),
            within("rpc.max_subscriptions", count(self.max_subscriptions), 0, EACH_MAX),
            self.fault_of_names(),
            within("rpc.pass_through_max_calls", count(self.pass_through_max_calls), 1, EACH_MAX),
            within(
                "rpc.pass_through_call_bytes",
                count(self.pass_through_call_bytes),
                1,
                BODY_BYTES_MAX,
            ),
            within(
                "rpc.pass_through_answer_bytes",
                count(self.pass_through_answer_bytes),
                1,
                PASSED_BYTES_MAX,
            ),
            within("rpc.pass_through_timeout_ms", self.pass_through_timeout_ms, 1, TIME_MS_MAX),
            within(
                "rpc.pass_through_cache_bytes",
                count(self.pass_through_cache_bytes),
                0,
                RESPONSE_BYTES_MAX,
            ),
        ];
        faults.into_iter().flatten().next()
    }
}
