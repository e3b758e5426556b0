//! Whole-system tests: faults, crashes, many processes, and the rules of the tree.
//!
//! The tests live in `tests/it`, one binary; this library holds what they share. A test belongs here when it
//! needs more than one crate, a real server, or a process of its own; what one crate can show alone is tested
//! beside its code.
//!
//! Guarantees: nothing depends on this crate, so nothing here ships. A test that can not run here says so
//! through [`skip`] and is counted; it never passes in silence. A rule that a machine can keep is a test of
//! `tests/it/tidy`. Leaves to others: faults and conformance suites (`logmill_io`), and installing servers
//! (the scripts in `tools/`).

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a test crate meets the outside world itself, and a panic is how a test fails"
)]

pub mod anvil;
mod database;
mod disk;
pub mod http;
pub mod moto;
pub mod node;
mod place;
pub mod postgres;
mod skip;
pub mod worker;

pub use database::{Database, START};
pub use disk::{SmallDisk, failing_sync_shim, with_failing_syncs};
pub use place::{test_data, workspace_root};
pub use skip::skip;
