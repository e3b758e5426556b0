//! Running a query: source by source, page by page, in order.
//!
//! A chunk whose blob is gone was merged or pruned since the snapshot was taken, or is lost. The list is read again:
//! if the chunk is still listed it is lost, the index is degraded and the query fails; else the rest is planned anew,
//! after the last log that was given out.
//!
//! Guarantees: logs come in order, each once, also when the plan is made anew. Between two reads it looks at the
//! deadline; dropping it stops it. Leaves to others: limits ([`super::Collected`]).

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::filter::{Blocks, Filter};
use crate::index::{Shared, Snapshot};
use crate::metric;
use crate::page::PageView;
use crate::query::Accepted;
use crate::query::explain::{ExplainedClause, ExplainedSource, Explanation};
use crate::query::ids::Ids;
use crate::query::plan::{Clause, Strategy, estimate, plan};
use crate::query::source::{Opened, Source};
use crate::terms::Group;
use crate::types::{BlockRange, Log};

/// The most pages that a scan reads at once.
const PAGES_PER_READ: usize = 32;
/// How often a query is planned anew before it gives up.
const REPLANS_MAX: u64 = 100;

/// A query that runs.
#[derive(Debug)]
pub(crate) struct Execution {
    shared: Arc<Shared>,
    filter: Filter,
    clauses: Vec<Clause>,
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
        filter: Filter,
        accepted: Accepted,
    ) -> Self {
        let ahead = sources(snapshot, &accepted.ranges);
        Self {
            clauses: Clause::of(&filter),
            shared,
            filter,
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
        let (views, finished) = current.read(&self.shared, shown).await?;
        let logs = current.matching(&self.filter, &views, self.last);
        if let Some(shown) = self.explanation.sources.last_mut() {
            shown.matched += crate::codec::as_u64(logs.len());
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
                groups.extend(opened.group(&self.shared.reader, *term).await?);
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
        if let Blocks::Hash(hash) = &self.filter.blocks
            && self.shared.find_block(&snapshot, hash).await?.is_none()
        {
            return Err(Error::BlockNotFound { hash: *hash });
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
    ) -> Result<(Vec<(Arc<PageView>, Wanted)>, bool)> {
        let reader = &shared.reader;
        match &mut self.todo {
            Todo::Scan(pages) => {
                let some = pages.start..pages.end.min(pages.start + PAGES_PER_READ);
                let views = self.opened.pages(reader, some.clone()).await?;
                if let Some(shown) = shown {
                    shown.pages_read += crate::codec::as_u64(some.len());
                    let bytes = some.clone().map(|page| self.opened.page_bytes(page));
                    shown.bytes_read += bytes.sum::<u64>();
                    let logs = views.iter().map(|view| view.len()).sum();
                    shown.candidates += crate::codec::as_u64(logs);
                }
                pages.start = some.end;
                let finished = pages.start >= pages.end;
                Ok((views.into_iter().map(|view| (view, Wanted::All)).collect(), finished))
            }
            Todo::Ids(ids, position) => {
                let Some(first) = ids.get(*position) else {
                    return Ok((Vec::new(), true));
                };
                let page = self.opened.page_of(*first);
                let inside = self.opened.page_ids(page);
                let of_page = ids[*position..].iter().take_while(|id| inside.contains(id));
                let wanted: Vec<usize> = of_page
                    .map(|id| usize::try_from(*id - inside.start).unwrap_or(usize::MAX))
                    .collect();
                let view = self.opened.page(reader, page).await?;
                if let Some(shown) = shown {
                    shown.pages_read += 1;
                    shown.bytes_read += self.opened.page_bytes(page);
                }
                *position += wanted.len().max(1);
                let finished = *position >= ids.len();
                Ok((vec![(view, Wanted::These(wanted))], finished))
            }
        }
    }

    /// The logs of pages that match, after the last one given out.
    fn matching(
        &self,
        filter: &Filter,
        pages: &[(Arc<PageView>, Wanted)],
        last: Option<(u64, u32)>,
    ) -> Vec<Log> {
        let mut logs = Vec::new();
        for (view, wanted) in pages {
            let Some(matcher) = view.matcher(filter) else {
                continue;
            };
            let mut take = |position: usize| {
                if self.blocks.contains(&view.block_number(position))
                    && view.matches(&matcher, position)
                    && last.is_none_or(|last| view.place(position) > last)
                {
                    logs.push(view.log(position));
                }
            };
            match wanted {
                Wanted::All => (0..view.len()).for_each(&mut take),
                Wanted::These(positions) => {
                    let there = positions.iter().copied().filter(|p| *p < view.len());
                    there.for_each(&mut take);
                }
            }
        }
        logs
    }
}

/// Which logs of a page are candidates.
#[derive(Debug)]
enum Wanted {
    All,
    These(Vec<usize>),
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
