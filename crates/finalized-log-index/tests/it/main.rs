//! Tests of the log index as its users see it.
//!
//! The model of everything is a plain list of blocks and a scan over it.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::single_range_in_vec_init,
    clippy::unwrap_used,
    reason = "a panic is how a test fails, and one range is what is often covered"
)]

mod chain;
mod crash_matrix;
mod damage;
mod degraded;
mod differential;
mod fence;
mod fencing;
mod guardrails;
mod hook;
mod life;
mod readers;
mod replacements;
mod semantics;
mod shown;
mod traps;
mod world;
