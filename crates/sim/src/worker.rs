//! What the worker process and the test that kills it agree on.

use std::time::Duration;

/// The kind of its jobs.
pub const KIND: &str = "effect";
/// How long a claim lasts.
pub const LEASE: Duration = Duration::from_secs(2);
/// How many jobs one process runs at a time.
pub const SLOTS: usize = 4;
/// How long a job takes.
pub const JOB_TIME: Duration = Duration::from_millis(40);
