//! The benchmark of `eth_getLogs` over HTTP on loopback, beside anvil on the same chain.
//!
//! | module | what |
//! |---|---|
//! | [`server`] | anvil and Logmill as processes |
//! | [`chain`] | what is on the chain, and what is asked |
//! | [`load`] | the load generator |
//! | [`report`] | the result as JSON and as a table |

pub mod chain;
pub mod load;
pub mod report;
pub mod server;
pub mod settings;
