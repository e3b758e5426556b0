//! Writes era1 files, block by block.
//!
//! Guarantees: any reader of the format can read the files, and ours verifies them; a file has consecutive,
//! linked blocks. Blocks with uncles are refused, because we do not store uncle headers. Withdrawals, which are
//! newer than the format, are written as a third part of the body. Leaves to others: where the bytes go.

use std::io::Write;
use std::path::PathBuf;

use alloy_primitives::{B256, Bytes, U256};
use alloy_rlp::{Encodable, Header as RlpHeader};
use snap::write::FrameEncoder;

use super::accumulator::{BLOCKS_MAX, HeaderRecord, accumulator};
use super::entry::{
    ACCUMULATOR, BLOCK_INDEX, BODY, ENTRY_BYTES_MAX, EntryHead, HEAD_BYTES, HEADER, RECEIPTS,
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

#[derive(Debug)]
pub struct FinishedFile<W> {
    pub out: W,
    /// Number of the first block.
    pub first: u64,
    pub root: B256,
    /// The difficulty of all blocks up to and including the last.
    pub total_difficulty: U256,
}

impl<W> FinishedFile<W> {
    /// The conventional file name.
    pub fn name(&self, network: &str) -> String {
        let era = self.first / BLOCKS_MAX as u64;
        let [a, b, c, d, ..] = self.root.0;
        format!("{network}-{era:05}-{a:02x}{b:02x}{c:02x}{d:02x}.era1")
    }
}

impl<W: Write> Writer<W> {
    /// Starts a file; `total_difficulty` is that of all blocks before its first.
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

    /// Number of blocks so far.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn is_full(&self) -> bool {
        self.records.len() >= BLOCKS_MAX
    }

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
    pub fn finish(mut self) -> Result<FinishedFile<W>> {
        let Some(last) = self.last else {
            return Err(Error::Invalid {
                what: "an era1 file needs at least one block".to_owned(),
            });
        };
        let count = self.records.len() as u64;
        let first = last.number + 1 - count;
        let root = accumulator(&self.records);
        self.entry(ACCUMULATOR, root.as_slice())?;
        let mut index = first.to_le_bytes().to_vec();
        for offset in &self.offsets {
            // Relative to the index.
            index.extend_from_slice(&offset.wrapping_sub(self.written).to_le_bytes());
        }
        index.extend_from_slice(&count.to_le_bytes());
        self.entry(BLOCK_INDEX, &index)?;
        self.out.flush().map_err(failed)?;
        let total_difficulty = self.total_difficulty;
        Ok(FinishedFile { out: self.out, first, root, total_difficulty })
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
            return Err(refused(block, "has receipts with unknown outcomes"));
        }
        Ok(())
    }

    fn entry(&mut self, kind: u16, data: &[u8]) -> Result<()> {
        if data.len() > ENTRY_BYTES_MAX {
            let what = format!("an entry of {} bytes is too large for an era1 file", data.len());
            return Err(Error::Invalid { what });
        }
        let head = EntryHead { kind, length: data.len() }.encode();
        self.out.write_all(&head).and_then(|()| self.out.write_all(data)).map_err(failed)?;
        self.written += (HEAD_BYTES + data.len()) as u64;
        Ok(())
    }
}

/// The receipts of a block as an RLP list, with typed ones wrapped as strings.
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
