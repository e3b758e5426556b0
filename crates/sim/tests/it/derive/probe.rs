//! A processor that uses every kind of column and every fold.

use std::sync::Arc;

use logmill_chain::Log;
use logmill_pipeline::cells;
use logmill_pipeline::derive::rows::amount;
use logmill_pipeline::derive::table::{folded, key, once};
use logmill_pipeline::derive::{
    BlockParts, Cell, DecodedBlock, Fold, Kind, Phase, Processor, Rows, Table,
};
use logmill_pipeline::{Error, Result};

pub(crate) static ONCE: Table = Table {
    name: "probe_once",
    columns: &[
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        once("contract", Kind::Address),
        once("topic", Kind::Bytes),
        once("size", Kind::Amount),
        once("words", Kind::Text),
        once("empty", Kind::Int),
    ],
    indexes: &[&["contract", "block_height"]],
};

pub(crate) static FOLDED: Table = Table {
    name: "probe_folded",
    columns: &[
        key("contract", Kind::Address),
        key("topics", Kind::Int),
        folded("logs", Kind::Int, Fold::Sum),
        folded("size", Kind::Amount, Fold::Sum),
        folded("lowest", Kind::Int, Fold::Min),
        folded("highest", Kind::Int, Fold::Max),
        folded("first_topic", Kind::Bytes, Fold::First),
        folded("last_topic", Kind::Bytes, Fold::Last),
        folded("first_words", Kind::Text, Fold::First),
        folded("last_size", Kind::Amount, Fold::Last),
        folded("last_address", Kind::Address, Fold::Last),
    ],
    indexes: &[&["last_address"]],
};

/// A processor that fails at configured blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Probe {
    pub(crate) version: u32,
    /// Blocks at which it returns an error.
    pub(crate) fails_at: Vec<u64>,
    /// Blocks at which it panics.
    pub(crate) panics_at: Vec<u64>,
    pub(crate) name: &'static str,
}

impl Probe {
    pub(crate) fn shared() -> Arc<dyn Processor> {
        Arc::new(Self::of_version(1))
    }

    pub(crate) fn of_version(version: u32) -> Self {
        Self { version, name: "probe_worker", ..Self::default() }
    }
}

impl Processor for Probe {
    fn name(&self) -> &'static str {
        self.name
    }

    fn version(&self) -> u32 {
        self.version
    }

    fn phase(&self) -> Phase {
        Phase::Two
    }

    fn reads(&self) -> BlockParts {
        BlockParts::Logs
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&ONCE, &FOLDED] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        if self.fails_at.contains(&block.number()) {
            return Err(Error::Invalid { what: "told to fail".to_owned() });
        }
        assert!(!self.panics_at.contains(&block.number()), "told to panic");
        for placed in block.block.logs() {
            let (log, index) = (placed.log, placed.log_index);
            let first = log.topics.first().copied();
            let size = Cell::Amount(size(self.version, log));
            let words = (index % 3 == 0).then(|| format!("'{} {}\"", block.number(), index));
            let once = cells![block.number(), index, log.address, first];
            let rest = [size.clone(), words.clone().into(), Cell::Null];
            rows.push(&ONCE, index, [once, rest.to_vec()].concat())?;
            let folded = cells![
                log.address,
                log.topics.len(),
                1_u32,
                Cell::Null,
                block.number(),
                block.number(),
                first,
                log.topics.last().copied(),
                words,
                Cell::Null,
                log.address,
            ];
            let mut folded = folded;
            folded[3] = size.clone();
            folded[9] = size;
            rows.push(&FOLDED, index, folded)?;
        }
        Ok(())
    }
}

/// A number of up to 256 bits, negative for some.
fn size(version: u32, log: &Log) -> logmill_io::Amount {
    let word = log.topics.last().copied().unwrap_or_default();
    let size = amount(alloy_primitives::U256::from_be_bytes(word.0) >> (version - 1));
    if log.data.len().is_multiple_of(3) { -size } else { size }
}

impl From<Probe> for Arc<dyn Processor> {
    fn from(probe: Probe) -> Self {
        Arc::new(probe) as Self
    }
}
