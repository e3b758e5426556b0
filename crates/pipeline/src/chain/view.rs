//! `View`: a chain at one moment, finalized history and tip joined.
//!
//! The tip is read first, then the finalized head: a block leaves the tip only after it was indexed, so no interleaving
//! leaves a gap. A block in both counts once, as the index has it. A tip that covers the finalized height but lacks the
//! finalized block is on a dead branch and is ignored.
//!
//! Guarantees: answers are complete. Blocks that are not stored are an error ([`Error::NotCovered`]), never an empty
//! answer. Leaves to others: tags, error codes, request limits.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use alloy_primitives::B256;
use finalized_log_index::{Blocks, Filter, LogIndex, LogPage};
use logmill_chain::{Block, BlockRef, stored};

use super::{Chain, SharedState};
use crate::block;
use crate::error::{Error, Result};
use crate::tip::TipSnapshot;

#[derive(Clone, Debug)]
pub struct View {
    shared: Arc<SharedState>,
    tip: Arc<TipSnapshot>,
    finalized: Option<BlockRef>,
}

impl View {
    pub(super) fn new(
        shared: Arc<SharedState>,
        tip: Arc<TipSnapshot>,
        finalized: Option<BlockRef>,
    ) -> Self {
        Self { shared, tip: tip.above(finalized), finalized }
    }

    pub fn head(&self) -> Option<BlockRef> {
        self.tip.blocks.last().map(|block| block.at).or(self.finalized)
    }

    /// The newest block that is unlikely to be replaced: the chain's safe block if it is in our tip, else the finalized
    /// one.
    pub fn safe(&self) -> Option<BlockRef> {
        let safe = self.tip.safe.filter(|safe| self.in_tip_by_hash(&safe.hash).is_some());
        safe.or(self.finalized)
    }

    pub fn finalized(&self) -> Option<BlockRef> {
        self.finalized
    }

    /// Stored ranges, lowest first.
    pub fn covered(&self) -> Vec<Range<u64>> {
        let end = self.head().map_or(0, |head| head.number + 1);
        let mut covered = covered(&self.shared.index, &self.tip);
        // Leaves out what was indexed after this view was taken.
        covered.retain(|range| range.start < end);
        if let Some(last) = covered.last_mut() {
            last.end = last.end.min(end);
        }
        covered
    }

    /// Whether all blocks from block 0 to the head are stored.
    pub fn is_complete(&self) -> bool {
        matches!(&self.covered()[..], [all] if all.start == 0)
    }

    /// Blocks that are not final yet, lowest first.
    pub fn tip_blocks(&self) -> &[Arc<Block>] {
        &self.tip.blocks
    }

    /// Number of the tip's first block.
    fn base(&self) -> Option<u64> {
        self.tip.blocks.first().map(|block| block.at.number)
    }

    fn in_tip(&self, number: u64) -> Option<&Arc<Block>> {
        let offset = usize::try_from(number.checked_sub(self.base()?)?).ok()?;
        self.tip.blocks.get(offset)
    }

    fn in_tip_by_hash(&self, hash: &B256) -> Option<&Arc<Block>> {
        self.tip.blocks.iter().find(|block| block.at.hash == *hash)
    }

    pub async fn block_ref(&self, number: u64) -> Result<Option<BlockRef>> {
        match self.in_tip(number) {
            Some(block) => Ok(Some(block.at)),
            None => self.shared.block_ref(number).await,
        }
    }

    pub async fn block_ref_by_hash(&self, hash: &B256) -> Result<Option<BlockRef>> {
        match self.in_tip_by_hash(hash) {
            Some(block) => Ok(Some(block.at)),
            None => self.shared.block_ref_by_hash(hash).await,
        }
    }

    /// A complete block; none if it is not stored, or only its logs are.
    pub async fn block(&self, number: u64) -> Result<Option<Arc<Block>>> {
        match self.in_tip(number) {
            Some(block) => Ok(Some(Arc::clone(block))),
            None => self.shared.archived(number).await,
        }
    }

    /// A block without its logs, and the number of its logs; none if it is not stored, or only its logs are.
    pub async fn outline(&self, number: u64) -> Result<Option<(Arc<Block>, u64)>> {
        if let Some(block) = self.in_tip(number) {
            let logs = u64::try_from(block.log_count()).unwrap_or(u64::MAX);
            return Ok(Some((Arc::clone(block), logs)));
        }
        let Some(body) = self.shared.index.body(number).await? else {
            return Ok(None);
        };
        let (block, logs) = logmill_io::compute(move || stored::outline(&body)).await?;
        block::check_number(&block, number)?;
        Ok(Some((Arc::new(block), logs)))
    }

    pub async fn block_by_hash(&self, hash: &B256) -> Result<Option<Arc<Block>>> {
        if let Some(block) = self.in_tip_by_hash(hash) {
            return Ok(Some(Arc::clone(block)));
        }
        match self.shared.block_ref_by_hash(hash).await? {
            Some(at) => self.shared.archived(at.number).await,
            None => Ok(None),
        }
    }

    /// The block that contains a transaction, and the transaction's position in it.
    pub async fn transaction(&self, hash: &B256) -> Result<Option<(Arc<Block>, usize)>> {
        let position = |block: &Block| block.transactions.iter().position(|tx| tx.hash == *hash);
        for block in self.tip.blocks.iter().rev() {
            if let Some(position) = position(block) {
                return Ok(Some((Arc::clone(block), position)));
            }
        }
        for number in self.shared.index.blocks_of_transaction(hash).await? {
            let Some(block) = self.shared.archived(number).await? else {
                continue;
            };
            if let Some(position) = position(&block) {
                return Ok(Some((block, position)));
            }
        }
        Ok(None)
    }

    /// The matching logs in order, up to the filter's limit; `next` is the block from which the next page goes on.
    pub async fn logs(&self, filter: &Filter) -> Result<LogPage> {
        match &filter.blocks {
            Blocks::Hash(hash) => match self.in_tip_by_hash(hash) {
                Some(block) => {
                    filter.validate()?;
                    let number = block.at.number;
                    let mut page = empty(number..=number);
                    self.add_tip_logs(filter, number..=number, &mut page);
                    Ok(page)
                }
                None => self.indexed_logs(filter).await,
            },
            Blocks::Range(range) => self.logs_of_range(filter, range.clone()).await,
            Blocks::Covered(_) => {
                let what = "a view answers only whole ranges".to_owned();
                Err(Error::Invalid { what })
            }
        }
    }

    async fn logs_of_range(&self, filter: &Filter, range: RangeInclusive<u64>) -> Result<LogPage> {
        filter.validate()?;
        let (from, to) = (*range.start(), *range.end());
        if self.head().is_none_or(|head| head.number < to) {
            return Err(self.not_covered(from..to.saturating_add(1)));
        }
        let base = self.base().unwrap_or(u64::MAX);
        let mut page = empty(range);
        if from < base {
            let below = to.min(base - 1);
            let below_filter = Filter { blocks: Blocks::Range(from..=below), ..filter.clone() };
            let found = self.indexed_logs(&below_filter).await?;
            page.logs = found.logs;
            page.next = found.next;
            if page.next.is_some() {
                return Ok(page);
            }
        }
        if to >= base {
            self.add_tip_logs(filter, from.max(base)..=to, &mut page);
        }
        Ok(page)
    }

    async fn indexed_logs(&self, filter: &Filter) -> Result<LogPage> {
        use finalized_log_index::Error as IndexError;
        match self.shared.index.query_finalized(filter).await {
            Err(IndexError::NotCovered { wanted, .. }) => Err(self.not_covered(wanted)),
            Err(IndexError::Pruned { floor }) => {
                Err(Error::Pruned { floor, covered: self.covered() })
            }
            Err(IndexError::BlockNotFound { hash }) => Err(Error::BlockNotFound { hash }),
            page => Ok(page?),
        }
    }

    fn not_covered(&self, wanted: Range<u64>) -> Error {
        Error::NotCovered { wanted, covered: self.covered() }
    }

    /// Adds the matching logs of tip blocks. A block that would exceed the limit is left for the next page, unless it
    /// is the first.
    fn add_tip_logs(&self, filter: &Filter, range: RangeInclusive<u64>, page: &mut LogPage) {
        let limit = filter.max_results.unwrap_or(usize::MAX);
        for number in range {
            let Some(block) = self.in_tip(number) else {
                continue;
            };
            let before = page.logs.len();
            page.logs.extend(block::logs_of(block).filter(|log| filter.matches(&log.log)));
            if page.logs.len() > limit && before > 0 {
                page.logs.truncate(before);
                page.next = Some(number);
                return;
            }
        }
    }
}

impl SharedState {
    /// A complete finalized block; none if it is not stored, or only its logs are.
    pub(crate) async fn archived(&self, number: u64) -> Result<Option<Arc<Block>>> {
        let Some(body) = self.index.body(number).await? else {
            return Ok(None);
        };
        let logs = self.index.query_finalized(&Filter::range(number..=number)).await?.logs;
        let block = block::restore(&body, logs)?;
        block::check_number(&block, number)?;
        Ok(Some(Arc::new(block)))
    }
}

impl Chain {
    /// Complete finalized blocks in order, read together; a block that is not stored with its body is an error.
    pub async fn archived_blocks(&self, range: Range<u64>) -> Result<Vec<Arc<Block>>> {
        let (Some(last), index) = (range.end.checked_sub(1), &self.shared.index) else {
            return Ok(Vec::new());
        };
        let mut logs = index
            .query_finalized(&Filter::range(range.start..=last))
            .await?
            .logs
            .into_iter()
            .peekable();
        let mut blocks = Vec::new();
        for number in range.clone() {
            let of_block: Vec<_> =
                std::iter::from_fn(|| logs.next_if(|log| log.block_number == number)).collect();
            let body = index.body(number).await?;
            let missing = || Error::NotCovered { wanted: range.clone(), covered: self.covered() };
            blocks.push((number, body.ok_or_else(missing)?, of_block));
        }
        logmill_io::compute(move || {
            let restored = blocks.into_iter().map(|(number, body, logs)| {
                let block = block::restore(&body, logs)?;
                block::check_number(&block, number)?;
                Ok(Arc::new(block))
            });
            restored.collect()
        })
        .await
    }
}

fn empty(range: RangeInclusive<u64>) -> LogPage {
    let (from, to) = range.into_inner();
    let looked_at = std::iter::once(from..to.saturating_add(1)).collect();
    LogPage { logs: Vec::new(), next: None, looked_at }
}

/// Stored ranges, lowest first.
pub(super) fn covered(index: &LogIndex, tip: &TipSnapshot) -> Vec<Range<u64>> {
    let mut covered = index.coverage();
    let (Some(first), Some(last)) = (tip.blocks.first(), tip.blocks.last()) else {
        return covered;
    };
    let tip = first.at.number..last.at.number + 1;
    match covered.last_mut().filter(|below| below.end >= tip.start) {
        Some(below) => below.end = below.end.max(tip.end),
        None => covered.push(tip),
    }
    covered
}
