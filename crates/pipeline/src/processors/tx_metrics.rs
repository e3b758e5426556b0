//! `tx_metrics_worker`: resources used and fees paid by each transaction, exactly.
//!
//! | column | what |
//! |---|---|
//! | `event_count` | number of its logs |
//! | `fee` | `gas_used` × `effective_gas_price`: the execution fee paid by its sender |
//! | `burnt` | the base-fee part of `fee`, `gas_used` × base fee, but at most `fee` |
//! | `tip` | the rest of `fee`, for the block producer |
//! | `blob_fee` | blob gas × its price; null for a transaction without blobs, or if the price is unknown |
//! | `l1_fee` | fee of a rollup for storing data on its parent chain, if the node reports it. Not part of `fee` |
//! | `execution_status` | 1 or 0; null if the receipt has no status |
//!
//! All amounts are in wei. The total cost for the sender is `fee + blob_fee + l1_fee`. Ethereum burns the base fee,
//! other chains pay it to an account; if a header has no base fee, nothing is burnt.
//!
//! Guarantees: `fee = burnt + tip`; a value that cannot be computed is null. Leaves to others: prices in other
//! currencies.

use alloy_primitives::U256;

use crate::cells;
use crate::derive::decoded::DecodedTransaction;
use crate::derive::table::{key, once};
use crate::derive::{DecodedBlock, Kind, Processor, Rows, Table};
use crate::error::Result;

/// One row per transaction.
pub static TX_METRICS: Table = Table {
    name: "tx_metrics",
    columns: &[
        key("block_height", Kind::Int),
        key("tx_index", Kind::Int),
        once("event_count", Kind::Int),
        once("gas_used", Kind::Int),
        once("gas_limit", Kind::Int),
        once("effective_gas_price", Kind::Amount),
        once("fee", Kind::Amount),
        once("burnt", Kind::Amount),
        once("tip", Kind::Amount),
        once("blob_fee", Kind::Amount),
        once("l1_fee", Kind::Amount),
        once("execution_status", Kind::Int),
    ],
    indexes: &[],
};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TxMetrics;

/// Execution fee.
struct ExecutionFee {
    fee: U256,
    burnt: U256,
    tip: U256,
}

impl Processor for TxMetrics {
    fn name(&self) -> &'static str {
        super::ProcessorName::TxMetrics.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&TX_METRICS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        let header = &block.header;
        for transaction in &block.transactions {
            let paid = paid(transaction, header.base_fee_per_gas);
            let paid = paid.as_ref();
            let cells = cells![
                block.number(),
                transaction.index,
                transaction.log_count,
                transaction.gas_used,
                transaction.gas_limit,
                transaction.effective_gas_price.map(U256::from),
                paid.map(|paid| paid.fee),
                paid.map(|paid| paid.burnt),
                paid.map(|paid| paid.tip),
                blob_fee(transaction, header.blob_gas_price),
                transaction.l1_fee,
                transaction.success,
            ];
            rows.push(&TX_METRICS, transaction.index, cells)?;
        }
        Ok(())
    }
}

/// Cannot overflow: a product of 64 and 128 bits fits.
fn paid(transaction: &DecodedTransaction, base_fee: Option<u64>) -> Option<ExecutionFee> {
    let gas = U256::from(transaction.gas_used?);
    let price = U256::from(transaction.effective_gas_price?);
    // Transactions made by the chain itself pay nothing, whatever the base fee.
    let base_fee = U256::from(base_fee.unwrap_or(0)).min(price);
    let (fee, burnt) = (gas * price, gas * base_fee);
    Some(ExecutionFee { fee, burnt, tip: fee - burnt })
}

fn blob_fee(transaction: &DecodedTransaction, price: Option<u128>) -> Option<U256> {
    let gas = transaction.blob_gas_used.filter(|gas| *gas > 0)?;
    Some(U256::from(gas) * U256::from(price?))
}

#[cfg(test)]
mod tests {
    use logmill_io::Amount;

    use super::*;
    use crate::derive::Cell;
    use crate::derive::decoded_block_builder::{DecodedBlockBuilder, check_keys, rows_of, table};

    /// `event_count` to `execution_status` of a transaction.
    fn metrics(base_fee: Option<u64>, sent: DecodedTransaction) -> Vec<Cell> {
        let mut builder = DecodedBlockBuilder::new(3);
        builder.header.base_fee_per_gas = base_fee;
        builder.header.blob_gas_price = Some(11);
        let rows = rows_of(&TxMetrics, &[builder.with(sent, vec![]).block()]);
        check_keys(&rows);
        table(&rows, &TX_METRICS)[0][2..].to_vec()
    }

    fn amount(text: &str) -> Cell {
        Cell::Amount(text.parse::<Amount>().expect("an amount"))
    }

    #[test]
    fn a_fee_is_the_burnt_part_plus_the_tip() {
        let check = |base_fee: Option<u64>, price: u128, expected: [&str; 3]| {
            let sent = DecodedTransaction {
                gas_used: Some(21_000),
                effective_gas_price: Some(price),
                success: Some(true),
                ..DecodedTransaction::default()
            };
            let cells = metrics(base_fee, sent);
            assert_eq!(cells[1], Cell::Int(21_000));
            assert_eq!(cells[4..7], expected.map(amount), "{base_fee:?} {price}");
            assert_eq!(cells[7..], [Cell::Null, Cell::Null, Cell::Int(1)]);
        };
        check(Some(7), 9, ["189000", "147000", "42000"]);
        check(Some(9), 9, ["189000", "189000", "0"]);
        check(None, 9, ["189000", "0", "189000"]);
        check(Some(7), 0, ["0", "0", "0"]);
        check(Some(7), 3, ["63000", "63000", "0"]);
    }

    #[test]
    fn the_largest_fees_are_exact() {
        let sent = DecodedTransaction {
            gas_used: Some(u64::MAX),
            effective_gas_price: Some(u128::MAX),
            blob_gas_used: Some(131_072),
            l1_fee: Some(U256::MAX),
            ..DecodedTransaction::default()
        };
        let cells = metrics(Some(1), sent);
        assert_eq!(
            cells[4..9],
            [
                "6277101735386680763495507056286727952620534092958556749825",
                "18446744073709551615",
                "6277101735386680763495507056286727952602087348884847198210",
                "1441792",
                "115792089237316195423570985008687907853269984665640564039457584007913129639935",
            ]
            .map(amount)
        );
    }

    #[test]
    fn values_that_cannot_be_computed_are_null() {
        let priced = DecodedTransaction { effective_gas_price: Some(1), ..Default::default() };
        assert!(metrics(Some(7), priced)[4..].iter().all(|cell| *cell == Cell::Null));
        let used = DecodedTransaction { gas_used: Some(1), ..Default::default() };
        assert!(metrics(Some(7), used)[4..].iter().all(|cell| *cell == Cell::Null));
    }
}
