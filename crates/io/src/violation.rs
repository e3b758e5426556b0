//! What a conformance suite says of a store that breaks its promises.

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the store breaks its promise that {case}: {what}")]
pub struct Violation {
    /// The promise.
    pub case: &'static str,
    /// How it showed.
    pub what: String,
}

impl Violation {
    pub(crate) fn new(case: &'static str, what: impl Into<String>) -> Self {
        Self { case, what: what.into() }
    }
}
