//! A blob of bodies: the bodies of consecutive blocks.
//!
//! ```text
//!   group* │ rows of transactions, in buckets │ directory
//! ```
//!
//! A group holds the bodies of some blocks, compressed together. A row is one number: the beginning of a transaction
//! hash in the high bits, the offset of its block in the low bits; rows are sorted. The directory holds all offsets.
//! Every part has a CRC-32C.
//!
//! Guarantees: the same bodies make the same bytes; damage of a part is detected before it is used. Leaves to others:
//! names, and when a blob is large enough ([`crate::body_upload`]).

use std::ops::Range;

use bytes::Bytes;

use crate::body_keys::key_of;
use crate::codec::{
    Reader, as_u64, compress, decompress, put_u64, put_varint, seal, to_usize, unseal,
};
use crate::error::{Error, Result};
use crate::types::{BLOCK_BODY_BYTES_MAX, BlockRange, Body};

/// Bodies are compressed in groups of about this size.
const GROUP_BYTES: usize = 256 << 10;
/// Rows per bucket; a bucket is read as a whole.
const BUCKET_ROWS: usize = 512;
const ROW_BYTES: usize = 8;
/// Low bits of a row, which hold the offset of the block.
const OFFSET_BITS: u32 = 24;
const VERSION: u8 = 1;
/// Maximum number of blocks in a blob, limited by the offset in a row.
pub(crate) const BLOCKS_MAX: u64 = 1 << OFFSET_BITS;

/// Builds a blob.
#[derive(Debug, Default)]
pub(crate) struct BodiesBuilder {
    first_block: u64,
    /// Length of each body; none if the block has no body.
    lengths: Vec<Option<usize>>,
    /// Bodies of the open group.
    group: Vec<u8>,
    group_first: usize,
    groups: Vec<BodyGroup>,
    rows: Vec<u64>,
    out: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
struct BodyGroup {
    at: u64,
    bytes: u64,
    raw_bytes: usize,
    first: usize,
}

/// A complete blob of bodies.
#[derive(Debug)]
pub(crate) struct EncodedBodies {
    pub(crate) blocks: BlockRange,
    pub(crate) bytes: Bytes,
    pub(crate) directory_at: u64,
}

impl BodiesBuilder {
    pub(crate) fn new(first_block: u64) -> Self {
        Self { first_block, ..Self::default() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    pub(crate) fn blocks(&self) -> u64 {
        as_u64(self.lengths.len())
    }

    /// Approximate size of the blob so far.
    pub(crate) fn bytes(&self) -> usize {
        self.out.len() + self.rows.len() * ROW_BYTES
    }

    /// Adds the body of the next block.
    pub(crate) fn push(&mut self, body: Option<&Body>) {
        let offset = as_u64(self.lengths.len());
        self.lengths.push(body.map(|body| body.bytes.len()));
        let Some(body) = body else {
            return;
        };
        self.rows.extend(body.transactions.iter().map(|hash| row(key_of(hash), offset)));
        self.group.extend_from_slice(&body.bytes);
    }

    /// Whether the open group should be compressed now.
    pub(crate) fn group_is_full(&self) -> bool {
        self.group.len() >= GROUP_BYTES
    }

    /// Compresses the open group.
    pub(crate) fn end_group(&mut self) {
        let group = std::mem::take(&mut self.group);
        let at = self.out.len();
        let first = std::mem::replace(&mut self.group_first, self.lengths.len());
        self.out.extend_from_slice(&compress(&group));
        seal(&mut self.out, at);
        let bytes = as_u64(self.out.len() - at);
        self.groups.push(BodyGroup { at: as_u64(at), bytes, raw_bytes: group.len(), first });
    }

    pub(crate) fn finish(mut self) -> EncodedBodies {
        if self.group_first < self.lengths.len() {
            self.end_group();
        }
        self.rows.sort_unstable();
        let rows_at = self.out.len();
        for bucket in self.rows.chunks(BUCKET_ROWS) {
            let at = self.out.len();
            bucket.iter().for_each(|row| put_u64(&mut self.out, *row));
            seal(&mut self.out, at);
        }
        let directory_at = self.out.len();
        self.put_directory(as_u64(rows_at));
        EncodedBodies {
            blocks: self.first_block..self.first_block + as_u64(self.lengths.len()),
            bytes: Bytes::from(self.out),
            directory_at: as_u64(directory_at),
        }
    }

    fn put_directory(&mut self, rows_at: u64) {
        let at = self.out.len();
        let out = &mut self.out;
        out.push(VERSION);
        put_varint(out, as_u64(self.lengths.len()));
        for length in &self.lengths {
            put_varint(out, length.map_or(0, |length| as_u64(length) + 1));
        }
        put_varint(out, as_u64(self.groups.len()));
        for group in &self.groups {
            put_varint(out, group.bytes);
            put_varint(out, as_u64(group.first));
        }
        put_varint(out, rows_at);
        put_varint(out, as_u64(self.rows.len()));
        self.rows.chunks(BUCKET_ROWS).for_each(|bucket| put_u64(out, bucket[0]));
        seal(out, at);
    }
}

/// Offsets of all parts of a blob.
#[derive(Debug)]
pub(crate) struct BodiesDirectory {
    groups: Vec<BodyGroup>,
    /// Position of each body in its group; none if the block has no body.
    places: Vec<Option<Range<usize>>>,
    rows_at: u64,
    rows: usize,
    /// First row of each bucket.
    fences: Vec<u64>,
}

impl BodiesDirectory {
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader::new(unseal(bytes)?);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Error::corrupt(format!("bodies have the unknown version {version}")));
        }
        let count = reader.count(bytes.len())?;
        let mut lengths = Vec::with_capacity(count);
        for _ in 0..count {
            lengths.push(reader.count(BLOCK_BODY_BYTES_MAX + 1)?.checked_sub(1));
        }
        let mut groups = decode_groups(&mut reader, count)?;
        let rows_at = reader.varint()?;
        let rows = to_usize(reader.varint()?)?;
        let buckets = rows.div_ceil(BUCKET_ROWS);
        if buckets > reader.remaining() / ROW_BYTES {
            return Err(Error::corrupt("a directory of bodies has too many rows"));
        }
        let fences = (0..buckets).map(|_| reader.u64()).collect::<Result<Vec<_>>>()?;
        reader.end()?;
        let places = places(&mut groups, &lengths)?;
        Ok(Self { groups, places, rows_at, rows, fences })
    }

    pub(crate) fn weight(&self) -> usize {
        self.groups.len() * size_of::<BodyGroup>() + self.places.len() * 24 + self.fences.len() * 8
    }

    /// The group that holds a body, and its position there; none if the block has no body.
    pub(crate) fn place(&self, offset: usize) -> Option<(usize, Range<usize>)> {
        let place = self.places.get(offset)?.clone()?;
        let group = self.groups.partition_point(|group| group.first <= offset).checked_sub(1)?;
        Some((group, place))
    }

    /// Byte range of a group.
    pub(crate) fn group(&self, group: usize) -> Range<u64> {
        let group = &self.groups[group];
        group.at..group.at + group.bytes
    }

    /// Decompresses the concatenated bodies of a group.
    pub(crate) fn open_group(&self, group: usize, bytes: &[u8]) -> Result<Bytes> {
        decompress(unseal(bytes)?, self.groups[group].raw_bytes)
    }

    /// Byte ranges of the buckets that may hold a transaction.
    pub(crate) fn buckets(&self, key: u64) -> Vec<Range<u64>> {
        let (low, high) = (row(key, 0), row(key, BLOCKS_MAX - 1));
        let first = self.fences.partition_point(|fence| *fence <= low).saturating_sub(1);
        let end = self.fences.partition_point(|fence| *fence <= high);
        (first..end).map(|bucket| self.bucket(bucket)).collect()
    }

    fn bucket(&self, bucket: usize) -> Range<u64> {
        let full = as_u64(BUCKET_ROWS * ROW_BYTES + crate::codec::CRC_BYTES);
        let rows = (self.rows - bucket * BUCKET_ROWS).min(BUCKET_ROWS);
        let start = self.rows_at + as_u64(bucket) * full;
        start..start + as_u64(rows * ROW_BYTES + crate::codec::CRC_BYTES)
    }
}

/// Offsets of the blocks that a bucket lists for a transaction.
pub(crate) fn offsets_in(bucket: &[u8], key: u64) -> Result<Vec<u64>> {
    let (rows, _) = unseal(bucket)?.as_chunks::<ROW_BYTES>();
    let rows = rows.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let wanted = row(key, 0) >> OFFSET_BITS;
    let found = rows.filter(|row| row >> OFFSET_BITS == wanted);
    Ok(found.map(|row| row & (BLOCKS_MAX - 1)).collect())
}

fn row(key: u64, offset: u64) -> u64 {
    debug_assert!(offset < BLOCKS_MAX, "{offset} must be bounded");
    (key >> OFFSET_BITS << OFFSET_BITS) | (offset & (BLOCKS_MAX - 1))
}

fn decode_groups(reader: &mut Reader<'_>, blocks: usize) -> Result<Vec<BodyGroup>> {
    let count = reader.count(blocks)?;
    let mut groups: Vec<BodyGroup> = Vec::with_capacity(count);
    let mut at = 0_u64;
    for _ in 0..count {
        let bytes = reader.varint()?;
        let first = reader.count(blocks)?;
        if groups.last().map_or(first != 0, |before| before.first >= first) {
            return Err(Error::corrupt("groups of bodies are out of order"));
        }
        groups.push(BodyGroup { at, bytes, raw_bytes: 0, first });
        let end = at.checked_add(bytes);
        at = end.ok_or_else(|| Error::corrupt("a group of bodies is too large"))?;
    }
    Ok(groups)
}

/// Computes the position of each body in its group, and sets the groups' sizes.
fn places(
    groups: &mut [BodyGroup],
    lengths: &[Option<usize>],
) -> Result<Vec<Option<Range<usize>>>> {
    if groups.is_empty() && !lengths.is_empty() {
        return Err(Error::corrupt("bodies are not in a group"));
    }
    let mut places = Vec::with_capacity(lengths.len());
    let ends: Vec<usize> =
        groups.iter().skip(1).map(|group| group.first).chain([lengths.len()]).collect();
    for (group, end) in groups.iter_mut().zip(ends) {
        let mut at = 0;
        for length in &lengths[group.first..end] {
            places.push(length.map(|length| at..at + length));
            at += length.unwrap_or(0);
        }
        if at > GROUP_BYTES + BLOCK_BODY_BYTES_MAX {
            return Err(Error::corrupt("a group of bodies is too large"));
        }
        group.raw_bytes = at;
    }
    Ok(places)
}
