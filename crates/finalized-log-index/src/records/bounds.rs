//! The record `bounds`: where sections end, the same for every writer of this index.
//!
//! Guarantees: programs with different bounds never write the same index. Leaves to others: the meaning of the bounds
//! ([`crate::section`]).

use bytes::Bytes;

use super::{begin, end, open};
use crate::codec::{put_u32, put_u64};
use crate::error::Result;
use crate::section::Bounds;

const VERSION: u8 = 1;
const WHAT: &str = "the record of bounds";

pub(crate) fn encode(bounds: &Bounds) -> Bytes {
    let mut out = begin(VERSION);
    put_u64(&mut out, bounds.cell_blocks);
    put_u32(&mut out, bounds.chunk_logs);
    put_u32(&mut out, bounds.piece_logs);
    end(out)
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Bounds> {
    let mut reader = open(bytes, VERSION, WHAT)?;
    let bounds =
        Bounds { cell_blocks: reader.u64()?, chunk_logs: reader.u32()?, piece_logs: reader.u32()? };
    reader.end()?;
    Ok(bounds)
}
