//! Sections: consecutive blocks that will become a chunk, and the rules where sections end.
//!
//! Log ids are local to a section and dense. Where pages, pieces and chunks end depends only on the blocks and on
//! [`Bounds`], never on time or on how blocks were grouped into commits; so the tail, a history worker and a merge
//! produce the same bytes.
//!
//! ```text
//!   cell   |------------------ 2^k blocks, aligned ------------------|
//!   chunk  |------ up to `chunk_logs` logs ------|--------- ---------|
//!   piece  |-- up to `piece_logs` --|------------|-----------|-------|
//! ```
//!
//! A piece or chunk ends where a page ends after a block. The end of a cell is always the end of a chunk.
//!
//! Guarantees: [`Content::concat`] of pieces equals one section of all their blocks. Leaves to others: the order and
//! linkage of blocks ([`crate::tail`]).

use std::fmt;

use alloy_primitives::B256;

use crate::codec::{as_u32, as_u64};
use crate::error::{Error, Result};
use crate::page::{Page, PageBuilder};
use crate::term::{Fingerprint, ID_MAX, Kind};
use crate::types::{BLOCK_LOGS_MAX, BlockLog, BlockRange, FinalizedBlock};

/// A chunk with this many bytes of pages ends, regardless of its number of logs.
const CHUNK_PAGE_BYTES_ENOUGH: u64 = 256 << 20;

/// Limits that decide where sections end; see [`crate::Settings`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// A power of two.
    pub(crate) cell_blocks: u64,
    /// A chunk with this many logs ends.
    pub(crate) chunk_logs: u32,
    /// A piece with this many logs ends.
    pub(crate) piece_logs: u32,
}

impl fmt::Display for Bounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cell_blocks, chunk_logs, piece_logs } = self;
        write!(
            f,
            "cell_blocks = {cell_blocks}, chunk_logs = {chunk_logs}, piece_logs = {piece_logs}"
        )
    }
}

impl Bounds {
    /// Maximum of `chunk_logs`: one more block must still fit into the local ids.
    pub(crate) fn chunk_logs_max() -> u32 {
        ID_MAX - as_u32(BLOCK_LOGS_MAX)
    }
}

/// Whether a section continues after a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Open,
    /// A piece ends here, but its chunk continues.
    Piece,
    Chunk,
}

/// Size of the part of a chunk that lies before a section.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ChunkPrefix {
    pub(crate) logs: u32,
    pub(crate) page_bytes: u64,
}

/// The fields of a block that a chunk keeps beside its logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BlockRow {
    pub(crate) hash: B256,
    pub(crate) timestamp: u64,
    pub(crate) logs: u32,
}

/// A section under construction.
#[derive(Debug)]
pub(crate) struct Section {
    bounds: Bounds,
    before: ChunkPrefix,
    next_block: u64,
    next_id: u32,
    page_bytes: u64,
    open: PageBuilder,
    open_first_id: u32,
    fresh: Run,
}

/// What a section gained since the last [`Section::take_run`].
#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) blocks: Vec<BlockRow>,
    pub(crate) pages: Vec<Page>,
    pub(crate) entries: Vec<u64>,
}

impl Section {
    /// An empty section that starts at `first_block`; `before` is the part of its chunk before it.
    pub(crate) fn new(bounds: Bounds, first_block: u64, before: ChunkPrefix) -> Self {
        Self {
            bounds,
            before,
            next_block: first_block,
            next_id: 0,
            page_bytes: 0,
            open: PageBuilder::default(),
            open_first_id: 0,
            fresh: Run::default(),
        }
    }

    /// Number of logs.
    pub(crate) fn logs(&self) -> u32 {
        self.next_id
    }

    /// Size of the chunk including this section, which must have ended.
    pub(crate) fn before_next(&self) -> ChunkPrefix {
        ChunkPrefix {
            logs: self.before.logs + self.next_id,
            page_bytes: self.before.page_bytes + self.page_bytes,
        }
    }

    /// Adds the next block, and tells whether the section ends after it.
    pub(crate) fn push(&mut self, block: &FinalizedBlock) -> End {
        debug_assert_eq!(block.number, self.next_block, "blocks must come in order");
        let hash = Fingerprint::of_word(Kind::Block, &block.hash);
        self.fresh.entries.push(hash.entry(self.next_id));
        let mut tx_before = None;
        for log in &block.logs {
            if tx_before != Some(log.transaction_index) {
                let tx = Fingerprint::of_word(Kind::Transaction, &log.transaction_hash);
                self.fresh.entries.push(tx.entry(self.next_id));
                tx_before = Some(log.transaction_index);
            }
            self.push_log(block, log);
        }
        let logs = as_u32(block.logs.len());
        let row = BlockRow { hash: block.hash, timestamp: block.timestamp, logs };
        self.fresh.blocks.push(row);
        self.next_block = block.number + 1;
        self.end_after_block()
    }

    fn push_log(&mut self, block: &FinalizedBlock, log: &BlockLog) {
        let id = self.next_id;
        let entries = &mut self.fresh.entries;
        entries.push(Fingerprint::of_address(&log.address).entry(id));
        for (position, topic) in (0_u8..).zip(&log.topics) {
            entries.push(Fingerprint::of_word(Kind::Topic(position), topic).entry(id));
        }
        self.open.push(block, log);
        self.next_id += 1;
        if self.open.is_full() {
            self.cut_page();
        }
    }

    fn cut_page(&mut self) {
        let page = self.open.page(self.open_first_id);
        self.page_bytes += as_u64(page.bytes.len());
        self.fresh.pages.push(page);
        self.open.clear();
        self.open_first_id = self.next_id;
    }

    fn end_after_block(&mut self) -> End {
        let cell_ends = self.next_block.is_multiple_of(self.bounds.cell_blocks);
        if cell_ends && !self.open.is_empty() || self.open.ends_after_block() {
            self.cut_page();
        }
        if cell_ends {
            return End::Chunk;
        }
        if !self.open.is_empty() {
            return End::Open;
        }
        let so_far = self.before_next();
        let chunk_full = so_far.logs >= self.bounds.chunk_logs;
        if chunk_full || so_far.page_bytes >= CHUNK_PAGE_BYTES_ENOUGH {
            return End::Chunk;
        }
        if self.next_id >= self.bounds.piece_logs { End::Piece } else { End::Open }
    }

    /// The unfinished page, as it is now.
    pub(crate) fn open_page(&self) -> Option<Page> {
        (!self.open.is_empty()).then(|| self.open.page(self.open_first_id))
    }

    /// Everything since the last call, with sorted entries. Logs of the open page already have entries.
    pub(crate) fn take_run(&mut self) -> Run {
        let mut run = std::mem::take(&mut self.fresh);
        run.entries.sort_unstable();
        run.entries.dedup();
        run
    }

    /// Ends the section at any block.
    pub(crate) fn finish(mut self) -> Run {
        if !self.open.is_empty() {
            self.cut_page();
        }
        self.take_run()
    }
}

impl Run {
    /// Joins two consecutive runs.
    pub(crate) fn join(&self, next: &Self) -> Self {
        let mut entries = Vec::with_capacity(self.entries.len() + next.entries.len());
        entries.extend_from_slice(&self.entries);
        entries.extend_from_slice(&next.entries);
        // `sort` detects the two sorted parts and merges them; `sort_unstable` does not.
        entries.sort();
        Self {
            blocks: [&self.blocks[..], &next.blocks[..]].concat(),
            pages: [&self.pages[..], &next.pages[..]].concat(),
            entries,
        }
    }
}

/// Complete content of a piece or chunk, ready to be encoded.
#[derive(Debug)]
pub(crate) struct Content {
    pub(crate) first_block: u64,
    pub(crate) parent_hash: B256,
    pub(crate) run: Run,
}

impl Content {
    pub(crate) fn blocks(&self) -> BlockRange {
        self.first_block..self.first_block + as_u64(self.run.blocks.len())
    }

    /// Number of logs.
    pub(crate) fn logs(&self) -> u32 {
        self.run.pages.last().map_or(0, |page| page.first_id + page.logs)
    }

    /// Hash of the last block.
    pub(crate) fn last_hash(&self) -> B256 {
        self.run.blocks.last().map_or(self.parent_hash, |block| block.hash)
    }

    /// Concatenates consecutive pieces.
    pub(crate) fn concat(pieces: Vec<Self>) -> Result<Self> {
        let mut pieces = pieces.into_iter();
        let Some(mut all) = pieces.next() else {
            return Err(Error::Invalid { what: "nothing to merge".to_owned() });
        };
        // Reserve once: growing step by step would take twice the memory.
        let more: usize = pieces.as_slice().iter().map(|piece| piece.run.entries.len()).sum();
        all.run.entries.reserve_exact(more);
        for piece in pieces {
            if piece.first_block != all.blocks().end || piece.parent_hash != all.last_hash() {
                return Err(Error::corrupt(format!(
                    "the piece that starts at {} does not follow the previous one",
                    piece.first_block
                )));
            }
            let shift = all.logs();
            if shift.checked_add(piece.logs()).is_none_or(|logs| logs > ID_MAX) {
                return Err(Error::corrupt("the pieces have too many logs for one chunk"));
            }
            all.run.blocks.extend(piece.run.blocks);
            let shifted = |page: Page| Page { first_id: page.first_id + shift, ..page };
            all.run.pages.extend(piece.run.pages.into_iter().map(shifted));
            all.run.entries.extend(piece.run.entries.iter().map(|e| e + u64::from(shift)));
        }
        all.run.entries.sort();
        all.run.entries.dedup();
        Ok(all)
    }
}
