//! The processors: one file each, one line to register.
//!
//! | phase | processor | tables |
//! |---|---|---|
//! | 1 | [`fees`] `fees_worker` | `fee_events`, `fee_forwards` |
//! | 1 | [`evm`] `evm_worker` | `evm_transactions` |
//! | 1 | [`tx_metrics`] `tx_metrics_worker` | `tx_metrics` |
//! | 1 | [`staking`] `staking_worker` | `staking_events`, `staking_nodes`, `staking_validators` |
//! | 2 | [`accounts`] `accounts_worker` | `accounts` |
//! | 2 | [`meta`] `meta_worker` | `address_transactions`, `account_stats`, `smart_contracts`, `contract_versions` |
//! | 2 | [`tx_contracts`] `tx_contracts_worker` | `tx_contracts`, `tx_tags` |
//!
//! Guarantees: names are unique, and each table has one writer. Leaves to others: running them ([`crate::derive`]).

use std::sync::Arc;

use crate::derive::Processor;

pub mod accounts;
pub mod evm;
pub mod fees;
#[cfg(test)]
mod laws;
pub mod meta;
pub mod staking;
pub mod tx_contracts;
pub mod tx_metrics;

/// Every processor, those of phase one first.
pub fn all() -> Vec<Arc<dyn Processor>> {
    vec![
        Arc::new(fees::Fees::default()),
        Arc::new(evm::Evm),
        Arc::new(tx_metrics::TxMetrics),
        Arc::new(staking::Staking),
        Arc::new(accounts::Accounts),
        Arc::new(meta::Meta),
        Arc::new(tx_contracts::TxContracts),
    ]
}
