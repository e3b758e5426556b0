//! The records `build/TOKEN`: a build attempt, which may publish while its record exists.
//!
//! The commit that publishes deletes the record, on condition that it is unchanged. Publication and garbage
//! collection therefore race for the deletion, and the first one wins: an unpublished blob whose attempt has no
//! record will never be published.
//!
//! Guarantees: those of [`super`]. Leaves to others: when an attempt is given up ([`crate::gc`]).

use bytes::Bytes;
use logmill_io::Timestamp;

use super::{begin, end, open};
use crate::codec::put_u64;
use crate::error::Result;

const VERSION: u8 = 1;
const WHAT: &str = "the record of a build attempt";

/// `until` is store time; garbage collection leaves the attempt alone until then.
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
