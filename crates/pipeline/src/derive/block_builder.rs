//! Blocks with arbitrary logs, for tests of processors.
//!
//! Guarantees: header and transactions are real ones of a simulated chain, so that everything in a block can be
//! decoded. Leaves to others: bloom and roots, which do not match the logs.

use std::sync::{Arc, LazyLock};

use alloy_primitives::{Address, B256, U256};
use logmill_chain::sim::{Shape, SimChain};
use logmill_chain::{Block, Log, Outcome, Receipt};

use super::decoded::TokenSettings;
use super::decoded::tokens::{DEPOSIT, TRANSFER, TRANSFER_BATCH, TRANSFER_SINGLE, WITHDRAWAL};
use super::{BlockParts, Cell, DecodedBlock, Processor, Rows, Table};

/// The first block of a simulated chain that has transactions.
static REAL: LazyLock<Arc<Block>> = LazyLock::new(|| {
    let chain = SimChain::new(1, Shape::sparse());
    chain.grow(20);
    let mut blocks = (1..=20).filter_map(|number| chain.block(number));
    blocks.find(|block| !block.transactions.is_empty()).expect("most blocks have transactions")
});

/// Builder of a block.
#[derive(Clone, Debug)]
pub(crate) struct BlockBuilder {
    block: Block,
}

impl BlockBuilder {
    /// A block of this number without transactions.
    pub(crate) fn new(number: u64) -> Self {
        let mut block = Block::clone(&REAL);
        block.at.number = number;
        block.transactions.clear();
        block.receipts.clear();
        Self { block }
    }

    pub(crate) fn time(mut self, timestamp: u64) -> Self {
        self.block.at.timestamp = timestamp;
        self
    }

    /// Adds a transaction with these logs.
    pub(crate) fn transaction(mut self, logs: impl IntoIterator<Item = Log>) -> Self {
        let like = self.block.transactions.len() % REAL.transactions.len();
        self.block.transactions.push(REAL.transactions[like].clone());
        self.block.receipts.push(Receipt {
            tx_type: REAL.receipts[like].tx_type,
            outcome: Outcome::Status(true),
            cumulative_gas_used: 21_000,
            logs: logs.into_iter().collect(),
            extra: None,
        });
        self
    }

    pub(crate) fn block(self) -> Block {
        self.block
    }

    pub(crate) fn decoded(self) -> DecodedBlock {
        self.with(TokenSettings::known())
    }

    pub(crate) fn with(self, tokens: &TokenSettings) -> DecodedBlock {
        DecodedBlock::with(1, Arc::new(self.block), tokens, BlockParts::Everything)
            .expect("it can be read")
    }
}

/// The folded rows that a processor makes from blocks.
pub(crate) fn rows<'a>(
    processor: &dyn Processor,
    blocks: impl IntoIterator<Item = &'a DecodedBlock>,
) -> Rows {
    let mut rows = Rows::new(processor.tables());
    for block in blocks {
        rows.at_block(block.number());
        processor.process(block, &mut rows).expect("rows that fit their tables");
    }
    rows.fold().expect("rows that fold");
    rows
}

/// The rows of a table, in the order of their keys.
pub(crate) fn table(rows: &Rows, table: &'static Table) -> Vec<Vec<Cell>> {
    let (_, found) = rows.tables().find(|(known, _)| known.name == table.name).expect("its table");
    let mut cells: Vec<Vec<Cell>> = found.iter().map(|row| row.cells.clone()).collect();
    cells.sort_by_cached_key(|cells| format!("{:?}", &cells[..table.key_len()]));
    cells
}

/// A recognizable address.
pub(crate) fn account(number: u8) -> Address {
    Address::repeat_byte(number)
}

pub(crate) fn word(number: u64) -> B256 {
    U256::from(number).into()
}

/// A log whose data are these words.
pub(crate) fn log(address: Address, topics: &[B256], data: &[B256]) -> Log {
    Log { address, topics: topics.iter().copied().collect(), data: data.concat().into() }
}

pub(crate) fn erc20(token: Address, from: Address, to: Address, amount: U256) -> Log {
    log(token, &[TRANSFER, from.into_word(), to.into_word()], &[amount.into()])
}

pub(crate) fn erc721(token: Address, from: Address, to: Address, id: U256) -> Log {
    log(token, &[TRANSFER, from.into_word(), to.into_word(), id.into()], &[])
}

/// Exactly one item makes a single transfer, any other number a batch.
pub(crate) fn erc1155(token: Address, from: Address, to: Address, items: &[(u64, u64)]) -> Log {
    let topics = |event| [event, account(9).into_word(), from.into_word(), to.into_word()];
    if let [(id, quantity)] = items {
        return log(token, &topics(TRANSFER_SINGLE), &[word(*id), word(*quantity)]);
    }
    let count = u64::try_from(items.len()).expect("few");
    let mut data = vec![word(64), word(96 + 32 * count), word(count)];
    data.extend(items.iter().map(|(id, _)| word(*id)));
    data.push(word(count));
    data.extend(items.iter().map(|(_, quantity)| word(*quantity)));
    log(token, &topics(TRANSFER_BATCH), &data)
}

pub(crate) fn deposit(token: Address, account: Address, amount: U256) -> Log {
    log(token, &[DEPOSIT, account.into_word()], &[amount.into()])
}

pub(crate) fn withdrawal(token: Address, account: Address, amount: U256) -> Log {
    log(token, &[WITHDRAWAL, account.into_word()], &[amount.into()])
}
