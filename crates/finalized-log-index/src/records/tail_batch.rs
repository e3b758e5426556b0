//! The records `tail/GENERATION-FIRST`: the blocks of one commit, as pages.
//!
//! The record holds the pages that the section cut during the commit, and the open page; no log is encoded only for
//! this record. The first page may begin with logs of the previous commit; decoding skips them.
//!
//! Guarantees: those of [`super`]; decoding returns the encoded blocks. Leaves to others: the order of batches
//! ([`crate::follow`]).

use alloy_primitives::B256;
use bytes::Bytes;

use super::{begin, end, hash, open};
use crate::body_keys::{BodyKeys, TransactionAt};
use crate::codec::{Reader, as_u64, put_u64, put_varint, to_usize, zigzag};
use crate::error::{Error, Result};
use crate::page::{Page, PageView};
use crate::section::BlockRow;
use crate::types::FinalizedBlock;

const VERSION: u8 = 2;
const WHAT: &str = "a batch of the tail";
pub(crate) const BATCH_BLOCKS_MAX: usize = 4_096;

/// Content of the record.
#[derive(Debug)]
pub(crate) struct TailBatch<'b> {
    pub(crate) first_block: u64,
    pub(crate) parent_hash: B256,
    pub(crate) blocks: &'b [BlockRow],
    pub(crate) bodies: &'b BodyKeys,
    pub(crate) pages: Vec<&'b Page>,
}

impl TailBatch<'_> {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = begin(VERSION);
        put_u64(&mut out, self.first_block);
        out.extend_from_slice(self.parent_hash.as_slice());
        put_varint(&mut out, as_u64(self.blocks.len()));
        let mut before = 0;
        for block in self.blocks {
            out.extend_from_slice(block.hash.as_slice());
            put_varint(&mut out, zigzag(block.timestamp.wrapping_sub(before).cast_signed()));
            put_varint(&mut out, u64::from(block.logs));
            before = block.timestamp;
        }
        put_varint(&mut out, as_u64(self.bodies.blocks.len()));
        for block in &self.bodies.blocks {
            put_varint(&mut out, block - self.first_block);
        }
        put_varint(&mut out, as_u64(self.bodies.transactions.len()));
        for transaction in &self.bodies.transactions {
            put_u64(&mut out, transaction.key);
            put_varint(&mut out, transaction.block - self.first_block);
        }
        for page in &self.pages {
            put_varint(&mut out, as_u64(page.bytes.len()));
            out.extend_from_slice(&page.bytes);
        }
        end(out)
    }
}

/// Returns the blocks without their bodies, and the keys of the bodies.
pub(crate) fn decode(bytes: &[u8]) -> Result<(Vec<FinalizedBlock>, BodyKeys)> {
    let mut reader = open(bytes, VERSION, WHAT)?;
    let first_block = reader.u64()?;
    let mut parent_hash = hash(&mut reader)?;
    let count = reader.count(BATCH_BLOCKS_MAX)?;
    let mut blocks = Vec::with_capacity(count);
    let mut wanted = Vec::with_capacity(count);
    let mut before = 0;
    for position in 0..count {
        let hash = hash(&mut reader)?;
        let timestamp = reader.offset_from(before)?;
        wanted.push(to_usize(reader.varint()?)?);
        let number = first_block.checked_add(as_u64(position));
        let number = number.ok_or_else(|| {
            Error::corrupt(format!("{WHAT} has a block number that is too large"))
        })?;
        let (logs, body) = (Vec::new(), None);
        blocks.push(FinalizedBlock { number, hash, parent_hash, timestamp, logs, body });
        (parent_hash, before) = (hash, timestamp);
    }
    let bodies = decode_bodies(&mut reader, first_block, count)?;
    while !reader.is_empty() {
        let length = to_usize(reader.varint()?)?;
        let page = PageView::open(Bytes::copy_from_slice(reader.take(length)?))?;
        let mut logs = Vec::with_capacity(page.len());
        page.logs(&(0..page.len()).collect::<Vec<_>>(), &mut logs);
        for (position, log) in logs.into_iter().enumerate() {
            let Some(offset) = page.block_number(position).checked_sub(first_block) else {
                continue;
            };
            let block = usize::try_from(offset).ok().and_then(|offset| blocks.get_mut(offset));
            let block =
                block.ok_or_else(|| Error::corrupt(format!("{WHAT} has logs of other blocks")))?;
            if log.block_hash != block.hash {
                return Err(Error::corrupt(format!("{WHAT} has logs of other blocks")));
            }
            block.logs.push(log.log);
        }
    }
    if blocks.iter().zip(&wanted).any(|(block, wanted)| block.logs.len() != *wanted) {
        return Err(Error::corrupt(format!("{WHAT} lacks logs")));
    }
    let valid = blocks.iter().try_for_each(FinalizedBlock::validate);
    valid.map_err(|error| Error::corrupt(format!("{WHAT}: {error}")))?;
    Ok((blocks, bodies))
}

fn decode_bodies(reader: &mut Reader<'_>, first_block: u64, blocks: usize) -> Result<BodyKeys> {
    let mut bodies = BodyKeys::default();
    for _ in 0..reader.count(blocks)? {
        let offset = reader.count(blocks.saturating_sub(1))?;
        bodies.blocks.push(first_block + as_u64(offset));
    }
    if bodies.blocks.windows(2).any(|pair| pair[0] >= pair[1]) {
        return Err(Error::corrupt(format!("{WHAT} has bodies out of order")));
    }
    for _ in 0..reader.count(reader.remaining())? {
        let key = reader.u64()?;
        let offset = reader.count(blocks.saturating_sub(1))?;
        bodies.transactions.push(TransactionAt { key, block: first_block + as_u64(offset) });
    }
    Ok(bodies)
}
