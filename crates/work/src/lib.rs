//! The work kernel: runs work exactly once, even if processes crash halfway.
//!
//! - [`job`]: the life cycle of a job as a pure state machine.
//! - [`Queue`]: jobs in SQL; enqueue, claim, heartbeat, complete, fail, all scoped by a token.
//! - [`ClaimKeeper`] and [`claim_loop`]: held claims, with heartbeats, look-ahead and graceful stop.
//! - [`Runner`]: slots that run jobs, one task each, with no way to leak a slot.
//! - [`Lease`]: one holder at a time over a [`logmill_io::MetaStore`], with an epoch that fences writes;
//!   [`LeaseKeeper`] renews it.
//! - [`Coverage`]: which ranges are done, changed in the transaction that writes their rows.
//! - [`ranges`]: drivers over missing ranges; missing, claim, run, cover.
//! - [`Backoff`], [`Attempts`]: delays between attempts, and how many there are.
//! - [`Cron`]: runs every slot of a schedule once, including slots that passed while no process ran.
//!
//! Guarantees: acknowledged work is neither lost nor done twice; a holder whose lease has ended cannot change
//! anything. Leaves to others: what a job does. No other crate implements locks, retries, leases or
//! checkpoints.

mod attempts;
pub mod backoff;
mod claim_keeper;
pub mod claim_loop;
pub mod coverage;
mod cron;
mod error;
pub mod intervals;
pub mod job;
mod lease;
pub mod queue;
pub mod ranges;
mod runner;

pub use attempts::Attempts;
pub use backoff::Backoff;
pub use claim_keeper::{ClaimKeeper, ClaimSettings};
pub use coverage::{Coverage, Scope};
pub use cron::{Cron, MissedRuns, SLOTS_PER_TICK, Schedule};
pub use error::{Error, Result};
pub use intervals::{Heights, IntervalSet};
pub use job::State;
pub use lease::{HeldLease, Lease, LeaseKeeper, LeaseSettings, end_leases};
pub use queue::{Claim, EnqueueResult, NewJob, Queue};
pub use runner::{Failure, Handler, Outcome, Retry, Runner, RunnerSettings, RunningJob};
