//! `Mismatch`: why a block failed a check.
//!
//! Guarantees: every mismatch says whether the node returned something false ([`Mismatch::is_lie`]). Leaves to others:
//! the checks ([`mod@crate::verify`]).

use alloy_primitives::B256;

/// The check that a block failed. The texts name what differs, with the header's value and the computed one. Only
/// fields and types that a chain adds to Ethereum's come with the advice to lower the level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// The header's fields do not hash to the block hash.
    #[error(
        "the fields of its header hash to {computed}, but the node reports the hash {claimed}{}",
        left_out(.unknown)
    )]
    HeaderHash {
        /// The hash of its fields.
        computed: B256,
        /// The hash that the node reported.
        claimed: B256,
        /// Fields that are not part of `computed`.
        unknown: Vec<String>,
    },
    /// The header has unknown fields that may be part of its hash, so that the hash cannot be checked.
    #[error(
        "its header has fields that Logmill does not know ({}); without them it hashes to {computed}, not to \
         {claimed}: if this chain's headers have these fields, set `verify = \"bloom\"`",
        .unknown.join(", ")
    )]
    ForeignHeader {
        /// The hash of the known fields.
        computed: B256,
        /// The hash that the node reported.
        claimed: B256,
        unknown: Vec<String>,
    },
    /// The header has another hash and only known fields, and the block has a transaction of its chain's own kind: the
    /// chain may have its own hashes too.
    #[error(
        "the fields of its header hash to {computed}, but the node reports the hash {claimed}, and transaction {index} \
         has {what}: if this is usual on this chain, set `verify = \"bloom\"`"
    )]
    ForeignBlock {
        /// The hash of the header's fields.
        computed: B256,
        /// The hash that the node reported.
        claimed: B256,
        index: usize,
        /// The type or the fields of the transaction.
        what: String,
    },
    /// The header lacks fields of Ethereum's, or has them in a different form.
    #[error("its header is not one of Ethereum's: {why}")]
    UnreadableHeader {
        /// The field that is missing or cannot be parsed.
        why: String,
    },
    /// The transaction's fields do not hash to its hash.
    #[error(
        "the fields of transaction {index} hash to {computed}, but the node reports the hash {claimed}"
    )]
    TransactionHash {
        index: usize,
        /// The hash of its fields.
        computed: B256,
        /// The hash that the node reported.
        claimed: B256,
    },
    /// A transaction has a type or fields that are specific to its chain.
    #[error(
        "transaction {index} has {what}: if this is usual on this chain, set `verify = \"bloom\"`"
    )]
    ForeignTransaction {
        index: usize,
        /// The type or the fields.
        what: String,
    },
    /// A transaction has one of Ethereum's types but lacks the fields of that type.
    #[error("transaction {index} is not one of Ethereum's: {why}")]
    UnreadableTransaction {
        index: usize,
        /// The field that is missing or cannot be parsed.
        why: String,
    },
    /// A header field contradicts the rest of the block.
    #[error("its header says that the {field} is {header}, but the rest of the block says {block}")]
    Field {
        field: &'static str,
        header: String,
        /// The value that follows from the rest of the block.
        block: String,
    },
    /// A root computed from the block's parts differs from the header's.
    #[error("its {what} have the root {computed}, but its header says {expected}")]
    Root {
        /// The parts, such as `receipts`.
        what: &'static str,
        computed: B256,
        /// The header's root.
        expected: B256,
    },
    /// Logs are missing or surplus.
    #[error(
        "its {logs} logs do not match the logsBloom of its header: {missing} bits are set only in the header's bloom, \
         and {surplus} only in the bloom of the logs"
    )]
    LogsBloom {
        logs: usize,
        /// Bits set only in the header's bloom.
        missing: usize,
        /// Bits set only in the bloom of the logs.
        surplus: usize,
    },
    /// A log that the header's bloom excludes.
    #[error("log {log_index} is not in the logsBloom of its header")]
    LogNotInBloom {
        /// The `logIndex` that the node reported.
        log_index: u64,
    },
    /// The header has no bloom to compare the logs with.
    #[error("its header has no logsBloom to check its logs against")]
    NoBloom,
    /// There are logs, but no receipts to verify them with.
    #[error(
        "the node returns no receipts to check the logs against: use a node that supports \
         eth_getBlockReceipts or eth_getTransactionReceipt"
    )]
    NoReceipts,
    #[error("it has {transactions} transactions, but the node returned {receipts} receipts")]
    Receipts { transactions: usize, receipts: usize },
    /// A failed check on a chain whose blocks may be unable to pass it, with the setting that helps.
    #[error("{mismatch}; {advice}")]
    Advised { mismatch: Box<Mismatch>, advice: String },
    /// Some part cannot be parsed.
    #[error("{what}")]
    Malformed { what: String },
}

impl Mismatch {
    /// Whether the node returned something false, rather than something that cannot be checked.
    pub fn is_lie(&self) -> bool {
        if let Self::Advised { mismatch, .. } = self {
            return mismatch.is_lie();
        }
        !matches!(
            self,
            Self::ForeignHeader { .. }
                | Self::ForeignBlock { .. }
                | Self::UnreadableHeader { .. }
                | Self::ForeignTransaction { .. }
                | Self::UnreadableTransaction { .. }
                | Self::NoBloom
                | Self::NoReceipts
        )
    }
}

fn left_out(unknown: &[String]) -> String {
    if unknown.is_empty() {
        return String::new();
    }
    format!(" (not hashed: {}, which Logmill does not know)", unknown.join(", "))
}
