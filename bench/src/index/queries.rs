//! The classes of queries, and the queries of each: derived from the chain, the same for every engine.

use finalized_log_index::Filter;
use finalized_log_index::workload::Terms;

/// Limit of a query over many addresses.
const OR_LIMIT: usize = 10_000;
/// Number of its addresses.
const OR_ADDRESSES: u64 = 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    RareWallet,
    AddressTopic0,
    DenseTopic0,
    OrAddresses,
    AbsentTopic,
    LastTenBlocks,
    BlockByHash,
}

impl Class {
    pub const ALL: [Self; 7] = [
        Self::RareWallet,
        Self::AddressTopic0,
        Self::DenseTopic0,
        Self::OrAddresses,
        Self::AbsentTopic,
        Self::LastTenBlocks,
        Self::BlockByHash,
    ];

    /// Name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::RareWallet => "rare_wallet_topic_whole_range",
            Self::AddressTopic0 => "address_and_topic0_1000_blocks",
            Self::DenseTopic0 => "dense_topic0_100_blocks",
            Self::OrAddresses => "20_addresses_limit_10000_whole_range",
            Self::AbsentTopic => "absent_topic_whole_range",
            Self::LastTenBlocks => "last_ten_blocks",
            Self::BlockByHash => "one_block_by_hash",
        }
    }
}

/// What queries are derived from.
pub struct Chain {
    pub terms: Terms,
    /// First and last block.
    pub first: u64,
    pub last: u64,
    /// Hashes of some blocks.
    pub hashes: Vec<finalized_log_index::B256>,
}

impl Chain {
    /// Query number `n` of a class.
    pub fn query(&self, class: Class, n: u64) -> Filter {
        let whole = || Filter::range(self.first..=self.last);
        match class {
            Class::RareWallet => {
                let wallet = self.terms.rare_wallet(n);
                whole().topic(2, wallet.unwrap_or_else(|| self.terms.absent_topic(n)))
            }
            Class::AddressTopic0 => self
                .window(1_000, n)
                .address(self.terms.mid_address(n))
                .topic(0, self.terms.transfer_topic()),
            Class::DenseTopic0 => self.window(100, n).topic(0, self.terms.transfer_topic()),
            Class::OrAddresses => (0..OR_ADDRESSES)
                .map(|m| self.terms.mid_address(n * 7 + m * 9))
                .fold(whole().limit(OR_LIMIT), Filter::address),
            Class::AbsentTopic => whole().topic(1, self.terms.absent_topic(n)),
            Class::LastTenBlocks => {
                Filter::range(self.last.saturating_sub(9).max(self.first)..=self.last)
            }
            Class::BlockByHash => {
                let len = u64::try_from(self.hashes.len()).unwrap_or(u64::MAX).max(1);
                let at = usize::try_from(n % len).unwrap_or(0);
                Filter::block_hash(self.hashes.get(at).copied().unwrap_or_default())
            }
        }
    }

    /// A window of blocks somewhere in the chain.
    fn window(&self, blocks: u64, n: u64) -> Filter {
        let last_start = (self.last + 1).saturating_sub(blocks).max(self.first);
        let start = self.first + n.wrapping_mul(2_654_435_761) % (last_start - self.first + 1);
        Filter::range(start..=(start + blocks - 1).min(self.last))
    }
}
