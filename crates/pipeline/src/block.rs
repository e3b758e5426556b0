//! Conversion between a source's block and one of the log index.
//!
//! The index holds the logs; everything else is the body that it stores beside them.
//!
//! Guarantees: [`restore`] of [`to_finalized`] is the same block. Leaves to others: when a block is final.

use finalized_log_index::{BlockLog, Body, Filter, FinalizedBlock, Log as IndexedLog, LogIndex};
use logmill_chain::{Block, Log, stored};

use crate::error::{Error, Result};

/// Converts a block to the form that the log index stores.
pub fn to_finalized(block: Block) -> FinalizedBlock {
    let at = block.at;
    let transactions: Vec<_> = block.transactions.iter().map(|tx| tx.hash).collect();
    let log_indexes = block.node_fields.get().log_indexes.clone();
    let (bytes, logs) = stored::encode_apart(block);
    let mut placed = Vec::with_capacity(logs.iter().map(Vec::len).sum());
    for (index, (logs, hash)) in logs.into_iter().zip(&transactions).enumerate() {
        for log in logs {
            let log_index = log_indexes.get(placed.len()).copied();
            placed.push(BlockLog {
                address: log.address,
                topics: log.topics,
                data: log.data,
                transaction_hash: *hash,
                transaction_index: number(index),
                log_index: log_index.unwrap_or_else(|| number(placed.len())),
            });
        }
    }
    FinalizedBlock {
        number: at.number,
        hash: at.hash,
        parent_hash: at.parent_hash,
        timestamp: at.timestamp,
        logs: placed,
        body: Some(Body { bytes: bytes.into(), transactions }),
    }
}

/// Rebuilds a block from its body and logs.
pub fn restore(body: &[u8], logs: Vec<IndexedLog>) -> Result<Block> {
    let logs = logs.into_iter().map(|log| Log {
        address: log.log.address,
        topics: log.log.topics,
        data: log.log.data,
    });
    Ok(stored::with_logs(body, logs)?)
}

/// The logs of a block as the index would return them.
pub fn logs_of(block: &Block) -> impl Iterator<Item = IndexedLog> + '_ {
    block.logs().map(|placed| IndexedLog {
        block_number: block.at.number,
        block_hash: block.at.hash,
        block_timestamp: block.at.timestamp,
        log: BlockLog {
            address: placed.log.address,
            topics: placed.log.topics.clone(),
            data: placed.log.data.clone(),
            transaction_hash: placed.transaction_hash,
            transaction_index: number(placed.transaction_index),
            log_index: block.log_index(placed.log_index),
        },
    })
}

/// A position in a block. One that does not fit becomes `u32::MAX`, which the index refuses.
fn number(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

/// Refuses a body that belongs to another block.
pub(crate) fn check_number(block: &Block, number: u64) -> Result<()> {
    if block.at.number != number {
        return Err(Error::corrupt(format!("the body of block {number} is of another block")));
    }
    Ok(())
}

/// A final block as stored, ready to be written again unchanged.
pub(crate) async fn stored_block(index: &LogIndex, number: u64) -> Result<FinalizedBlock> {
    let info = index.block_by_number(number).await?;
    let info = info.ok_or_else(|| Error::NotCovered {
        wanted: number..number + 1,
        covered: index.coverage(),
    })?;
    let logs = index.query_finalized(&Filter::range(number..=number)).await?.logs;
    let body = match index.body(number).await? {
        Some(bytes) => {
            let (block, _) = stored::outline(&bytes)?;
            check_number(&block, number)?;
            let transactions = block.transactions.iter().map(|tx| tx.hash).collect();
            Some(Body { bytes, transactions })
        }
        None => None,
    };
    Ok(FinalizedBlock {
        number,
        hash: info.hash,
        parent_hash: info.parent_hash,
        timestamp: info.timestamp,
        logs: logs.into_iter().map(|log| log.log).collect(),
        body,
    })
}
