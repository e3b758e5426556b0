//! Blocks for tests of processors, assembled from decoded facts.
//!
//! Guarantees: the indexes of transactions and logs agree with each other. Leaves to others: encoded bytes, which these
//! blocks do not have.

use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, keccak256};
use logmill_chain::{
    Block, BlockRef, Header, Log, Outcome, Receipt, Transaction, TransactionForm, VerifyLevel,
};

use super::decoded::{DecodedBlock, DecodedTransaction, HeaderFacts, Tokens, Withdrawal};
use super::{Cell, Processor, Rows, Table};

/// Builder of a block.
pub(crate) struct DecodedBlockBuilder {
    pub(crate) chain_id: u64,
    pub(crate) number: u64,
    pub(crate) header: HeaderFacts,
    pub(crate) withdrawals: Vec<Withdrawal>,
    pub(crate) tokens: Tokens,
    transactions: Vec<(DecodedTransaction, Vec<Log>)>,
}

impl DecodedBlockBuilder {
    /// An empty block, at time 1 000 × its number.
    pub(crate) fn new(number: u64) -> Self {
        Self {
            chain_id: 1,
            number,
            header: HeaderFacts::default(),
            withdrawals: Vec::new(),
            tokens: Tokens::default(),
            transactions: Vec::new(),
        }
    }

    /// Adds a transaction; its index and hash are assigned.
    pub(crate) fn with(mut self, transaction: DecodedTransaction, logs: Vec<Log>) -> Self {
        let index = self.transactions.len();
        let first_log = self.transactions.iter().map(|(_, logs)| logs.len()).sum();
        let hash = keccak256(format!("{} {index}", self.number));
        let log_count = logs.len();
        let placed = DecodedTransaction { hash, index, first_log, log_count, ..transaction };
        self.transactions.push((placed, logs));
        self
    }

    pub(crate) fn block(self) -> DecodedBlock {
        let (transactions, logs): (Vec<_>, Vec<_>) = self.transactions.into_iter().unzip();
        let form = |transaction: &DecodedTransaction| {
            let form = TransactionForm::Foreign(Bytes::from_static(b"{}"));
            Transaction::new(transaction.hash, form)
        };
        let receipt = |logs| Receipt {
            tx_type: 0,
            outcome: Outcome::Unknown,
            cumulative_gas_used: 0,
            logs,
            extra: None,
        };
        let number = self.number;
        let block = Block {
            at: BlockRef { number, timestamp: 1_000 * number, ..BlockRef::default() },
            header: Header::Foreign(Bytes::from_static(b"{}")),
            uncles: Vec::new(),
            withdrawals: None,
            size: 0,
            transactions: transactions.iter().map(form).collect(),
            receipts: logs.into_iter().map(receipt).collect(),
            verified: VerifyLevel::Off,
            node_fields: logmill_chain::KeptFields::default(),
        };
        DecodedBlock {
            chain_id: self.chain_id,
            block: Arc::new(block),
            header: self.header,
            transactions,
            withdrawals: self.withdrawals,
            tokens: self.tokens,
        }
    }
}

/// A recognizable address.
pub(crate) fn who(byte: u8) -> Address {
    Address::repeat_byte(byte)
}

pub(crate) fn log(address: Address, topics: &[B256], data: &[u8]) -> Log {
    let topics = topics.iter().copied().collect();
    Log { address, topics, data: Bytes::copy_from_slice(data) }
}

/// The folded rows that a processor makes from blocks.
pub(crate) fn rows_of(processor: &dyn Processor, blocks: &[DecodedBlock]) -> Rows {
    let mut rows = Rows::new(processor.tables());
    for block in blocks {
        rows.at_block(block.number());
        processor.process(block, &mut rows).expect("rows that fit");
    }
    rows.fold().expect("rows that fold");
    rows
}

/// The rows of a table, sorted by the debug text of their keys.
pub(crate) fn table(rows: &Rows, table: &'static Table) -> Vec<Vec<Cell>> {
    let of_table = rows.tables().find(|(known, _)| known.name == table.name).expect("its table");
    let mut rows: Vec<Vec<Cell>> = of_table.1.iter().map(|row| row.cells.clone()).collect();
    rows.sort_by_cached_key(|cells| format!("{:?}", &cells[..table.key_len()]));
    rows
}

/// Asserts that no key occurs twice in a table, and that every declaration is valid.
pub(crate) fn check_keys(rows: &Rows) {
    for (table, rows) in rows.tables() {
        table.check().expect("a declaration with a meaning");
        let keys: std::collections::HashSet<&[Cell]> =
            rows.iter().map(|row| &row.cells[..table.key_len()]).collect();
        assert_eq!(keys.len(), rows.len(), "{} has a key twice", table.name);
    }
}
