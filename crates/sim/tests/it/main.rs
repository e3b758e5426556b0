//! The whole-system tests, as one binary: twenty separate ones would cost eight times the link time.
//!
//! One module per subject. The name of a test is the claim it proves.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::print_stderr,
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "tests meet the outside world themselves, and a panic is how a test fails"
)]

mod async_workers;
mod blob_stores;
mod chain;
mod crash_matrix;
mod derive;
mod evm;
mod history;
mod log_index;
mod meta_stores;
mod meter;
mod processes;
mod proof;
mod sql;
mod tidy;
mod tokens;
mod work;
