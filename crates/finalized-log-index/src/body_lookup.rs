//! Lookups of bodies: by block number, and by transaction hash.
//!
//! Guarantees: only bodies of covered blocks are found; a body that should be there and is not is an error. Leaves to
//! others: comparing the full transaction hash (only its first bytes are kept).

use alloy_primitives::{B256, Bytes};

use crate::body_keys::key_of;
use crate::error::{Error, Result};
use crate::index::LogIndex;
use crate::records;
use crate::state::{SharedIndex, Snapshot};

/// How often a lookup is retried because blocks were sealed or merged in the meantime.
const REPLANS_MAX: usize = 100;

impl LogIndex {
    /// The body of a covered block; none if the block is not covered or has no body.
    pub async fn body(&self, number: u64) -> Result<Option<Bytes>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.body_at(&snapshot, number).await {
                Err(error) => {
                    self.shared
                        .retry_or_note_damage(&snapshot, error, Some(number), &mut tries)
                        .await?;
                }
                Ok(BodyLookup::Body(body)) => return Ok(body),
                Ok(BodyLookup::NotInTail) => {
                    self.refresh().await?;
                    tries += 1;
                    // It should be there, unless its block was sealed or written again meanwhile.
                    if tail_mark(&snapshot) == tail_mark(&self.shared.snapshot()) {
                        let what = format!("the body of block {number} is missing in the tail");
                        let error = Error::corrupt(what);
                        self.shared.note_corruption(&snapshot, &error, None, Some(number));
                        return Err(error);
                    }
                    if tries > REPLANS_MAX {
                        let what = "the tail changes faster than it can be read".to_owned();
                        return Err(Error::Throttled { what });
                    }
                }
            }
        }
    }

    /// The covered blocks that may hold a transaction, newest first: nearly always one or none. Searches only blocks
    /// with bodies.
    pub async fn blocks_of_transaction(&self, hash: &B256) -> Result<Vec<u64>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.transaction_blocks(&snapshot, hash).await {
                Err(error) => {
                    self.shared.retry_or_note_damage(&snapshot, error, None, &mut tries).await?;
                }
                found => return found,
            }
        }
    }
}

/// Result of a lookup.
enum BodyLookup {
    Body(Option<Bytes>),
    /// The tail has no such record, or no longer has it.
    NotInTail,
}

/// What changes when blocks leave the tail or are written again.
fn tail_mark(snapshot: &Snapshot) -> Option<(u64, u64, u64)> {
    let replacements = snapshot.list.replacements.seq;
    snapshot.tail_state.as_ref().map(|tail| (tail.generation, tail.start, replacements))
}

impl SharedIndex {
    async fn body_at(&self, snapshot: &Snapshot, number: u64) -> Result<BodyLookup> {
        if !snapshot.coverage.iter().any(|range| range.contains(&number)) {
            return Ok(BodyLookup::Body(None));
        }
        if let Some(tail) = snapshot.tail_state.as_ref().filter(|tail| number >= tail.start) {
            if !snapshot.bodies.has(number) {
                return Ok(BodyLookup::Body(None));
            }
            let record = self.stores.meta.get(&self.keys.body(tail.generation, number)).await?;
            let Some(record) = record else {
                return Ok(BodyLookup::NotInTail);
            };
            return Ok(BodyLookup::Body(Some(records::body::decode(&record.value)?.bytes)));
        }
        let bodies = snapshot.list.containing(number).and_then(|entry| {
            entry.bodies.iter().find(|bodies| bodies.blocks.contains(&number)).cloned()
        });
        match bodies {
            None => Ok(BodyLookup::Body(None)),
            Some(bodies) => Ok(BodyLookup::Body(self.bodies.body(&bodies, number).await?)),
        }
    }

    async fn transaction_blocks(&self, snapshot: &Snapshot, hash: &B256) -> Result<Vec<u64>> {
        let key = key_of(hash);
        let covered = |block: &u64| snapshot.coverage.iter().any(|range| range.contains(block));
        let mut found: Vec<u64> = snapshot.bodies.blocks_of(key).filter(covered).collect();
        for entry in snapshot.list.iter().rev() {
            if !covered(&entry.blocks.start) {
                continue;
            }
            for bodies in entry.bodies.iter().rev() {
                found.extend(self.bodies.blocks_of(bodies, key).await?);
            }
            if !found.is_empty() {
                break;
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        Ok(found)
    }
}
