//! Headers, transactions and withdrawals as facts.
//!
//! The gas of a transaction, its price and the contract that it creates follow from the block, by the same code that
//! renders them. The price of blob gas is what the node told of it, else what the rules of a known chain give.
//!
//! Guarantees: canonical parts and those kept as a node's JSON give the same facts; only a block that is not in its
//! stored form is an error. Leaves to others: logs.

use logmill_chain::blob_price::blob_gas_price;
use logmill_chain::facts::ReceiptFacts;
use logmill_chain::{Block, Outcome, Sent};

use super::{DecodedTransaction, HeaderFacts, Withdrawal};
use crate::error::{Error, Result};

/// What the header says, and the transactions with what their receipts say.
pub(super) fn facts(
    chain_id: u64,
    block: &Block,
) -> Result<(HeaderFacts, Vec<DecodedTransaction>)> {
    if block.transactions.len() != block.receipts.len() {
        let number = block.at.number;
        return Err(Error::corrupt(format!("block {number} has not one receipt a transaction")));
    }
    let told: Vec<ReceiptFacts> =
        block.receipts.iter().map(|receipt| receipt.facts()).collect::<Result<_, _>>()?;
    let header = header(chain_id, block, &told)?;
    let mut first_log = 0;
    let mut transactions = Vec::with_capacity(block.transactions.len());
    for (index, told) in told.iter().enumerate() {
        let transaction = transaction(chain_id, block, &header, index, first_log, told)?;
        first_log += transaction.log_count;
        transactions.push(transaction);
    }
    Ok((header, transactions))
}

fn header(chain_id: u64, block: &Block, told: &[ReceiptFacts]) -> Result<HeaderFacts> {
    let facts = block.header.facts()?;
    let computed = || blob_gas_price(chain_id, block.at.timestamp, facts.excess_blob_gas?);
    Ok(HeaderFacts {
        miner: facts.miner,
        base_fee_per_gas: facts.base_fee_per_gas,
        blob_gas_price: told.iter().find_map(|told| told.blob_gas_price).or_else(computed),
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
    told: &ReceiptFacts,
) -> Result<DecodedTransaction> {
    let (transaction, receipt) = (&block.transactions[index], &block.receipts[index]);
    let sent = Sent::read(transaction, header.base_fee_per_gas)?;
    let success = match receipt.outcome {
        Outcome::Status(success) => Some(success),
        Outcome::StateRoot(_) | Outcome::Unknown => None,
    };
    Ok(DecodedTransaction {
        hash: transaction.hash,
        index,
        tx_type: sent.tx_type.unwrap_or(receipt.tx_type),
        from: sent.from,
        is_signed: sent.is_signed(),
        to: sent.to,
        created: sent.created().filter(|_| success != Some(false)),
        authorities: sent.authorities(chain_id),
        nonce: sent.nonce,
        value: sent.value,
        success,
        gas_limit: sent.gas_limit,
        gas_used: block.gas_used(index),
        effective_gas_price: sent.gas_price,
        blob_gas_used: sent.blob_gas_used.or(told.blob_gas_used),
        l1_fee: told.l1_fee,
        first_log,
        log_count: receipt.logs.len(),
        input: sent.input,
    })
}

/// The withdrawals.
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
