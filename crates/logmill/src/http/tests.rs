//! HTTP tests over real sockets on this machine: calls, errors, limits, conformance, live changes, keys.

#![allow(
    clippy::disallowed_methods,
    reason = "tests listen, connect and start tasks themselves, on this machine alone"
)]

mod access;
mod api;
mod browsers;
mod calls;
mod chain_bytes;
mod collected;
mod compressed;
mod conformance;
mod fees;
mod http2;
mod live;
mod metering;
mod node;
mod other_chains;
mod passed_on;
mod prices;
mod random;
mod strict;
mod syncing;
mod test_server;
mod uncles;
mod wrong_http;
