//! A block as bytes, for records and archives: a version byte, the block in postcard, then the senders of its
//! transactions if they were recovered, then its [`NodeFields`] if the node's answer was compared. The version byte
//! tells which of these are present.
//!
//! Guarantees: a block decodes to what was encoded, with or without logs and senders. Leaves to others: compression
//! and checksums (the stores), and storing logs that are kept elsewhere ([`with_logs`] puts them back).

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::block::{Block, Log};
use crate::error::{Error, Result};
use crate::node_fields::{KeptFields, NodeFields};
use crate::sender::Sender;

/// Version byte: no senders.
const PLAIN: u8 = 1;
/// Version byte: one sender per transaction follows the block.
const WITH_SENDERS: u8 = 2;
/// Version byte: the node's answer was compared. Senders, if known, and node fields follow the block.
const COMPARED: u8 = 3;

#[derive(Default)]
struct Appendix {
    senders: Option<Vec<Sender>>,
    fields: Option<NodeFields>,
}

impl Appendix {
    fn of(block: &Block) -> Self {
        let kept = &block.node_fields;
        let fields = kept.is_compared().then(|| kept.get().clone());
        Self { senders: senders_of(block), fields }
    }

    fn put_into(self, block: &mut Block) -> Result<()> {
        put_senders(block, self.senders)?;
        block.node_fields = self.fields.map_or_else(KeptFields::default, KeptFields::compared);
        Ok(())
    }
}

/// Whether the node's answer was compared when the block was stored, so that its node fields are present.
pub fn is_compared(bytes: &[u8]) -> bool {
    bytes.first() == Some(&COMPARED)
}

pub fn encode(block: &Block) -> Vec<u8> {
    write(block, Appendix::of(block))
}

/// Encodes a block without its logs and returns them separately, per receipt, for storage elsewhere. The bytes keep
/// the number of logs of each receipt.
pub fn encode_apart(mut block: Block) -> (Vec<u8>, Vec<Vec<Log>>) {
    let logs = block.receipts.iter_mut().map(|receipt| std::mem::take(&mut receipt.logs));
    let logs: Vec<Vec<Log>> = logs.collect();
    let counts = logs.iter().map(|logs| u32::try_from(logs.len()).unwrap_or(u32::MAX));
    let counts: Vec<u32> = counts.collect();
    let appendix = Appendix::of(&block);
    (write(&(block, counts), appendix), logs)
}

/// Decodes the bytes of [`encode`].
pub fn decode(bytes: &[u8]) -> Result<Block> {
    let (mut block, appendix): (Block, Appendix) = read(bytes)?;
    appendix.put_into(&mut block)?;
    Ok(block)
}

/// Decodes the bytes of [`encode_apart`]. `logs` must be all of the block's logs, in order.
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

/// Decodes the bytes of [`encode_apart`] without the logs, and returns the number of logs.
pub fn outline(bytes: &[u8]) -> Result<(Block, u64)> {
    let (block, counts) = split(bytes)?;
    Ok((block, counts.into_iter().map(u64::from).sum()))
}

/// Decodes the bytes of [`encode_apart`] without the logs.
pub fn without_logs(bytes: &[u8]) -> Result<Block> {
    Ok(split(bytes)?.0)
}

fn split(bytes: &[u8]) -> Result<(Block, Vec<u32>)> {
    let ((mut block, counts), appendix): ((Block, Vec<u32>), Appendix) = read(bytes)?;
    if block.receipts.len() != counts.len() {
        return Err(Error::corrupt("a stored block does not have one log count per receipt"));
    }
    appendix.put_into(&mut block)?;
    Ok((block, counts))
}

fn write(contents: &impl Serialize, appendix: Appendix) -> Vec<u8> {
    let written = match appendix {
        Appendix { senders, fields: Some(fields) } => {
            postcard::to_extend(&(contents, senders, fields), vec![COMPARED])
        }
        Appendix { senders: Some(senders), fields: None } => {
            postcard::to_extend(&(contents, senders), vec![WITH_SENDERS])
        }
        Appendix { senders: None, fields: None } => postcard::to_extend(contents, vec![PLAIN]),
    };
    // Serializing into memory fails only for types that postcard does not support, and none of ours is one.
    written.unwrap_or_default()
}

fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, Appendix)> {
    let read = match bytes.split_first() {
        Some((&PLAIN, rest)) => {
            postcard::from_bytes(rest).map(|contents| (contents, Appendix::default()))
        }
        Some((&WITH_SENDERS, rest)) => postcard::from_bytes(rest).map(|(contents, senders)| {
            (contents, Appendix { senders: Some(senders), fields: None })
        }),
        Some((&COMPARED, rest)) => postcard::from_bytes(rest).map(|(contents, senders, fields)| {
            (contents, Appendix { senders, fields: Some(fields) })
        }),
        Some((version, _)) => {
            return Err(Error::corrupt(format!(
                "a stored block has the unknown version {version}"
            )));
        }
        None => return Err(Error::corrupt("a stored block is empty")),
    };
    read.map_err(|error| Error::corrupt(format!("cannot decode a stored block: {error}")))
}

/// `None` if no sender is known.
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
        return Err(Error::corrupt("a stored block does not have one sender per transaction"));
    }
    for (transaction, sender) in block.transactions.iter_mut().zip(senders) {
        transaction.sender = sender;
    }
    Ok(())
}
