//! Bills: what a transaction moved and cost, line by line, signed, with a proof that anyone can check offline.
//!
//! ```text
//!   stored block ──▶ Evidence (header, transaction, receipts) ──▶ rules ──▶ BillDocument ──▶ signature
//!                         └────────▶ Merkle proofs ─────────────────────────────┴──▶ Bill ──▶ verify
//! ```
//!
//! Everything that follows from the transaction and its receipts is `proven`: the same rules run when a bill is made
//! and when it is verified. Everything else (symbols, prices, fees that a rollup reports) is `attested` by the signer.
//!
//! Guarantees: amounts are exact; a document has no viewer. Leaves to others: fetching blocks, storing bills, HTTP.

pub mod canonical;
pub mod document;
mod error;
pub mod evidence;
pub mod proof;
pub mod rules;
pub mod signature;
pub mod verify;
pub mod view;

pub use document::{Bill, BillDocument};
pub use error::{Error, Result};
pub use evidence::Evidence;
pub use proof::Proof;
pub use signature::{PublicKey, SigningKey};

use logmill_chain::Block;

use crate::document::Basis;
use crate::evidence::TransactionFacts;

#[cfg(test)]
mod tests;

/// The signed bill of a transaction of a stored block: proven if the block allows it, else attested.
pub fn bill_of_block(chain_id: u64, block: &Block, index: usize, key: &SigningKey) -> Result<Bill> {
    let (proof, evidence) = Proof::of_block(chain_id, block, index);
    let (facts, basis) = match evidence {
        Some(evidence) => (evidence.decode()?, Basis::Proven),
        None => (TransactionFacts::of_block(chain_id, block, index)?, Basis::Attested),
    };
    let document = serde_json::to_value(rules::document(&facts, basis));
    let document = document.map_err(|error| Error::unreadable("a document", error))?;
    let signature = key.sign(&document)?;
    Ok(Bill { document, proof, signature })
}
