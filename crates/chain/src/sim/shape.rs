//! The shape of a simulated chain: how full its blocks are, and which fork's rules apply.
//!
//! Guarantees: plain data. Leaves to others: generating blocks.

/// How full the blocks of a chain are, and how many participants there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Average transactions per block. A block has between half and two and a half times as many.
    pub transactions: u32,
    /// Average logs per block, with the same spread.
    pub logs: u32,
    /// Number of accounts that send transactions.
    pub accounts: u32,
    pub wallets: u32,
    /// Number of tokens, and also of NFT collections.
    pub tokens: u32,
    /// Number of swap pools.
    pub pools: u32,
    /// Number of integrators that collect fees.
    pub integrators: u32,
    /// Maximum data of a log, in words of 32 bytes.
    pub data_words_max: u32,
    pub fork: Fork,
}

/// Protocol rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fork {
    /// Before Byzantium: legacy transactions, receipts with state roots, proof of work.
    Homestead,
    /// Transactions of types 0 to 2, a base fee, proof of work: the last rules that era1 files cover.
    London,
    /// Blobs, withdrawals, delegations, proof of stake.
    Prague,
}

impl Shape {
    /// Small blocks that are built quickly: 4 transactions and 10 logs each.
    pub const fn sparse() -> Self {
        Self {
            transactions: 4,
            logs: 10,
            accounts: 16,
            wallets: 200,
            tokens: 8,
            pools: 6,
            integrators: 5,
            data_words_max: 24,
            fork: Fork::Prague,
        }
    }

    /// Blocks like those of Ethereum in 2023: 150 transactions and 335 logs each.
    pub const fn mainnet() -> Self {
        Self {
            transactions: 150,
            logs: 335,
            accounts: 2_048,
            wallets: 1 << 20,
            tokens: 1 << 14,
            pools: 1 << 13,
            integrators: 200,
            data_words_max: 104,
            fork: Fork::Prague,
        }
    }

    /// The same shape under another fork's rules.
    #[must_use]
    pub const fn at(self, fork: Fork) -> Self {
        Self { fork, ..self }
    }
}

impl Default for Shape {
    fn default() -> Self {
        Self::sparse()
    }
}
