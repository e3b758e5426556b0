//! The processors: one file each, one line to register.
//!
//! | phase | processor | tables |
//! |---|---|---|
//! | 1 | [`token`] `token_worker` | `ft_transfers`, `nft_transfers`, `ft_tokens`, `nft_collections` |
//! | 1 | [`fees`] `fees_worker` | `fee_events`, `fee_forwards` |
//! | 2 | [`ft_holdings`] `ft_holdings_worker` | `ft_holdings` |
//! | 2 | [`nft_ownership`] `nft_ownership_worker` | `nft_ownership`, `nft_balances` |
//! | 2 | [`daily_balance`] `daily_balance_worker` | `daily_balances` |
//!
//! Guarantees: names are unique, and each table has one writer. Leaves to others: running them ([`crate::derive`]).

use std::sync::Arc;

use crate::derive::Processor;
use crate::derive::decoded::TokenSettings;

pub mod daily_balance;
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
        Arc::new(ft_holdings::FtHoldings { tokens: tokens.clone() }),
        Arc::new(nft_ownership::NftOwnership { tokens: tokens.clone() }),
        Arc::new(daily_balance::DailyBalance { tokens }),
    ]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_tables_have_one_writer_and_phases_come_in_order() {
        let all = all(&Settings::of_chain(1));
        let names: BTreeSet<&str> = all.iter().map(|processor| processor.name()).collect();
        assert_eq!(names.len(), all.len());
        let tables: Vec<_> = all.iter().flat_map(|processor| processor.tables()).collect();
        let unique: BTreeSet<&str> = tables.iter().map(|table| table.name).collect();
        assert_eq!(unique.len(), tables.len());
        tables.iter().for_each(|table| table.check().unwrap());
        assert!(all.is_sorted_by_key(|processor| processor.phase()));
    }

    #[test]
    fn settings_show_in_the_parameters_of_those_that_use_them() {
        let changed = |change: fn(&mut Settings)| -> Vec<&'static str> {
            let mut settings = Settings::of_chain(1);
            let before = all(&settings);
            change(&mut settings);
            let pairs = before.iter().zip(all(&settings));
            pairs.filter(|(a, b)| a.parameters() != b.parameters()).map(|(a, _)| a.name()).collect()
        };
        let of_tokens = changed(|settings| settings.tokens.wrapped_native.clear());
        let expected =
            ["token_worker", "ft_holdings_worker", "nft_ownership_worker", "daily_balance_worker"];
        assert_eq!(of_tokens, expected);
        assert_eq!(changed(|settings| settings.fees.collectors.clear()), ["fees_worker"]);
    }
}
