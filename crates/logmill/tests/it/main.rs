//! The program as a process: what it prints, which code it ends with, and what it leaves behind.
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

mod collect;
mod config;
mod control;
mod crowds;
mod demo;
mod help;
mod index;
mod integrity;
mod jobs;
mod meter;
mod peers;
mod postgres;
mod process;
mod raw_only;
mod ready;
mod recovery;
mod run;
mod storage;
