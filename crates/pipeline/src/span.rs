//! Block ranges in JSON: `{"from": first, "to": last}`, both inclusive.
//!
//! Guarantees: ranges are half-open in the program, and inclusive in JSON. Leaves to others: which ranges are shown.

use serde::Serialize;
use serde::Serializer;

/// A range of blocks, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct BlockSpan {
    pub from: u64,
    pub to: u64,
}

impl BlockSpan {
    /// From a half-open range that is not empty.
    pub fn of(start: u64, end: u64) -> Self {
        Self { from: start, to: end.saturating_sub(1).max(start) }
    }
}

/// Serializes half-open ranges.
pub(crate) fn half_open<S: Serializer>(ranges: &[(u64, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ranges.iter().map(|(start, end)| BlockSpan::of(*start, *end)))
}

/// Serializes inclusive ranges.
pub(crate) fn inclusive<S: Serializer>(ranges: &[(u64, u64)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(ranges.iter().map(|(from, to)| BlockSpan { from: *from, to: *to }))
}

/// Serializes the exclusive end of a range as its last block.
pub(crate) fn last<S: Serializer>(end: &u64, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(end.saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_serialized_with_both_ends() {
        #[derive(Serialize)]
        struct Ranges {
            #[serde(serialize_with = "half_open")]
            open: Vec<(u64, u64)>,
            #[serde(serialize_with = "inclusive")]
            closed: Vec<(u64, u64)>,
            #[serde(rename = "to", serialize_with = "last")]
            end: u64,
        }
        let shown = Ranges { open: vec![(0, 13), (20, 21)], closed: vec![(0, 13)], end: 7 };
        let expected = r#"{"open":[{"from":0,"to":12},{"from":20,"to":20}],"closed":[{"from":0,"to":13}],"to":6}"#;
        assert_eq!(serde_json::to_string(&shown).expect("JSON"), expected);
    }
}
