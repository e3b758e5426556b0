//! Pages: up to 128 logs in columns, with everything that an answer needs.
//!
//! A page holds the logs of some blocks, or a part of one block's logs, with the hashes of those blocks and
//! transactions, so that one read of some kilobytes yields complete logs. Addresses and topics are stored once per
//! page and referenced; data is stored without zeros ([`crate::words`]); lz4 compresses the repetitions that remain.
//!
//! Where pages end depends only on the blocks ([`PageBuilder::is_full`], [`PageBuilder::ends_after_block`]), and a
//! page does not contain its position in a chunk. So pages move unchanged from the tail into pieces and from pieces
//! into chunks, and a chunk has the same bytes regardless of how it was built.
//!
//! Guarantees: a page that [`PageView`] opens is the page that was written (CRC-32C); any other bytes are an error.
//! Leaves to others: ids ([`crate::section`]), and which pages to read ([`crate::query`]).
//!
//! Stored form: `docs/formats.md`, "Pages".

mod pick;
mod view;

use alloy_primitives::B256;
use alloy_primitives::map::B256Map;
use bytes::Bytes;

pub(crate) use pick::{LogSelection, pick};
pub(crate) use view::{FilterTerms, PageView};

use crate::codec::{as_u32, as_u64, put_varint, seal, zigzag};
use crate::types::{BlockLog, FinalizedBlock, TOPICS_MAX};
use crate::words;

pub(crate) const PAGE_LOGS_MAX: usize = 128;
/// A page with this many logs ends at the next end of a block.
const PAGE_LOGS_ENOUGH: usize = 64;
/// A page with this much data is complete, regardless of its number of logs.
const PAGE_DATA_BYTES_ENOUGH: usize = 64 << 10;
const PAGE_TERMS_MAX: usize = PAGE_LOGS_MAX * REFS;
/// References per log: an address and the topics.
const REFS: usize = 1 + TOPICS_MAX;
const VERSION: u8 = 1;
/// Up to this many terms, references take one byte.
const NARROW_TERMS_MAX: usize = 256;

/// Collects logs until they fill a page.
#[derive(Debug, Default)]
pub(crate) struct PageBuilder {
    first_block: u64,
    block_hashes: Vec<u8>,
    blocks: Vec<Head>,
    tx_hashes: Vec<u8>,
    txs: Vec<Head>,
    log_indexes: Vec<u8>,
    log_index_before: u32,
    topic_counts: Vec<u8>,
    refs: [Vec<u16>; REFS],
    terms: B256Map<u16>,
    term_bytes: Vec<u8>,
    data_lengths: Vec<u8>,
    data: Vec<u8>,
    data_bytes: usize,
}

/// A block or transaction within a page.
#[derive(Clone, Copy, Debug)]
struct Head {
    /// Number of the block, or index of the transaction.
    number: u64,
    /// Blocks only.
    timestamp: u64,
    /// Number of its logs on this page.
    logs: u64,
    /// Transactions only: whether it is the first of its block on this page.
    opens_block: bool,
}

impl PageBuilder {
    /// Number of logs.
    pub(crate) fn len(&self) -> usize {
        self.topic_counts.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of the first block with a log on this page.
    pub(crate) fn first_block(&self) -> u64 {
        self.first_block
    }

    /// Whether the page must end here, even in the middle of a block.
    pub(crate) fn is_full(&self) -> bool {
        self.len() >= PAGE_LOGS_MAX || self.data_bytes >= PAGE_DATA_BYTES_ENOUGH
    }

    /// Whether the page ends here if the block does.
    pub(crate) fn ends_after_block(&self) -> bool {
        self.len() >= PAGE_LOGS_ENOUGH
    }

    pub(crate) fn push(&mut self, block: &FinalizedBlock, log: &BlockLog) {
        let opens_block = self.blocks.last().is_none_or(|last| last.number != block.number);
        if opens_block {
            self.open_block(block);
        }
        self.count_transaction(log, opens_block);
        if let Some(block) = self.blocks.last_mut() {
            block.logs += 1;
        }
        let gap =
            if opens_block { log.log_index } else { log.log_index - self.log_index_before - 1 };
        put_varint(&mut self.log_indexes, u64::from(gap));
        self.log_index_before = log.log_index;
        self.topic_counts.push(u8::try_from(log.topics.len()).unwrap_or(u8::MAX));
        let address = self.term(log.address.into_word());
        self.refs[0].push(address);
        for (position, topic) in log.topics.iter().enumerate() {
            let term = self.term(*topic);
            self.refs[1 + position].push(term);
        }
        put_varint(&mut self.data_lengths, as_u64(log.data.len()));
        words::encode(&log.data, &mut self.data);
        self.data_bytes += log.data.len();
    }

    fn open_block(&mut self, block: &FinalizedBlock) {
        if self.blocks.is_empty() {
            self.first_block = block.number;
        }
        self.block_hashes.extend_from_slice(block.hash.as_slice());
        self.blocks.push(Head {
            number: block.number,
            timestamp: block.timestamp,
            logs: 0,
            opens_block: true,
        });
    }

    fn count_transaction(&mut self, log: &BlockLog, opens_block: bool) {
        let number = u64::from(log.transaction_index);
        match self.txs.last_mut() {
            Some(last) if !opens_block && last.number == number => last.logs += 1,
            _ => {
                self.tx_hashes.extend_from_slice(log.transaction_hash.as_slice());
                self.txs.push(Head { number, timestamp: 0, logs: 1, opens_block });
            }
        }
    }

    fn term(&mut self, term: B256) -> u16 {
        let next = u16::try_from(self.terms.len()).unwrap_or(u16::MAX);
        let term_bytes = &mut self.term_bytes;
        *self.terms.entry(term).or_insert_with(|| {
            let zeros = term.iter().take_while(|byte| **byte == 0).count();
            term_bytes.push(u8::try_from(term.len() - zeros).unwrap_or(u8::MAX));
            term_bytes.extend_from_slice(&term[zeros..]);
            next
        })
    }

    /// Encodes the page and keeps the builder's content.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let packed = self.packed();
        let compressed = lz4_flex::block::compress(&packed);
        let is_smaller = compressed.len() < packed.len();
        let stored = if is_smaller { &compressed } else { &packed };
        let fixed = self.block_hashes.len() + self.tx_hashes.len() + self.term_bytes.len();
        let mut out = Vec::with_capacity(fixed + stored.len() + 40);
        out.push(VERSION);
        let counts = [self.len(), self.blocks.len(), self.txs.len(), self.terms.len()];
        counts.iter().for_each(|count| put_varint(&mut out, as_u64(*count)));
        put_varint(&mut out, as_u64(packed.len()));
        put_varint(&mut out, as_u64(stored.len()));
        out.extend_from_slice(&self.block_hashes);
        out.extend_from_slice(&self.tx_hashes);
        out.extend_from_slice(&self.term_bytes);
        out.extend_from_slice(stored);
        seal(&mut out, 0);
        Bytes::from(out)
    }

    /// The columns that are worth compressing.
    fn packed(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.data.len() + self.len() * 16);
        let mut before = Head { number: 0, timestamp: 0, logs: 0, opens_block: false };
        for block in &self.blocks {
            put_varint(&mut out, block.number - before.number);
            let later = block.timestamp.wrapping_sub(before.timestamp);
            put_varint(&mut out, zigzag(later.cast_signed()));
            put_varint(&mut out, block.logs);
            before = *block;
        }
        let mut index_before = 0;
        for tx in &self.txs {
            put_varint(&mut out, if tx.opens_block { tx.number } else { tx.number - index_before });
            put_varint(&mut out, tx.logs);
            index_before = tx.number;
        }
        out.extend_from_slice(&self.log_indexes);
        out.extend_from_slice(&self.topic_counts);
        let narrow = self.terms.len() <= NARROW_TERMS_MAX;
        for column in &self.refs {
            for reference in column {
                let [low, high] = reference.to_le_bytes();
                out.push(low);
                if !narrow {
                    out.push(high);
                }
            }
        }
        out.extend_from_slice(&self.data_lengths);
        out.extend_from_slice(&self.data);
        out
    }

    /// Discards the content, for the next page.
    pub(crate) fn clear(&mut self) {
        self.block_hashes.clear();
        self.blocks.clear();
        self.tx_hashes.clear();
        self.txs.clear();
        self.log_indexes.clear();
        self.topic_counts.clear();
        self.refs.iter_mut().for_each(Vec::clear);
        self.terms.clear();
        self.term_bytes.clear();
        self.data_lengths.clear();
        self.data.clear();
        self.data_bytes = 0;
    }
}

/// An encoded page and its position.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Id of its first log, local to its section or chunk.
    pub(crate) first_id: u32,
    pub(crate) logs: u32,
    /// Block number of its first log.
    pub(crate) first_block: u64,
    pub(crate) bytes: Bytes,
}

impl PageBuilder {
    /// Like [`PageBuilder::to_bytes`], with the position.
    pub(crate) fn page(&self, first_id: u32) -> Page {
        let bytes = self.to_bytes();
        Page { first_id, logs: as_u32(self.len()), first_block: self.first_block(), bytes }
    }
}

#[cfg(test)]
mod tests;
