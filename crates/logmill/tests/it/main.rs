//! The program as a process: its output, its exit codes, and the files it leaves.
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
mod kept_tables;
mod meter;
mod nodes;
mod peers;
mod postgres;
mod process;
mod raw_only;
mod ready;
mod recovery;
mod run;
mod sample;
mod several_chains;
mod storage;
