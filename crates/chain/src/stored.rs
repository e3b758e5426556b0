//! A block as bytes, for records and archives: a version byte, then the block in postcard.
//!
//! Guarantees: what was encoded decodes to the same block, with its logs or without. Leaves to others: compression
//! and checksums (the stores), and putting logs back that are kept elsewhere ([`with_logs`]).

use crate::block::{Block, Log};
use crate::error::{Error, Result};

const VERSION: u8 = 1;

/// A block as bytes, with everything.
pub fn encode(block: &Block) -> Vec<u8> {
    // Serializing into memory fails only for types that postcard does not know, and ours are none of those.
    postcard::to_extend(block, vec![VERSION]).unwrap_or_default()
}

/// A block as bytes without its logs, and the logs of each receipt, which are kept elsewhere. The bytes say how many
/// each receipt has.
pub fn encode_apart(mut block: Block) -> (Vec<u8>, Vec<Vec<Log>>) {
    let logs = block.receipts.iter_mut().map(|receipt| std::mem::take(&mut receipt.logs));
    let logs: Vec<Vec<Log>> = logs.collect();
    let counts = logs.iter().map(|logs| u32::try_from(logs.len()).unwrap_or(u32::MAX));
    let counts: Vec<u32> = counts.collect();
    (postcard::to_extend(&(block, counts), vec![VERSION]).unwrap_or_default(), logs)
}

/// The block of [`encode`].
pub fn decode(bytes: &[u8]) -> Result<Block> {
    postcard::from_bytes(opened(bytes)?).map_err(|error| damaged(&error))
}

/// The block of [`encode_apart`], with its logs, which must be all of them and in order.
pub fn with_logs(bytes: &[u8], logs: impl IntoIterator<Item = Log>) -> Result<Block> {
    let (mut block, counts) = split(bytes)?;
    let mut logs = logs.into_iter();
    for (receipt, count) in block.receipts.iter_mut().zip(counts) {
        receipt.logs.extend(logs.by_ref().take(count as usize));
        if receipt.logs.len() != count as usize {
            return Err(Error::corrupt(format!("block {} has too few logs", block.at.number)));
        }
    }
    match logs.next() {
        None => Ok(block),
        Some(_) => Err(Error::corrupt(format!("block {} has too many logs", block.at.number))),
    }
}

/// The block of [`encode_apart`] without its logs, and how many these are.
pub fn outline(bytes: &[u8]) -> Result<(Block, u64)> {
    let (block, counts) = split(bytes)?;
    Ok((block, counts.into_iter().map(u64::from).sum()))
}

/// The block of [`encode_apart`], without its logs.
pub fn without_logs(bytes: &[u8]) -> Result<Block> {
    Ok(split(bytes)?.0)
}

fn split(bytes: &[u8]) -> Result<(Block, Vec<u32>)> {
    let (block, counts): (Block, Vec<u32>) =
        postcard::from_bytes(opened(bytes)?).map_err(|error| damaged(&error))?;
    if block.receipts.len() != counts.len() {
        return Err(Error::corrupt("a stored block that contradicts itself"));
    }
    Ok((block, counts))
}

fn opened(bytes: &[u8]) -> Result<&[u8]> {
    match bytes.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((version, _)) => Err(Error::corrupt(format!("a stored block of version {version}"))),
        None => Err(Error::corrupt("a stored block of no bytes")),
    }
}

fn damaged(error: &postcard::Error) -> Error {
    Error::corrupt(format!("a stored block that can not be read: {error}"))
}
