//! Async workers and observations: hostile contracts, nodes and servers, on both engines.

mod code;
mod crashes;
#[path = "../../../pipeline/src/observe/fake.rs"]
#[allow(dead_code, reason = "shared with the tests of the pipeline")]
mod fake;
mod fixture;
mod items;
mod ranges;
mod reconcile;
mod tokens;
mod web;
