//! `Fence`: makes the writes of a process that has lost its lease fail.
//!
//! Guarantees: none beyond the type. Leaves to others: the check, inside the transaction that writes, of a batch
//! ([`crate::MetaStore::commit`]) or of SQL ([`crate::Tx::hold`]), and raising the counter.

use crate::error::Error;

/// A counter of the store that only grows, and the value it must have: a lease holder with a lower value can no
/// longer write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// Name of the counter; also the name of the lease.
    pub name: String,
    /// Value when the holder acquired the lease.
    pub counter: i64,
}

impl Fence {
    pub fn stale(&self) -> Error {
        Error::Fenced { fence: self.name.clone(), counter: self.counter }
    }
}
