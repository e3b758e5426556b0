//! Running a query: source by source, page by page, in order.
//!
//! A chunk whose blob is gone was merged or pruned since the snapshot was taken, or is lost. The list is read
//! again: if the chunk is still listed it is lost, the index is degraded and the query fails; else the rest is
//! planned anew, after the last log that was given out.
//!
//! Guarantees: logs come in order, each once, also when the plan is made anew. Between two reads it looks at the
//! deadline; dropping it stops it. Leaves to others: limits ([`super::Collected`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::B256;
use bytes::Bytes;

use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::filter::{Blocks, Filter};
use crate::index::{Shared, Snapshot};
use crate::metric;
use crate::page::{FilterTerms, Wanted, pick};
use crate::query::Accepted;
use crate::query::explain::{ExplainedClause, ExplainedSource, Explanation};
use crate::query::ids::Ids;
use crate::query::plan::{Clause, Strategy, estimate, plan};
use crate::query::source::{Opened, Source};
use crate::terms::Group;
use crate::types::{BlockRange, Log};

/// The most pages that a scan reads at once.
const PAGES_PER_READ: usize = 32;
/// Pages that are at most so far apart are read together: what lies between them costs less than another read.
const PAGE_GAP_MAX: usize = 2;
/// Up to so many logs of a page are picked; for more it is opened.
const PICKED_MAX: usize = 16;
/// How often a query is planned anew before it gives up.
const REPLANS_MAX: u64 = 100;

/// A query that runs.
#[derive(Debug)]
pub(crate) struct Execution {
    /// Tells the lines of this query in the log from others'.
    pub(crate) query_id: u64,
    shared: Arc<Shared>,
    clauses: Vec<Clause>,
    terms: FilterTerms,
    /// The block that is asked for, if it is one by its hash.
    block_hash: Option<B256>,
    accepted: Accepted,
    /// What is still to be looked at, in order.
    ahead: VecDeque<(Source, BlockRange)>,
    current: Option<Current>,
    /// The place of the last log that was given out.
    last: Option<(u64, u32)>,
    explanation: Explanation,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Shared({})", self.settings.prefix)
    }
}

/// A source that is being read.
#[derive(Debug)]
struct Current {
    source: Source,
    opened: Opened,
    blocks: BlockRange,
    todo: Todo,
}

#[derive(Debug)]
enum Todo {
    /// All of these pages.
    Scan(Range<usize>),
    /// These ids, rising, from a position on.
    Ids(Vec<u32>, usize),
}

impl Execution {
    pub(crate) fn new(
        shared: Arc<Shared>,
        snapshot: &Snapshot,
        filter: &Filter,
        accepted: Accepted,
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

    /// The blocks that the query looks at.
    pub(crate) fn looked_at(&self) -> Vec<BlockRange> {
        self.accepted.ranges.clone()
    }

    /// What was done.
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
                Err(Error::ChunkMissing { chunk }) => self.replan(chunk).await?,
                Err(error @ Error::Corrupt { .. }) => {
                    self.shared.note_corruption(&error, self.reading());
                    return Err(error);
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
    async fn open(&mut self, source: Source, blocks: BlockRange) -> Result<Current> {
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
        let mut todo = Todo::Scan(0..0);
        if !pages.is_empty() && self.accepted.scan_only {
            shown.strategy = Strategy::Scan;
            todo = Todo::Scan(pages);
        } else if !pages.is_empty() {
            let ids = opened.page_ids(pages.start).start..opened.page_ids(pages.end - 1).end;
            let found = self.look_up(&opened, &ids, &mut shown).await?;
            shown.strategy = plan(&estimates(&shown), pages.len());
            todo = match &shown.strategy {
                Strategy::Nothing => todo,
                Strategy::Scan => Todo::Scan(pages),
                Strategy::Index(order) => {
                    let left = self.intersect(&opened, &ids, order, found).await?;
                    shown.candidates = left.len();
                    Todo::Ids(left.to_vec(), 0)
                }
            };
        }
        self.explanation.sources.push(shown);
        Ok(Current { source, opened, blocks, todo })
    }

    /// What the source knows of each clause; the rest is not asked once one can not match.
    async fn look_up(
        &self,
        opened: &Opened,
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
                    "looked up"
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

    /// The ids that are in all clauses of `order`.
    async fn intersect(
        &self,
        opened: &Opened,
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
            metric::candidates(label(self.clauses[*clause].kind), ids.len());
            let is_empty = ids.is_empty();
            left = Some(ids);
            if is_empty {
                break;
            }
        }
        Ok(left.unwrap_or(Ids::Few(Vec::new())))
    }

    /// The attempt of the chunk that is being read, if it is one.
    fn reading(&self) -> Option<u64> {
        let source = match &self.current {
            Some(current) => Some(&current.source),
            None => self.ahead.front().map(|(source, _)| source),
        };
        source.and_then(Source::token)
    }

    /// Makes a new plan for what is left, unless the missing chunk is still listed.
    async fn replan(&mut self, chunk: String) -> Result<()> {
        self.explanation.replans += 1;
        let gone = self.reading();
        {
            let mut followed = self.shared.followed.lock().await;
            self.shared.follow(&mut followed).await?;
        }
        let snapshot = self.shared.readable()?;
        let listed = gone.is_some_and(|token| snapshot.list.by_token(token).is_some());
        if listed || self.explanation.replans > REPLANS_MAX {
            let error = Error::ChunkMissing { chunk };
            self.shared.note_corruption(&error, gone);
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

impl Current {
    /// Reads the next pages, with the positions that are wanted of each; and whether that was all.
    async fn read(
        &mut self,
        shared: &Shared,
        shown: Option<&mut ExplainedSource>,
    ) -> Result<(Vec<ReadPage>, bool)> {
        let wanted = self.next_pages();
        let finished = match &self.todo {
            Todo::Scan(pages) => pages.start >= pages.end,
            Todo::Ids(ids, position) => *position >= ids.len(),
        };
        let pages: Vec<usize> = wanted.iter().map(|(page, _)| *page).collect();
        let bytes = match &pages[..] {
            [page] => vec![self.opened.page(&shared.reader, *page).await?],
            pages => self.opened.pages(&shared.reader, pages).await?,
        };
        if let Some(shown) = shown {
            shown.pages_read += as_u64(pages.len());
            shown.bytes_read += pages.iter().map(|page| self.opened.page_bytes(*page)).sum::<u64>();
            if matches!(self.todo, Todo::Scan(_)) {
                let ids = pages.iter().map(|page| self.opened.page_ids(*page));
                shown.candidates += ids.map(|ids| u64::from(ids.end - ids.start)).sum::<u64>();
            }
        }
        let read = bytes.into_iter().zip(wanted);
        let read = read.map(|(bytes, (page, positions))| ReadPage { page, bytes, positions });
        Ok((read.collect(), finished))
    }

    /// The next pages to read, near each other, with the positions of candidates; all of them in a scan.
    fn next_pages(&mut self) -> Vec<(usize, Option<Vec<usize>>)> {
        let mut next: Vec<(usize, Option<Vec<usize>>)> = Vec::new();
        match &mut self.todo {
            Todo::Scan(pages) => {
                let end = pages.end.min(pages.start + PAGES_PER_READ);
                next.extend((pages.start..end).map(|page| (page, None)));
                pages.start = end;
            }
            Todo::Ids(ids, position) => {
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

    /// The logs of pages that match, after the last one given out.
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
                let wanted = Wanted { positions, logs, blocks: &self.blocks, after };
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

/// A page that was read.
#[derive(Debug)]
struct ReadPage {
    page: usize,
    bytes: Bytes,
    /// Which of its logs are candidates; all in a scan.
    positions: Option<Vec<usize>>,
}

/// The chunks and sections that hold blocks of the ranges, in order. Chunks first: what has just been sealed is both.
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
