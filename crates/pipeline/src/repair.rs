//! Repair: blocks are thrown away and fetched again.
//!
//! A repair is a job, done by the process that writes the index. Chunks that hold blocks of the range go, and are built
//! anew; if the tail holds some, everything from there on goes, and the forward ingester brings it back.
//!
//! Guarantees: readers are told that blocks are missing for as long as they are. Leaves to others: what is missing if
//! the repair stops half-way, which the backward ingester fills like any other gap.

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use finalized_log_index::{Resolution, Writer};
use logmill_work::{Failure, Handler, NewJob, Outcome, Running};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ingest::Backward;

const REPAIR_JOB: &str = "repair";

#[derive(Debug, Serialize, Deserialize)]
struct Asked {
    start: u64,
    end: u64,
}

/// The kind of the repair jobs of a chain.
pub fn kind(chain_id: u64) -> String {
    format!("{REPAIR_JOB}-{chain_id}")
}

/// The job of a repair; `mark` makes it another than those before.
pub fn job(chain_id: u64, range: Range<u64>, mark: &str) -> Result<NewJob> {
    if range.is_empty() {
        return Err(Error::Invalid { what: format!("the range {range:?} is empty") });
    }
    let payload = serde_json::to_string(&Asked { start: range.start, end: range.end });
    let payload = payload.map_err(|error| Error::Invalid { what: error.to_string() })?;
    let key = format!("{}-{}-{mark}", range.start, range.end - 1);
    Ok(NewJob::new(kind(chain_id), key, payload))
}

/// Repairs: the jobs of one chain, where its writer is.
#[derive(Debug)]
pub struct RepairHandler {
    pub(crate) writer: Arc<Writer>,
    pub(crate) backward: Arc<Backward>,
}

impl RepairHandler {
    /// Repairs what this writer writes.
    pub fn new(writer: Arc<Writer>, backward: Arc<Backward>) -> Self {
        Self { writer, backward }
    }

    /// Throws the blocks of a range away and fetches them again.
    pub async fn repair(&self, range: Range<u64>) -> Result<()> {
        let index = self.writer.index();
        let overlaps = |blocks: &Range<u64>| blocks.start < range.end && blocks.end > range.start;
        let chunks: Vec<_> =
            index.chunks().into_iter().filter(|entry| overlaps(&entry.blocks)).collect();
        for chunk in &chunks {
            self.writer.resolve(Resolution::Discard(chunk.token)).await?;
            tracing::info!(
                start = chunk.blocks.start,
                end = chunk.blocks.end,
                "to be fetched again"
            );
            self.backward.fill(chunk.blocks.clone()).await?;
        }
        let health = index.health();
        let tail = health.tail_start.map(|start| start..start + health.tail_blocks);
        if let Some(start) = tail.filter(overlaps).map(|tail| tail.start) {
            let from = start.max(range.start);
            self.writer.resolve(Resolution::RebuildFrom(from)).await?;
            tracing::info!(start = from, "everything from here on is to be fetched again");
        }
        Ok(())
    }
}

#[async_trait]
impl Handler for RepairHandler {
    async fn run(&self, running: Running) -> Result<Outcome, Failure> {
        let asked: Asked = serde_json::from_str(&running.claim.payload)
            .map_err(|error| Failure::for_good(format!("the job's payload: {error}")))?;
        match self.repair(asked.start..asked.end).await {
            Ok(()) => Ok(Outcome::Done),
            Err(error) => Err(Failure::again(logmill_io::chain(&error))),
        }
    }
}
