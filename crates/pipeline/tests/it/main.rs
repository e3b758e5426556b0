//! Tests of the pipeline over a simulated chain.
//!
//! The reference model is the simulated chain itself and a scan over its blocks.

#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::single_range_in_vec_init,
    clippy::unwrap_used,
    reason = "a panic is how a test fails, and one range is what is often covered"
)]

mod audit_progress;
mod backward;
mod crash_matrix;
mod follower;
mod forward;
mod hostile;
mod layered;
mod life;
mod listener;
mod mending;
mod process;
mod recheck;
mod reorg;
mod senders;
mod stages;
mod stall;
mod uncompared;
