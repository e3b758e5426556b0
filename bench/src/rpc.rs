//! The benchmark of `eth_getLogs` over HTTP on loopback, against anvil on the same chain.
//!
//! | module | content |
//! |---|---|
//! | [`server`] | anvil and Logmill as processes |
//! | [`chain`] | the content of the chain, and the queries |
//! | [`load`] | the load generator |
//! | [`report`] | the result as JSON and as a table |

pub mod chain;
pub mod load;
pub mod report;
pub mod server;
pub mod settings;
