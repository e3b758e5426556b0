//! Sets of heights, stored as disjoint ranges.
//!
//! Guarantees: ranges are half-open, not empty, sorted, and neither touch nor overlap. Every operation keeps
//! this invariant, and decoding rejects a set that breaks it. Leaves to others: where a set is stored
//! ([`crate::coverage`]).
//!
//! Stored form: version byte `1`, then two LEB128 numbers per range: the gap since the end of the previous
//! range (or since 0), and the length. The low 32 bits of the FNV-1a 64 hash of all preceding bytes follow,
//! little-endian.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use crate::error::{Error, Result};

/// A half-open range of block heights.
pub type Heights = Range<u64>;

/// Maximum number of ranges in a set; a set with more indicates a bug elsewhere.
pub const RANGES_MAX: usize = 1_000_000;
const VERSION: u8 = 1;

#[derive(Clone, Default, PartialEq, Eq)]
pub struct IntervalSet {
    /// Range start to range end.
    ranges: BTreeMap<u64, u64>,
}

/// The order in which a range is searched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SearchOrder {
    LowestFirst,
    HighestFirst,
}

impl IntervalSet {
    pub fn new() -> Self {
        Self::default()
    }

    /// Iterates over the ranges, lowest first.
    pub fn ranges(&self) -> impl DoubleEndedIterator<Item = Heights> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Number of heights.
    pub fn total(&self) -> u64 {
        self.ranges().map(|range| range.end - range.start).sum()
    }

    pub fn contains(&self, height: u64) -> bool {
        self.range_at(height).is_some()
    }

    /// Whether the set contains the whole range. True for an empty range.
    pub fn covers(&self, range: &Heights) -> bool {
        range.is_empty() || self.range_at(range.start).is_some_and(|found| range.end <= found.end)
    }

    fn range_at(&self, height: u64) -> Option<Heights> {
        let (start, end) = self.ranges.range(..=height).next_back()?;
        (height < *end).then_some(*start..*end)
    }

    /// Adds a range and returns the parts of it that were missing.
    pub fn insert(&mut self, range: &Heights) -> Vec<Heights> {
        let missing = self.gaps(range);
        if range.is_empty() {
            return missing;
        }
        let (mut start, mut end) = (range.start, range.end);
        // Ranges that only touch are merged too.
        while let Some((near_start, near_end)) = self.last_starting_by(end)
            && near_end >= start
        {
            start = start.min(near_start);
            end = end.max(near_end);
            self.ranges.remove(&near_start);
        }
        self.ranges.insert(start, end);
        missing
    }

    pub fn remove(&mut self, range: &Heights) {
        if range.is_empty() {
            return;
        }
        while let Some((start, end)) = self.last_starting_by(range.end - 1)
            && end > range.start
        {
            self.ranges.remove(&start);
            if start < range.start {
                self.ranges.insert(start, range.start);
            }
            if end > range.end {
                self.ranges.insert(range.end, end);
            }
        }
    }

    fn last_starting_by(&self, height: u64) -> Option<(u64, u64)> {
        self.ranges.range(..=height).next_back().map(|(start, end)| (*start, *end))
    }

    /// Returns the parts of `within` that are not in the set, lowest first.
    pub fn gaps(&self, within: &Heights) -> Vec<Heights> {
        let mut gaps = Vec::new();
        let mut at = within.start;
        if let Some(found) = self.range_at(at) {
            at = found.end;
        }
        for (start, end) in self.ranges.range(at..within.end.max(at)) {
            if at < *start {
                gaps.push(at..*start);
            }
            at = *end;
        }
        if at < within.end {
            gaps.push(at..within.end);
        }
        gaps
    }

    /// Returns the parts of `within` that are in the set, lowest first.
    pub fn overlap(&self, within: &Heights) -> Vec<Heights> {
        let clipped = |range: Heights| range.start.max(within.start)..range.end.min(within.end);
        self.ranges().map(clipped).filter(|range| !range.is_empty()).collect()
    }

    /// Returns the first missing height at or above `from`.
    pub fn watermark_up(&self, from: u64) -> u64 {
        self.range_at(from).map_or(from, |range| range.end)
    }

    /// Returns the lowest height of the gapless run that ends just below `from`, or `from` if there is none.
    pub fn watermark_down(&self, from: u64) -> u64 {
        let below = from.checked_sub(1).and_then(|height| self.range_at(height));
        below.map_or(from, |range| range.start)
    }

    /// Returns the next missing range of `within`, at most `most` heights long.
    pub fn next_missing(&self, within: &Heights, most: u64, order: SearchOrder) -> Option<Heights> {
        if most == 0 {
            return None;
        }
        let gaps = self.gaps(within);
        match order {
            SearchOrder::LowestFirst => {
                let gap = gaps.first()?;
                Some(gap.start..gap.end.min(gap.start.saturating_add(most)))
            }
            SearchOrder::HighestFirst => {
                let gap = gaps.last()?;
                Some(gap.start.max(gap.end.saturating_sub(most))..gap.end)
            }
        }
    }

    pub fn extend(&mut self, other: &Self) {
        for range in other.ranges() {
            self.insert(&range);
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        let mut at = 0;
        for range in self.ranges() {
            write_number(&mut bytes, range.start - at);
            write_number(&mut bytes, range.end - range.start);
            at = range.end;
        }
        let sum = checksum(&bytes);
        bytes.extend_from_slice(&sum);
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let bad = |what: &str| Error::corrupt(format!("an interval set {what}"));
        let (body, sum) = bytes.split_last_chunk().ok_or_else(|| bad("is cut short"))?;
        if checksum(body) != *sum {
            return Err(bad("fails its checksum"));
        }
        let (version, mut rest) = body.split_first().ok_or_else(|| bad("is empty"))?;
        if *version != VERSION {
            return Err(bad(&format!("has version {version}, which this program does not know")));
        }
        let mut set = Self::new();
        let mut at = 0_u64;
        while !rest.is_empty() {
            let gap = read_number(&mut rest).ok_or_else(|| bad("has a bad number"))?;
            let length = read_number(&mut rest).ok_or_else(|| bad("has a bad number"))?;
            let touches = gap == 0 && !set.is_empty();
            let start = at.checked_add(gap).filter(|_| length > 0 && !touches);
            let start = start.ok_or_else(|| bad("is not in order"))?;
            at = start.checked_add(length).ok_or_else(|| bad("ends above the maximum height"))?;
            set.ranges.insert(start, at);
            if set.len() > RANGES_MAX {
                return Err(bad("has too many ranges"));
            }
        }
        Ok(set)
    }
}

impl FromIterator<Heights> for IntervalSet {
    fn from_iter<I: IntoIterator<Item = Heights>>(ranges: I) -> Self {
        let mut set = Self::new();
        for range in ranges {
            set.insert(&range);
        }
        set
    }
}

impl fmt::Debug for IntervalSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ranges()).finish()
    }
}

fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(u8::try_from(number & 0x7f).unwrap_or(0) | 0x80);
        number >>= 7;
    }
    bytes.push(u8::try_from(number).unwrap_or(0));
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if shift == 63 && part > 1 {
            return None;
        }
        number |= part << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let [a, b, c, d, ..] = hash.to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests;
