//! `Processor`: a pure function from a block to rows.
//!
//! Guarantees: a processor sees nothing but its block, so its rows do not depend on what came before, what runs beside
//! it, or when it runs. What it needs of other blocks or of a node lives in catalogues and observations, joined when
//! read. Leaves to others: when it runs, storing, folding, reorganizations.

use super::decoded::DecodedBlock;
use super::rows::Rows;
use super::table::Table;
use crate::error::Result;

/// In which round of a chunk a processor runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// From the block alone.
    One,
    /// From what phase one decoded of the same block: token transfers.
    Two,
}

/// What of a block a processor looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reads {
    /// Its logs and token transfers: its transactions are not decoded for it.
    Logs,
    /// Everything. Most costly are the senders, which follow from signatures.
    Everything,
}

/// A pure function from a block to rows.
pub trait Processor: Send + Sync + std::fmt::Debug {
    /// Its name: that of its checkpoint, coverage and setting.
    fn name(&self) -> &'static str;

    /// Changes with everything that changes its rows, the decoders that it uses included. A new version builds its
    /// tables anew, beside the old ones.
    fn version(&self) -> u32;

    /// The settings that change its rows, if it has any: other ones build its tables anew too.
    fn parameters(&self) -> String {
        String::new()
    }

    /// In which round it runs.
    fn phase(&self) -> Phase {
        Phase::One
    }

    /// What it looks at.
    fn reads(&self) -> Reads {
        Reads::Everything
    }

    /// The tables that it writes, and nobody else does.
    fn tables(&self) -> &'static [&'static Table];

    /// The rows of a block.
    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()>;
}
