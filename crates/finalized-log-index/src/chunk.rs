//! Chunks: immutable blobs that hold the logs of consecutive blocks and their index.
//!
//! ```text
//!   magic | pages | postings | buckets | blocks | directory
//! ```
//!
//! Every part that is read separately carries its own CRC-32C: each page, each posting list, each bucket, the blocks,
//! the directory. The directory holds the offsets of the other parts; the published entry holds the offset of the
//! directory.
//!
//! Guarantees: [`encode`] depends only on the content; [`Directory::decode`] and [`decode_content`] accept what it
//! wrote and refuse everything else. Leaves to others: publication ([`crate::publish`]), caching ([`crate::reader`]).
//!
//! Stored form: `docs/formats.md`, "Chunks".

use std::ops::Range;

use alloy_primitives::B256;
use bytes::Bytes;

use crate::codec::{
    Reader, as_u32, as_u64, put_u32, put_u64, put_varint, seal, to_usize, unseal, zigzag,
};
use crate::error::{Error, Result};
use crate::page::Page;
use crate::section::{BlockRow, Content, Run};
use crate::term::ID_MAX;
use crate::terms::{self, Buckets};
use crate::types::BlockRange;

/// First bytes of every chunk.
const MAGIC: &[u8; 8] = b"LMLOGIX1";
const VERSION: u8 = 1;
pub(crate) const CHUNK_BLOCKS_MAX: u64 = 1 << 24;
const BUCKET_BITS_MAX: u32 = 22;

/// An encoded chunk, with the values for its entry.
#[derive(Debug)]
pub(crate) struct EncodedChunk {
    pub(crate) bytes: Bytes,
    pub(crate) directory_at: u64,
    pub(crate) blocks: BlockRange,
    pub(crate) parent_hash: B256,
    pub(crate) last_hash: B256,
    pub(crate) logs: u32,
    /// Number of filed terms: the values of all logs, and one term per transaction and block.
    pub(crate) values: u64,
    /// Bytes that serve to find logs, not to hold them.
    pub(crate) index_bytes: u64,
}

pub(crate) fn encode(mut content: Content) -> EncodedChunk {
    let values = as_u64(content.run.entries.len());
    let terms = terms::encode(&content.run.entries);
    // No longer needed, and as large as the index itself.
    content.run.entries = Vec::new();
    let run = &content.run;
    let page_bytes: usize = run.pages.iter().map(|page| page.bytes.len()).sum();
    let rough = page_bytes + terms.buckets.len() + terms.postings.len() + run.blocks.len() * 40;
    let mut out = Vec::with_capacity(rough + run.pages.len() * 12 + terms.bucket_starts.len() * 5);
    out.extend_from_slice(MAGIC);
    let mut page_starts = Vec::with_capacity(run.pages.len() + 1);
    for page in &run.pages {
        page_starts.push(as_u32(out.len()));
        out.extend_from_slice(&page.bytes);
    }
    page_starts.push(as_u32(out.len()));
    let postings_at = as_u64(out.len());
    out.extend_from_slice(&terms.postings);
    let buckets_at = as_u64(out.len());
    out.extend_from_slice(&terms.buckets);
    let blocks_at = as_u64(out.len());
    encode_blocks(&run.blocks, &mut out);
    let directory_at = as_u64(out.len());
    let directory = Directory {
        blocks: content.blocks(),
        logs: content.logs(),
        groups: terms.groups,
        values,
        parent_hash: content.parent_hash,
        last_hash: content.last_hash(),
        postings_at,
        buckets_at,
        blocks_at,
        directory_at,
        bucket_bits: terms.bucket_bits,
        page_starts,
        page_first_ids: run.pages.iter().map(|page| page.first_id).collect(),
        page_first_blocks: run
            .pages
            .iter()
            .map(|page| {
                as_u32(usize::try_from(page.first_block - content.first_block).unwrap_or(0))
            })
            .collect(),
        bucket_starts: terms.bucket_starts,
    };
    directory.encode(&mut out);
    let index_bytes =
        blocks_at - postings_at + as_u64(directory.bucket_starts.len() * size_of::<u32>());
    EncodedChunk {
        directory_at,
        blocks: directory.blocks,
        parent_hash: directory.parent_hash,
        last_hash: directory.last_hash,
        logs: directory.logs,
        values: directory.values,
        index_bytes,
        bytes: Bytes::from(out),
    }
}

fn encode_blocks(blocks: &[BlockRow], out: &mut Vec<u8>) {
    let start = out.len();
    for block in blocks {
        out.extend_from_slice(block.hash.as_slice());
    }
    let mut before = 0;
    for block in blocks {
        put_varint(out, zigzag(block.timestamp.wrapping_sub(before).cast_signed()));
        put_varint(out, u64::from(block.logs));
        before = block.timestamp;
    }
    seal(out, start);
}

/// Offsets of all parts of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory {
    pub(crate) blocks: BlockRange,
    pub(crate) logs: u32,
    pub(crate) groups: u32,
    pub(crate) values: u64,
    pub(crate) parent_hash: B256,
    pub(crate) last_hash: B256,
    postings_at: u64,
    buckets_at: u64,
    blocks_at: u64,
    directory_at: u64,
    pub(crate) bucket_bits: u32,
    /// One more element than there are pages.
    page_starts: Vec<u32>,
    page_first_ids: Vec<u32>,
    /// Relative to the first block of the chunk.
    page_first_blocks: Vec<u32>,
    bucket_starts: Vec<u32>,
}

impl Directory {
    fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.push(VERSION);
        put_u64(out, self.blocks.start);
        put_u64(out, self.blocks.end);
        put_u32(out, self.logs);
        put_u32(out, self.groups);
        put_u64(out, self.values);
        out.extend_from_slice(self.parent_hash.as_slice());
        out.extend_from_slice(self.last_hash.as_slice());
        for place in [self.postings_at, self.buckets_at, self.blocks_at, self.directory_at] {
            put_u64(out, place);
        }
        put_u32(out, self.bucket_bits);
        put_u32(out, as_u32(self.page_first_ids.len()));
        let lists =
            [&self.page_starts, &self.page_first_ids, &self.page_first_blocks, &self.bucket_starts];
        for number in lists.into_iter().flatten() {
            put_u32(out, *number);
        }
        seal(out, start);
    }

    /// `directory_at` is the offset of `bytes` in the chunk.
    pub(crate) fn decode(bytes: &[u8], directory_at: u64) -> Result<Self> {
        let mut reader = Reader::new(unseal(bytes)?);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Error::corrupt(format!("a chunk has the unknown version {version}")));
        }
        let blocks = reader.u64()?..reader.u64()?;
        let (logs, groups, values) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let (parent_hash, last_hash) = (B256::new(reader.array()?), B256::new(reader.array()?));
        let (postings_at, buckets_at) = (reader.u64()?, reader.u64()?);
        let (blocks_at, stored_at) = (reader.u64()?, reader.u64()?);
        let bucket_bits = reader.u32()?;
        let pages = to_usize(reader.u32()?.into())?;
        let buckets_fine = bucket_bits <= BUCKET_BITS_MAX;
        if !buckets_fine || blocks.is_empty() || stored_at != directory_at || logs > ID_MAX {
            return Err(Error::corrupt("a directory contradicts itself"));
        }
        let buckets = 1_usize << bucket_bits;
        let directory = Self {
            blocks,
            logs,
            groups,
            values,
            parent_hash,
            last_hash,
            postings_at,
            buckets_at,
            blocks_at,
            directory_at,
            bucket_bits,
            page_starts: numbers(&mut reader, pages.saturating_add(1))?,
            page_first_ids: numbers(&mut reader, pages)?,
            page_first_blocks: numbers(&mut reader, pages)?,
            bucket_starts: numbers(&mut reader, buckets + 1)?,
        };
        reader.end()?;
        directory.check()?;
        Ok(directory)
    }

    fn check(&self) -> Result<()> {
        let rising = |list: &[u32]| list.windows(2).all(|pair| pair[0] <= pair[1]);
        let strictly = |list: &[u32]| list.windows(2).all(|pair| pair[0] < pair[1]);
        let pages_end = self.page_starts.last().copied().map(u64::from);
        let buckets_end = self.bucket_starts.last().copied().map(u64::from);
        let block_count = self.blocks.end - self.blocks.start;
        let fine = strictly(&self.page_starts)
            && strictly(&self.page_first_ids)
            && rising(&self.page_first_blocks)
            && strictly(&self.bucket_starts)
            && self.page_starts.first() == Some(&as_u32(MAGIC.len()))
            && pages_end == Some(self.postings_at)
            && self.postings_at <= self.buckets_at
            && buckets_end == self.blocks_at.checked_sub(self.buckets_at)
            && self.blocks_at <= self.directory_at
            && self.page_first_ids.first().copied().unwrap_or(0) == 0
            && self.page_first_ids.last().is_none_or(|last| *last < self.logs)
            && (self.page_first_ids.is_empty() == (self.logs == 0))
            && block_count <= CHUNK_BLOCKS_MAX
            && self.page_first_blocks.last().is_none_or(|last| u64::from(*last) < block_count);
        if fine { Ok(()) } else { Err(Error::corrupt("a directory contradicts itself")) }
    }

    /// Number of pages.
    pub(crate) fn pages(&self) -> usize {
        self.page_first_ids.len()
    }

    /// Byte range of a page.
    pub(crate) fn page_bytes(&self, page: usize) -> Range<u64> {
        self.page_starts[page].into()..self.page_starts[page + 1].into()
    }

    /// Ids of the logs on a page.
    pub(crate) fn page_ids(&self, page: usize) -> Range<u32> {
        let end = self.page_first_ids.get(page + 1).copied().unwrap_or(self.logs);
        self.page_first_ids[page]..end
    }

    /// The page that holds an id.
    pub(crate) fn page_of(&self, id: u32) -> usize {
        self.page_first_ids.partition_point(|first| *first <= id).saturating_sub(1)
    }

    /// Pages that may hold logs of these blocks.
    pub(crate) fn pages_of(&self, blocks: &BlockRange) -> Range<usize> {
        pages_of_blocks(self.page_first_blocks.len(), blocks, |page| {
            self.blocks.start + u64::from(self.page_first_blocks[page])
        })
    }

    /// Byte range of a bucket.
    pub(crate) fn bucket_bytes(&self, bucket: usize) -> Range<u64> {
        self.buckets_at + u64::from(self.bucket_starts[bucket])
            ..self.buckets_at + u64::from(self.bucket_starts[bucket + 1])
    }

    /// Byte range of a posting list; fails if it lies outside the postings.
    pub(crate) fn posting_bytes(&self, stored: &Range<u64>) -> Result<Range<u64>> {
        let start = self.postings_at.checked_add(stored.start);
        let end = self.postings_at.checked_add(stored.end).filter(|end| *end <= self.buckets_at);
        match (start, end) {
            (Some(start), Some(end)) if start <= end => Ok(start..end),
            _ => Err(Error::corrupt("a bitmap extends beyond its section")),
        }
    }

    /// Byte range of the blocks.
    pub(crate) fn blocks_bytes(&self) -> Range<u64> {
        self.blocks_at..self.directory_at
    }

    /// Approximate memory use.
    pub(crate) fn weight(&self) -> usize {
        let numbers = self.page_starts.len() * 3 + self.bucket_starts.len();
        size_of::<Self>() + numbers * size_of::<u32>()
    }

    /// Decodes the blocks and checks them against the directory.
    pub(crate) fn decode_blocks(&self, bytes: &[u8]) -> Result<Vec<BlockRow>> {
        let count = to_usize(self.blocks.end - self.blocks.start)?;
        let mut reader = Reader::new(unseal(bytes)?);
        let length = count.saturating_mul(size_of::<B256>());
        let mut hashes = Reader::new(reader.take(length)?);
        let mut rows = Vec::with_capacity(count);
        let (mut before, mut logs) = (0, 0_u64);
        for _ in 0..count {
            let timestamp = reader.offset_from(before)?;
            let row =
                BlockRow { hash: B256::new(hashes.array()?), timestamp, logs: reader.varint32()? };
            before = timestamp;
            logs += u64::from(row.logs);
            rows.push(row);
        }
        reader.end()?;
        let last_hash = rows.last().map(|row| row.hash);
        if logs != u64::from(self.logs) || last_hash != Some(self.last_hash) {
            return Err(Error::corrupt("a chunk's blocks do not fit its directory"));
        }
        Ok(rows)
    }
}

/// Pages that may hold logs of these blocks; `first_block` returns the block of a page's first log.
pub(crate) fn pages_of_blocks(
    pages: usize,
    blocks: &BlockRange,
    first_block: impl Fn(usize) -> u64,
) -> Range<usize> {
    let partition = |end: u64| {
        let (mut low, mut high) = (0, pages);
        while low < high {
            let middle = low.midpoint(high);
            if first_block(middle) < end { low = middle + 1 } else { high = middle }
        }
        low
    };
    // The page before the first one that starts inside may hold the first blocks.
    let start = partition(blocks.start).saturating_sub(1);
    let end = partition(blocks.end);
    start..end.max(start)
}

fn numbers(reader: &mut Reader<'_>, count: usize) -> Result<Vec<u32>> {
    let bytes = reader.take(count.saturating_mul(size_of::<u32>()))?;
    let (numbers, _) = bytes.as_chunks::<4>();
    Ok(numbers.iter().map(|number| u32::from_le_bytes(*number)).collect())
}

/// Decodes a whole chunk.
pub(crate) fn decode_content(bytes: &Bytes, directory_at: u64) -> Result<Content> {
    let part = |range: Range<u64>| {
        let range = to_usize(range.start)?..to_usize(range.end)?;
        bytes.get(range).ok_or_else(|| Error::corrupt("a chunk is too short"))
    };
    if !bytes.starts_with(MAGIC) {
        return Err(Error::corrupt("a chunk does not have the magic bytes"));
    }
    let directory = Directory::decode(part(directory_at..as_u64(bytes.len()))?, directory_at)?;
    let blocks = directory.decode_blocks(part(directory.blocks_bytes())?)?;
    let buckets = Buckets {
        bucket_bits: directory.bucket_bits,
        bucket_starts: &directory.bucket_starts,
        buckets: part(directory.buckets_at..directory.blocks_at)?,
        postings: part(directory.postings_at..directory.buckets_at)?,
    };
    let mut entries = Vec::with_capacity(to_usize(directory.values.min(as_u64(bytes.len())))?);
    buckets.entries(0, &mut entries)?;
    let pages = (0..directory.pages()).map(|page| {
        let range = directory.page_bytes(page);
        part(range.clone())?;
        let ids = directory.page_ids(page);
        Ok(Page {
            first_id: ids.start,
            logs: ids.end - ids.start,
            first_block: directory.blocks.start + u64::from(directory.page_first_blocks[page]),
            bytes: bytes.slice(to_usize(range.start)?..to_usize(range.end)?),
        })
    });
    let pages = pages.collect::<Result<Vec<_>>>()?;
    let run = Run { blocks, pages, entries };
    Ok(Content { first_block: directory.blocks.start, parent_hash: directory.parent_hash, run })
}

#[cfg(test)]
mod tests;
