//! Facts of headers, transactions and withdrawals.
//!
//! A transaction's gas, gas price and created contract follow from the block, or are the node's values where those are
//! kept, by the same code that renders them. The blob gas price is the node's, or else follows from the rules of a
//! known chain.
//!
//! Guarantees: canonical parts and parts kept as a node's JSON yield the same facts; only a block that is not in its
//! stored form is an error. Leaves to others: logs.

use logmill_chain::blob_price::blob_gas_price;
use logmill_chain::facts::ReceiptFacts;
use logmill_chain::{Block, Outcome, TransactionView};

use super::{DecodedTransaction, HeaderFacts, Withdrawal};
use crate::error::{Error, Result};

/// Decodes the header and the transactions with their receipts.
pub(super) fn facts(
    chain_id: u64,
    block: &Block,
) -> Result<(HeaderFacts, Vec<DecodedTransaction>)> {
    if block.transactions.len() != block.receipts.len() {
        let number = block.at.number;
        return Err(Error::corrupt(format!(
            "block {number} does not have one receipt per transaction"
        )));
    }
    let receipt_facts: Vec<ReceiptFacts> =
        block.receipts.iter().map(|receipt| receipt.facts()).collect::<Result<_, _>>()?;
    let header = header(chain_id, block, &receipt_facts)?;
    let mut first_log = 0;
    let mut transactions = Vec::with_capacity(block.transactions.len());
    for (index, of_receipt) in receipt_facts.iter().enumerate() {
        let transaction = transaction(chain_id, block, &header, index, first_log, of_receipt)?;
        first_log += transaction.log_count;
        transactions.push(transaction);
    }
    Ok((header, transactions))
}

fn header(chain_id: u64, block: &Block, receipt_facts: &[ReceiptFacts]) -> Result<HeaderFacts> {
    let facts = block.header.facts()?;
    let computed = || blob_gas_price(chain_id, block.at.timestamp, facts.excess_blob_gas?);
    Ok(HeaderFacts {
        miner: facts.miner,
        base_fee_per_gas: facts.base_fee_per_gas,
        blob_gas_price: receipt_facts.iter().find_map(|one| one.blob_gas_price).or_else(computed),
        gas_used: facts.gas_used,
        gas_limit: facts.gas_limit,
    })
}

fn transaction(
    chain_id: u64,
    block: &Block,
    header: &HeaderFacts,
    index: usize,
    first_log: usize,
    receipt_facts: &ReceiptFacts,
) -> Result<DecodedTransaction> {
    let (transaction, receipt) = (&block.transactions[index], &block.receipts[index]);
    let view = TransactionView::of_block(block, index, header.base_fee_per_gas)?;
    let success = match receipt.outcome {
        Outcome::Status(success) => Some(success),
        Outcome::StateRoot(_) | Outcome::Unknown => None,
    };
    Ok(DecodedTransaction {
        hash: transaction.hash,
        index,
        tx_type: view.tx_type.unwrap_or(receipt.tx_type),
        from: view.from,
        is_signed: view.is_signed(),
        to: view.to,
        created: block.created_contract(index, &view).filter(|_| success != Some(false)),
        authorities: view.authorities(chain_id),
        nonce: view.nonce,
        value: view.value,
        success,
        gas_limit: view.gas_limit,
        gas_used: block.gas_used(index),
        effective_gas_price: block.effective_gas_price(index, &view),
        blob_gas_used: view.blob_gas_used.or(receipt_facts.blob_gas_used),
        l1_fee: receipt_facts.l1_fee,
        first_log,
        log_count: receipt.logs.len(),
        input: view.input,
    })
}

pub(super) fn withdrawals(block: &Block) -> Result<Vec<Withdrawal>> {
    let withdrawals = block.decode_withdrawals()?.unwrap_or_default().into_iter();
    Ok(withdrawals
        .map(|withdrawal| Withdrawal {
            index: withdrawal.index,
            validator_index: withdrawal.validator_index,
            address: withdrawal.address,
            amount_gwei: withdrawal.amount,
        })
        .collect())
}

#[cfg(test)]
mod tests;
