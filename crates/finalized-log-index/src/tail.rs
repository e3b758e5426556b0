//! The tail: finalized blocks that are not in a chunk yet, with an index over them in memory.
//!
//! It is a list of sections: the last one grows, the earlier ones are complete and wait to be sealed. A commit adds a
//! run of pages and sorted index entries; runs of similar size are joined, so that there are few. A [`TailView`]
//! shares them and never changes, so readers need no lock.
//!
//! Guarantees: the same blocks make the same sections, however they were grouped into commits. Leaves to others:
//! which blocks may be added ([`crate::writer`]), and storing them.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::B256;

use crate::body_keys::{BodyKeys, TailBodies};
use crate::chunk::pages_of_blocks;
use crate::codec::as_u64;
use crate::metric::Metrics;
use crate::page::Page;
use crate::records::tail_batch::TailBatch;
use crate::records::tail_state::TailState;
use crate::section::{BlockRow, Bounds, ChunkPrefix, Content, End, Run, Section};
use crate::term::{Fingerprint, entry_fingerprint, entry_id};
use crate::types::{BlockRange, FinalizedBlock};

/// A run is joined with the previous one unless that one is at least this many times larger.
const RUN_RATIO: usize = 2;

/// The tail in a process that writes or follows the index.
#[derive(Debug)]
pub(crate) struct Tail {
    bounds: Bounds,
    /// The stored state, or the state after the commit in progress.
    pub(crate) state: TailState,
    /// Complete sections, oldest first.
    complete: VecDeque<Arc<SectionView>>,
    growing: GrowingSection,
    /// First block of each stored batch, as in its key.
    batches: VecDeque<u64>,
    bodies: TailBodies,
}

#[derive(Debug)]
struct GrowingSection {
    section: Section,
    first_block: u64,
    parent_hash: B256,
    chunk_start: u64,
    runs: Vec<Arc<Run>>,
    /// The unfinished page as of the last commit.
    open: Option<Page>,
}

/// Immutable snapshot of a section.
#[derive(Debug)]
pub(crate) struct SectionView {
    pub(crate) blocks: BlockRange,
    pub(crate) parent_hash: B256,
    pub(crate) last_hash: B256,
    pub(crate) chunk_start: u64,
    /// How the section ended; none while it grows.
    pub(crate) end: Option<End>,
    /// Size of the chunk including this section.
    pub(crate) before_next: ChunkPrefix,
    runs: Vec<Arc<Run>>,
    open: Option<Page>,
    /// Number of logs.
    pub(crate) logs: u32,
}

/// Immutable snapshot of the tail: sections, oldest first.
pub(crate) type TailView = Vec<Arc<SectionView>>;

impl Tail {
    /// A tail that starts where `state` says, still without blocks.
    pub(crate) fn new(bounds: Bounds, state: &TailState) -> Self {
        let growing = GrowingSection {
            section: Section::new(bounds, state.start, state.before),
            first_block: state.start,
            parent_hash: state.start_parent,
            chunk_start: state.chunk_start,
            runs: Vec::new(),
            open: None,
        };
        let state = TailState { end: state.start, head_hash: state.start_parent, ..state.clone() };
        Self {
            bounds,
            state,
            complete: VecDeque::new(),
            growing,
            batches: VecDeque::new(),
            bodies: TailBodies::default(),
        }
    }

    /// Adds consecutive blocks.
    pub(crate) fn append(&mut self, blocks: &[FinalizedBlock]) -> TailAppend {
        let mut appended = TailAppend {
            first_block: self.state.end,
            parent_hash: self.state.head_hash,
            ..TailAppend::default()
        };
        for block in blocks {
            debug_assert_eq!(block.number, self.state.end, "blocks must come in order");
            let end = self.growing.section.push(block);
            self.state.end = block.number + 1;
            self.state.head_hash = block.hash;
            if end != End::Open {
                self.take_run(&mut appended);
                self.complete_section(end);
            }
        }
        self.take_run(&mut appended);
        self.growing.open = self.growing.section.open_page();
        appended.open.clone_from(&self.growing.open);
        appended
    }

    fn take_run(&mut self, appended: &mut TailAppend) {
        let run = self.growing.section.take_run();
        if run.blocks.is_empty() {
            return;
        }
        appended.blocks.extend_from_slice(&run.blocks);
        appended.pages.extend_from_slice(&run.pages);
        let runs = &mut self.growing.runs;
        runs.push(Arc::new(run));
        while let [.., before, last] = &runs[..]
            && before.entries.len() < last.entries.len() * RUN_RATIO
        {
            let joined = before.join(last);
            runs.truncate(runs.len() - 2);
            runs.push(Arc::new(joined));
        }
    }

    fn complete_section(&mut self, end: End) {
        let section = Arc::new(self.growing_view(Some(end)));
        let (before, chunk_start) = match end {
            End::Chunk => (ChunkPrefix::default(), section.blocks.end),
            End::Open | End::Piece => (section.before_next, section.chunk_start),
        };
        self.growing = GrowingSection {
            section: Section::new(self.bounds, section.blocks.end, before),
            first_block: section.blocks.end,
            parent_hash: section.last_hash,
            chunk_start,
            runs: Vec::new(),
            open: None,
        };
        self.complete.push_back(section);
    }

    fn growing_view(&self, end: Option<End>) -> SectionView {
        let growing = &self.growing;
        SectionView {
            blocks: growing.first_block..self.state.end,
            parent_hash: growing.parent_hash,
            last_hash: self.state.head_hash,
            chunk_start: growing.chunk_start,
            end,
            before_next: growing.section.before_next(),
            runs: growing.runs.clone(),
            // A page that was open when the section ended has been cut.
            open: growing.open.clone().filter(|_| end.is_none()),
            logs: growing.section.logs(),
        }
    }

    /// The oldest complete section.
    pub(crate) fn sealable(&self) -> Option<&Arc<SectionView>> {
        self.complete.front()
    }

    /// Sets the metrics of the tail.
    pub(crate) fn measure(&self, metrics: &Metrics) {
        let sealable =
            self.complete.iter().map(|section| section.blocks.end - section.blocks.start);
        metrics.tail(self.logs(), self.state.end - self.state.start, sealable.sum());
    }

    /// Number of logs in the tail.
    pub(crate) fn logs(&self) -> u64 {
        let complete: u64 = self.complete.iter().map(|section| u64::from(section.logs)).sum();
        complete + u64::from(self.growing.section.logs())
    }

    /// Records which blocks have bodies, and which transactions those hold.
    pub(crate) fn note_bodies(&mut self, keys: BodyKeys) {
        self.bodies.add(keys);
    }

    pub(crate) fn bodies(&self) -> &TailBodies {
        &self.bodies
    }

    /// Records that a batch is stored under this block.
    pub(crate) fn note_batch(&mut self, first_block: u64) {
        self.batches.push_back(first_block);
    }

    /// First block of the stored batch that holds a block.
    pub(crate) fn batch_of(&self, number: u64) -> Option<u64> {
        let after = self.batches.partition_point(|first| *first <= number);
        self.batches.get(after.checked_sub(1)?).copied()
    }

    /// First blocks of at most `max` stored batches that end at or before `end`.
    pub(crate) fn batches_below(&self, end: u64, max: usize) -> Vec<u64> {
        let ends = self.batches.iter().skip(1).copied().chain([self.state.end]);
        let below = self.batches.iter().zip(ends).take_while(|(_, batch_end)| *batch_end <= end);
        below.map(|(first, _)| *first).take(max).collect()
    }

    /// The state after the oldest section is sealed.
    pub(crate) fn state_after_seal(&self, section: &SectionView) -> TailState {
        let (before, chunk_start) = match section.end {
            Some(End::Piece) => (section.before_next, section.chunk_start),
            _ => (ChunkPrefix::default(), section.blocks.end),
        };
        TailState {
            start: section.blocks.end,
            start_parent: section.last_hash,
            chunk_start,
            before,
            ..self.state.clone()
        }
    }

    /// Drops everything before `state.start`; sections that reach beyond it stay whole.
    pub(crate) fn trim(&mut self, state: &TailState) {
        while self.complete.front().is_some_and(|section| section.blocks.end <= state.start) {
            self.complete.pop_front();
        }
        for _ in self.batches_below(state.start, usize::MAX) {
            self.batches.pop_front();
        }
        self.bodies.forget_below(state.start);
        self.state.start = state.start;
        self.state.start_parent = state.start_parent;
        self.state.chunk_start = state.chunk_start;
        self.state.before = state.before;
    }

    /// Takes a snapshot.
    pub(crate) fn view(&self) -> TailView {
        let mut view: TailView = self.complete.iter().cloned().collect();
        if self.state.end > self.growing.first_block {
            view.push(Arc::new(self.growing_view(None)));
        }
        view
    }
}

/// What a commit adds to the tail.
#[derive(Debug, Default)]
pub(crate) struct TailAppend {
    first_block: u64,
    parent_hash: B256,
    blocks: Vec<BlockRow>,
    pages: Vec<Page>,
    open: Option<Page>,
}

impl TailAppend {
    /// Encodes the record [`TailBatch`].
    pub(crate) fn encode(&self, bodies: &BodyKeys) -> bytes::Bytes {
        TailBatch {
            first_block: self.first_block,
            parent_hash: self.parent_hash,
            blocks: &self.blocks,
            bodies,
            pages: self.pages.iter().chain(&self.open).collect(),
        }
        .encode()
    }
}

impl SectionView {
    /// Whether both have the same blocks.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.blocks == other.blocks && self.last_hash == other.last_hash
    }

    /// Its pages.
    pub(crate) fn pages(&self) -> SectionPages<'_> {
        let mut before = 0;
        let lists = self.runs.iter().map(|run| &run.pages[..]);
        let lists = lists.chain(self.open.as_ref().map(std::slice::from_ref));
        let lists = lists.map(|pages| {
            let first = before;
            before += pages.len();
            (first, pages)
        });
        SectionPages { lists: lists.collect(), count: before }
    }

    /// Ids of a term, ascending.
    pub(crate) fn ids(&self, fingerprint: Fingerprint) -> Vec<u32> {
        let mut ids = Vec::new();
        for run in &self.runs {
            let first =
                run.entries.partition_point(|e| entry_fingerprint(*e) < fingerprint.number());
            let of_term = run.entries[first..].iter();
            let of_term = of_term.take_while(|e| entry_fingerprint(**e) == fingerprint.number());
            ids.extend(of_term.map(|entry| entry_id(*entry)));
        }
        ids
    }

    pub(crate) fn rows(&self) -> impl Iterator<Item = &BlockRow> {
        self.runs.iter().flat_map(|run| &run.blocks)
    }

    /// Content of the section, which must be complete.
    pub(crate) fn content(&self) -> Content {
        let joined = self.runs.iter().fold(Run::default(), |all, run| all.join(run));
        debug_assert!(self.open.is_none(), "a complete section has no open page");
        debug_assert_eq!(as_u64(joined.blocks.len()), self.blocks.end - self.blocks.start);
        Content { first_block: self.blocks.start, parent_hash: self.parent_hash, run: joined }
    }
}

/// Pages of a section, by number.
#[derive(Debug)]
pub(crate) struct SectionPages<'s> {
    /// Number of the first page of each list, and the list.
    lists: Vec<(usize, &'s [Page])>,
    count: usize,
}

impl<'s> SectionPages<'s> {
    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn get(&self, page: usize) -> &'s Page {
        let list = self.lists.partition_point(|(first, pages)| *first + pages.len() <= page);
        let (first, pages) = self.lists[list];
        &pages[page - first]
    }

    /// The page that holds an id.
    pub(crate) fn page_of(&self, id: u32) -> usize {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle).first_id <= id { low = middle + 1 } else { high = middle }
        }
        low.saturating_sub(1)
    }

    /// Pages that may hold logs of these blocks.
    pub(crate) fn pages_of(&self, blocks: &BlockRange) -> Range<usize> {
        pages_of_blocks(self.count, blocks, |page| self.get(page).first_block)
    }
}
