//! A block as bytes, for records and archives: a version byte, then the block in postcard, then the senders of its
//! transactions if they were recovered. The version tells whether they are there.
//!
//! Guarantees: what was encoded decodes to the same block, with its logs or without, with senders or without. Leaves
//! to others: compression and checksums (the stores), and putting logs back that are kept elsewhere ([`with_logs`]).

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::block::{Block, Log};
use crate::error::{Error, Result};
use crate::sender::Sender;

/// The version of a block without senders.
const PLAIN: u8 = 1;
/// The version of one with them: one for each transaction, after everything else.
const WITH_SENDERS: u8 = 2;

/// A block as bytes, with everything.
pub fn encode(block: &Block) -> Vec<u8> {
    written(block, senders_of(block))
}

/// A block as bytes without its logs, and the logs of each receipt, which are kept elsewhere. The bytes say how many
/// each receipt has.
pub fn encode_apart(mut block: Block) -> (Vec<u8>, Vec<Vec<Log>>) {
    let logs = block.receipts.iter_mut().map(|receipt| std::mem::take(&mut receipt.logs));
    let logs: Vec<Vec<Log>> = logs.collect();
    let counts = logs.iter().map(|logs| u32::try_from(logs.len()).unwrap_or(u32::MAX));
    let counts: Vec<u32> = counts.collect();
    let senders = senders_of(&block);
    (written(&(block, counts), senders), logs)
}

/// The block of [`encode`].
pub fn decode(bytes: &[u8]) -> Result<Block> {
    let (mut block, senders) = read(bytes)?;
    put_senders(&mut block, senders)?;
    Ok(block)
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
    let ((mut block, counts), senders): ((Block, Vec<u32>), _) = read(bytes)?;
    if block.receipts.len() != counts.len() {
        return Err(Error::corrupt("a stored block that contradicts itself"));
    }
    put_senders(&mut block, senders)?;
    Ok((block, counts))
}

fn written(contents: &impl Serialize, senders: Option<Vec<Sender>>) -> Vec<u8> {
    let written = match senders {
        None => postcard::to_extend(contents, vec![PLAIN]),
        Some(senders) => postcard::to_extend(&(contents, senders), vec![WITH_SENDERS]),
    };
    // Serializing into memory fails only for types that postcard does not know, and ours are none of those.
    written.unwrap_or_default()
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Option<Vec<Sender>>)> {
    let read = match bytes.split_first() {
        Some((&PLAIN, rest)) => postcard::from_bytes(rest).map(|contents| (contents, None)),
        Some((&WITH_SENDERS, rest)) => {
            postcard::from_bytes(rest).map(|(contents, senders)| (contents, Some(senders)))
        }
        Some((version, _)) => {
            return Err(Error::corrupt(format!("a stored block of version {version}")));
        }
        None => return Err(Error::corrupt("a stored block of no bytes")),
    };
    read.map_err(|error| Error::corrupt(format!("a stored block that can not be read: {error}")))
}

/// The senders of a block's transactions, if any is known.
fn senders_of(block: &Block) -> Option<Vec<Sender>> {
    let senders = block.transactions.iter().map(|transaction| transaction.sender);
    let senders: Vec<Sender> = senders.collect();
    senders.iter().any(|sender| *sender != Sender::Unknown).then_some(senders)
}

fn put_senders(block: &mut Block, senders: Option<Vec<Sender>>) -> Result<()> {
    let Some(senders) = senders else {
        return Ok(());
    };
    if block.transactions.len() != senders.len() {
        return Err(Error::corrupt("a stored block without one sender a transaction"));
    }
    for (transaction, sender) in block.transactions.iter_mut().zip(senders) {
        transaction.sender = sender;
    }
    Ok(())
}
