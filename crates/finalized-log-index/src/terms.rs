//! The term index of a chunk: maps a fingerprint to log ids.
//!
//! Entries are grouped by fingerprint and filed in buckets by its highest bits. Fingerprints are uniformly
//! distributed, so a lookup reads one bucket of about a kilobyte, which holds the term or shows that the chunk does
//! not have it. A group with few ids holds them inline; a larger one holds count, smallest and largest id, and the
//! position of its roaring bitmap.
//!
//! Guarantees: [`Buckets::entries`] and lookups return what was passed to [`encode`]; a damaged bucket or bitmap is
//! an error. Leaves to others: reading the right bytes ([`crate::chunk`]).
//!
//! Stored form: `docs/formats.md`, "Term index".

use std::ops::Range;

use roaring::RoaringBitmap;

use crate::codec::{Reader, as_u32, as_u64, put_varint, seal, to_usize, unseal};
use crate::error::{Error, Result};
use crate::term::{FINGERPRINT_BITS, Fingerprint, ID_BITS, ID_MAX, entry_fingerprint, entry_id};

/// Approximate number of groups in a bucket.
const BUCKET_GROUPS: usize = 128;
/// Groups of up to this many ids store them inline.
const INLINE_IDS_MAX: usize = 32;
/// Maximum of `bucket_bits`: 2^24 ids of seven kinds need no more.
const BUCKET_BITS_MAX: u32 = 22;

#[derive(Debug, Default)]
pub(crate) struct EncodedTerms {
    /// Number of fingerprint bits that select a bucket.
    pub(crate) bucket_bits: u32,
    /// Offset of each bucket in `buckets`, and the end of the last one.
    pub(crate) bucket_starts: Vec<u32>,
    pub(crate) buckets: Vec<u8>,
    /// Bitmaps of the larger groups.
    pub(crate) postings: Vec<u8>,
    /// Number of groups.
    pub(crate) groups: u32,
}

/// What a bucket holds for a fingerprint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Inline ids, ascending.
    Ids(Vec<u32>),
    /// The ids are in a bitmap.
    Bitmap(BitmapRef),
}

/// A bitmap in the postings, as its bucket describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BitmapRef {
    /// Number of ids.
    pub(crate) count: u32,
    /// Smallest id.
    pub(crate) min: u32,
    /// Largest id.
    pub(crate) max: u32,
    /// Position within the postings.
    pub(crate) bytes: Range<u64>,
}

/// Encodes entries, which must be sorted and unique.
pub(crate) fn encode(entries: &[u64]) -> EncodedTerms {
    debug_assert!(entries.windows(2).all(|pair| pair[0] < pair[1]), "entries must be sorted");
    let groups = entries.chunk_by(|a, b| entry_fingerprint(*a) == entry_fingerprint(*b)).count();
    let bucket_bits = (groups / BUCKET_GROUPS).max(1).ilog2().min(BUCKET_BITS_MAX);
    let mut out = EncodedTerms { bucket_bits, groups: as_u32(groups), ..EncodedTerms::default() };
    let mut groups = entries.chunk_by(|a, b| entry_fingerprint(*a) == entry_fingerprint(*b));
    let mut next = groups.next();
    for bucket in 0..1_u64 << bucket_bits {
        let start = out.buckets.len();
        out.bucket_starts.push(as_u32(start));
        let base = bucket << (FINGERPRINT_BITS - bucket_bits);
        let mut before = base;
        while let Some(group) = next
            && bucket_of(entry_fingerprint(group[0]), bucket_bits) == bucket
        {
            let fingerprint = entry_fingerprint(group[0]);
            put_varint(&mut out.buckets, fingerprint - before);
            before = fingerprint;
            encode_group(group, &mut out);
            next = groups.next();
        }
        seal(&mut out.buckets, start);
    }
    out.bucket_starts.push(as_u32(out.buckets.len()));
    out
}

fn bucket_of(fingerprint: u64, bits: u32) -> u64 {
    fingerprint >> (FINGERPRINT_BITS - bits)
}

fn encode_group(group: &[u64], out: &mut EncodedTerms) {
    put_varint(&mut out.buckets, as_u64(group.len()));
    let ids = group.iter().map(|entry| entry_id(*entry));
    if group.len() <= INLINE_IDS_MAX {
        let mut expected = 0;
        for id in ids {
            put_varint(&mut out.buckets, u64::from(id - expected));
            expected = id + 1;
        }
        return;
    }
    let (min, max) = (entry_id(group[0]), entry_id(group[group.len() - 1]));
    let start = out.postings.len();
    // The ids are sorted, so this does not fail; if it did, the ids would be collected the slow way.
    let bitmap = RoaringBitmap::from_sorted_iter(ids.clone()).unwrap_or_else(|_| ids.collect());
    // Writing to memory cannot fail.
    let written = bitmap.serialize_into(&mut out.postings);
    debug_assert!(written.is_ok(), "writing to memory cannot fail");
    seal(&mut out.postings, start);
    put_varint(&mut out.buckets, u64::from(min));
    put_varint(&mut out.buckets, u64::from(max - min));
    put_varint(&mut out.buckets, as_u64(start));
    put_varint(&mut out.buckets, as_u64(out.postings.len() - start));
}

/// Number of the bucket that holds a fingerprint.
pub(crate) fn bucket_index(fingerprint: Fingerprint, bucket_bits: u32) -> usize {
    usize::try_from(bucket_of(fingerprint.number(), bucket_bits)).unwrap_or(usize::MAX)
}

/// Looks up a fingerprint in its bucket.
pub(crate) fn find(bucket: &[u8], fingerprint: Fingerprint, bits: u32) -> Result<Option<Group>> {
    let mut groups = Groups::open(bucket, bucket_of(fingerprint.number(), bits), bits)?;
    while let Some(found) = groups.next_fingerprint()? {
        if found == fingerprint.number() {
            return groups.read_group().map(Some);
        }
        if found > fingerprint.number() {
            return Ok(None);
        }
        groups.skip_group()?;
    }
    Ok(None)
}

/// Iterates over the groups of a bucket.
struct Groups<'b> {
    reader: Reader<'b>,
    before: u64,
    first: bool,
    /// Exclusive upper bound of the bucket's fingerprints.
    end: u64,
}

impl<'b> Groups<'b> {
    fn open(bucket: &'b [u8], number: u64, bits: u32) -> Result<Self> {
        let width = FINGERPRINT_BITS - bits;
        let (before, end) = (number << width, (number + 1) << width);
        Ok(Self { reader: Reader::new(unseal(bucket)?), before, first: true, end })
    }

    fn next_fingerprint(&mut self) -> Result<Option<u64>> {
        if self.reader.is_empty() {
            return Ok(None);
        }
        let gap = self.reader.varint()?;
        let next = self.before.checked_add(gap).filter(|next| *next < self.end);
        let Some(next) = next.filter(|_| gap > 0 || self.first) else {
            return Err(Error::corrupt("a bucket's fingerprints are not in order"));
        };
        self.before = next;
        self.first = false;
        Ok(Some(next))
    }

    fn read_group(&mut self) -> Result<Group> {
        let count = self.reader.varint32()?;
        if to_usize(count.into())? <= INLINE_IDS_MAX {
            return Ok(Group::Ids(self.read_ids(count)?));
        }
        let min = self.reader.varint32()?;
        let span = self.reader.varint32()?;
        let start = self.reader.varint()?;
        let length = self.reader.varint()?;
        let max = min.checked_add(span).filter(|max| *max <= ID_MAX);
        let end = start.checked_add(length);
        let (Some(max), Some(end)) = (max, end) else {
            return Err(Error::corrupt("a group's ids or position are too large"));
        };
        Ok(Group::Bitmap(BitmapRef { count, min, max, bytes: start..end }))
    }

    fn read_ids(&mut self, count: u32) -> Result<Vec<u32>> {
        let mut ids = Vec::with_capacity(to_usize(count.into())?);
        let mut expected = 0_u32;
        for _ in 0..count {
            let id = expected.checked_add(self.reader.varint32()?).filter(|id| *id <= ID_MAX);
            let id = id.ok_or_else(|| Error::corrupt("an id is too large"))?;
            ids.push(id);
            expected = id + 1;
        }
        Ok(ids)
    }

    fn skip_group(&mut self) -> Result<()> {
        let count = self.reader.varint()?;
        let numbers = if count <= as_u64(INLINE_IDS_MAX) { count } else { 4 };
        (0..numbers).try_for_each(|_| self.reader.varint().map(|_| ()))
    }
}

/// Decodes the bitmap of a larger group and checks it against its bucket.
pub(crate) fn read_bitmap(bytes: &[u8], stored: &BitmapRef) -> Result<RoaringBitmap> {
    let body = unseal(bytes)?;
    let bitmap = RoaringBitmap::deserialize_from(body)
        .map_err(|error| Error::corrupt(format!("cannot decode a bitmap: {error}")))?;
    let fits = bitmap.len() == u64::from(stored.count)
        && bitmap.min() == Some(stored.min)
        && bitmap.max() == Some(stored.max);
    if !fits {
        return Err(Error::corrupt("a bitmap contradicts its bucket"));
    }
    Ok(bitmap)
}

/// A whole term index.
#[derive(Debug)]
pub(crate) struct Buckets<'b> {
    pub(crate) bucket_bits: u32,
    pub(crate) bucket_starts: &'b [u32],
    pub(crate) buckets: &'b [u8],
    pub(crate) postings: &'b [u8],
}

impl Buckets<'_> {
    /// Appends all entries in order, with `shift` added to each id.
    pub(crate) fn entries(&self, shift: u32, out: &mut Vec<u64>) -> Result<()> {
        for (number, pair) in self.bucket_starts.windows(2).enumerate() {
            let range = to_usize(pair[0].into())?..to_usize(pair[1].into())?;
            let bucket = self.buckets.get(range);
            let bucket =
                bucket.ok_or_else(|| Error::corrupt("a bucket extends beyond its section"))?;
            let mut groups = Groups::open(bucket, as_u64(number), self.bucket_bits)?;
            while let Some(fingerprint) = groups.next_fingerprint()? {
                self.group_entries(&groups.read_group()?, fingerprint, shift, out)?;
            }
        }
        Ok(())
    }

    fn group_entries(
        &self,
        group: &Group,
        fingerprint: u64,
        shift: u32,
        out: &mut Vec<u64>,
    ) -> Result<()> {
        let shifted = |id: u32| {
            let id = id.checked_add(shift).filter(|id| *id <= ID_MAX);
            let id = id.ok_or_else(|| Error::corrupt("an id is too large"))?;
            Ok::<u64, Error>((fingerprint << ID_BITS) | u64::from(id))
        };
        match group {
            Group::Ids(ids) => {
                for id in ids {
                    out.push(shifted(*id)?);
                }
            }
            Group::Bitmap(stored) => {
                let range = to_usize(stored.bytes.start)?..to_usize(stored.bytes.end)?;
                let bytes = self.postings.get(range);
                let bytes =
                    bytes.ok_or_else(|| Error::corrupt("a bitmap extends beyond its section"))?;
                for id in read_bitmap(bytes, stored)? {
                    out.push(shifted(id)?);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
