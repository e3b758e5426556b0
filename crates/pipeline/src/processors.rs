//! The processors: one file each, one line to register.
//!
//! | phase | processor | tables |
//! |---|---|---|
//! | 1 | [`fees`] `fees_worker` | `fee_events`, `fee_forwards` |
//!
//! Guarantees: names are unique, and each table has one writer. Leaves to others: running them ([`crate::derive`]).

use std::sync::Arc;

use crate::derive::Processor;

pub mod fees;

/// Every processor, those of phase one first.
pub fn all() -> Vec<Arc<dyn Processor>> {
    vec![Arc::new(fees::Fees::default())]
}
