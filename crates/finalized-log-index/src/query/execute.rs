//! Runs a query: source by source, page by page, in order.
//!
//! If the blob of a chunk is gone, the chunk was merged or pruned since the snapshot was taken, or it is lost. The
//! list is read again: if the chunk is still listed, it is lost, the index becomes degraded and the query fails; else
//! the rest is planned again, starting after the last log returned.
//!
//! Guarantees: logs come in order, each once, even after a new plan. The deadline is checked between reads; dropping
//! the execution stops it. Leaves to others: limits ([`super::PageCollector`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::B256;
use bytes::Bytes;

use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::filter::{Blocks, Filter};
use crate::page::{FilterTerms, LogSelection, pick};
use crate::query::AcceptedQuery;
use crate::query::explain::{ExplainedClause, ExplainedSource, Explanation};
use crate::query::ids::Ids;
use crate::query::plan::{Clause, Strategy, estimate, plan};
use crate::query::source::{OpenSource, Source};
use crate::state::{SharedIndex, Snapshot};
use crate::terms::Group;
use crate::types::{BlockRange, Log};

/// Maximum number of pages that a scan reads at once.
const PAGES_PER_READ: usize = 32;
/// Pages at most this far apart are read together: the bytes between them cost less than another read.
const PAGE_GAP_MAX: usize = 2;
/// Up to this many logs are picked from a page; for more it is opened.
const PICKED_MAX: usize = 16;
/// How often a query is planned again before it fails.
const REPLANS_MAX: u64 = 100;

/// A running query.
#[derive(Debug)]
pub(crate) struct Execution {
    /// Identifies this query in log lines.
    pub(crate) query_id: u64,
    shared: Arc<SharedIndex>,
    clauses: Vec<Clause>,
    terms: FilterTerms,
    /// The requested block, if the filter names it by hash.
    block_hash: Option<B256>,
    accepted: AcceptedQuery,
    /// Sources still to be read, in order.
    ahead: VecDeque<(Source, BlockRange)>,
    current: Option<CurrentSource>,
    /// Block and index of the last log returned.
    last: Option<(u64, u32)>,
    explanation: Explanation,
}

impl std::fmt::Debug for SharedIndex {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedIndex({})", self.settings.prefix)
    }
}

/// The source that is being read.
#[derive(Debug)]
struct CurrentSource {
    source: Source,
    opened: OpenSource,
    blocks: BlockRange,
    todo: PendingRead,
}

#[derive(Debug)]
enum PendingRead {
    /// All of these pages.
    Scan(Range<usize>),
    /// These ids, ascending, from a position on.
    Ids(Vec<u32>, usize),
}

impl Execution {
    pub(crate) fn new(
        shared: Arc<SharedIndex>,
        snapshot: &Snapshot,
        filter: &Filter,
        accepted: AcceptedQuery,
    ) -> Self {
        let ahead = sources(snapshot, &accepted.ranges);
        Self {
            query_id: shared.queries.fetch_add(1, Ordering::Relaxed),
            clauses: Clause::of(filter),
            terms: FilterTerms::of(filter),
            block_hash: match &filter.blocks {
                Blocks::Hash(hash) => Some(*hash),
                Blocks::Range(_) | Blocks::Covered(_) => None,
            },
            shared,
            accepted,
            ahead,
            current: None,
            last: None,
            explanation: Explanation::default(),
        }
    }

    /// Blocks that the query searches.
    pub(crate) fn looked_at(&self) -> Vec<BlockRange> {
        self.accepted.ranges.clone()
    }

    /// Returns the figures collected so far.
    pub(crate) fn explain(self) -> Explanation {
        self.explanation
    }

    /// The next logs, at least one; none at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Vec<Log>>> {
        loop {
            if self.shared.stores.clock.monotonic() > self.accepted.deadline {
                let limit = self.shared.settings.query_deadline;
                let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
                return Err(Error::DeadlineExceeded { limit_ms });
            }
            match self.step().await {
                Ok(Step::Logs(logs)) if logs.is_empty() => {}
                Ok(Step::Logs(logs)) => {
                    self.last = logs.last().map(|log| (log.block_number, log.log.log_index));
                    return Ok(Some(logs));
                }
                Ok(Step::Done) => return Ok(None),
                Err(error @ (Error::ChunkMissing { .. } | Error::Corrupt { .. })) => {
                    self.replan(error).await?;
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn step(&mut self) -> Result<Step> {
        if self.current.is_none() {
            let Some((source, blocks)) = self.ahead.front().cloned() else {
                return Ok(Step::Done);
            };
            self.current = Some(self.open(source, blocks).await?);
            self.ahead.pop_front();
        }
        let Some(current) = &mut self.current else {
            return Ok(Step::Done);
        };
        let shown = self.explanation.sources.last_mut();
        let (pages, finished) = current.read(&self.shared, shown).await?;
        let logs = current.matching(&self.terms, pages, self.last)?;
        if let Some(shown) = self.explanation.sources.last_mut() {
            shown.matched += as_u64(logs.len());
        }
        if finished {
            self.current = None;
        }
        Ok(Step::Logs(logs))
    }

    /// Opens a source and decides how to read it.
    async fn open(&mut self, source: Source, blocks: BlockRange) -> Result<CurrentSource> {
        let reader = &self.shared.reader;
        let opened = source.open(reader).await?;
        let pages = opened.pages_of(&blocks);
        let mut shown = ExplainedSource {
            blocks: blocks.clone(),
            in_tail: matches!(source, Source::Section(_)),
            strategy: Strategy::Nothing,
            clauses: Vec::new(),
            pages_in_range: pages.len(),
            pages_read: 0,
            bytes_read: 0,
            candidates: 0,
            matched: 0,
        };
        let mut todo = PendingRead::Scan(0..0);
        if !pages.is_empty() && self.accepted.scan_only {
            shown.strategy = Strategy::Scan;
            todo = PendingRead::Scan(pages);
        } else if !pages.is_empty() {
            let ids = opened.page_ids(pages.start).start..opened.page_ids(pages.end - 1).end;
            let found = self.look_up(&opened, &ids, &mut shown).await?;
            shown.strategy = plan(&estimates(&shown), pages.len());
            todo = match &shown.strategy {
                Strategy::Nothing => todo,
                Strategy::Scan => PendingRead::Scan(pages),
                Strategy::Index(order) => {
                    let left = self.intersect(&opened, &ids, order, found).await?;
                    shown.candidates = left.len();
                    PendingRead::Ids(left.to_vec(), 0)
                }
            };
        }
        self.explanation.sources.push(shown);
        Ok(CurrentSource { source, opened, blocks, todo })
    }

    /// Looks up the terms of each clause; stops at a clause that cannot match.
    async fn look_up(
        &self,
        opened: &OpenSource,
        ids: &Range<u32>,
        shown: &mut ExplainedSource,
    ) -> Result<Vec<Vec<Group>>> {
        let mut found = Vec::with_capacity(self.clauses.len());
        for clause in &self.clauses {
            let mut groups = Vec::new();
            for term in &clause.terms {
                let group = opened.group(&self.shared.reader, *term).await?;
                tracing::trace!(
                    query_id = self.query_id,
                    stream_id = format_args!("{}/{term}", clause.kind),
                    found = group.is_some(),
                    "looked up a term"
                );
                groups.extend(group);
            }
            groups.retain(|group| estimate(group, ids) > 0);
            let total: u64 = groups.iter().map(|group| estimate(group, ids)).sum();
            shown.clauses.push(ExplainedClause {
                kind: clause.kind.to_string(),
                terms: clause.terms.len(),
                terms_found: groups.len(),
                estimate: total,
            });
            found.push(groups);
            if total == 0 {
                break;
            }
        }
        Ok(found)
    }

    /// The ids that match all clauses of `order`.
    async fn intersect(
        &self,
        opened: &OpenSource,
        range: &Range<u32>,
        order: &[usize],
        mut found: Vec<Vec<Group>>,
    ) -> Result<Ids> {
        let mut left: Option<Ids> = None;
        for clause in order {
            let mut sets = Vec::new();
            for group in std::mem::take(&mut found[*clause]) {
                sets.push(opened.ids(&self.shared.reader, group).await?);
            }
            let ids = Ids::union(sets).clip(range);
            let ids = match left {
                None => ids,
                Some(left) => left.intersect(&ids),
            };
            self.shared.metrics.candidates(label(self.clauses[*clause].kind), ids.len());
            let is_empty = ids.is_empty();
            left = Some(ids);
            if is_empty {
                break;
            }
        }
        Ok(left.unwrap_or(Ids::Few(Vec::new())))
    }

    /// Token of the chunk that is being read, if it is a chunk.
    fn reading(&self) -> Option<u64> {
        let source = match &self.current {
            Some(current) => Some(&current.source),
            None => self.ahead.front().map(|(source, _)| source),
        };
        source.and_then(Source::token)
    }

    /// Makes a new plan for what is left, unless the missing or damaged chunk is still listed.
    async fn replan(&mut self, error: Error) -> Result<()> {
        self.explanation.replans += 1;
        let gone = self.reading();
        {
            let mut followed = self.shared.followed.lock().await;
            self.shared.follow(&mut followed).await?;
        }
        let snapshot = self.shared.readable()?;
        let listed = gone.is_none_or(|token| snapshot.list.by_token(token).is_some());
        if listed || self.explanation.replans > REPLANS_MAX {
            self.shared.note_corruption(&snapshot, &error, gone, None);
            return Err(error);
        }
        if let Some(hash) = self.block_hash
            && self.shared.find_block(&snapshot, &hash).await?.is_none()
        {
            return Err(Error::BlockNotFound { hash });
        }
        let from = self.last.map_or(0, |(block, _)| block);
        let left = self.accepted.ranges.iter().map(|range| range.start.max(from)..range.end);
        let left: Vec<BlockRange> = left.filter(|range| range.start < range.end).collect();
        let covered = |wanted: &BlockRange| {
            let inside =
                |range: &BlockRange| range.start <= wanted.start && wanted.end <= range.end;
            snapshot.coverage.iter().any(inside)
        };
        if let Some(wanted) = left.iter().find(|range| !covered(range)) {
            if wanted.start < snapshot.list.floor {
                return Err(Error::Pruned { floor: snapshot.list.floor });
            }
            let (wanted, covered) = (wanted.clone(), snapshot.coverage.clone());
            return Err(Error::NotCovered { wanted, covered });
        }
        self.current = None;
        self.ahead = sources(&snapshot, &left);
        Ok(())
    }
}

enum Step {
    Logs(Vec<Log>),
    Done,
}

impl CurrentSource {
    /// Reads the next pages, with the candidate positions of each; also returns whether they were the last ones.
    async fn read(
        &mut self,
        shared: &SharedIndex,
        shown: Option<&mut ExplainedSource>,
    ) -> Result<(Vec<ReadPage>, bool)> {
        let wanted = self.next_pages();
        let finished = match &self.todo {
            PendingRead::Scan(pages) => pages.start >= pages.end,
            PendingRead::Ids(ids, position) => *position >= ids.len(),
        };
        let pages: Vec<usize> = wanted.iter().map(|(page, _)| *page).collect();
        let bytes = match &pages[..] {
            [page] => vec![self.opened.page(&shared.reader, *page).await?],
            pages => self.opened.pages(&shared.reader, pages).await?,
        };
        if let Some(shown) = shown {
            shown.pages_read += as_u64(pages.len());
            shown.bytes_read += pages.iter().map(|page| self.opened.page_bytes(*page)).sum::<u64>();
            if matches!(self.todo, PendingRead::Scan(_)) {
                let ids = pages.iter().map(|page| self.opened.page_ids(*page));
                shown.candidates += ids.map(|ids| u64::from(ids.end - ids.start)).sum::<u64>();
            }
        }
        let read = bytes.into_iter().zip(wanted);
        let read = read.map(|(bytes, (page, positions))| ReadPage { page, bytes, positions });
        Ok((read.collect(), finished))
    }

    /// The next pages to read, near each other, with the positions of candidates; no positions in a scan.
    fn next_pages(&mut self) -> Vec<(usize, Option<Vec<usize>>)> {
        let mut next: Vec<(usize, Option<Vec<usize>>)> = Vec::new();
        match &mut self.todo {
            PendingRead::Scan(pages) => {
                let end = pages.end.min(pages.start + PAGES_PER_READ);
                next.extend((pages.start..end).map(|page| (page, None)));
                pages.start = end;
            }
            PendingRead::Ids(ids, position) => {
                while next.len() < PAGES_PER_READ
                    && let Some(first) = ids.get(*position)
                {
                    let page = self.opened.page_of(*first);
                    if next.last().is_some_and(|(last, _)| page > last + PAGE_GAP_MAX) {
                        break;
                    }
                    let inside = self.opened.page_ids(page);
                    let of_page = ids[*position..].iter().take_while(|id| inside.contains(id));
                    let of_page: Vec<usize> = of_page
                        .map(|id| usize::try_from(*id - inside.start).unwrap_or(usize::MAX))
                        .collect();
                    *position += of_page.len().max(1);
                    next.push((page, Some(of_page)));
                }
            }
        }
        next
    }

    /// The matching logs of these pages, after the last one returned.
    fn matching(
        &self,
        terms: &FilterTerms,
        pages: Vec<ReadPage>,
        after: Option<(u64, u32)>,
    ) -> Result<Vec<Log>> {
        let mut found = Vec::new();
        for ReadPage { page, bytes, positions } in pages {
            if let Some(positions) = positions.as_ref().filter(|list| list.len() <= PICKED_MAX) {
                let ids = self.opened.page_ids(page);
                let logs = usize::try_from(ids.end - ids.start).unwrap_or(usize::MAX);
                let wanted = LogSelection { positions, logs, blocks: &self.blocks, after };
                pick(&bytes, &wanted, terms, &mut found)
                    .map_err(|error| self.opened.named(error))?;
                continue;
            }
            let view = self.opened.view(page, bytes)?;
            let mut positions = positions.unwrap_or_else(|| (0..view.len()).collect());
            positions.retain(|position| {
                *position < view.len()
                    && self.blocks.contains(&view.block_number(*position))
                    && after.is_none_or(|after| view.place(*position) > after)
            });
            view.matching(terms, &mut positions);
            view.logs(&positions, &mut found);
        }
        Ok(found)
    }
}

#[derive(Debug)]
struct ReadPage {
    page: usize,
    bytes: Bytes,
    /// Positions of the candidates; none in a scan, where all logs are.
    positions: Option<Vec<usize>>,
}

/// The chunks and sections that hold blocks of the ranges, in order. Chunks first: a section that has just been
/// sealed is in both.
pub(crate) fn sources(
    snapshot: &Snapshot,
    ranges: &[BlockRange],
) -> VecDeque<(Source, BlockRange)> {
    let mut found = VecDeque::new();
    for range in ranges {
        for entry in snapshot.list.overlapping(range) {
            let part = entry.blocks.start.max(range.start)..entry.blocks.end.min(range.end);
            found.push_back((Source::Chunk(Arc::clone(entry)), part));
        }
        let tail_start = snapshot.tail_state.as_ref().map_or(u64::MAX, |tail| tail.start);
        for section in &snapshot.tail {
            let start = section.blocks.start.max(range.start).max(tail_start);
            let end = section.blocks.end.min(range.end);
            if start < end {
                found.push_back((Source::Section(Arc::clone(section)), start..end));
            }
        }
    }
    found
}

fn estimates(shown: &ExplainedSource) -> Vec<u64> {
    shown.clauses.iter().map(|clause| clause.estimate).collect()
}

fn label(kind: crate::term::Kind) -> &'static str {
    use crate::term::Kind;
    match kind {
        Kind::Address => "addr",
        Kind::Topic(0) => "topic0",
        Kind::Topic(1) => "topic1",
        Kind::Topic(2) => "topic2",
        Kind::Topic(_) => "topic3",
        Kind::Transaction => "tx",
        Kind::Block => "block",
    }
}
