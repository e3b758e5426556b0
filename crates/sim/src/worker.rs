//! Constants shared by the worker process and the test that kills it.

use std::time::Duration;

/// Kind of the worker's jobs.
pub const KIND: &str = "effect";
/// Lease of a claim.
pub const LEASE: Duration = Duration::from_secs(2);
/// Number of jobs that a process runs concurrently.
pub const SLOTS: usize = 4;
/// Duration of a job.
pub const JOB_TIME: Duration = Duration::from_millis(40);
