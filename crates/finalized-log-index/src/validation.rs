//! The rules that a block must follow before it is added.
//!
//! Guarantees: [`FinalizedBlock::validate`] refuses input that cannot be a block, so the rest of the crate relies on
//! its order and limits. Leaves to others: whether the block is canonical (the caller promises it), and whether its
//! logs match its header (the caller checks it).

use crate::error::{Error, Result};
use crate::types::{
    BLOCK_BODY_BYTES_MAX, BLOCK_DATA_BYTES_MAX, BLOCK_LOGS_MAX, BLOCK_TRANSACTIONS_MAX,
    FinalizedBlock,
};

impl FinalizedBlock {
    /// Refuses input that cannot be a block: a limit is exceeded, or logs are out of order.
    pub fn validate(&self) -> Result<()> {
        let invalid = |what: String| Err(Error::InvalidBlock { number: self.number, what });
        if self.number == u64::MAX {
            return invalid("its number is the maximum of u64, which is reserved".to_owned());
        }
        if self.logs.len() > BLOCK_LOGS_MAX {
            return invalid(format!("{} logs, at most {BLOCK_LOGS_MAX}", self.logs.len()));
        }
        let bytes: usize = self.logs.iter().map(|log| log.data.len()).sum();
        if bytes > BLOCK_DATA_BYTES_MAX {
            return invalid(format!("{bytes} bytes of data, at most {BLOCK_DATA_BYTES_MAX}"));
        }
        if let Some(body) = &self.body {
            let (bytes, transactions) = (body.bytes.len(), body.transactions.len());
            if bytes > BLOCK_BODY_BYTES_MAX || transactions > BLOCK_TRANSACTIONS_MAX {
                return invalid(format!(
                    "a body of {bytes} bytes and {transactions} transactions, at most \
                     {BLOCK_BODY_BYTES_MAX} and {BLOCK_TRANSACTIONS_MAX}"
                ));
            }
        }
        for pair in self.logs.windows(2) {
            let (before, after) = (&pair[0], &pair[1]);
            if before.log_index >= after.log_index
                || before.transaction_index > after.transaction_index
            {
                return invalid(format!("log {} is out of order", after.log_index));
            }
            let same_index = before.transaction_index == after.transaction_index;
            // On chains that do not execute transactions as Ethereum does, a hash may occur twice in a block.
            if same_index && before.transaction_hash != after.transaction_hash {
                return invalid(format!(
                    "log {} has the transaction index of the previous log but another hash",
                    after.log_index
                ));
            }
        }
        Ok(())
    }
}
