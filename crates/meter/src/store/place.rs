//! `Place`: one series in one fifteen minutes, where an event belongs and a partial is stored.

/// Series and bucket of a partial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) series: i64,
    pub(crate) bucket: i64,
}
