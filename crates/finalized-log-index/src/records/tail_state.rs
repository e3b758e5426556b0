//! The record `tail`: the indexed head, and where the tail starts.
//!
//! It is the visibility barrier of ingest: a block is indexed once the commit that moves the head to it succeeds.
//!
//! Guarantees: those of [`super`]. Leaves to others: when it is written ([`crate::writer`]).

use alloy_primitives::B256;
use bytes::Bytes;

use super::{begin, end, hash, open};
use crate::codec::{put_u32, put_u64};
use crate::error::{Error, Result};
use crate::section::ChunkPrefix;
use crate::term::ID_MAX;

const VERSION: u8 = 1;
const WHAT: &str = "the record of the tail";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TailState {
    /// Epoch of the writer that wrote the record.
    pub(crate) epoch: u64,
    /// Raised when the tail is discarded, so that old tail records do not belong to the next tail.
    pub(crate) generation: u64,
    /// First block of the tail, which holds every block from here to the head.
    pub(crate) start: u64,
    /// Parent hash of block `start`.
    pub(crate) start_parent: B256,
    /// The indexed head plus one; equals `start` when the tail is empty.
    pub(crate) end: u64,
    /// Hash of the indexed head, or `start_parent` if the tail is empty.
    pub(crate) head_hash: B256,
    /// First block of the chunk to which block `start` belongs.
    pub(crate) chunk_start: u64,
    /// Size of the part of that chunk that lies before the tail.
    pub(crate) before: ChunkPrefix,
}

impl TailState {
    /// An empty tail of generation 0, whose first block will be `start`.
    pub(crate) fn empty(start: u64, start_parent: B256) -> Self {
        Self {
            epoch: 0,
            generation: 0,
            start,
            start_parent,
            end: start,
            head_hash: start_parent,
            chunk_start: start,
            before: ChunkPrefix::default(),
        }
    }

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
        let before = ChunkPrefix { logs: reader.u32()?, page_bytes };
        let (start_parent, head_hash) = (hash(&mut reader)?, hash(&mut reader)?);
        reader.end()?;
        if end < start || chunk_start > start || before.logs > ID_MAX {
            return Err(Error::corrupt(format!("{WHAT} contradicts itself")));
        }
        Ok(Self { epoch, generation, start, start_parent, end, head_hash, chunk_start, before })
    }
}
