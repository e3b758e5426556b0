//! The benchmark of ingest: from era1 files and from a node to the published index and archive.
//!
//! | module | content |
//! |---|---|
//! | [`chain`] | the ingested chain, generated from a seed |
//! | [`whole`] | the whole pipeline, as the server runs it |
//! | [`stages`] | only its first stages, to determine their shares |
//! | [`node`] | a node that answers from memory, in a separate process |
//! | [`report`] | the result as JSON and as a table |

pub mod chain;
pub mod node;
pub mod report;
pub mod settings;
pub mod stages;
pub mod whole;

use std::time::{Duration, Instant};

use crate::{cpu, memory};

/// Cost of some work.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub wall: Duration,
    /// User and system seconds of this process.
    pub cpu_s: f64,
    pub peak_bytes: u64,
}

/// Measures some work.
#[derive(Debug)]
pub struct Stopwatch {
    start: Instant,
    cpu_s: f64,
}

impl Stopwatch {
    pub fn start() -> anyhow::Result<Self> {
        memory::forget_peak();
        Ok(Self { start: Instant::now(), cpu_s: cpu::of_client()? })
    }

    /// Cost so far.
    pub fn cost(&self) -> anyhow::Result<Cost> {
        Ok(Cost {
            wall: self.start.elapsed(),
            cpu_s: cpu::of_client()? - self.cpu_s,
            peak_bytes: memory::peak_bytes()?,
        })
    }
}
