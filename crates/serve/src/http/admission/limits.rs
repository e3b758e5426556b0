//! Limits of connections, and the client behind a connection.
//!
//! Guarantees: a forwarded client address is accepted only from a trusted proxy. Leaves to others: enforcing the limits
//! ([`super`]).

use std::net::IpAddr;
use std::time::Duration;

use hyper::HeaderMap;
use logmill_io::wire::guarded::Net;

pub(super) const FORWARDED: &str = "x-forwarded-for";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionLimits {
    pub max_connections: usize,
    pub max_websockets: usize,
    /// Maximum number of connections of one address that wait for their client.
    pub max_waiting_per_address: usize,
    /// Time in which a client must send the head of a request.
    pub header_timeout: Duration,
    /// Time in which a client must send the body of a request. With HTTP/2 also the time in which it must open its
    /// window for the next piece of a response.
    pub body_timeout: Duration,
    /// Proxies, exempt from the limit per address and trusted to name the client.
    pub trusted_proxies: Vec<Net>,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            max_connections: 1_024,
            max_websockets: 768,
            max_waiting_per_address: 256,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(30),
            trusted_proxies: Vec::new(),
        }
    }
}

impl ConnectionLimits {
    pub(super) fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted_proxies.iter().any(|net| net.contains(address.to_canonical()))
    }

    /// Address of the client: the peer or, behind a trusted proxy, the last forwarded address that is not itself a
    /// trusted proxy.
    pub(in crate::http) fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let peer = peer.to_canonical();
        if !self.is_trusted(peer) {
            return peer;
        }
        let named = headers.get_all(FORWARDED).into_iter().filter_map(|value| value.to_str().ok());
        let named: Vec<&str> = named.flat_map(|value| value.split(',')).collect();
        let mut client = peer;
        for name in named.iter().rev() {
            let Ok(address) = name.trim().parse::<IpAddr>() else { break };
            client = address.to_canonical();
            if !self.is_trusted(client) {
                break;
            }
        }
        client
    }
}
