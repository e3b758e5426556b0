//! Picks a few logs from a page without opening all of it.
//!
//! A rare term has one log on a page. Opening the page would decode 127 others; picking skips their numbers and
//! decodes only the requested logs.
//!
//! Guarantees: for a page that opens, returns what [`super::PageView`] would; for other bytes, an error or whatever
//! could be read, never a panic. Leaves to others: pages of which many logs are needed.

use alloy_primitives::{Address, B256, Bytes};

use super::view::{FilterTerms, Header, unpack};
use super::{NARROW_TERMS_MAX, REFS};
use crate::codec::{Reader, as_u64, to_usize};
use crate::error::{Error, Result};
use crate::types::{BLOCK_DATA_BYTES_MAX, BlockLog, BlockRange, Log, TOPICS_MAX, Topics};
use crate::words;

const WORD: usize = 32;

/// Which logs to pick from a page.
#[derive(Debug)]
pub(crate) struct LogSelection<'w> {
    /// Positions on the page, ascending.
    pub(crate) positions: &'w [usize],
    /// Number of logs that the page must have.
    pub(crate) logs: usize,
    /// Only logs of these blocks.
    pub(crate) blocks: &'w BlockRange,
    /// Only logs after this block and log index.
    pub(crate) after: Option<(u64, u32)>,
}

/// A picked log under construction.
#[derive(Clone, Copy, Debug, Default)]
struct PickedLog {
    position: usize,
    block: usize,
    block_number: u64,
    timestamp: u64,
    tx: usize,
    tx_index: u32,
    log_index: u32,
    topics: usize,
    refs: [usize; REFS],
}

/// Appends the requested logs that match.
pub(crate) fn pick(
    page: &bytes::Bytes,
    wanted: &LogSelection<'_>,
    terms: &FilterTerms,
    out: &mut Vec<Log>,
) -> Result<()> {
    let header = Header::read(page)?;
    if header.logs != wanted.logs || wanted.positions.last().is_some_and(|p| *p >= header.logs) {
        return Err(Error::corrupt("a page does not fit its directory"));
    }
    let packed = unpack(header.stored(page)?, header.packed)?;
    let mut columns = Reader::new(&packed);
    let mut picked: Vec<PickedLog> = wanted
        .positions
        .iter()
        .map(|position| PickedLog { position: *position, ..PickedLog::default() })
        .collect();
    let starts = read_blocks(&mut columns, &header, &mut picked)?;
    read_txs(&mut columns, &header, &starts, &mut picked)?;
    read_log_indexes(&mut columns, &header, &starts, &mut picked)?;
    read_refs(&mut columns, &header, &mut picked)?;
    picked.retain(|log| {
        wanted.blocks.contains(&log.block_number)
            && wanted.after.is_none_or(|after| (log.block_number, log.log_index) > after)
    });
    retain_matching(&mut picked, page, &header, terms);
    if picked.is_empty() {
        return Ok(());
    }
    let data = read_data(&mut columns, &header, &picked)?;
    for (log, data) in picked.iter().zip(data) {
        out.push(whole(page, &header, log, data));
    }
    Ok(())
}

/// Finds the block of each picked log; returns where the logs of each block start.
fn read_blocks(
    columns: &mut Reader<'_>,
    header: &Header,
    picked: &mut [PickedLog],
) -> Result<Vec<usize>> {
    let mut starts = Vec::with_capacity(header.blocks);
    let (mut number, mut timestamp, mut at, mut next) = (0_u64, 0, 0_usize, 0);
    for block in 0..header.blocks {
        number = number.wrapping_add(columns.varint()?);
        timestamp = columns.offset_from(timestamp)?;
        starts.push(at);
        at = at.saturating_add(to_usize(columns.varint()?)?);
        while let Some(log) = picked.get_mut(next).filter(|log| log.position < at) {
            (log.block, log.block_number, log.timestamp) = (block, number, timestamp);
            next += 1;
        }
    }
    if next != picked.len() || at != header.logs {
        return Err(Error::corrupt("the logs of a page's blocks do not add up"));
    }
    Ok(starts)
}

fn read_txs(
    columns: &mut Reader<'_>,
    header: &Header,
    starts: &[usize],
    picked: &mut [PickedLog],
) -> Result<()> {
    let (mut index, mut at, mut next, mut block) = (0_u32, 0_usize, 0, 0);
    for tx in 0..header.txs {
        let gap = columns.varint32()?;
        if starts.get(block).is_some_and(|start| *start == at) {
            index = gap;
            block += 1;
        } else {
            index = index.wrapping_add(gap);
        }
        at = at.saturating_add(to_usize(columns.varint()?)?);
        while let Some(log) = picked.get_mut(next).filter(|log| log.position < at) {
            (log.tx, log.tx_index) = (tx, index);
            next += 1;
        }
    }
    if next != picked.len() || at != header.logs {
        return Err(Error::corrupt("the logs of a page's transactions do not add up"));
    }
    Ok(())
}

fn read_log_indexes(
    columns: &mut Reader<'_>,
    header: &Header,
    starts: &[usize],
    picked: &mut [PickedLog],
) -> Result<()> {
    let (mut index, mut block, mut next) = (0_u32, 0, 0);
    for position in 0..header.logs {
        let gap = columns.varint32()?;
        if starts.get(block) == Some(&position) {
            index = gap;
            block += 1;
        } else {
            index = index.wrapping_add(gap).wrapping_add(1);
        }
        if let Some(log) = picked.get_mut(next).filter(|log| log.position == position) {
            log.log_index = index;
            next += 1;
        }
    }
    Ok(())
}

fn read_refs(columns: &mut Reader<'_>, header: &Header, picked: &mut [PickedLog]) -> Result<()> {
    let counts = columns.take(header.logs)?;
    let has = |count: u8, column: usize| usize::from(count) >= column;
    for log in picked.iter_mut() {
        log.topics = usize::from(counts[log.position]);
        if log.topics > TOPICS_MAX {
            return Err(Error::corrupt(format!("a log of {} topics", log.topics)));
        }
    }
    let width = if header.terms.len() <= NARROW_TERMS_MAX { 1 } else { 2 };
    for column in 0..REFS {
        let entries = counts.iter().filter(|count| has(**count, column)).count();
        let references = columns.take(entries * width)?;
        for log in picked.iter_mut().filter(|log| log.topics >= column) {
            let before = counts[..log.position].iter().filter(|count| has(**count, column));
            let at = before.count() * width;
            let high = if width == 2 { references[at + 1] } else { 0 };
            log.refs[column] = usize::from(u16::from_le_bytes([references[at], high]));
            if log.refs[column] >= header.terms.len() {
                return Err(Error::corrupt("a log refers to a missing term"));
            }
        }
    }
    Ok(())
}

fn retain_matching(picked: &mut Vec<PickedLog>, page: &[u8], header: &Header, terms: &FilterTerms) {
    picked.retain(|log| {
        log.topics >= terms.topics_min
            && terms.clauses.iter().all(|(column, wanted)| {
                let term = header.term(page, log.refs[*column]);
                wanted.iter().any(|wanted| wanted == term)
            })
    });
}

/// Decodes the data of each picked log.
fn read_data(
    columns: &mut Reader<'_>,
    header: &Header,
    picked: &[PickedLog],
) -> Result<Vec<Bytes>> {
    let last = picked.last().map_or(0, |log| log.position);
    let mut lengths = Vec::with_capacity(header.logs);
    for _ in 0..header.logs {
        lengths.push(columns.count(BLOCK_DATA_BYTES_MAX)?);
    }
    let mut data = Vec::with_capacity(picked.len());
    for (position, length) in lengths.iter().enumerate().take(last + 1) {
        let is_wanted = picked.get(data.len()).is_some_and(|log| log.position == position);
        if !is_wanted {
            words::skip(columns, *length)?;
            continue;
        }
        // The encoding bounds the length, but only after it has been skipped once.
        words::skip(&mut columns.clone(), *length)?;
        let mut bytes = Vec::with_capacity(*length);
        words::decode(columns, *length, &mut bytes)?;
        data.push(Bytes::from(bytes));
    }
    if data.len() != picked.len() {
        return Err(Error::corrupt(format!("data of {} logs", as_u64(data.len()))));
    }
    Ok(data)
}

fn whole(page: &[u8], header: &Header, log: &PickedLog, data: Bytes) -> Log {
    let hash = |at: usize, number: usize| {
        B256::from_slice(&page[at + number * WORD..at + (number + 1) * WORD])
    };
    let word = |reference: usize| {
        let term = header.term(page, reference);
        let mut word = B256::ZERO;
        word[WORD - term.len()..].copy_from_slice(term);
        word
    };
    let topics = &log.refs[1..=log.topics];
    Log {
        block_number: log.block_number,
        block_hash: hash(header.block_hashes_at, log.block),
        block_timestamp: log.timestamp,
        log: BlockLog {
            address: Address::from_word(word(log.refs[0])),
            topics: topics.iter().map(|reference| word(*reference)).collect::<Topics>(),
            data,
            transaction_hash: hash(header.tx_hashes_at, log.tx),
            transaction_index: log.tx_index,
            log_index: log.log_index,
        },
    }
}
