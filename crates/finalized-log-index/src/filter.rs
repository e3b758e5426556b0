//! The filter of `eth_getLogs`, and the test whether a log matches it.
//!
//! - Addresses: the log's address must be in the list; an empty list matches any.
//! - Topics: up to four positions, each a list or empty for any. A filter with *k* positions matches
//!   only logs with at least *k* topics, so that `[any, any]` is not the same as no topics at all.
//! - Blocks: a range, or one block by its hash.
//!
//! Guarantees: [`Filter::matches`] alone defines what a query returns; indexes only find candidates for it. Leaves to
//! others: tags such as `latest`, and JSON-RPC error codes.

use std::ops::RangeInclusive;

use alloy_primitives::{Address, B256};

use crate::error::{Error, Result};
use crate::types::{BlockLog, TOPICS_MAX};

/// Selects the logs that a query returns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Blocks to search.
    pub blocks: Blocks,
    /// Contracts whose logs match; empty matches any.
    pub addresses: Vec<Address>,
    /// Alternatives for each topic position; an empty list matches any topic.
    pub topics: Vec<Vec<B256>>,
    /// The query stops before the block that would exceed this number of logs. A single block is never split.
    pub max_results: Option<usize>,
}

/// The blocks that a query searches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Inclusive range, which must be covered; otherwise the query fails with an error that lists the covered ranges.
    Range(RangeInclusive<u64>),
    /// The covered part of an inclusive range; the answer tells which part that was.
    Covered(RangeInclusive<u64>),
    /// The block with this hash.
    Hash(B256),
}

impl Filter {
    /// All logs of a block range, which must be covered.
    pub fn range(blocks: RangeInclusive<u64>) -> Self {
        Self::of(Blocks::Range(blocks))
    }

    /// All logs of the covered part of a block range.
    pub fn covered(blocks: RangeInclusive<u64>) -> Self {
        Self::of(Blocks::Covered(blocks))
    }

    /// All logs of one block.
    pub fn block_hash(hash: B256) -> Self {
        Self::of(Blocks::Hash(hash))
    }

    fn of(blocks: Blocks) -> Self {
        Self { blocks, addresses: Vec::new(), topics: Vec::new(), max_results: None }
    }

    /// Adds a contract to the alternatives.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// Adds a topic to the alternatives at a position from 0 to 3.
    #[must_use]
    pub fn topic(mut self, position: usize, topic: B256) -> Self {
        if self.topics.len() <= position {
            self.topics.resize(position + 1, Vec::new());
        }
        self.topics[position].push(topic);
        self
    }

    /// Sets [`Filter::max_results`].
    #[must_use]
    pub fn limit(mut self, max_results: usize) -> Self {
        self.max_results = Some(max_results);
        self
    }

    /// Refuses filters that cannot be run.
    pub fn validate(&self) -> Result<()> {
        if self.topics.len() > TOPICS_MAX {
            return Err(Error::InvalidFilter {
                what: format!("{} topic positions, at most {TOPICS_MAX}", self.topics.len()),
            });
        }
        if let Blocks::Range(range) | Blocks::Covered(range) = &self.blocks
            && range.start() > range.end()
        {
            return Err(Error::InvalidFilter {
                what: format!(
                    "invalid block range params: it starts at {} and ends at {}",
                    range.start(),
                    range.end()
                ),
            });
        }
        if self.max_results == Some(0) {
            return Err(Error::InvalidFilter { what: "max_results must be at least 1".to_owned() });
        }
        Ok(())
    }

    /// Whether the log has a matching address and topics; its block is not considered.
    pub fn matches(&self, log: &BlockLog) -> bool {
        let any_or = |wanted: &[B256], topic: &B256| wanted.is_empty() || wanted.contains(topic);
        (self.addresses.is_empty() || self.addresses.contains(&log.address))
            && self.topics.len() <= log.topics.len()
            && self.topics.iter().zip(&log.topics).all(|(wanted, topic)| any_or(wanted, topic))
    }

    /// The largest number of alternatives at one position.
    pub(crate) fn or_terms_max(&self) -> usize {
        let topics = self.topics.iter().map(Vec::len).max().unwrap_or(0);
        topics.max(self.addresses.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Topics;

    fn word(byte: u8) -> B256 {
        B256::repeat_byte(byte)
    }

    fn log(address: u8, topics: &[u8]) -> BlockLog {
        BlockLog {
            address: Address::repeat_byte(address),
            topics: topics.iter().map(|byte| word(*byte)).collect::<Topics>(),
            ..BlockLog::default()
        }
    }

    #[track_caller]
    fn check(filter: &Filter, log: &BlockLog, expected: bool) {
        assert_eq!(filter.matches(log), expected, "{filter:?} on {log:?}");
    }

    #[test]
    fn addresses_and_topics_match_as_in_eth_get_logs() {
        let all = || Filter::range(0..=9);
        check(&all(), &log(1, &[]), true);
        check(&all().address(Address::repeat_byte(1)), &log(1, &[]), true);
        check(&all().address(Address::repeat_byte(1)), &log(2, &[]), false);
        let either = all().address(Address::repeat_byte(1)).address(Address::repeat_byte(2));
        check(&either, &log(2, &[5]), true);
        check(&all().topic(0, word(5)), &log(1, &[5, 6]), true);
        check(&all().topic(0, word(6)), &log(1, &[5, 6]), false);
        check(&all().topic(0, word(5)).topic(0, word(7)), &log(1, &[7]), true);
        check(&all().topic(1, word(6)), &log(1, &[5, 6]), true);
        check(&all().topic(1, word(6)), &log(1, &[6]), false);
    }

    #[test]
    fn a_filter_with_k_positions_requires_at_least_k_topics() {
        let mut filter = Filter::range(0..=9);
        filter.topics = vec![Vec::new(), Vec::new()];
        check(&filter, &log(1, &[]), false);
        check(&filter, &log(1, &[5]), false);
        check(&filter, &log(1, &[5, 6]), true);
        check(&filter, &log(1, &[5, 6, 7]), true);
    }

    #[test]
    fn invalid_filters_are_refused() {
        let reversed = Filter::of(Blocks::Range(RangeInclusive::new(5, 4)));
        assert!(reversed.validate().is_err());
        assert!(Filter::range(0..=9).topic(4, word(1)).validate().is_err());
        assert!(Filter::range(0..=9).limit(0).validate().is_err());
        assert!(Filter::range(9..=9).topic(3, word(1)).limit(1).validate().is_ok());
    }
}
