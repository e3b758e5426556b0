//! Tests of the public interface of the log index.
//!
//! The model is a plain list of blocks and a scan over it.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::single_range_in_vec_init,
    clippy::unwrap_used,
    reason = "a panic is how a test fails, and coverage is often a list of one range"
)]

mod chain;
mod crash_matrix;
mod damage;
mod damage_notes;
mod degraded;
mod differential;
mod fence;
mod fencing;
mod fixture;
mod guardrails;
mod life;
mod readers;
mod recheck;
mod replacements;
mod semantics;
mod shown;
mod traps;
