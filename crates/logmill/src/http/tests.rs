//! Serving, over real sockets on this machine: calls, errors, limits, conformance, live changes, keys.

#![allow(
    clippy::disallowed_methods,
    reason = "tests listen, connect and start tasks themselves, on this machine alone"
)]

mod access;
mod api;
mod calls;
mod conformance;
mod fees;
mod ground;
mod live;
mod metering;
mod random;
