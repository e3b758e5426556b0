//! Async workers and observations: contracts, nodes and servers that do not mean well, on both engines.

mod code;
mod crashes;
#[path = "../../../pipeline/src/observe/fake.rs"]
#[allow(dead_code, reason = "shared with the tests of the pipeline")]
mod fake;
mod ground;
mod items;
mod ranges;
mod reconcile;
mod tokens;
mod web;
