//! Explains a query: the plan of each source and the work done, for operators and tests.
//!
//! Guarantees: the figures are counted while the query runs. Leaves to others: displaying them.

use std::time::Duration;

use crate::query::plan::Strategy;
use crate::types::BlockRange;

/// How a query was answered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Explanation {
    /// The chunks and sections that were read, in order.
    pub sources: Vec<ExplainedSource>,
    /// Number of logs returned.
    pub results: u64,
    /// How often the query was planned again because a chunk was merged or pruned.
    pub replans: u64,
    /// Duration of the query.
    pub took: Duration,
}

/// How one chunk or section was searched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedSource {
    /// Its blocks that the query asked for.
    pub blocks: BlockRange,
    /// True for a section of the tail, false for a chunk.
    pub in_tail: bool,
    /// How it was read; the numbers are positions in `clauses`.
    pub strategy: Strategy,
    /// In the order of the filter.
    pub clauses: Vec<ExplainedClause>,
    /// Number of pages that may hold logs of `blocks`.
    pub pages_in_range: usize,
    /// Number of pages read.
    pub pages_read: u64,
    /// Total size of the pages read.
    pub bytes_read: u64,
    /// Number of logs compared with the filter; in a scan, all logs of the pages.
    pub candidates: u64,
    /// Number of logs that matched.
    pub matched: u64,
}

/// One position of the filter in one source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExplainedClause {
    /// `addr` or `topic0` … `topic3`.
    pub kind: String,
    /// Number of alternatives.
    pub terms: usize,
    /// Number of alternatives that occur in the source.
    pub terms_found: usize,
    /// Estimated number of logs in the range that match one.
    pub estimate: u64,
}

impl Explanation {
    /// Number of pages read from all sources.
    pub fn pages_read(&self) -> u64 {
        self.sources.iter().map(|source| source.pages_read).sum()
    }

    /// Number of logs compared with the filter, in all sources.
    pub fn candidates(&self) -> u64 {
        self.sources.iter().map(|source| source.candidates).sum()
    }
}
