//! The records of publication: `chunks`, `chg/SEQ` and `ckp/SEQ`.
//!
//! `chunks` holds the number of the last change. A change lists the entries that were added and removed; from time to
//! time a checkpoint lists all entries. A reader at change *n* follows by reading *n + 1* and so on, or starts from a
//! checkpoint.
//!
//! Guarantees: those of [`super`]. Leaves to others: which changes are valid ([`crate::chunk_list`]).

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
/// Version of the record `chunks` that is written; version 1 has no number of replacements.
const HEAD_VERSION: u8 = 2;
/// Maximum number of entries in a record; a hundred chains of a billion blocks have fewer.
const ENTRIES_MAX: usize = 10_000_000;
/// Maximum number of bodies blobs of a chunk; each but the last has some megabytes.
const BODIES_MAX: usize = 65_536;

/// A published chunk or piece.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkEntry {
    /// Blocks whose logs it holds.
    pub blocks: BlockRange,
    /// Parent hash of the first block.
    pub parent_hash: B256,
    /// Hash of the last block.
    pub last_hash: B256,
    /// Number of logs in it.
    pub logs: u32,
    /// Number of terms filed in it: those of its logs, transactions and blocks.
    pub values: u64,
    /// Bytes of its blob that serve to find logs, not to hold them.
    pub index_bytes: u64,
    /// Token of the attempt that built it; part of its blob's name.
    pub token: u64,
    /// Length of its blob.
    pub bytes: u64,
    /// BLAKE3 hash of its blob.
    pub blake3: [u8; 32],
    /// Offset of the directory in its blob.
    pub directory_at: u64,
    /// First block of the chunk that it is a piece of; its own first block if it is a whole chunk.
    pub chunk_start: u64,
    /// Whether it is the last piece of that chunk.
    pub ends_chunk: bool,
    /// Whether its blocks are known to be canonical: it was sealed from the tail, or holds a configured anchor. Other
    /// entries count only if parent hashes link them to an anchored one.
    pub anchored: bool,
    /// Blobs with the bodies of its blocks, lowest blocks first; empty if no bodies are kept.
    pub bodies: Vec<BodiesRef>,
}

/// A blob of bodies, published together with a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodiesRef {
    /// Blocks whose bodies it holds.
    pub blocks: BlockRange,
    /// Token of the attempt that built it; part of its name.
    pub token: u64,
    /// Length of the blob.
    pub bytes: u64,
    /// Offset of the directory in the blob.
    pub directory_at: u64,
    /// BLAKE3 hash of the blob.
    pub blake3: [u8; 32],
}

impl BodiesRef {
    /// `prefix` is that of all blob names of the index.
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
        let end = end.ok_or_else(|| Error::corrupt("an entry of bodies has impossible blocks"))?;
        let (token, bytes, directory_at) = (reader.u64()?, reader.u64()?, reader.u64()?);
        if directory_at >= bytes {
            return Err(Error::corrupt("an entry of bodies contradicts itself"));
        }
        Ok(Self { blocks: start..end, token, bytes, directory_at, blake3: reader.array()? })
    }
}

impl ChunkEntry {
    /// Whether this is a piece that will be merged with others into a chunk.
    pub fn is_piece(&self) -> bool {
        self.chunk_start != self.blocks.start || !self.ends_chunk
    }

    /// `prefix` is that of all blob names of the index.
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
            return Err(Error::corrupt("a chunk entry has impossible blocks"));
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
            return Err(Error::corrupt("a chunk entry contradicts itself"));
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

/// Name of the chunk or piece blob that an attempt writes.
pub(crate) fn blob_name(prefix: &str, blocks: &BlockRange, token: u64) -> Result<BlobName> {
    let name = format!("{prefix}{:016x}-{:016x}-{token:016x}", blocks.start, blocks.end);
    Ok(BlobName::new(name)?)
}

/// Name of a bodies blob that an attempt writes.
pub(crate) fn bodies_name(prefix: &str, blocks: &BlockRange, token: u64) -> Result<BlobName> {
    let name = format!("{prefix}{:016x}-{:016x}-bodies-{token:016x}", blocks.start, blocks.end);
    Ok(BlobName::new(name)?)
}

/// Parses the attempt's token from a blob name.
pub(crate) fn token_of(name: &BlobName) -> Option<u64> {
    let digits = name.as_str().rsplit('-').next().filter(|digits| digits.len() == 16)?;
    u64::from_str_radix(digits, 16).ok()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunksHead {
    /// Number of the last change; 0 before the first.
    pub(crate) seq: u64,
    /// Number of the change at which the last checkpoint was written; 0 if there is none.
    pub(crate) checkpoint: u64,
    /// Number of the last replacement of stored blocks; 0 before the first.
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
        // Version 1 was written before replacements were recorded.
        let replacements = if version == VERSION { 0 } else { reader.u64()? };
        reader.end()?;
        let head = Self { seq, checkpoint, replacements };
        if head.checkpoint > head.seq || head.replacements > head.seq {
            return Err(Error::corrupt("the record of chunks contradicts itself"));
        }
        Ok(head)
    }
}

/// A change of the published entries; a checkpoint is one with all entries in `add`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) add: Vec<Arc<ChunkEntry>>,
    /// Tokens of the entries that were removed.
    pub(crate) remove: Vec<u64>,
    /// Lowest block that is kept.
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
