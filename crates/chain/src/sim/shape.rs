//! What a simulated chain is like: how full its blocks are, and by which rules it lives.
//!
//! Guarantees: plain data. Leaves to others: drawing blocks of it.

/// How full the blocks of a chain are, and how many take part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Transactions per block on average. A block has half of that up to two and a half times of it.
    pub transactions: u32,
    /// Logs per block on average, spread likewise.
    pub logs: u32,
    /// How many accounts send transactions.
    pub accounts: u32,
    /// How many other wallets there are.
    pub wallets: u32,
    /// How many tokens there are, and as many collections of NFTs.
    pub tokens: u32,
    /// How many pools there are to swap in.
    pub pools: u32,
    /// How many integrators collect fees.
    pub integrators: u32,
    /// The most data of a log, in words of 32 bytes.
    pub data_words_max: u32,
    /// By which rules the chain lives.
    pub fork: Fork,
}

/// The rules of a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fork {
    /// Before Byzantium: legacy transactions, receipts with state roots, proof of work.
    Homestead,
    /// Transactions of the types 0 to 2, a base fee, proof of work: the last of what era1 files are for.
    London,
    /// Blobs, withdrawals, delegations, proof of stake.
    Prague,
}

impl Shape {
    /// Small blocks, quickly made: 4 transactions and 10 logs each.
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

    /// The same by other rules.
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
