//! Headers, transactions and withdrawals as facts.
//!
//! Guarantees: canonical parts and those kept as a node's JSON give the same facts. Leaves to others: logs.

use logmill_chain::Block;

use super::{DecodedTransaction, HeaderFacts, Withdrawal};
use crate::error::Result;

/// What the header says.
pub(super) fn header(block: &Block) -> Result<HeaderFacts> {
    let _ = block;
    Ok(HeaderFacts::default())
}

/// The transactions with what their receipts say.
pub(super) fn transactions(block: &Block, header: &HeaderFacts) -> Result<Vec<DecodedTransaction>> {
    let _ = (block, header);
    Ok(Vec::new())
}

/// The withdrawals.
pub(super) fn withdrawals(block: &Block) -> Result<Vec<Withdrawal>> {
    let _ = block;
    Ok(Vec::new())
}
