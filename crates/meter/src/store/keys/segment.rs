//! A segment: sealed keys in one immutable blob.
//!
//! | part | bytes |
//! |---|---|
//! | magic `LMKEYS01` | 8 |
//! | keys, words of the filter, pages: three numbers | 3 × 8 |
//! | CRC-32C of what precedes | 4 |
//! | the filter | 8 a word |
//! | the first half of the first key of each page | 8 a page |
//! | CRC-32C of both | 4 |
//! | pages of up to 128 records (`hi`, `lo`, `content`, `seq`), sorted by key | 32 a record |
//! | after each page its CRC-32C | 4 |
//!
//! All numbers are big-endian. Guarantees: damage is an error, never a wrong answer that a key was not seen. Leaves to
//! others: which run a blob belongs to.

use std::ops::Range;

use bytes::Bytes;
use logmill_io::{BlobName, BlobStore};

use super::RecordedEvent;
use super::filter::Filter;
use crate::error::{Error, Result};
use crate::event::Key;

const MAGIC: &[u8; 8] = b"LMKEYS01";
const HEADER_BYTES: u64 = 8 + 3 * 8 + 4;
const RECORD_BYTES: usize = 32;
const RECORDS_PER_PAGE: usize = 128;
const SUM_BYTES: usize = 4;
const PAGE_BYTES: usize = RECORDS_PER_PAGE * RECORD_BYTES + SUM_BYTES;
/// Number of pages that are decoded on the async thread, without holding up other tasks.
const PAGES_INLINE: usize = 64;
/// Upper bound of the key count that a blob header may claim.
const KEYS_MAX: u64 = 1 << 32;

/// A key and its recorded event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) key: Key,
    pub(super) event: RecordedEvent,
}

/// An open blob: everything except its pages.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) name: BlobName,
    pub(super) keys: u64,
    filter: Filter,
    firsts: Vec<i64>,
    pages_at: u64,
}

/// Encodes sorted records as a blob.
pub(super) fn encode(records: &[Record]) -> Result<Bytes> {
    let mut filter = Filter::for_keys(records.len());
    records.iter().for_each(|record| filter.insert(record.key));
    let pages = records.chunks(RECORDS_PER_PAGE);
    let mut out = Vec::with_capacity(records.len() * (RECORD_BYTES + 3) + 1_024);
    out.extend_from_slice(MAGIC);
    for number in [records.len(), filter.words().len(), pages.len()] {
        let number = u64::try_from(number).map_err(|_| Error::corrupt("a blob of keys"))?;
        out.extend_from_slice(&number.to_be_bytes());
    }
    seal(&mut out, 0);
    let index_at = out.len();
    filter.words().iter().for_each(|word| out.extend_from_slice(&word.to_be_bytes()));
    for page in pages.clone() {
        let first = page.first().map_or(0, |record| record.key.hi);
        out.extend_from_slice(&first.to_be_bytes());
    }
    seal(&mut out, index_at);
    for page in pages {
        let page_at = out.len();
        for Record { key, event } in page {
            for number in [key.hi, key.lo, event.content, event.seq] {
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
        seal(&mut out, page_at);
    }
    Ok(out.into())
}

/// Appends the checksum of the bytes written since `from`.
fn seal(out: &mut Vec<u8>, from: usize) {
    let sum = crc32c::crc32c(&out[from..]);
    out.extend_from_slice(&sum.to_be_bytes());
}

impl Segment {
    pub(super) async fn open(blobs: &dyn BlobStore, name: BlobName) -> Result<Self> {
        let header = read(blobs, &name, 0..HEADER_BYTES).await?;
        let rest = header.strip_prefix(MAGIC).ok_or_else(|| damaged(&name))?;
        let mut numbers = rest.chunks_exact(8).map(number_of);
        let (Some(keys), Some(words), Some(pages)) =
            (numbers.next(), numbers.next(), numbers.next())
        else {
            return Err(damaged(&name));
        };
        let (keys, words, pages) =
            (keys.cast_unsigned(), words.cast_unsigned(), pages.cast_unsigned());
        if keys > KEYS_MAX || words > KEYS_MAX || pages > KEYS_MAX {
            return Err(damaged(&name));
        }
        let pages_at = HEADER_BYTES + 8 * (words + pages) + 4;
        let index = read(blobs, &name, HEADER_BYTES..pages_at).await?;
        let mut numbers = index.chunks_exact(8).map(number_of);
        let words: Vec<u64> =
            (0..words).map_while(|_| numbers.next()).map(i64::cast_unsigned).collect();
        let firsts: Vec<i64> = numbers.collect();
        let filter = Filter::from_words(words).ok_or_else(|| damaged(&name))?;
        Ok(Self { name, keys, filter, firsts, pages_at })
    }

    pub(super) fn may_hold(&self, key: Key) -> bool {
        self.keys > 0 && self.filter.may_hold(key)
    }

    pub(super) async fn find(&self, blobs: &dyn BlobStore, key: Key) -> Result<Option<Record>> {
        // Keys with the same first half may lie on both sides of a page boundary.
        let first = self.firsts.partition_point(|first| *first < key.hi).saturating_sub(1);
        for page in first..self.firsts.len() {
            if self.firsts[page] > key.hi {
                break;
            }
            if let Some(record) = self.find_in_page(blobs, page, key).await? {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// The records between two first halves of keys, both inclusive, and possibly a few around them.
    pub(super) async fn read(
        &self,
        blobs: &dyn BlobStore,
        first: i64,
        last: i64,
    ) -> Result<Vec<Record>> {
        let from = self.firsts.partition_point(|page| *page < first).saturating_sub(1);
        let to = self.firsts.partition_point(|page| *page <= last);
        if from < to { self.read_pages(blobs, from..to).await } else { Ok(Vec::new()) }
    }

    async fn find_in_page(
        &self,
        blobs: &dyn BlobStore,
        page: usize,
        key: Key,
    ) -> Result<Option<Record>> {
        let records = self.read_pages(blobs, page..page + 1).await?;
        Ok(records.into_iter().find(|record| record.key == key))
    }

    async fn read_pages(&self, blobs: &dyn BlobStore, pages: Range<usize>) -> Result<Vec<Record>> {
        let number = |count: usize| u64::try_from(count).unwrap_or(u64::MAX);
        let end = |page: usize| {
            let records = self.keys.min(number(page * RECORDS_PER_PAGE));
            self.pages_at + records * number(RECORD_BYTES) + number(page * SUM_BYTES)
        };
        let bytes = part(blobs, &self.name, end(pages.start)..end(pages.end)).await?;
        let name = self.name.clone();
        let decode = move || records(&bytes).ok_or_else(|| damaged(&name));
        if pages.len() > PAGES_INLINE { logmill_io::compute(decode).await } else { decode() }
    }
}

/// The records of whole pages; `None` if one of them is damaged.
fn records(pages: &[u8]) -> Option<Vec<Record>> {
    let mut records = Vec::with_capacity(pages.len() / RECORD_BYTES);
    for page in pages.chunks(PAGE_BYTES) {
        records.extend(checked(page)?.chunks_exact(RECORD_BYTES).map(|record| {
            let mut numbers = record.chunks_exact(8).map(number_of);
            let mut next = || numbers.next().unwrap_or_default();
            let key = Key { hi: next(), lo: next() };
            Record { key, event: RecordedEvent { content: next(), seq: next() } }
        }));
    }
    Some(records)
}

/// Reads a part that ends with its checksum; returns it without.
async fn read(blobs: &dyn BlobStore, name: &BlobName, range: Range<u64>) -> Result<Bytes> {
    let bytes = part(blobs, name, range).await?;
    let length = checked(&bytes).ok_or_else(|| damaged(name))?.len();
    Ok(bytes.slice(..length))
}

async fn part(blobs: &dyn BlobStore, name: &BlobName, range: Range<u64>) -> Result<Bytes> {
    let found = blobs.get_range(name, range).await?;
    found.ok_or_else(|| Error::corrupt(format!("the blob {} of keys is missing", name.as_str())))
}

/// The bytes before the checksum at the end; `None` if it does not match.
fn checked(bytes: &[u8]) -> Option<&[u8]> {
    let (part, sum) = bytes.split_at_checked(bytes.len().checked_sub(SUM_BYTES)?)?;
    (crc32c::crc32c(part).to_be_bytes() == sum).then_some(part)
}

fn number_of(bytes: &[u8]) -> i64 {
    let mut number = [0; 8];
    number.copy_from_slice(bytes);
    i64::from_be_bytes(number)
}

fn damaged(name: &BlobName) -> Error {
    Error::corrupt(format!("the blob {} of keys is damaged", name.as_str()))
}
