//! Gas prices derived from blocks: the next base fee, and the priority_fees that transactions paid.
//!
//! Guarantees: the next base fee is that of EIP-1559 with Ethereum's parameters; the caller must know whether a chain
//! follows these rules. Senders are not recovered, so that a block is cheap to process. Leaves to others: blob gas
//! ([`crate::blob_price`]).

use alloy_consensus::{Transaction as _, TxEnvelope};
use alloy_eips::eip2718::Decodable2718;
use alloy_primitives::U128;

use crate::block::{Block, Transaction, TransactionForm};
use crate::error::{Error, Result};
use crate::json_fields;

/// Ratio of the gas limit to the gas target.
const ELASTICITY: u64 = 2;
/// The base fee changes by at most one part in this many per block.
const CHANGE_DENOMINATOR: u128 = 8;

/// The base fee of the block after one with these values; `None` if the gas limit is too small to have a target.
pub fn next_base_fee(base_fee: u64, gas_used: u64, gas_limit: u64) -> Option<u64> {
    let (base, used) = (u128::from(base_fee), u128::from(gas_used));
    let target = u128::from(gas_limit / ELASTICITY);
    if target == 0 {
        return None;
    }
    let change = |gas: u128| base * gas / target / CHANGE_DENOMINATOR;
    let next = match used.cmp(&target) {
        std::cmp::Ordering::Equal => base,
        std::cmp::Ordering::Greater => base + change(used - target).max(1),
        std::cmp::Ordering::Less => base.saturating_sub(change(target - used)),
    };
    u64::try_from(next).ok()
}

/// What a transaction paid above the base fee, per unit of gas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PriorityFee {
    pub per_gas: u128,
    pub gas_used: u64,
}

/// The priority_fees of a block's transactions, lowest first; `None` if they do not follow from the stored data.
pub fn priority_fees(block: &Block, base_fee: Option<u64>) -> Result<Option<Vec<PriorityFee>>> {
    let mut priority_fees = Vec::with_capacity(block.transactions.len());
    for (position, transaction) in block.transactions.iter().enumerate() {
        let price = match block.reported_gas_price(position) {
            Some(price) => Some(price),
            None => gas_price(transaction, base_fee)?,
        };
        let (Some(price), Some(gas_used)) = (price, block.gas_used(position)) else {
            return Ok(None);
        };
        let per_gas = price.saturating_sub(base_fee.unwrap_or(0).into());
        priority_fees.push(PriorityFee { per_gas, gas_used });
    }
    priority_fees.sort_unstable();
    Ok(Some(priority_fees))
}

/// Price per gas that a transaction paid in a block with this base fee.
fn gas_price(transaction: &Transaction, base_fee: Option<u64>) -> Result<Option<u128>> {
    match &transaction.form {
        TransactionForm::Canonical(bytes) => {
            let envelope = TxEnvelope::decode_2718_exact(bytes).map_err(|error| {
                Error::corrupt(format!("transaction {}: {error}", transaction.hash))
            })?;
            let is_known = base_fee.is_some() || !envelope.is_dynamic_fee();
            Ok(is_known.then(|| envelope.effective_gas_price(base_fee)))
        }
        TransactionForm::Foreign(text) => {
            let fields = json_fields::object(text, "a transaction")?;
            Ok(json_fields::field::<U128>(&fields, "gasPrice").map(|price| price.to()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_base_fee_is_that_of_the_rules() {
        for (base_fee, gas_used, gas_limit, expected) in [
            // The test cases of the EIP-1559 authors: at the target, below it, above it.
            (1_000_000_000, 10_000_000, 20_000_000, Some(1_000_000_000)),
            (1_000_000_000, 9_000_000, 20_000_000, Some(987_500_000)),
            (1_000_000_000, 11_000_000, 20_000_000, Some(1_012_500_000)),
            (1_000_000_000, 0, 20_000_000, Some(875_000_000)),
            (1_000_000_000, 20_000_000, 20_000_000, Some(1_125_000_000)),
            // It grows by at least one, and does not shrink where an eighth is less than one.
            (0, 20_000_000, 20_000_000, Some(1)),
            (7, 0, 20_000_000, Some(7)),
            (8, 0, 20_000_000, Some(7)),
            (u64::MAX, 2, 2, None),
            (7, 0, 1, None),
        ] {
            assert_eq!(
                next_base_fee(base_fee, gas_used, gas_limit),
                expected,
                "{base_fee} {gas_used} {gas_limit}"
            );
        }
    }

    #[test]
    fn every_base_fee_of_a_chain_follows_from_the_block_before() {
        use crate::sim::{Shape, SimChain};
        let chain = SimChain::new(3, Shape::sparse());
        chain.grow(30);
        let mut paid = 0;
        for number in 1..=30 {
            let block = chain.block(number).expect("a block");
            let base_fee = block.header.facts().expect("a header").base_fee_per_gas;
            let priority_fees = priority_fees(&block, base_fee).expect("read").expect("known");
            assert_eq!(priority_fees.len(), block.transactions.len());
            assert!(priority_fees.is_sorted());
            let gas: u64 = priority_fees.iter().map(|tip| tip.gas_used).sum();
            assert_eq!(Some(gas), block.header.facts().expect("a header").gas_used);
            paid += priority_fees.len();
        }
        assert!(paid > 0, "some blocks have transactions");
    }
}
