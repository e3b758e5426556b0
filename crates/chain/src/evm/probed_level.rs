//! What the blocks of a chain of an unknown family have shown about the level that they can pass.
//!
//! Guarantees: none beyond the type. Leaves to others: the decisions ([`super::level`]).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use tokio::sync::OnceCell;

use crate::verify_level::VerifyLevel;

/// Probe results of a chain of an unknown family.
#[derive(Debug, Default)]
pub(super) struct ProbedLevel {
    pub(super) probed: OnceCell<()>,
    /// Whether a header has passed `full`: then an unknown field in a later header does not lower the level.
    headers_passed: AtomicBool,
    /// Whether a block with transactions has passed `full`: then an unknown field or type in a later transaction does
    /// not lower the level. Empty blocks prove nothing about transactions.
    transactions_passed: AtomicBool,
    lowered: Mutex<Option<LoweredLevel>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoweredLevel {
    pub(super) verify: VerifyLevel,
    pub(super) why: String,
}

impl ProbedLevel {
    pub(super) fn lowered(&self) -> Option<LoweredLevel> {
        self.lowered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn lower(&self, lowered: LoweredLevel) {
        *self.lowered.lock().unwrap_or_else(PoisonError::into_inner) = Some(lowered);
    }

    /// Records that a block passed `full`.
    pub(super) fn note_passed(&self, has_transactions: bool) {
        self.headers_passed.store(true, Ordering::Relaxed);
        if has_transactions {
            self.transactions_passed.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a header, or else a block with transactions, has passed `full`.
    pub(super) fn has_passed(&self, is_of_header: bool) -> bool {
        let passed = if is_of_header { &self.headers_passed } else { &self.transactions_passed };
        passed.load(Ordering::Relaxed)
    }
}
