//! `ProcessorName`: which processor, as a type.
//!
//! Guarantees: every processor of [`super::all`] has one. Leaves to others: what a processor does.

use std::fmt;

/// Which processor. Its text is stored with coverage, so it never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProcessorName {
    Accounts,
    DailyBalance,
    Defi,
    Evm,
    Fees,
    FtHoldings,
    Meta,
    NftOwnership,
    Staking,
    Token,
    TxContracts,
    TxMetrics,
    Usage,
}

impl ProcessorName {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Accounts => "accounts_worker",
            Self::DailyBalance => "daily_balance_worker",
            Self::Defi => "defi_worker",
            Self::Evm => "evm_worker",
            Self::Fees => "fees_worker",
            Self::FtHoldings => "ft_holdings_worker",
            Self::Meta => "meta_worker",
            Self::NftOwnership => "nft_ownership_worker",
            Self::Staking => "staking_worker",
            Self::Token => "token_worker",
            Self::TxContracts => "tx_contracts_worker",
            Self::TxMetrics => "tx_metrics_worker",
            Self::Usage => "usage_worker",
        }
    }
}

impl fmt::Display for ProcessorName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
