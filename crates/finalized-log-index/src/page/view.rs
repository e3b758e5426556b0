//! Opens a page: all checks happen once, then logs are read one by one.
//!
//! Guarantees: after [`PageView::open`] succeeds, reading cannot fail. For any input, opening neither panics nor
//! reads beyond the bytes, and allocates no more than a bound set by their length. Leaves to others: caching.

use std::borrow::Cow;

use alloy_primitives::{Address, B256, Bytes};

use super::{NARROW_TERMS_MAX, PAGE_LOGS_MAX, PAGE_TERMS_MAX, REFS, VERSION};
use crate::codec::{Reader, as_u32, to_usize, unseal};
use crate::error::{Error, Result};
use crate::filter::Filter;
use crate::types::{BLOCK_DATA_BYTES_MAX, BlockLog, Log, TOPICS_MAX, Topics};
use crate::words;

/// Maximum size of the packed columns of a page: one block's data and the small columns.
const PACKED_BYTES_MAX: usize = BLOCK_DATA_BYTES_MAX * 2;
const WORD: usize = 32;

#[derive(Debug)]
pub(crate) struct PageView {
    /// The page itself; hashes and terms are read in place.
    page: bytes::Bytes,
    header: Header,
    blocks: Vec<ViewBlock>,
    tx_indexes: Vec<u32>,
    logs: Vec<ViewLog>,
    /// The packed columns; data is read in place.
    packed: Vec<u8>,
}

/// Position of the significant bytes of a term.
#[derive(Clone, Copy, Debug)]
pub(super) struct TermAt {
    start: u32,
    length: u8,
}

#[derive(Clone, Copy, Debug)]
struct ViewBlock {
    number: u64,
    timestamp: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ViewLog {
    log_index: u32,
    block: u16,
    tx: u16,
    topics: u8,
    refs: [u16; REFS],
    data_length: u32,
    data_at: u32,
}

/// The part before the packed columns, with offsets.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) logs: usize,
    pub(super) blocks: usize,
    pub(super) txs: usize,
    /// Length of the packed columns after decompression.
    pub(super) packed: usize,
    stored_at: usize,
    stored: usize,
    pub(super) block_hashes_at: usize,
    pub(super) tx_hashes_at: usize,
    pub(super) terms: Vec<TermAt>,
}

impl Header {
    /// Checks a page and reads its header.
    pub(super) fn read(page: &[u8]) -> Result<Self> {
        let body = unseal(page)?;
        let mut reader = Reader::new(body);
        let version = reader.u8()?;
        if version != VERSION {
            return Err(Error::corrupt(format!("a page has the unknown version {version}")));
        }
        let logs = reader.count(PAGE_LOGS_MAX)?;
        let blocks = reader.count(logs)?;
        let txs = reader.count(logs)?;
        let term_count = reader.count(PAGE_TERMS_MAX)?;
        let packed = reader.count(PACKED_BYTES_MAX)?;
        let stored = reader.count(packed)?;
        let block_hashes_at = body.len() - reader.remaining();
        reader.take(blocks * WORD)?;
        let tx_hashes_at = body.len() - reader.remaining();
        reader.take(txs * WORD)?;
        let terms = read_term_places(&mut reader, body.len(), term_count)?;
        let stored_at = body.len() - reader.remaining();
        reader.take(stored)?;
        reader.end()?;
        Ok(Self {
            logs,
            blocks,
            txs,
            packed,
            stored_at,
            stored,
            block_hashes_at,
            tx_hashes_at,
            terms,
        })
    }

    /// The packed columns as stored, possibly compressed.
    pub(super) fn stored<'p>(&self, page: &'p [u8]) -> Result<&'p [u8]> {
        let stored = page.get(self.stored_at..self.stored_at + self.stored);
        stored.ok_or_else(|| Error::corrupt("a page is too short"))
    }

    /// The significant bytes of a term.
    pub(super) fn term<'p>(&self, page: &'p [u8], reference: usize) -> &'p [u8] {
        let TermAt { start, length } = self.terms[reference];
        let start = usize::try_from(start).unwrap_or(usize::MAX);
        &page[start..start + usize::from(length)]
    }
}

fn read_term_places(reader: &mut Reader<'_>, body: usize, count: usize) -> Result<Vec<TermAt>> {
    let bytes = reader.rest();
    let start = body - bytes.len();
    let mut terms = Vec::with_capacity(count);
    let mut at = 0;
    for _ in 0..count {
        let length = bytes.get(at).copied().unwrap_or(u8::MAX);
        if usize::from(length) > WORD {
            return Err(Error::corrupt(format!("a term has {length} bytes")));
        }
        terms.push(TermAt { start: as_u32(start + at + 1), length });
        at += 1 + usize::from(length);
    }
    reader.take(at)?;
    Ok(terms)
}

impl PageView {
    pub(crate) fn open(page: bytes::Bytes) -> Result<Self> {
        let header = Header::read(&page)?;
        let packed = unpack(header.stored(&page)?, header.packed)?.into_owned();
        let mut columns = Reader::new(&packed);
        let mut logs = vec![ViewLog::default(); header.logs];
        let blocks = read_blocks(&mut columns, header.blocks, &mut logs)?;
        let tx_indexes = read_txs(&mut columns, header.txs, &mut logs)?;
        read_log_indexes(&mut columns, &mut logs)?;
        read_terms(&mut columns, header.terms.len(), &mut logs)?;
        read_data(&mut columns, packed.len(), &mut logs)?;
        Ok(Self { header, blocks, tx_indexes, logs, packed, page })
    }

    /// Number of logs.
    pub(crate) fn len(&self) -> usize {
        self.logs.len()
    }

    /// Block number of a log.
    pub(crate) fn block_number(&self, position: usize) -> u64 {
        self.blocks[usize::from(self.logs[position].block)].number
    }

    /// Block number and log index, which order logs.
    pub(crate) fn place(&self, position: usize) -> (u64, u32) {
        (self.block_number(position), self.logs[position].log_index)
    }

    /// Transaction hash of a log.
    pub(crate) fn transaction_hash(&self, position: usize) -> B256 {
        self.hash_at(self.header.tx_hashes_at, self.logs[position].tx)
    }

    fn hash_at(&self, hashes_at: usize, number: u16) -> B256 {
        let start = hashes_at + usize::from(number) * WORD;
        B256::from_slice(&self.page[start..start + WORD])
    }

    fn term(&self, reference: u16) -> &[u8] {
        self.header.term(&self.page, usize::from(reference))
    }

    fn word(&self, reference: u16) -> B256 {
        let term = self.term(reference);
        let mut word = B256::ZERO;
        word[WORD - term.len()..].copy_from_slice(term);
        word
    }

    /// Appends complete logs. Their data shares one allocation.
    pub(crate) fn logs(&self, positions: &[usize], out: &mut Vec<Log>) {
        let lengths = positions.iter().map(|position| length_of(&self.logs[*position]));
        let mut data = Vec::with_capacity(lengths.sum());
        for position in positions {
            self.append_data(&self.logs[*position], &mut data);
        }
        let data = Bytes::from(data);
        let mut start = 0;
        out.reserve(positions.len());
        for position in positions {
            let log = &self.logs[*position];
            let end = start + length_of(log);
            let block = &self.blocks[usize::from(log.block)];
            out.push(Log {
                block_number: block.number,
                block_hash: self.hash_at(self.header.block_hashes_at, log.block),
                block_timestamp: block.timestamp,
                log: self.block_log(log, data.slice(start..end)),
            });
            start = end;
        }
    }

    fn block_log(&self, log: &ViewLog, data: Bytes) -> BlockLog {
        let topics = &log.refs[1..1 + usize::from(log.topics)];
        BlockLog {
            address: Address::from_word(self.word(log.refs[0])),
            topics: topics.iter().map(|term| self.word(*term)).collect::<Topics>(),
            data,
            transaction_hash: self.hash_at(self.header.tx_hashes_at, log.tx),
            transaction_index: self.tx_indexes[usize::from(log.tx)],
            log_index: log.log_index,
        }
    }

    fn append_data(&self, log: &ViewLog, out: &mut Vec<u8>) {
        let at = usize::try_from(log.data_at).unwrap_or(usize::MAX);
        // Opening the page has skipped it once, so it can be decoded.
        let decoded = words::decode(&mut Reader::new(&self.packed[at..]), length_of(log), out);
        debug_assert!(decoded.is_ok(), "opening the page has skipped it");
    }

    /// Retains the positions whose logs match.
    pub(crate) fn matching(&self, terms: &FilterTerms, positions: &mut Vec<usize>) {
        positions.retain(|position| usize::from(self.logs[*position].topics) >= terms.topics_min);
        for (column, wanted) in &terms.clauses {
            if positions.len() <= FEW_LOGS {
                positions.retain(|position| {
                    let term = self.term(self.logs[*position].refs[*column]);
                    wanted.iter().any(|wanted| wanted == term)
                });
            } else {
                let found: Vec<bool> = (0..self.header.terms.len())
                    .map(|reference| {
                        let term = self.term(u16::try_from(reference).unwrap_or(u16::MAX));
                        wanted.iter().any(|wanted| wanted == term)
                    })
                    .collect();
                positions.retain(|position| found[usize::from(self.logs[*position].refs[*column])]);
            }
        }
    }
}

/// For this many logs or fewer, comparing every term of the page is not worth it.
const FEW_LOGS: usize = 32;

fn length_of(log: &ViewLog) -> usize {
    usize::try_from(log.data_length).unwrap_or(usize::MAX)
}

/// The terms of a filter, encoded as in pages.
#[derive(Clone, Debug)]
pub(crate) struct FilterTerms {
    /// The column, and the significant bytes of each alternative.
    pub(super) clauses: Vec<(usize, Vec<Vec<u8>>)>,
    pub(super) topics_min: usize,
}

impl FilterTerms {
    pub(crate) fn of(filter: &Filter) -> Self {
        let significant =
            |word: &B256| word.iter().copied().skip_while(|byte| *byte == 0).collect::<Vec<u8>>();
        let mut clauses = Vec::with_capacity(REFS);
        if !filter.addresses.is_empty() {
            let wanted = filter.addresses.iter().map(|address| significant(&address.into_word()));
            clauses.push((0, wanted.collect()));
        }
        for (position, wanted) in filter.topics.iter().enumerate() {
            if !wanted.is_empty() {
                clauses.push((1 + position, wanted.iter().map(significant).collect()));
            }
        }
        Self { clauses, topics_min: filter.topics.len() }
    }
}

/// Decompresses the packed columns, unless they were stored plain.
pub(super) fn unpack(stored: &[u8], length: usize) -> Result<Cow<'_, [u8]>> {
    if stored.len() == length {
        return Ok(Cow::Borrowed(stored));
    }
    let unpacked = lz4_flex::block::decompress(stored, length)
        .map_err(|error| Error::corrupt(format!("cannot decompress a page: {error}")))?;
    if unpacked.len() != length {
        return Err(Error::corrupt(format!("a page of {} bytes, not {length}", unpacked.len())));
    }
    Ok(Cow::Owned(unpacked))
}

/// Returns the next `count` logs, at least one, which belong to one block or transaction.
fn assign<'l>(logs: &'l mut [ViewLog], at: &mut usize, count: u64) -> Result<&'l mut [ViewLog]> {
    let end = at.checked_add(to_usize(count)?).filter(|end| *end <= logs.len() && *end > *at);
    let Some(end) = end else {
        return Err(Error::corrupt("the logs of a page's blocks or transactions do not add up"));
    };
    let start = std::mem::replace(at, end);
    Ok(&mut logs[start..end])
}

fn all_assigned(logs: &[ViewLog], at: usize) -> Result<()> {
    if at == logs.len() {
        return Ok(());
    }
    Err(Error::corrupt("the logs of a page's blocks or transactions do not add up"))
}

fn read_blocks(
    reader: &mut Reader<'_>,
    count: usize,
    logs: &mut [ViewLog],
) -> Result<Vec<ViewBlock>> {
    let mut blocks: Vec<ViewBlock> = Vec::with_capacity(count);
    let mut at = 0;
    for position in 0..count {
        let before = blocks.last().copied().unwrap_or(ViewBlock { number: 0, timestamp: 0 });
        let gap = reader.varint()?;
        let number = before.number.checked_add(gap).filter(|_| gap > 0 || position == 0);
        let number = number.ok_or_else(|| Error::corrupt("a page's blocks are not in order"))?;
        let timestamp = reader.offset_from(before.timestamp)?;
        for log in assign(logs, &mut at, reader.varint()?)? {
            log.block = u16::try_from(position).unwrap_or(u16::MAX);
        }
        blocks.push(ViewBlock { number, timestamp });
    }
    all_assigned(logs, at)?;
    Ok(blocks)
}

fn read_txs(reader: &mut Reader<'_>, count: usize, logs: &mut [ViewLog]) -> Result<Vec<u32>> {
    let mut indexes: Vec<u32> = Vec::with_capacity(count);
    let mut at = 0;
    let mut block_before = None;
    for position in 0..count {
        let gap = reader.varint32()?;
        let assigned = assign(logs, &mut at, reader.varint()?)?;
        let block = assigned[0].block;
        if assigned.iter().any(|log| log.block != block) {
            return Err(Error::corrupt("a transaction is in two blocks"));
        }
        let opens_block = block_before != Some(block);
        let before = if opens_block { 0 } else { indexes.last().copied().unwrap_or(0) };
        let index = before.checked_add(gap).filter(|_| opens_block || gap > 0);
        let index =
            index.ok_or_else(|| Error::corrupt("a page's transactions are not in order"))?;
        for log in assigned {
            log.tx = u16::try_from(position).unwrap_or(u16::MAX);
        }
        indexes.push(index);
        block_before = Some(block);
    }
    all_assigned(logs, at)?;
    Ok(indexes)
}

fn read_log_indexes(reader: &mut Reader<'_>, logs: &mut [ViewLog]) -> Result<()> {
    let mut before: Option<ViewLog> = None;
    for log in logs {
        let gap = reader.varint32()?;
        let follows = before.filter(|before| before.block == log.block);
        let index = match follows {
            None => Some(gap),
            Some(before) => before.log_index.checked_add(1).and_then(|next| next.checked_add(gap)),
        };
        log.log_index = index.ok_or_else(|| Error::corrupt("a log index is too large"))?;
        before = Some(*log);
    }
    Ok(())
}

fn read_terms(reader: &mut Reader<'_>, term_count: usize, logs: &mut [ViewLog]) -> Result<()> {
    let counts = reader.take(logs.len())?;
    for (log, topics) in logs.iter_mut().zip(counts) {
        log.topics = *topics;
        if usize::from(log.topics) > TOPICS_MAX {
            return Err(Error::corrupt(format!("a log of {} topics", log.topics)));
        }
    }
    let width = if term_count <= NARROW_TERMS_MAX { 1 } else { 2 };
    for column in 0..REFS {
        let entries = counts.iter().filter(|topics| usize::from(**topics) >= column).count();
        let references = reader.take(entries * width)?.chunks_exact(width);
        let with_column = logs.iter_mut().filter(|log| usize::from(log.topics) >= column);
        for (log, bytes) in with_column.zip(references) {
            let high = bytes.get(1).copied().unwrap_or(0);
            let reference = u16::from_le_bytes([bytes[0], high]);
            if usize::from(reference) >= term_count {
                return Err(Error::corrupt("a log refers to a missing term"));
            }
            log.refs[column] = reference;
        }
    }
    Ok(())
}

fn read_data(reader: &mut Reader<'_>, packed: usize, logs: &mut [ViewLog]) -> Result<()> {
    for log in logs.iter_mut() {
        log.data_length = as_u32(reader.count(BLOCK_DATA_BYTES_MAX)?);
    }
    for log in logs.iter_mut() {
        log.data_at = as_u32(packed - reader.remaining());
        words::skip(reader, to_usize(u64::from(log.data_length))?)?;
    }
    reader.end()
}
