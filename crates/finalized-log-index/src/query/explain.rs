//! What a query did: the plan of each source and the work done, for people and tests.
//!
//! Guarantees: the figures are counted while the query runs. Leaves to others: showing them.

use std::time::Duration;

use crate::query::plan::Strategy;
use crate::types::BlockRange;

/// How a query was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The chunks and sections that were looked at, in order.
    pub sources: Vec<ExplainedSource>,
    /// How many logs were found.
    pub results: u64,
    /// How often the plan was made anew because a chunk was merged away meanwhile.
    pub replans: u64,
    /// How long it took.
    pub took: Duration,
}

/// How one chunk or section was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedSource {
    /// The wanted blocks of it.
    pub blocks: BlockRange,
    /// Whether it is a section of the tail.
    pub in_tail: bool,
    /// What was decided; the numbers are positions in `clauses`.
    pub strategy: Strategy,
    /// The clauses, in the order of the filter.
    pub clauses: Vec<ExplainedClause>,
    /// The pages that can hold logs of the wanted blocks.
    pub pages_in_range: usize,
    /// The pages that were read.
    pub pages_read: u64,
    /// Their bytes.
    pub bytes_read: u64,
    /// The logs that the index left to be compared; all of the pages in a scan.
    pub candidates: u64,
    /// How many matched.
    pub matched: u64,
}

/// One position of the filter in one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedClause {
    /// `addr` or `topic0` … `topic3`.
    pub kind: String,
    /// How many alternatives it has.
    pub terms: usize,
    /// How many of them the source knows.
    pub terms_found: usize,
    /// About how many logs of the range have one.
    pub estimate: u64,
}

impl Explanation {
    /// The pages that were read.
    pub fn pages_read(&self) -> u64 {
        self.sources.iter().map(|source| source.pages_read).sum()
    }

    /// The logs that were compared with the filter.
    pub fn candidates(&self) -> u64 {
        self.sources.iter().map(|source| source.candidates).sum()
    }
}
