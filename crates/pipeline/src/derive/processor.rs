//! `Processor`: a pure function from a block to rows.
//!
//! Guarantees: a processor sees only its block, so its rows do not depend on earlier blocks, on other processors, or on
//! when it runs. Data of other blocks or of a node is kept in catalogues and observations and joined on read. Leaves to
//! others: when it runs, storing, folding, reorganizations.

use super::decoded::{BlockParts, DecodedBlock};
use super::rows::Rows;
use super::table::Table;
use crate::error::Result;

/// Order in which processors handle a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Reads the block alone.
    One,
    /// Also reads the token transfers that phase one decoded from the same block.
    Two,
}

/// A pure function from a block to rows.
pub trait Processor: Send + Sync + std::fmt::Debug {
    /// Also names its checkpoint, coverage and setting.
    fn name(&self) -> &'static str;

    /// Must change with anything that changes the rows, including the decoders that it uses. A new version rebuilds the
    /// tables beside the old ones.
    fn version(&self) -> u32;

    /// The settings that change its rows, if any; a change rebuilds the tables too.
    fn parameters(&self) -> String {
        String::new()
    }

    /// The configuration keys that determine [`Processor::parameters`], for messages to operators.
    fn parameter_settings(&self) -> &'static str {
        "none"
    }

    fn phase(&self) -> Phase {
        Phase::One
    }

    fn reads(&self) -> BlockParts {
        BlockParts::Everything
    }

    /// The tables that it writes; no other processor writes them.
    fn tables(&self) -> &'static [&'static Table];

    /// Adds the rows of a block.
    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()>;
}
