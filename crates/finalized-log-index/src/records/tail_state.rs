//! The record `tail`: the indexed head, and from where on blocks are in the tail.
//!
//! It is the visibility barrier of ingest: a block is indexed when the commit that moves the head to it is.
//!
//! Guarantees: those of [`super`]. Leaves to others: when it is written ([`crate::writer`]).

use alloy_primitives::B256;
use bytes::Bytes;

use super::{begin, end, hash, open};
use crate::codec::{put_u32, put_u64};
use crate::error::{Error, Result};
use crate::section::Before;
use crate::term::ID_MAX;

const VERSION: u8 = 1;
const WHAT: &str = "the record of the tail";

/// What the record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailState {
    /// The epoch of the writer that wrote it.
    pub(crate) epoch: u64,
    /// Raised when the tail is thrown away, so that its records are none of the next tail's.
    pub(crate) generation: u64,
    /// The first block of the tail; everything between it and the head is in it.
    pub(crate) start: u64,
    /// The hash of the block before.
    pub(crate) start_parent: B256,
    /// One above the highest indexed block; equals `start` when the tail is empty.
    pub(crate) end: u64,
    /// The hash of the highest indexed block, or of the one before the first.
    pub(crate) head_hash: B256,
    /// Where the chunk of the first block of the tail starts.
    pub(crate) chunk_start: u64,
    /// How much of that chunk lies before the tail.
    pub(crate) before: Before,
}

impl TailState {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = begin(VERSION);
        put_u64(&mut out, self.epoch);
        put_u64(&mut out, self.generation);
        for number in [self.start, self.end, self.chunk_start, self.before.page_bytes] {
            put_u64(&mut out, number);
        }
        put_u32(&mut out, self.before.logs);
        out.extend_from_slice(self.start_parent.as_slice());
        out.extend_from_slice(self.head_hash.as_slice());
        end(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(bytes, VERSION, WHAT)?;
        let (epoch, generation) = (reader.u64()?, reader.u64()?);
        let (start, end) = (reader.u64()?, reader.u64()?);
        let (chunk_start, page_bytes) = (reader.u64()?, reader.u64()?);
        let before = Before { logs: reader.u32()?, page_bytes };
        let (start_parent, head_hash) = (hash(&mut reader)?, hash(&mut reader)?);
        reader.end()?;
        if end < start || chunk_start > start || before.logs > ID_MAX {
            return Err(Error::corrupt(format!("{WHAT} contradicts itself")));
        }
        Ok(Self { epoch, generation, start, start_parent, end, head_hash, chunk_start, before })
    }
}
