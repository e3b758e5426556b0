//! The records `build/TOKEN`: an attempt to build a chunk, which may publish as long as its record is there.
//!
//! The commit that publishes deletes the record on condition that it is still the same. So whoever deletes it
//! first, the publication or garbage collection, decides, and a blob whose attempt has no record any more and
//! which is not published never will be.
//!
//! Guarantees: those of [`super`]. Leaves to others: when an attempt is given up ([`crate::gc`]).

use bytes::Bytes;
use logmill_io::Timestamp;

use super::{begin, end, open};
use crate::codec::put_u64;
use crate::error::Result;

const VERSION: u8 = 1;
const WHAT: &str = "the record of a build attempt";

/// Until when, in the store's time, nobody else gives the attempt up.
pub(crate) fn encode(until: Timestamp) -> Bytes {
    let mut out = begin(VERSION);
    put_u64(&mut out, until.millis().cast_unsigned());
    end(out)
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Timestamp> {
    let mut reader = open(bytes, VERSION, WHAT)?;
    let until = Timestamp(reader.u64()?.cast_signed());
    reader.end()?;
    Ok(until)
}
