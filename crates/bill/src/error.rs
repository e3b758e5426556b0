//! Errors of making, reading and verifying bills.
//!
//! Guarantees: an error says what cannot be read or billed, and why. Leaves to others: what to answer to a client.

/// Why a bill cannot be made or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The block does not have the parts that a bill needs.
    #[error("cannot make a bill of transaction {index} in block {block}: {what}")]
    Unbillable { block: u64, index: usize, what: String },
    /// Bytes or JSON that cannot be decoded.
    #[error("cannot read {what}: {why}")]
    Unreadable { what: &'static str, why: String },
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    #[expect(clippy::needless_pass_by_value, reason = "callers pass errors that they own")]
    pub(crate) fn unreadable(what: &'static str, why: impl ToString) -> Self {
        Self::Unreadable { what, why: why.to_string() }
    }
}
