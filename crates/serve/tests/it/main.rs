//! HTTP tests over real sockets on this machine: calls, errors, limits, conformance, live changes, keys.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "tests listen, connect and start tasks themselves, on this machine alone; a panic is how a test fails"
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
mod replacement_faults;
mod strict;
mod syncing;
mod test_server;
mod uncles;
mod wrong_http;
