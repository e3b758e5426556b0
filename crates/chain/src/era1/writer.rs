//! Writes era1 files, block by block.
//!
//! Guarantees: what it writes any reader of the format reads, and ours verifies; a file has consecutive, linked blocks.
//! Blocks with uncles are refused, as their headers are not kept. Withdrawals, which the format's time did not know,
//! are written as a third part of the body. Leaves to others: where the bytes go.

use std::io::Write;
use std::path::PathBuf;

use alloy_primitives::{B256, Bytes, U256};
use alloy_rlp::{Encodable, Header as RlpHeader};
use snap::write::FrameEncoder;

use super::accumulator::{BLOCKS_MAX, HeaderRecord, accumulator};
use super::entry::{
    ACCUMULATOR, BLOCK_INDEX, BODY, ENTRY_BYTES_MAX, HEAD_BYTES, HEADER, Head, RECEIPTS,
    TOTAL_DIFFICULTY, VERSION,
};
use crate::block::{Block, BlockRef, Header, Outcome};
use crate::body;
use crate::error::{Error, Result};
use crate::verify::encode_receipt;

/// A file that is being written.
#[derive(Debug)]
pub struct Writer<W> {
    out: W,
    written: u64,
    last: Option<BlockRef>,
    offsets: Vec<u64>,
    records: Vec<HeaderRecord>,
    total_difficulty: U256,
}

/// A file that was written.
#[derive(Debug)]
pub struct Written<W> {
    /// Where it was written.
    pub out: W,
    /// The number of its first block.
    pub first: u64,
    /// Its accumulator.
    pub root: B256,
    /// The difficulty of all blocks up to its last.
    pub total_difficulty: U256,
}

impl<W> Written<W> {
    /// What such a file is called.
    pub fn name(&self, network: &str) -> String {
        let era = self.first / BLOCKS_MAX as u64;
        let [a, b, c, d, ..] = self.root.0;
        format!("{network}-{era:05}-{a:02x}{b:02x}{c:02x}{d:02x}.era1")
    }
}

impl<W: Write> Writer<W> {
    /// Begins a file; `total_difficulty` is that of all blocks before its first.
    pub fn new(out: W, total_difficulty: U256) -> Result<Self> {
        let mut writer = Self {
            out,
            written: 0,
            last: None,
            offsets: Vec::new(),
            records: Vec::new(),
            total_difficulty,
        };
        writer.entry(VERSION, &[])?;
        Ok(writer)
    }

    /// How many blocks it has.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    /// Whether it has no blocks yet.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Whether no more blocks fit.
    pub fn is_full(&self) -> bool {
        self.records.len() >= BLOCKS_MAX
    }

    /// Adds the next block.
    pub fn push(&mut self, block: &Block) -> Result<()> {
        self.check(block)?;
        let Header::Canonical(header) = &block.header else {
            return Err(refused(block, "has a header in JSON"));
        };
        let Some(fields) = block.header.decode()? else {
            return Err(refused(block, "has a header in JSON"));
        };
        let (body, receipts) = (compress(&body::encode(block)?)?, compress(&receipts(block))?);
        let total_difficulty = self.total_difficulty.saturating_add(fields.difficulty);
        self.offsets.push(self.written);
        self.entry(HEADER, &compress(header)?)?;
        self.entry(BODY, &body)?;
        self.entry(RECEIPTS, &receipts)?;
        self.entry(TOTAL_DIFFICULTY, &total_difficulty.to_le_bytes::<32>())?;
        self.records.push(HeaderRecord { hash: block.at.hash, total_difficulty });
        self.total_difficulty = total_difficulty;
        self.last = Some(block.at);
        Ok(())
    }

    /// Writes the accumulator and the index.
    pub fn finish(mut self) -> Result<Written<W>> {
        let Some(last) = self.last else {
            return Err(Error::Invalid { what: "an era1 file without blocks".to_owned() });
        };
        let count = self.records.len() as u64;
        let first = last.number + 1 - count;
        let root = accumulator(&self.records);
        self.entry(ACCUMULATOR, root.as_slice())?;
        let mut index = first.to_le_bytes().to_vec();
        for offset in &self.offsets {
            // Back from the index.
            index.extend_from_slice(&offset.wrapping_sub(self.written).to_le_bytes());
        }
        index.extend_from_slice(&count.to_le_bytes());
        self.entry(BLOCK_INDEX, &index)?;
        self.out.flush().map_err(failed)?;
        let total_difficulty = self.total_difficulty;
        Ok(Written { out: self.out, first, root, total_difficulty })
    }

    fn check(&self, block: &Block) -> Result<()> {
        if self.is_full() {
            return Err(refused(block, "does not fit: the file is full"));
        }
        let follows = self.last.is_none_or(|last| {
            block.at.number == last.number + 1 && block.at.parent_hash == last.hash
        });
        if !follows {
            return Err(refused(block, "does not follow the one before it"));
        }
        if block.receipts.iter().any(|receipt| receipt.outcome == Outcome::Unknown) {
            return Err(refused(block, "has receipts that are not known"));
        }
        Ok(())
    }

    fn entry(&mut self, kind: u16, data: &[u8]) -> Result<()> {
        if data.len() > ENTRY_BYTES_MAX {
            let what = format!("an entry of {} bytes is too large for an era1 file", data.len());
            return Err(Error::Invalid { what });
        }
        let head = Head { kind, length: data.len() }.encode();
        self.out.write_all(&head).and_then(|()| self.out.write_all(data)).map_err(failed)?;
        self.written += (HEAD_BYTES + data.len()) as u64;
        Ok(())
    }
}

/// The receipts of a block as a list, typed ones wrapped as strings.
fn receipts(block: &Block) -> Vec<u8> {
    let mut payload = Vec::new();
    for receipt in &block.receipts {
        if receipt.tx_type == 0 {
            encode_receipt(receipt, &mut payload);
        } else {
            let mut typed = Vec::new();
            encode_receipt(receipt, &mut typed);
            Bytes::from(typed).encode(&mut payload);
        }
    }
    let mut out = Vec::with_capacity(payload.len() + 9);
    RlpHeader { list: true, payload_length: payload.len() }.encode(&mut out);
    out.extend_from_slice(&payload);
    out
}

fn compress(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = FrameEncoder::new(Vec::new());
    encoder.write_all(bytes).map_err(failed)?;
    encoder.into_inner().map_err(|error| failed(error.into_error()))
}

fn refused(block: &Block, why: &str) -> Error {
    Error::Invalid { what: format!("block {} {why}", block.at.number) }
}

fn failed(source: std::io::Error) -> Error {
    let path = PathBuf::from("an era1 file");
    Error::Io(logmill_io::Error::File { doing: "write", path, source })
}
