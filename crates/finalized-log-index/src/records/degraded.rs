//! The record `degraded`: why the index refuses to go on, until an operator resolves it.
//!
//! Guarantees: those of [`super`]. Leaves to others: what is refused ([`crate::health`]).

use bytes::Bytes;

use super::{begin, end, open};
use crate::codec::{as_u64, put_varint, to_usize};
use crate::error::{Error, Result};

const VERSION: u8 = 1;
const WHAT: &str = "the record of degradation";
/// The longest reason that is kept.
const REASON_BYTES_MAX: usize = 4_096;

/// Why the index is degraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Degraded {
    /// What kind of trouble it is.
    pub cause: Cause,
    /// What happened, for people.
    pub reason: String,
}

/// What kind of trouble makes an index degraded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// What was indexed as final is contradicted: neither writes nor reads go on.
    FinalityViolation,
    /// Stored bytes are damaged or missing: writes stop, and the queries that need those bytes.
    Corruption,
    /// Too much garbage, and collecting it does not help: writes stop.
    Backlog,
    /// Records of the index itself are damaged: neither writes nor reads go on.
    Metadata,
}

impl Degraded {
    pub(crate) fn encode(&self) -> Bytes {
        let mut out = begin(VERSION);
        out.push(match self.cause {
            Cause::FinalityViolation => 1,
            Cause::Corruption => 2,
            Cause::Backlog => 3,
            Cause::Metadata => 4,
        });
        let kept = self.reason.floor_char_boundary(REASON_BYTES_MAX);
        put_varint(&mut out, as_u64(kept));
        out.extend_from_slice(&self.reason.as_bytes()[..kept]);
        end(out)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut reader = open(bytes, VERSION, WHAT)?;
        let cause = match reader.u8()? {
            1 => Cause::FinalityViolation,
            2 => Cause::Corruption,
            3 => Cause::Backlog,
            4 => Cause::Metadata,
            other => return Err(Error::corrupt(format!("{WHAT} names the cause {other}"))),
        };
        let length = to_usize(reader.varint()?)?;
        let reason = String::from_utf8_lossy(reader.take(length)?).into_owned();
        reader.end()?;
        Ok(Self { cause, reason })
    }

    /// Whether reads stop too.
    pub fn stops_reads(&self) -> bool {
        matches!(self.cause, Cause::FinalityViolation | Cause::Metadata)
    }
}
