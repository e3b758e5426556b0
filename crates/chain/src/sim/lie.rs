//! False blocks of nodes, each detectable from the block's own header.
//!
//! Guarantees: [`Lie::apply`] changes a block so that [`crate::verify()`] refuses it, or reports that the block
//! cannot be falsified this way. Leaves to others: which node lies, and when.

use alloy_primitives::{B256, Bytes};

use crate::block::{Block, Log};

/// A way to falsify a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lie {
    /// Omits the last log.
    DropLog,
    AddLog,
    /// Changes the data of a log.
    ChangeLog,
    SwapReceipts,
    DropReceipt,
    /// Omits the last transaction and its receipt.
    DropTransaction,
    WrongParent,
    WrongHash,
    WrongTime,
}

impl Lie {
    pub const ALL: [Self; 9] = [
        Self::DropLog,
        Self::AddLog,
        Self::ChangeLog,
        Self::SwapReceipts,
        Self::DropReceipt,
        Self::DropTransaction,
        Self::WrongParent,
        Self::WrongHash,
        Self::WrongTime,
    ];

    /// Falsifies a block. Returns false, and leaves the block unchanged, if that is not possible.
    pub fn apply(self, block: &mut Block) -> bool {
        match self {
            Self::DropLog => with_logs(block).is_some_and(|logs| logs.pop().is_some()),
            Self::AddLog => block.receipts.last_mut().is_some_and(|receipt| {
                receipt.logs.push(Log { data: Bytes::from_static(b"lie"), ..Log::default() });
                true
            }),
            Self::ChangeLog => {
                with_logs(block).and_then(|logs| logs.last_mut()).is_some_and(|log| {
                    let mut data = log.data.to_vec();
                    match data.last_mut() {
                        Some(last) => *last ^= 1,
                        None => data.push(1),
                    }
                    log.data = data.into();
                    true
                })
            }
            Self::SwapReceipts => {
                // Cumulative gas grows with each receipt, so two receipts always differ.
                let enough = block.receipts.len() > 1;
                if enough {
                    block.receipts.swap(0, 1);
                }
                enough
            }
            Self::DropReceipt => block.receipts.pop().is_some(),
            Self::DropTransaction => {
                block.receipts.pop().is_some() && block.transactions.pop().is_some()
            }
            Self::WrongParent => change(&mut block.at.parent_hash),
            Self::WrongHash => change(&mut block.at.hash),
            Self::WrongTime => {
                block.at.timestamp ^= 1;
                true
            }
        }
    }
}

fn with_logs(block: &mut Block) -> Option<&mut Vec<Log>> {
    let receipt = block.receipts.iter_mut().rev().find(|receipt| !receipt.logs.is_empty());
    receipt.map(|receipt| &mut receipt.logs)
}

fn change(hash: &mut B256) -> bool {
    hash[0] ^= 1;
    true
}
