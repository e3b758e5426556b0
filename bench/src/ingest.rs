//! The benchmark of ingest: from era1 files and from a node to the published index and archive.
//!
//! | module | what |
//! |---|---|
//! | [`chain`] | the chain that is ingested, made from a seed |
//! | [`whole`] | the whole pipeline, as the server runs it |
//! | [`stages`] | the first stages of it alone, to tell the shares |
//! | [`node`] | a node that answers from memory, in a process of its own |
//! | [`report`] | the result as JSON and as a table |

pub mod chain;
pub mod node;
pub mod report;
pub mod settings;
pub mod stages;
pub mod whole;

use std::time::{Duration, Instant};

use crate::{cpu, memory};

/// What something took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cost {
    pub wall: Duration,
    /// User and system seconds of this process.
    pub cpu_s: f64,
    pub peak_bytes: u64,
}

/// A stretch of work that is measured.
#[derive(Debug)]
pub struct Watch {
    start: Instant,
    cpu_s: f64,
}

impl Watch {
    pub fn start() -> anyhow::Result<Self> {
        memory::forget_peak();
        Ok(Self { start: Instant::now(), cpu_s: cpu::of_client()? })
    }

    /// What it took until now.
    pub fn cost(&self) -> anyhow::Result<Cost> {
        Ok(Cost {
            wall: self.start.elapsed(),
            cpu_s: cpu::of_client()? - self.cpu_s,
            peak_bytes: memory::peak_bytes()?,
        })
    }
}
