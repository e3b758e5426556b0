//! The processors: one file each, one line to register.
//!
//! | phase | processor | tables |
//! |---|---|---|
//! | 1 | [`token`] `token_worker` | `ft_transfers`, `nft_transfers`, `ft_tokens`, `nft_collections` |
//! | 1 | [`fees`] `fees_worker` | `fee_events`, `fee_forwards` |
//! | 1 | [`defi`] `defi_worker` | `defi_events`, `defi_pairs`, `defi_reserves`, `defi_pair_stats` |
//! | 2 | [`ft_holdings`] `ft_holdings_worker` | `ft_holdings` |
//! | 2 | [`nft_ownership`] `nft_ownership_worker` | `nft_ownership`, `nft_balances` |
//! | 2 | [`daily_balance`] `daily_balance_worker` | `daily_balances` |
//!
//! Guarantees: names are unique, and each table has one writer. Leaves to others: running them ([`crate::derive`]).

use std::sync::Arc;

use crate::derive::Processor;
use crate::derive::decoded::TokenSettings;

pub mod daily_balance;
pub mod defi;
pub mod fees;
pub mod ft_holdings;
pub mod nft_ownership;
pub mod token;

/// What can be set of processors. Blocks are to be decoded with the same token settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Whose fees count.
    pub fees: fees::Fees,
    /// How transfers are read.
    pub tokens: TokenSettings,
}

impl Settings {
    /// What is known of a chain.
    pub fn of_chain(chain_id: u64) -> Self {
        Self { fees: fees::Fees::of_chain(chain_id), tokens: TokenSettings::default() }
    }
}

/// Every processor, those of phase one first.
pub fn all(settings: &Settings) -> Vec<Arc<dyn Processor>> {
    let tokens = settings.tokens.fingerprint();
    vec![
        Arc::new(token::Token { tokens: tokens.clone() }),
        Arc::new(settings.fees.clone()),
        Arc::new(defi::Defi),
        Arc::new(ft_holdings::FtHoldings { tokens: tokens.clone() }),
        Arc::new(nft_ownership::NftOwnership { tokens: tokens.clone() }),
        Arc::new(daily_balance::DailyBalance { tokens }),
    ]
}

#[cfg(test)]
mod tests;
