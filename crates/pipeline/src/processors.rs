//! The processors: one file each, registered with one line in [`all`].
//!
//! | phase | processor | tables |
//! |---|---|---|
//! | 1 | [`token`] `token_worker` | `ft_transfers`, `nft_transfers`, `ft_tokens`, `nft_collections` |
//! | 1 | [`fees`] `fees_worker` | `fee_events`, `fee_forwards` |
//! | 1 | [`usage`] `usage_worker`, if there are rules | `usage_events` |
//! | 1 | [`evm`] `evm_worker` | `evm_transactions` |
//! | 1 | [`tx_metrics`] `tx_metrics_worker` | `tx_metrics` |
//! | 1 | [`staking`] `staking_worker` | `staking_events`, `staking_nodes`, `staking_validators` |
//! | 1 | [`defi`] `defi_worker` | `defi_events`, `defi_pairs`, `defi_reserves`, `defi_pair_stats` |
//! | 1 | [`accounts`] `accounts_worker` | `accounts` |
//! | 1 | [`meta`] `meta_worker` | `address_transactions`, `account_stats`, `smart_contracts`, `contract_versions` |
//! | 1 | [`tx_contracts`] `tx_contracts_worker` | `tx_contracts`, `tx_tags` |
//! | 2 | [`ft_holdings`] `ft_holdings_worker` | `ft_holdings` |
//! | 2 | [`nft_ownership`] `nft_ownership_worker` | `nft_ownership`, `nft_balances` |
//! | 2 | [`daily_balance`] `daily_balance_worker` | `daily_balances` |
//!
//! Guarantees: names are unique, and each table has one writer. Leaves to others: running them ([`crate::derive`]).

use std::sync::Arc;

use crate::derive::Processor;
use crate::derive::decoded::TokenSettings;

pub mod accounts;
pub mod daily_balance;
pub mod defi;
pub mod evm;
pub mod fees;
pub mod ft_holdings;
#[cfg(test)]
mod laws;
pub mod meta;
mod name;
pub mod nft_ownership;
pub mod staking;
pub mod token;
pub mod tx_contracts;
pub mod tx_metrics;
pub mod usage;

pub use name::ProcessorName;

/// The configuration keys of [`TokenSettings`].
const TOKEN_SETTINGS: &str = "derive.wrapped_native_tokens, derive.early_nfts";

/// Settings of the processors. Blocks must be decoded with the same token settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    pub fees: fees::Fees,
    pub tokens: TokenSettings,
    /// None if no rules are configured.
    pub usage: Option<usage::UsageWorker>,
}

impl Settings {
    /// The known contracts of a chain.
    pub fn of_chain(chain_id: u64) -> Self {
        Self { fees: fees::Fees::of_chain(chain_id), tokens: TokenSettings::default(), usage: None }
    }
}

/// All processors, phase one first.
pub fn all(settings: &Settings) -> Vec<Arc<dyn Processor>> {
    let tokens = settings.tokens.fingerprint();
    let mut all: Vec<Arc<dyn Processor>> = vec![
        Arc::new(token::Token { tokens: tokens.clone() }),
        Arc::new(settings.fees.clone()),
        Arc::new(evm::Evm),
        Arc::new(tx_metrics::TxMetrics),
        Arc::new(staking::Staking),
        Arc::new(defi::Defi),
        Arc::new(accounts::Accounts { tokens: tokens.clone() }),
        Arc::new(meta::Meta { tokens: tokens.clone() }),
        Arc::new(tx_contracts::TxContracts { tokens: tokens.clone() }),
        Arc::new(ft_holdings::FtHoldings { tokens: tokens.clone() }),
        Arc::new(nft_ownership::NftOwnership { tokens: tokens.clone() }),
        Arc::new(daily_balance::DailyBalance { tokens }),
    ];
    if let Some(usage) = &settings.usage {
        all.insert(0, Arc::new(usage.clone()));
    }
    all
}

#[cfg(test)]
mod tests;
