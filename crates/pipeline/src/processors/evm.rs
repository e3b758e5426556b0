//! `evm_worker`: the catalogue of transactions: type, sender, recipient and outcome.
//!
//! | column | what |
//! |---|---|
//! | `tx_type` | EIP-2718 type; 0 for a legacy transaction |
//! | `contract_address` | the created contract, if the transaction did not fail |
//! | `selector` | the first four bytes of a call's input |
//! | `input_bytes` | length of the input |
//! | `status` | 1 or 0; null if the receipt has no status, as before Byzantium |
//!
//! Guarantees: one row per transaction. Leaves to others: its cost (`tx_metrics_worker`), the addresses involved
//! (`meta_worker`).

use bytes::Bytes;

use crate::cells;
use crate::derive::table::{key, once};
use crate::derive::{DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::Result;

/// One row per transaction.
pub static EVM_TRANSACTIONS: Table = Table {
    name: "evm_transactions",
    columns: &[
        key("block_height", Kind::Int),
        key("tx_index", Kind::Int),
        once("hash", Kind::Bytes),
        once("tx_type", Kind::Int),
        once("from_address", Kind::Address),
        once("to_address", Kind::Address),
        once("contract_address", Kind::Address),
        once("nonce", Kind::Int),
        once("value", Kind::Amount),
        once("selector", Kind::Bytes),
        once("input_bytes", Kind::Int),
        once("status", Kind::Int),
        once("timestamp", Kind::Int),
    ],
    indexes: &[&["hash"]],
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Evm;

impl Processor for Evm {
    fn name(&self) -> &'static str {
        super::ProcessorName::Evm.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&EVM_TRANSACTIONS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for transaction in &block.transactions {
            let selector = transaction.selector();
            let cells = cells![
                block.number(),
                transaction.index,
                transaction.hash,
                transaction.tx_type,
                transaction.from,
                transaction.to,
                transaction.created,
                transaction.nonce,
                transaction.value,
                selector.map(|selector| Bytes::copy_from_slice(&selector)),
                transaction.input.len(),
                transaction.success,
                block.timestamp(),
            ];
            rows.push(&EVM_TRANSACTIONS, transaction.index, cells)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use alloy_primitives::U256;

    use super::*;
    use crate::derive::decoded::DecodedTransaction;
    use crate::derive::decoded_block_builder::{
        DecodedBlockBuilder, check_keys, rows_of, table, who,
    };

    #[test]
    fn every_transaction_has_one_row_with_its_fields() {
        let call = DecodedTransaction {
            tx_type: 2,
            from: Some(who(1)),
            to: Some(who(2)),
            nonce: Some(9),
            value: U256::MAX,
            input: alloy_primitives::Bytes::from_static(&[1, 2, 3, 4, 5]),
            success: Some(false),
            ..DecodedTransaction::default()
        };
        let creation = DecodedTransaction {
            from: Some(who(1)),
            created: Some(who(3)),
            input: alloy_primitives::Bytes::from_static(&[1, 2, 3, 4, 5]),
            ..DecodedTransaction::default()
        };
        let block = DecodedBlockBuilder::new(7).with(call, vec![]).with(creation, vec![]).block();
        let hashes: Vec<_> = block.transactions.iter().map(|sent| sent.hash).collect();
        let rows = rows_of(&Evm, &[block]);
        check_keys(&rows);
        let nobody: Option<alloy_primitives::Address> = None;
        let nothing: Option<u64> = None;
        let expected = vec![
            cells![
                7u64,
                0u64,
                hashes[0],
                2u64,
                who(1),
                who(2),
                nobody,
                9u64,
                U256::MAX,
                Bytes::from_static(&[1, 2, 3, 4]),
                5u64,
                0u64,
                7_000u64
            ],
            cells![
                7u64,
                1u64,
                hashes[1],
                0u64,
                who(1),
                nobody,
                who(3),
                nothing,
                U256::ZERO,
                nothing,
                5u64,
                nothing,
                7_000u64
            ],
        ];
        assert_eq!(table(&rows, &EVM_TRANSACTIONS), expected);
    }
}
