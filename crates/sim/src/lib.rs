//! Whole-system tests: faults, crashes, many processes, and the rules of the tree.
//!
//! The tests live in `tests/it`, one binary; this library holds what they share. A test belongs here if it needs more
//! than one crate, a real server, or a separate process. A test of a single crate lives beside its code.
//!
//! Guarantees: nothing depends on this crate, so nothing here ships. A test that cannot run in this environment calls
//! [`skip`] and is counted; it never passes silently. Rules about the source tree that can be checked automatically
//! are tests in `tests/it/tidy`. Leaves to others: faults and conformance suites (`logmill_io`), and installing
//! servers (the scripts in `tools/`).

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test crate accesses the outside world directly, and a panic is how a test fails"
)]

pub mod anvil;
mod database;
mod disk;
pub mod http;
pub mod moto;
pub mod node;
mod paths;
pub mod postgres;
mod skip;
pub mod worker;

pub use database::{Database, START};
pub use disk::{SmallDisk, failing_sync_shim, with_failing_syncs};
pub use paths::{test_data, workspace_root};
pub use skip::skip;
