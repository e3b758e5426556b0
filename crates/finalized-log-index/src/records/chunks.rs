//! The records of publication: `chunks`, `chg/SEQ` and `ckp/SEQ`.
//!
//! `chunks` holds the number of the last change. Each change says which entries came and which went; every so
//! many changes a checkpoint lists all entries. A reader at change *n* follows by reading *n + 1* and so on, or
//! starts anew from a checkpoint.
//!
//! Guarantees: those of [`super`]. Leaves to others: which changes make sense ([`crate::chunk_list`]).

use std::sync::Arc;

use alloy_primitives::B256;
use bytes::Bytes;
use logmill_io::BlobName;

use super::{begin, end, hash, open, open_versions};
use crate::chunk::CHUNK_BLOCKS_MAX;
use crate::codec::{Reader, as_u64, put_u32, put_u64, put_varint};
use crate::error::{Error, Result};
use crate::types::BlockRange;

const VERSION: u8 = 1;
/// Version of the record `chunks` that is written; version 1 lacks the number of replacements.
const HEAD_VERSION: u8 = 2;
/// The most entries of one record; a hundred chains of a billion blocks have fewer.
const ENTRIES_MAX: usize = 10_000_000;
/// The most blobs of bodies of one chunk: each but the last is of some megabytes.
const BODIES_MAX: usize = 65_536;

/// A published chunk or piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Its blocks.
    pub blocks: BlockRange,
    /// The hash of the block before the first.
    pub parent_hash: B256,
    /// The hash of the last block.
    pub last_hash: B256,
    /// How many logs it holds.
    pub logs: u32,
    /// How many terms are filed in it: of its logs, transactions and blocks.
    pub values: u64,
    /// How many bytes of its blob are there to find logs, not to hold them.
    pub index_bytes: u64,
    /// The attempt that built it; part of its blob's name.
    pub token: u64,
    /// The length of its blob.
    pub bytes: u64,
    /// The BLAKE3 of its blob.
    pub blake3: [u8; 32],
    /// Where the directory starts in its blob.
    pub directory_at: u64,
    /// Where the chunk starts of which this is a piece; its own start if it is none.
    pub chunk_start: u64,
    /// Whether that chunk ends with it.
    pub ends_chunk: bool,
    /// Whether its blocks are known to be canonical by themselves: sealed from the tail, or holding a configured
    /// anchor. Others count only when parent hashes link them to one that is.
    pub anchored: bool,
    /// The blobs of the bodies of its blocks, lowest first; none if no bodies are kept.
    pub bodies: Vec<BodiesRef>,
}

/// A blob of bodies that is published with a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodiesRef {
    /// The blocks whose bodies it holds.
    pub blocks: BlockRange,
    /// The attempt that built it; part of its name.
    pub token: u64,
    /// Its length.
    pub bytes: u64,
    /// Where the directory starts in it.
    pub directory_at: u64,
    /// Its BLAKE3.
    pub blake3: [u8; 32],
}

impl BodiesRef {
    /// The name of its blob, below the prefix of the index's blobs.
    pub(crate) fn blob_name(&self, prefix: &str) -> Result<BlobName> {
        bodies_name(prefix, &self.blocks, self.token)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.blocks.start);
        put_varint(out, self.blocks.end - self.blocks.start);
        for number in [self.token, self.bytes, self.directory_at] {
            put_u64(out, number);
        }
        out.extend_from_slice(&self.blake3);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let start = reader.u64()?;
        let length = reader.varint()?;
        let end = start.checked_add(length).filter(|_| (1..=CHUNK_BLOCKS_MAX).contains(&length));
        let end = end.ok_or_else(|| Error::corrupt("bodies of impossible blocks"))?;
        let (token, bytes, directory_at) = (reader.u64()?, reader.u64()?, reader.u64()?);
        if directory_at >= bytes {
            return Err(Error::corrupt("an entry of bodies that contradicts itself"));
        }
        Ok(Self { blocks: start..end, token, bytes, directory_at, blake3: reader.array()? })
    }
}

impl ChunkEntry {
    /// Whether this is a part of a chunk that is to be merged with others.
    pub fn is_piece(&self) -> bool {
        self.chunk_start != self.blocks.start || !self.ends_chunk
    }

    /// The name of its blob, below the prefix of the index's blobs.
    pub(crate) fn blob_name(&self, prefix: &str) -> Result<BlobName> {
        blob_name(prefix, &self.blocks, self.token)
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.blocks.start);
        put_varint(out, self.blocks.end - self.blocks.start);
        put_varint(out, self.blocks.start - self.chunk_start);
        let flags = u8::from(self.ends_chunk)
            | u8::from(self.anchored) << 1
            | u8::from(!self.bodies.is_empty()) << 2;
        out.push(flags);
        put_u32(out, self.logs);
        for number in [self.token, self.bytes, self.directory_at, self.values, self.index_bytes] {
            put_u64(out, number);
        }
        out.extend_from_slice(self.parent_hash.as_slice());
        out.extend_from_slice(self.last_hash.as_slice());
        out.extend_from_slice(&self.blake3);
        if !self.bodies.is_empty() {
            put_varint(out, as_u64(self.bodies.len()));
            self.bodies.iter().for_each(|bodies| bodies.encode(out));
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self> {
        let start = reader.u64()?;
        let length = reader.varint()?;
        let end = start.checked_add(length).filter(|_| (1..=CHUNK_BLOCKS_MAX).contains(&length));
        let chunk_start = start.checked_sub(reader.varint()?);
        let (Some(end), Some(chunk_start)) = (end, chunk_start) else {
            return Err(Error::corrupt("a chunk entry with impossible blocks"));
        };
        let flags = reader.u8()?;
        let logs = reader.u32()?;
        let (token, bytes, directory_at) = (reader.u64()?, reader.u64()?, reader.u64()?);
        let (values, index_bytes) = (reader.u64()?, reader.u64()?);
        let (parent_hash, last_hash) = (hash(reader)?, hash(reader)?);
        let blake3 = reader.array()?;
        let bodies = if flags & 4 == 0 { 0 } else { reader.count(BODIES_MAX)? };
        let bodies = (0..bodies).map(|_| BodiesRef::decode(reader)).collect::<Result<Vec<_>>>()?;
        if flags > 7 || directory_at >= bytes {
            return Err(Error::corrupt("a chunk entry that contradicts itself"));
        }
        Ok(Self {
            blocks: start..end,
            parent_hash,
            last_hash,
            logs,
            values,
            index_bytes,
            token,
            bytes,
            blake3,
            directory_at,
            chunk_start,
            ends_chunk: flags & 1 != 0,
            anchored: flags & 2 != 0,
            bodies,
        })
    }
}

/// The name of the blob of an attempt.
pub(crate) fn blob_name(prefix: &str, blocks: &BlockRange, token: u64) -> Result<BlobName> {
    let name = format!("{prefix}{:016x}-{:016x}-{token:016x}", blocks.start, blocks.end);
    Ok(BlobName::new(name)?)
}

/// The name of a blob of bodies of an attempt.
pub(crate) fn bodies_name(prefix: &str, blocks: &BlockRange, token: u64) -> Result<BlobName> {
    let name = format!("{prefix}{:016x}-{:016x}-bodies-{token:016x}", blocks.start, blocks.end);
    Ok(BlobName::new(name)?)
}

/// The attempt of a blob's name.
pub(crate) fn token_of(name: &BlobName) -> Option<u64> {
    let digits = name.as_str().rsplit('-').next().filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

/// The record `chunks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunksHead {
    /// The number of the last change; 0 before the first.
    pub(crate) seq: u64,
    /// The number of the change of which there is a checkpoint; 0 if there is none.
    pub(crate) checkpoint: u64,
    /// The number of the last replacement of stored blocks; 0 before the first.
    pub(crate) replacements: u64,
}

impl ChunksHead {
    pub(crate) fn encode(self) -> Bytes {
        let mut out = begin(HEAD_VERSION);
        put_u64(&mut out, self.seq);
        put_u64(&mut out, self.checkpoint);
        put_u64(&mut out, self.replacements);
        end(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let (version, mut reader) =
            open_versions(bytes, VERSION..=HEAD_VERSION, "the record of chunks")?;
        let (seq, checkpoint) = (reader.u64()?, reader.u64()?);
        // Version 1 was written before any replacement was recorded.
        let replacements = if version == VERSION { 0 } else { reader.u64()? };
        reader.end()?;
        let head = Self { seq, checkpoint, replacements };
        if head.checkpoint > head.seq || head.replacements > head.seq {
            return Err(Error::corrupt("the record of chunks contradicts itself"));
        }
        Ok(head)
    }
}

/// A change of what is published; with everything in `add`, a checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// What came.
    pub(crate) add: Vec<Arc<ChunkEntry>>,
    /// The attempts whose chunks went.
    pub(crate) remove: Vec<u64>,
    /// Below which block nothing is kept.
    pub(crate) floor: u64,
}

impl Change {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = begin(VERSION);
        put_u64(&mut out, self.floor);
        put_varint(&mut out, as_u64(self.remove.len()));
        self.remove.iter().for_each(|token| put_u64(&mut out, *token));
        put_varint(&mut out, as_u64(self.add.len()));
        self.add.iter().for_each(|entry| entry.encode(&mut out));
        end(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(bytes, VERSION, "a change of the chunks")?;
        let floor = reader.u64()?;
        let removed = reader.count(ENTRIES_MAX.min(bytes.len()))?;
        let remove = (0..removed).map(|_| reader.u64()).collect::<Result<Vec<_>>>()?;
        let added = reader.count(ENTRIES_MAX.min(bytes.len()))?;
        let add = (0..added).map(|_| ChunkEntry::decode(&mut reader).map(Arc::new));
        let add = add.collect::<Result<Vec<_>>>()?;
        reader.end()?;
        Ok(Self { add, remove, floor })
    }
}
