//! The filter of `eth_getLogs`, and what matches it.
//!
//! - Addresses: none given means any; else one of them.
//! - Topics: up to four positions, each any (empty) or one of a list. A filter with *k* positions matches
//!   only logs with at least *k* topics, so that `[any, any]` is not the same as no topics at all.
//! - Blocks: a range, or one block by its hash.
//!
//! Guarantees: [`Filter::matches`] is the one definition of what a query answers; indexes only find candidates
//! for it. Leaves to others: tags such as `latest`, and the error codes of JSON-RPC.

use std::ops::RangeInclusive;

use alloy_primitives::{Address, B256};

use crate::error::{Error, Result};
use crate::types::{BlockLog, TOPICS_MAX};

/// Which logs a query asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// In which blocks.
    pub blocks: Blocks,
    /// Written by one of these contracts; any if there is none.
    pub addresses: Vec<Address>,
    /// With one of these topics at each position; any at a position without one.
    pub topics: Vec<Vec<B256>>,
    /// Stop before the block with which there would be more logs than this. A single block is never split.
    pub max_results: Option<usize>,
}

/// In which blocks a query looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// In a range, both ends included, which must be covered: else the query is an error that carries what is.
    Range(RangeInclusive<u64>),
    /// In the part of a range that is covered, whatever that is; the answer says what it was.
    Covered(RangeInclusive<u64>),
    /// In the block of this hash.
    Hash(B256),
}

impl Filter {
    /// All logs of a range of blocks, which must be covered.
    pub fn range(blocks: RangeInclusive<u64>) -> Self {
        Self::of(Blocks::Range(blocks))
    }

    /// All logs of the covered part of a range of blocks.
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

    /// The same, of one more contract.
    #[must_use]
    pub fn address(mut self, address: Address) -> Self {
        self.addresses.push(address);
        self
    }

    /// The same, with this topic at the position (0 to 3), or with one more alternative there.
    #[must_use]
    pub fn topic(mut self, position: usize, topic: B256) -> Self {
        if self.topics.len() <= position {
            self.topics.resize(position + 1, Vec::new());
        }
        self.topics[position].push(topic);
        self
    }

    /// The same, with a limit of results.
    #[must_use]
    pub fn limit(mut self, max_results: usize) -> Self {
        self.max_results = Some(max_results);
        self
    }

    /// Refuses what no query can mean.
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
            return Err(Error::InvalidFilter { what: "max_results of 0".to_owned() });
        }
        Ok(())
    }

    /// Whether a log, wherever it is, has the wanted address and topics.
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
    fn addresses_and_topics_match_as_eth_get_logs_says() {
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
    fn a_filter_of_k_positions_wants_at_least_k_topics() {
        let mut filter = Filter::range(0..=9);
        filter.topics = vec![Vec::new(), Vec::new()];
        check(&filter, &log(1, &[]), false);
        check(&filter, &log(1, &[5]), false);
        check(&filter, &log(1, &[5, 6]), true);
        check(&filter, &log(1, &[5, 6, 7]), true);
    }

    #[test]
    fn nonsense_is_refused() {
        let reversed = Filter::of(Blocks::Range(RangeInclusive::new(5, 4)));
        assert!(reversed.validate().is_err());
        assert!(Filter::range(0..=9).topic(4, word(1)).validate().is_err());
        assert!(Filter::range(0..=9).limit(0).validate().is_err());
        assert!(Filter::range(9..=9).topic(3, word(1)).limit(1).validate().is_ok());
    }
}
