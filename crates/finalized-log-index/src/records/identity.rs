//! The record `identity`: a random number, drawn once when an index is created.
//!
//! It is the mark of the position before the first replacement. An index that was deleted and created again has a
//! different one, so consumers notice.
//!
//! Guarantees: those of [`super`]; never 0. Leaves to others: the marks of later positions ([`crate::replace`]).

use bytes::Bytes;

use super::{begin, end, open};
use crate::codec::put_u64;
use crate::error::{Error, Result};

const VERSION: u8 = 1;
const WHAT: &str = "the record of the index's identity";

pub(crate) fn encode(identity: u64) -> Bytes {
    let mut out = begin(VERSION);
    put_u64(&mut out, identity);
    end(out)
}

pub(crate) fn decode(bytes: &[u8]) -> Result<u64> {
    let mut reader = open(bytes, VERSION, WHAT)?;
    let identity = reader.u64()?;
    reader.end()?;
    match identity {
        0 => Err(Error::corrupt(format!("{WHAT} is 0"))),
        identity => Ok(identity),
    }
}
