//! One era1 file: the positions of its blocks, and the check of its accumulator.
//!
//! ```text
//! Version │ (Header │ Body │ Receipts │ TotalDifficulty)* │ other* │ Accumulator │ BlockIndex
//! BlockIndex data: first number u64 │ offset i64 each, from the index entry back │ count u64
//! ```
//!
//! Guarantees: the accumulator of a [`CheckedFile`] follows from its blocks and matches its name; its headers
//! link, and its difficulties add up. It returns only these blocks. Leaves to others: other files.

use std::ops::Range;
use std::path::Path;

use alloy_primitives::{B256, U256};
use logmill_io::file::ReadFile;

use super::accumulator::{BLOCKS_MAX, HeaderRecord, accumulator};
use super::decode;
use super::entry::{
    self, ACCUMULATOR, BLOCK_INDEX, ENTRY_BYTES_MAX, EntryHead, HEAD_BYTES, HEADER,
    TOTAL_DIFFICULTY, VERSION, corrupt,
};
use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};

/// Maximum size of a block in a file: its entries with their heads.
const BLOCK_BYTES_MAX: u64 = 3 * (ENTRY_BYTES_MAX as u64) + 128;
/// Bytes that are read to get the header of a block.
const HEADER_READ_BYTES: u64 = 1 << 10;
/// Size of an entry with one word.
const WORD_ENTRY_BYTES: u64 = 8 + 32;

/// A parsed file name: `mainnet-00000-5ec1ffb8.era1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileName {
    pub(super) network: String,
    root: [u8; 4],
}

impl FileName {
    pub(super) fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_suffix(".era1")?;
        let (rest, root) = name.rsplit_once('-')?;
        let (network, number) = rest.rsplit_once('-')?;
        let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let root = u32::from_str_radix(root, 16).ok().filter(|_| root.len() == 8)?;
        is_number.then(|| Self { network: network.to_owned(), root: root.to_be_bytes() })
    }
}

/// The numbers of a file's blocks; reads only the end of the file.
pub(super) fn range(file: &ReadFile) -> Result<Range<u64>> {
    let index = find_index(file)?;
    let first = word(file, index.at + 8)?;
    let end = first.checked_add(index.count);
    let end = end.ok_or_else(|| corrupt(file.path(), index.at, "the block numbers overflow"))?;
    Ok(first..end)
}

#[derive(Clone, Debug)]
pub(super) struct CheckedFile {
    file: ReadFile,
    first: u64,
    /// Offset of each block, and the upper bound of the last block's end.
    offsets: Vec<u64>,
    hashes: Vec<B256>,
    last: BlockRef,
}

impl CheckedFile {
    /// Reads and checks the index, all headers and all total difficulties. Blocks on the disk.
    pub(super) fn open(file: ReadFile, name: Option<&FileName>) -> Result<Self> {
        check_version(&file)?;
        let (first, offsets, accumulator_at) = read_index(&file)?;
        let mut records = Vec::with_capacity(offsets.len());
        let mut last = BlockRef::default();
        let mut total: Option<U256> = None;
        for (number, bounds) in (first..).zip(offsets.windows(2)) {
            let &[start, end] = bounds else { continue };
            let is_last = end == accumulator_at;
            let (header, total_difficulty) = read_head(&file, start, end, is_last)?;
            let wrong = |what: &str| corrupt(file.path(), start, format!("block {number}: {what}"));
            if header.fields.number != number {
                return Err(wrong("its header has another number"));
            }
            let at = BlockRef {
                number,
                hash: header.hash,
                parent_hash: header.fields.parent_hash,
                timestamp: header.fields.timestamp,
            };
            let sum = total.map(|total| total.checked_add(header.fields.difficulty));
            if total.is_some() && last.hash != at.parent_hash {
                return Err(wrong("it does not link to the block before it"));
            }
            if sum.is_some_and(|sum| sum != Some(total_difficulty)) {
                return Err(wrong("its total difficulty does not add up"));
            }
            total = Some(total_difficulty);
            last = at;
            records.push(HeaderRecord { hash: header.hash, total_difficulty });
        }
        let root = read_accumulator(&file, accumulator_at)?;
        let computed = accumulator(&records);
        if computed != root || name.is_some_and(|name| name.root != computed[..4]) {
            let what =
                format!("the accumulator of its blocks is {computed}, but the file states {root}");
            return Err(corrupt(file.path(), accumulator_at, what));
        }
        let hashes = records.into_iter().map(|record| record.hash).collect();
        Ok(Self { file, first, offsets, hashes, last })
    }

    pub(super) fn last(&self) -> BlockRef {
        self.last
    }

    pub(super) fn number_of(&self, hash: B256) -> Option<u64> {
        let at = self.hashes.iter().position(|known| *known == hash)?;
        Some(self.first + u64::try_from(at).ok()?)
    }

    /// Splits a range into batches of at most `blocks` blocks and, unless a batch has one block, `bytes` bytes.
    pub(super) fn batches(&self, range: Range<u64>, blocks: u64, bytes: u64) -> Vec<Range<u64>> {
        let mut batches = Vec::new();
        let mut start = range.start;
        for number in range.clone() {
            let long = number - start >= blocks;
            let large = self.offset(number + 1).saturating_sub(self.offset(start)) > bytes;
            if number > start && (long || large) {
                batches.push(start..number);
                start = number;
            }
        }
        if start < range.end {
            batches.push(start..range.end);
        }
        batches
    }

    /// Reads and verifies blocks, which must be in this file. Blocks on the disk.
    pub(super) fn read(&self, range: Range<u64>) -> Vec<Result<Block>> {
        let (start, end) = (self.offset(range.start), self.offset(range.end));
        let bytes = match read(&self.file, start, end.saturating_sub(start)) {
            Ok(bytes) => bytes,
            Err(error) => return vec![Err(error)],
        };
        let mut blocks = Vec::new();
        for number in range {
            let at = self.offset(number);
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let to = usize::try_from(self.offset(number + 1) - start).unwrap_or(usize::MAX);
            let is_last = number == self.last.number;
            let decoded = decode::block(bytes.get(from..to).unwrap_or_default(), is_last);
            let decoded = decoded.and_then(|block| self.expected(number, block));
            let decoded = decoded
                .map_err(|what| corrupt(self.file.path(), at, format!("block {number}: {what}")));
            let failed = decoded.is_err();
            blocks.push(decoded);
            if failed {
                break;
            }
        }
        blocks
    }

    fn expected(&self, number: u64, block: Block) -> Result<Block, String> {
        let at = usize::try_from(number - self.first).ok();
        if at.and_then(|at| self.hashes.get(at)) != Some(&block.at.hash) {
            return Err("the accumulator has another block".to_owned());
        }
        Ok(block)
    }

    fn offset(&self, number: u64) -> u64 {
        let at = usize::try_from(number.saturating_sub(self.first)).ok();
        let offset = at.and_then(|at| self.offsets.get(at)).or(self.offsets.last());
        offset.copied().unwrap_or(0)
    }
}

/// Position of the index entry, and its number of blocks.
struct IndexPosition {
    at: u64,
    count: u64,
}

fn find_index(file: &ReadFile) -> Result<IndexPosition> {
    let end = file.bytes();
    let wrong = |what: &str| corrupt(file.path(), end, what);
    let count_at = end.checked_sub(8).ok_or_else(|| wrong("the file is too short"))?;
    let count = word(file, count_at)?;
    let is_possible = usize::try_from(count).is_ok_and(|count| (1..=BLOCKS_MAX).contains(&count));
    if !is_possible {
        return Err(wrong("the file does not end with the number of its blocks"));
    }
    let length = 16 + 8 * count;
    let at =
        end.checked_sub(8 + length).ok_or_else(|| wrong("the index is larger than the file"))?;
    let head = head(file, at)?;
    let expected = usize::try_from(length).unwrap_or(usize::MAX);
    if head != (EntryHead { kind: BLOCK_INDEX, length: expected }) {
        return Err(corrupt(file.path(), at, "the block index is missing"));
    }
    Ok(IndexPosition { at, count })
}

/// Returns the first block number, the offsets of the blocks with the end of the last, and the offset of the
/// accumulator.
fn read_index(file: &ReadFile) -> Result<(u64, Vec<u64>, u64)> {
    let IndexPosition { at, count } = find_index(file)?;
    let range = range(file)?;
    let words = read(file, at + 16, 8 * count)?;
    let accumulator_at = at.checked_sub(WORD_ENTRY_BYTES);
    let accumulator_at = accumulator_at
        .ok_or_else(|| corrupt(file.path(), at, "there is no room for the accumulator"))?;
    // The blocks follow each other, after the version entry.
    let mut before = 0;
    let mut offsets = Vec::new();
    for word in words.chunks_exact(8) {
        let back = i64::from_le_bytes(word.try_into().unwrap_or_default());
        let offset = at.checked_add_signed(back).filter(|offset| *offset >= before + 8);
        let offset = offset.filter(|offset| *offset < accumulator_at);
        let Some(offset) = offset else {
            return Err(corrupt(file.path(), at, "the block offsets are not in order"));
        };
        if !offsets.is_empty() && offset - before > BLOCK_BYTES_MAX {
            return Err(corrupt(file.path(), before, "a block is too large"));
        }
        offsets.push(offset);
        before = offset;
    }
    if accumulator_at - before > BLOCK_BYTES_MAX {
        return Err(corrupt(file.path(), before, "a block is too large"));
    }
    offsets.push(accumulator_at);
    Ok((range.start, offsets, accumulator_at))
}

fn check_version(file: &ReadFile) -> Result<()> {
    let head = head(file, 0)?;
    if head != (EntryHead { kind: VERSION, length: 0 }) {
        return Err(corrupt(file.path(), 0, "the file does not start with a version entry"));
    }
    Ok(())
}

fn read_accumulator(file: &ReadFile, at: u64) -> Result<B256> {
    let bytes = read(file, at, WORD_ENTRY_BYTES)?;
    let root = entry::take(&mut &bytes[..], ACCUMULATOR);
    let root = root.map_err(|what| corrupt(file.path(), at, what))?;
    B256::try_from(root)
        .map_err(|_| corrupt(file.path(), at, "the accumulator does not have 32 bytes"))
}

/// Reads the header and the total difficulty of the block between two offsets.
fn read_head(
    file: &ReadFile,
    start: u64,
    end: u64,
    is_last: bool,
) -> Result<(decode::RawHeader, U256)> {
    let wrong = |what: String| corrupt(file.path(), start, what);
    let mut bytes = read(file, start, HEADER_READ_BYTES.min(end - start))?;
    let head_bytes =
        bytes.first_chunk().copied().ok_or_else(|| wrong("a block is cut short".into()))?;
    let header_head = EntryHead::decode(head_bytes).map_err(wrong)?;
    let length = (HEAD_BYTES + header_head.length) as u64;
    if header_head.length > decode::HEADER_BYTES_MAX || length > end - start {
        return Err(wrong("a header is too large".to_owned()));
    }
    if length > HEADER_READ_BYTES {
        bytes = read(file, start, length)?;
    }
    let header = entry::take(&mut &bytes[..], HEADER).and_then(decode::header).map_err(wrong)?;
    let at = if is_last {
        // Other entries may follow it.
        let body_at = start + length;
        let receipts_at = body_at + 8 + head(file, body_at)?.length as u64;
        receipts_at + 8 + head(file, receipts_at)?.length as u64
    } else {
        end.saturating_sub(WORD_ENTRY_BYTES)
    };
    let word = read(file, at, WORD_ENTRY_BYTES)?;
    let total = entry::take(&mut &word[..], TOTAL_DIFFICULTY).and_then(decode::total_difficulty);
    Ok((header, total.map_err(|what| corrupt(file.path(), at, what))?))
}

fn head(file: &ReadFile, at: u64) -> Result<EntryHead> {
    let bytes = read(file, at, 8)?;
    let bytes: [u8; HEAD_BYTES] = bytes[..].try_into().unwrap_or_default();
    EntryHead::decode(bytes).map_err(|what| corrupt(file.path(), at, what))
}

fn word(file: &ReadFile, at: u64) -> Result<u64> {
    let bytes = read(file, at, 8)?;
    Ok(u64::from_le_bytes(bytes[..].try_into().unwrap_or_default()))
}

/// Reads within the file; a position beyond its end means that the file is corrupt.
fn read(file: &ReadFile, at: u64, length: u64) -> Result<bytes::Bytes> {
    let is_inside = at.checked_add(length).is_some_and(|end| end <= file.bytes());
    let length = usize::try_from(length).ok().filter(|_| is_inside);
    let Some(length) = length else {
        return Err(corrupt(file.path(), at, "an entry extends beyond the end of the file"));
    };
    file.read_at(at, length).map_err(Error::from)
}
