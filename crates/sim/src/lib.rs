//! The test kit, and whole-system tests: faults, crashes, many processes, and the rules of the tree.
//!
//! The kit starts what tests run against: databases, nodes, object stores and processes ([`Database`], [`node`],
//! [`anvil`], [`moto`], [`postgres`], [`worker`]), and worlds, which are stores that outlive the processes over them
//! ([`chain_world`], [`meter_world`]). The tests of all crates above `chain` use it. Those in `tests/it` here need more
//! than one crate, a real server, or a separate process; a test of a single crate lives beside its code.
//!
//! Guarantees: only tests depend on this crate, so nothing here ships. A test that cannot run in this environment calls
//! [`skip`] and is counted; it never passes silently. Rules about the source tree that can be checked automatically
//! are tests in `tests/it/tidy`. Leaves to others: faults, the crash matrix and conformance suites (`logmill_io`),
//! simulated chains (`logmill_chain::sim`), and installing servers (the scripts in `tools/`).

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test crate accesses the outside world directly, and a panic is how a test fails"
)]

pub mod anvil;
pub mod chain_world;
mod database;
mod disk;
pub mod http;
pub mod meter_world;
pub mod moto;
pub mod node;
mod paths;
pub mod postgres;
pub mod scripted_node;
mod skip;
pub mod worker;

pub use database::{Database, START};
pub use disk::{SmallDisk, failing_sync_shim, with_failing_syncs};
pub use paths::{test_data, workspace_root};
pub use skip::skip;
