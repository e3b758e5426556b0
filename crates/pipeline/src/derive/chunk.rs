//! From stored blocks to rows: reads a range once for all generations that miss it.
//!
//! Guarantees: a processor that fails or panics affects no other; the returned range has no gaps, and ends before its
//! rows become too many to hold. Leaves to others: which ranges, and storing.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::StreamExt;
use logmill_chain::Block;

use super::DeriveSettings;
use super::decoded::{BlockParts, DecodedBlock, TokenSettings};
use super::generation::Generation;
use super::processor::Phase;
use super::rows::Rows;
use crate::chain::Chain;
use crate::error::{Error, Result};

/// Blocks that are read and derived as one unit of work.
const PIECE_BLOCKS: u64 = 32;
/// Pieces in flight at a time.
const PIECES: usize = 3;

#[derive(Debug)]
pub(crate) struct DerivedChunk {
    /// The derived blocks: the requested range, or its beginning.
    pub(crate) range: Range<u64>,
    /// For each generation, in order: its folded rows, or why it has none.
    pub(crate) rows: Vec<Result<Rows>>,
}

/// Derives the beginning of a range for some generations, until there are about `rows_max` rows.
pub(crate) async fn derive(
    chain: &Chain,
    range: Range<u64>,
    generations: &[Generation],
    settings: &DeriveSettings,
) -> Result<DerivedChunk> {
    let rows_max = settings.rows_max;
    let pieces = pieces(&range);
    let work = pieces.into_iter().map(|piece| {
        let (chain, generations) = (chain.clone(), generations.to_vec());
        let tokens = Arc::clone(&settings.tokens);
        async move {
            let blocks = chain.archived_blocks(piece.clone()).await?;
            let chain_id = chain.chain_id();
            let rows =
                logmill_io::compute(move || process(chain_id, &blocks, &generations, &tokens));
            Ok::<_, Error>((piece, rows.await?))
        }
    });
    let mut working = futures::stream::iter(work).buffered(PIECES);
    let mut derived = DerivedChunk { range: range.start..range.start, rows: Vec::new() };
    let (mut unfolded, mut folded) = (0, 0);
    while let Some(done) = working.next().await {
        let (piece, rows) = done?;
        unfolded += rows.iter().flatten().map(Rows::len).sum::<usize>();
        derived.add(piece, rows);
        if unfolded >= rows_max {
            derived = derived.fold().await?;
            folded += unfolded;
            unfolded = derived.len();
            // If folding shrank the rows enough, there is room for more.
            if unfolded >= rows_max / 2 || folded >= 16 * rows_max {
                break;
            }
        }
    }
    derived.fold().await
}

impl DerivedChunk {
    fn add(&mut self, piece: Range<u64>, rows: Vec<Result<Rows>>) {
        self.range.end = piece.end;
        if self.rows.is_empty() {
            self.rows = rows;
            return;
        }
        for (mine, its) in self.rows.iter_mut().zip(rows) {
            match (mine, its) {
                (Ok(mine), Ok(its)) => mine.append(its),
                (mine @ Ok(_), its @ Err(_)) => *mine = its,
                (Err(_), _) => {}
            }
        }
    }

    fn len(&self) -> usize {
        self.rows.iter().flatten().map(Rows::len).sum()
    }

    async fn fold(mut self) -> Result<Self> {
        Ok(logmill_io::compute(move || {
            for rows in &mut self.rows {
                if let Ok(some) = rows
                    && let Err(error) = some.fold()
                {
                    *rows = Err(error);
                }
            }
            self
        })
        .await)
    }
}

fn pieces(range: &Range<u64>) -> Vec<Range<u64>> {
    let mut pieces = Vec::new();
    let mut start = range.start;
    while start < range.end {
        let end = (start + PIECE_BLOCKS).min(range.end);
        pieces.push(start..end);
        start = end;
    }
    pieces
}

/// The rows of some blocks for every generation. The outer error means that the blocks could not be decoded.
pub(crate) fn process(
    chain_id: u64,
    blocks: &[Arc<Block>],
    generations: &[Generation],
    tokens: &TokenSettings,
) -> Result<Vec<Result<Rows>>> {
    let reads = generations
        .iter()
        .map(|generation| generation.processor.reads())
        .max()
        .unwrap_or(BlockParts::Logs);
    let decoded: Vec<DecodedBlock> = blocks
        .iter()
        .map(|block| DecodedBlock::with(chain_id, Arc::clone(block), tokens, reads))
        .collect::<Result<_>>()?;
    let mut rows: Vec<Option<Result<Rows>>> = generations.iter().map(|_| None).collect();
    for phase in [Phase::One, Phase::Two] {
        for (generation, rows) in generations.iter().zip(&mut rows) {
            if generation.processor.phase() == phase {
                *rows = Some(of_generation(&decoded, generation));
            }
        }
    }
    let none = || Err(Error::corrupt("a processor has an unknown phase"));
    Ok(rows.into_iter().map(|rows| rows.unwrap_or_else(none)).collect())
}

fn of_generation(blocks: &[DecodedBlock], generation: &Generation) -> Result<Rows> {
    let processor = generation.processor.name();
    let rows = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut rows = Rows::new(generation.processor.tables());
        for block in blocks {
            rows.at_block(block.number());
            generation.processor.process(block, &mut rows)?;
        }
        rows.fold()?;
        Ok::<_, Error>(rows)
    }));
    match rows {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(error)) => {
            Err(Error::Processor { processor, what: logmill_io::error_chain(&error) })
        }
        Err(panic) => {
            let message = panic.downcast_ref::<&str>().map(|message| (*message).to_owned());
            let message = message.or_else(|| panic.downcast_ref::<String>().cloned());
            let what = format!("panicked: {}", message.unwrap_or_default());
            Err(Error::Processor { processor, what })
        }
    }
}
