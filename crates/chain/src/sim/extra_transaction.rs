//! Transactions that a test adds to the blocks of a simulated chain, for events that the chain does not produce
//! itself.
//!
//! Guarantees: they follow only from the number of the block and its branch, so a block can be built again.
//! Leaves to others: signing and sealing them.

use alloy_primitives::{Address, Bytes, U256};

use super::action::Call;
use crate::block::Log;

/// Returns the transactions to add to a block.
pub type ExtraTransactions = fn(number: u64, branch: u32) -> Vec<ExtraTransaction>;

pub(super) const NONE: ExtraTransactions = |_, _| Vec::new();

/// A call or a creation, and its logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtraTransaction {
    /// The called contract; `None` creates a contract.
    pub to: Option<Address>,
    /// The input of the call, or the init code.
    pub input: Bytes,
    pub logs: Vec<Log>,
}

impl ExtraTransaction {
    pub(super) fn call(self) -> Call {
        Call { to: self.to, value: U256::ZERO, input: self.input.to_vec(), logs: self.logs }
    }
}
