//! From stored blocks to rows: a range read once, for all lines that miss it.
//!
//! Guarantees: a processor that fails or panics takes no other along; the range that is given back is whole, and as
//! long as what it makes is not too much to hold. Leaves to others: which ranges, and storing.

use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures::StreamExt;
use logmill_chain::Block;

use super::decoded::{DecodedBlock, TokenSettings};
use super::deriver::DeriveSettings;
use super::line::Line;
use super::processor::{Phase, Reads};
use super::rows::Rows;
use crate::chain::Chain;
use crate::error::{Error, Result};

/// Blocks that are read and derived as one piece of work.
const PIECE_BLOCKS: u64 = 32;
/// Pieces that are worked on at a time.
const PIECES: usize = 3;

/// What became of a range.
#[derive(Debug)]
pub(crate) struct Derived {
    /// The blocks that were derived: the wanted range, or its beginning.
    pub(crate) range: Range<u64>,
    /// For each line, in their order: its rows, folded, or why it has none.
    pub(crate) rows: Vec<Result<Rows>>,
}

/// Derives the beginning of a range, up to about as many rows as are allowed, for some lines.
pub(crate) async fn derive(
    chain: &Chain,
    range: Range<u64>,
    lines: &[Line],
    settings: &DeriveSettings,
) -> Result<Derived> {
    let rows_max = settings.rows_max;
    let pieces = pieces(&range);
    let work = pieces.into_iter().map(|piece| {
        let (chain, lines) = (chain.clone(), lines.to_vec());
        let tokens = Arc::clone(&settings.tokens);
        async move {
            let blocks = chain.archived_blocks(piece.clone()).await?;
            let chain_id = chain.chain_id();
            let rows = logmill_io::compute(move || process(chain_id, &blocks, &lines, &tokens));
            Ok::<_, Error>((piece, rows.await?))
        }
    });
    let mut working = futures::stream::iter(work).buffered(PIECES);
    let mut derived = Derived { range: range.start..range.start, rows: Vec::new() };
    let (mut unfolded, mut folded) = (0, 0);
    while let Some(done) = working.next().await {
        let (piece, rows) = done?;
        unfolded += rows.iter().flatten().map(Rows::len).sum::<usize>();
        derived.add(piece, rows);
        if unfolded >= rows_max {
            derived = derived.folded().await?;
            folded += unfolded;
            unfolded = derived.len();
            // Folding may have made little of it: then there is room for more.
            if unfolded >= rows_max / 2 || folded >= 16 * rows_max {
                break;
            }
        }
    }
    derived.folded().await
}

impl Derived {
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

    async fn folded(mut self) -> Result<Self> {
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

/// The rows of some blocks for every line. An error is of the blocks themselves.
pub(crate) fn process(
    chain_id: u64,
    blocks: &[Arc<Block>],
    lines: &[Line],
    tokens: &TokenSettings,
) -> Result<Vec<Result<Rows>>> {
    let reads = lines.iter().map(|line| line.processor.reads()).max().unwrap_or(Reads::Logs);
    let decoded: Vec<DecodedBlock> = blocks
        .iter()
        .map(|block| DecodedBlock::with(chain_id, Arc::clone(block), tokens, reads))
        .collect::<Result<_>>()?;
    let mut rows: Vec<Option<Result<Rows>>> = lines.iter().map(|_| None).collect();
    for phase in [Phase::One, Phase::Two] {
        for (line, rows) in lines.iter().zip(&mut rows) {
            if line.processor.phase() == phase {
                *rows = Some(of_line(&decoded, line));
            }
        }
    }
    let none = || Err(Error::corrupt("a processor of no phase"));
    Ok(rows.into_iter().map(|rows| rows.unwrap_or_else(none)).collect())
}

fn of_line(blocks: &[DecodedBlock], line: &Line) -> Result<Rows> {
    let processor = line.processor.name();
    let rows = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let mut rows = Rows::new(line.processor.tables());
        for block in blocks {
            rows.at_block(block.number());
            line.processor.process(block, &mut rows)?;
        }
        rows.fold()?;
        Ok::<_, Error>(rows)
    }));
    match rows {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(error)) => Err(Error::Processor { processor, what: logmill_io::chain(&error) }),
        Err(panic) => {
            let said = panic.downcast_ref::<&str>().map(|said| (*said).to_owned());
            let said = said.or_else(|| panic.downcast_ref::<String>().cloned());
            let what = format!("panicked: {}", said.unwrap_or_default());
            Err(Error::Processor { processor, what })
        }
    }
}
