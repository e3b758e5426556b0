//! What a process serves: HTTP, JSON-RPC and WebSockets over stored chains, derived tables and usage.
//!
//! | module | role |
//! |---|---|
//! | [`http`] | HTTP server: JSON-RPC, WebSockets, the read API, metering, operator endpoints |
//! | [`rpc`] | JSON-RPC for Ethereum clients, answered from stored data |
//! | [`usage`] | usage as it is served: recorded, watched, and relayed from chains |
//! | [`readiness`] | whether this process may be sent requests, and why not |
//! | [`one_line`] | errors and foreign text, made safe for logs and responses |
//!
//! Guarantees: those of its modules. Leaves to others: configuration, opening stores, and the tasks of the process.

mod error;
pub mod http;
pub mod one_line;
pub mod readiness;
pub mod rpc;
pub mod usage;

pub use error::{Error, Result};
