//! The record `degraded`: why the index refuses to continue until an operator resolves it.
//!
//! Guarantees: those of [`super`]. Leaves to others: which operations are refused ([`crate::health`]).

use bytes::Bytes;

use super::{begin, end, open_versions};
use crate::codec::{Reader, as_u64, put_u64, put_varint, to_usize};
use crate::error::{Error, Result};
use crate::types::BlockRange;

/// Version 1 does not list damaged blocks.
const VERSION: u8 = 2;
const WHAT: &str = "the record of degradation";
/// Longer reasons are cut.
const REASON_BYTES_MAX: usize = 4_096;
/// Longer descriptions of damage are cut.
const WHAT_BYTES_MAX: usize = 512;
/// Maximum number of damaged ranges recorded; further damage widens the last range.
const DAMAGED_MAX: usize = 256;
/// Range of damage with unknown location; rewriting blocks never clears it.
pub(crate) const ANYWHERE: BlockRange = 0..u64::MAX;

/// State of a degraded index, as the health report shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degradation {
    /// Decides which operations are refused.
    pub cause: Cause,
    /// What happened, as text for the operator.
    pub reason: String,
    /// Damaged blocks: all blocks if the location is unknown; empty unless the cause is corruption.
    pub damaged: Vec<DamagedBlocks>,
}

/// Blocks whose stored bytes are damaged or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedBlocks {
    /// Range that contains the damage; some of its blocks may be intact.
    pub blocks: BlockRange,
    /// What was found, as text for the operator.
    pub what: String,
}

/// Kind of problem that degraded the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A block contradicts one indexed as final: writes and reads stop.
    FinalityViolation,
    /// Stored bytes are damaged or missing: writes stop, and so do queries that need those bytes.
    Corruption,
    /// Too much garbage, and collecting it does not help: writes stop.
    Backlog,
    /// Records of the index itself are damaged: writes and reads stop.
    Metadata,
}

impl Degradation {
    /// Corruption is recorded as [`ANYWHERE`].
    pub(crate) fn new(cause: Cause, reason: String) -> Self {
        match cause {
            Cause::Corruption => Self::damaged_at(ANYWHERE, reason),
            _ => Self { cause, reason, damaged: Vec::new() },
        }
    }

    pub(crate) fn damaged_at(blocks: BlockRange, what: String) -> Self {
        let damaged = vec![DamagedBlocks { blocks, what: what.clone() }];
        Self { cause: Cause::Corruption, reason: what, damaged }
    }

    /// Merges two degradations: the damage of both if both are corruption, else `self`.
    #[must_use]
    pub(crate) fn with(mut self, other: &Self) -> Self {
        if self.cause != Cause::Corruption || other.cause != Cause::Corruption {
            return self;
        }
        for DamagedBlocks { blocks, what } in &other.damaged {
            // Keep a range inside another one too: a chunk whose bytes are repaired may still hold a false block.
            if self.damaged.iter().any(|known| known.blocks == *blocks) {
                continue;
            }
            let is_full = self.damaged.len() >= DAMAGED_MAX;
            match self.damaged.last_mut().filter(|_| is_full) {
                Some(last) => {
                    let (start, end) = (last.blocks.start, last.blocks.end);
                    last.blocks = start.min(blocks.start)..end.max(blocks.end);
                }
                None => {
                    let (blocks, what) = (blocks.clone(), what.clone());
                    self.damaged.push(DamagedBlocks { blocks, what });
                }
            }
        }
        self.describe_damage();
        self
    }

    /// The degradation that remains after ranges were repaired, if any.
    pub(crate) fn without(&self, is_mended: impl Fn(&BlockRange) -> bool) -> Option<Self> {
        if self.cause != Cause::Corruption {
            return Some(self.clone());
        }
        let mut left = self.clone();
        left.damaged.retain(|damaged| !is_mended(&damaged.blocks));
        if left.damaged.len() < self.damaged.len() {
            left.describe_damage();
        }
        (!left.damaged.is_empty()).then_some(left)
    }

    /// The degradation that remains after an operator removed these blocks: damage at other known locations.
    pub(crate) fn left_by(&self, gone: &BlockRange) -> Option<Self> {
        let is_gone = |blocks: &BlockRange| {
            *blocks == ANYWHERE || (gone.start <= blocks.start && blocks.end <= gone.end)
        };
        self.without(is_gone).filter(|left| left.cause == Cause::Corruption)
    }

    fn describe_damage(&mut self) {
        let Some(first) = self.damaged.first() else {
            return;
        };
        self.reason = match self.damaged.len() {
            1 => first.what.clone(),
            count => format!("{} (and damage in {} other block ranges)", first.what, count - 1),
        };
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = begin(VERSION);
        out.push(match self.cause {
            Cause::FinalityViolation => 1,
            Cause::Corruption => 2,
            Cause::Backlog => 3,
            Cause::Metadata => 4,
        });
        let kept = self.reason.floor_char_boundary(REASON_BYTES_MAX);
        put_varint(&mut out, as_u64(kept));
        out.extend_from_slice(&self.reason.as_bytes()[..kept]);
        put_varint(&mut out, as_u64(self.damaged.len()));
        for DamagedBlocks { blocks, what } in &self.damaged {
            put_u64(&mut out, blocks.start);
            put_u64(&mut out, blocks.end);
            let kept = what.floor_char_boundary(WHAT_BYTES_MAX);
            put_varint(&mut out, as_u64(kept));
            out.extend_from_slice(&what.as_bytes()[..kept]);
        }
        end(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let (version, mut reader) = open_versions(bytes, 1..=VERSION, WHAT)?;
        let cause = match reader.u8()? {
            1 => Cause::FinalityViolation,
            2 => Cause::Corruption,
            3 => Cause::Backlog,
            4 => Cause::Metadata,
            other => return Err(Error::corrupt(format!("{WHAT} has the unknown cause {other}"))),
        };
        let reason = text(&mut reader)?;
        if version == 1 {
            reader.end()?;
            return Ok(Self::new(cause, reason));
        }
        let count = reader.count(DAMAGED_MAX)?;
        let damaged = (0..count).map(|_| {
            let blocks = reader.u64()?..reader.u64()?;
            Ok(DamagedBlocks { blocks, what: text(&mut reader)? })
        });
        let damaged = damaged.collect::<Result<Vec<_>>>()?;
        reader.end()?;
        if damaged.iter().any(|damaged| damaged.blocks.is_empty()) {
            return Err(Error::corrupt(format!("{WHAT} contradicts itself")));
        }
        Ok(Self { cause, reason, damaged })
    }

    /// Whether the cause stops reads as well as writes.
    pub fn stops_reads(&self) -> bool {
        matches!(self.cause, Cause::FinalityViolation | Cause::Metadata)
    }
}

fn text(reader: &mut Reader<'_>) -> Result<String> {
    let length = to_usize(reader.varint()?)?;
    Ok(String::from_utf8_lossy(reader.take(length)?).into_owned())
}
