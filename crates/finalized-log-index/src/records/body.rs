//! The records `body/GENERATION-NUMBER`: the body of one block of the tail, kept until the block is sealed.
//!
//! Guarantees: those of [`super`]. Leaves to others: bodies of sealed blocks ([`crate::bodies`]).

use bytes::Bytes;

use super::{begin, end, hash, open};
use crate::codec::{as_u64, compress, decompress, put_varint};
use crate::error::Result;
use crate::types::{BLOCK_BODY_BYTES_MAX, BLOCK_TRANSACTIONS_MAX, Body, FinalizedBlock};

const VERSION: u8 = 1;
const WHAT: &str = "the body of a block of the tail";

pub(crate) fn encode(body: &Body) -> Bytes {
    let mut out = begin(VERSION);
    put_varint(&mut out, as_u64(body.transactions.len()));
    body.transactions.iter().for_each(|hash| out.extend_from_slice(hash.as_slice()));
    put_varint(&mut out, as_u64(body.bytes.len()));
    out.extend_from_slice(&compress(&body.bytes));
    end(out)
}

/// Encodes the bodies of blocks, each with the number of its block.
pub(crate) async fn encode_all(blocks: &[FinalizedBlock]) -> Vec<(u64, Bytes)> {
    let bodies = blocks.iter().filter_map(|block| Some((block.number, block.body.clone()?)));
    let bodies: Vec<(u64, Body)> = bodies.collect();
    if bodies.is_empty() {
        return Vec::new();
    }
    let encode = |(number, body): (u64, Body)| (number, encode(&body));
    logmill_io::compute(move || bodies.into_iter().map(encode).collect()).await
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Body> {
    let mut reader = open(bytes, VERSION, WHAT)?;
    let count = reader.count(BLOCK_TRANSACTIONS_MAX)?;
    let transactions = (0..count).map(|_| hash(&mut reader)).collect::<Result<Vec<_>>>()?;
    let length = reader.count(BLOCK_BODY_BYTES_MAX)?;
    let bytes = decompress(reader.rest(), length).map_err(|error| error.within(WHAT))?;
    Ok(Body { bytes: bytes.into(), transactions })
}
