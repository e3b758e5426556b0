//! The records `repl/SEQ`: stored final blocks that were removed, or whose content was replaced.
//!
//! Everything computed from such blocks is wrong from this record on. Consumers store the number of the last
//! replacement they have applied and compare it with [`crate::LogIndex::last_replacement`].
//!
//! Guarantees: those of [`super`]; numbers are contiguous from 1, and a record is written in the commit that changes
//! the blocks. Leaves to others: when blocks may be replaced ([`crate::replace`], [`crate::health`]).

use alloy_primitives::B256;
use bytes::Bytes;
use logmill_io::Timestamp;

use super::{begin, end, hash, open};
use crate::codec::{as_u64, put_u64, put_varint, to_usize};
use crate::error::{Error, Result};
use crate::types::BlockRange;

const VERSION: u8 = 1;
const WHAT: &str = "the record of a replacement";
/// Longer reasons are cut.
const REASON_BYTES_MAX: usize = 4_096;
/// Maximum number of hashes in a record.
pub(crate) const OLD_HASHES_MAX: usize = 1_024;

/// Stored final blocks that were removed, or whose content was replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replacement {
    /// Number of the replacement, from 1 without gaps.
    pub seq: u64,
    /// The affected blocks.
    pub blocks: BlockRange,
    /// Whether they were removed or changed.
    pub kind: ReplacementKind,
    /// Previous hashes of the last blocks of the range, lowest first, at most 1 024. Shorter or empty if they could
    /// not be read.
    pub old_hashes: Vec<B256>,
    /// Text for the operator.
    pub reason: String,
    /// Store time of the commit.
    pub at: Timestamp,
}

/// What a replacement did to its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplacementKind {
    /// Removed. Blocks that are added in their place may have the same or different hashes.
    Removed,
    /// Same hashes, different content.
    Content,
}

/// A position in the log of replacements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplacementPosition {
    /// Number of the last replacement before the position; 0 before the first.
    pub seq: u64,
    /// Tells apart logs that use the same number for different replacements; 0 if unknown, as in an index of an
    /// earlier version that has not been written since.
    pub mark: u64,
}

impl ReplacementPosition {
    /// The position after replacement `seq`, whose mark is part of the hash of its record: that contains time and
    /// reason.
    pub(crate) fn after(seq: u64, record: &[u8]) -> Self {
        let hash = blake3::hash(record);
        let first = hash.as_bytes().first_chunk().copied().unwrap_or_default();
        Self { seq, mark: u64::from_be_bytes(first).clamp(1, u64::MAX - 1) }
    }

    /// A position in no log, stored by a consumer whose position was not in this log.
    pub const NOWHERE: Self = Self { seq: 0, mark: u64::MAX };

    /// Whether both positions are the same; an unknown mark matches any.
    pub fn is_same(self, other: Self) -> bool {
        self.seq == other.seq && (self.mark == other.mark || self.mark == 0 || other.mark == 0)
    }
}

impl Replacement {
    /// The previous hash of a block, if it is recorded.
    pub fn old_hash(&self, number: u64) -> Option<B256> {
        let first = self.blocks.end - as_u64(self.old_hashes.len());
        let position = usize::try_from(number.checked_sub(first)?).ok()?;
        self.old_hashes.get(position).copied()
    }

    pub(crate) fn encode(&self) -> Bytes {
        let mut out = begin(VERSION);
        put_u64(&mut out, self.seq);
        put_u64(&mut out, self.blocks.start);
        put_u64(&mut out, self.blocks.end);
        out.push(match self.kind {
            ReplacementKind::Removed => 1,
            ReplacementKind::Content => 2,
        });
        put_u64(&mut out, self.at.0.cast_unsigned());
        put_varint(&mut out, as_u64(self.old_hashes.len()));
        self.old_hashes.iter().for_each(|hash| out.extend_from_slice(hash.as_slice()));
        let kept = self.reason.floor_char_boundary(REASON_BYTES_MAX);
        put_varint(&mut out, as_u64(kept));
        out.extend_from_slice(&self.reason.as_bytes()[..kept]);
        end(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(bytes, VERSION, WHAT)?;
        let (seq, blocks) = (reader.u64()?, reader.u64()?..reader.u64()?);
        let kind = match reader.u8()? {
            1 => ReplacementKind::Removed,
            2 => ReplacementKind::Content,
            other => return Err(Error::corrupt(format!("{WHAT} has the unknown kind {other}"))),
        };
        let at = Timestamp(reader.u64()?.cast_signed());
        let count = reader.count(OLD_HASHES_MAX)?;
        let old_hashes = (0..count).map(|_| hash(&mut reader)).collect::<Result<Vec<_>>>()?;
        let length = to_usize(reader.varint()?)?;
        let reason = String::from_utf8_lossy(reader.take(length)?).into_owned();
        reader.end()?;
        if blocks.is_empty() || as_u64(count) > blocks.end - blocks.start {
            return Err(Error::corrupt(format!("{WHAT} contradicts itself")));
        }
        Ok(Self { seq, blocks, kind, old_hashes, reason, at })
    }
}

pub(crate) fn missing_replacement(seq: u64) -> Error {
    Error::corrupt(format!("the record of replacement {seq} is missing"))
}
