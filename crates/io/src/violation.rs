//! The error of a conformance suite.

/// A broken guarantee of a store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store breaks its guarantee that {case}: {what}")]
pub struct Violation {
    /// The guarantee.
    pub case: &'static str,
    pub what: String,
}

impl Violation {
    pub(crate) fn new(case: &'static str, what: impl Into<String>) -> Self {
        Self { case, what: what.into() }
    }
}
