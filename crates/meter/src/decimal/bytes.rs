//! Decimals as bytes, for stored partials.
//!
//! One byte holds the sign (its highest bit) and the decimal places, one the length of the magnitude, which follows
//! big-endian without leading zeros. Zero is two zero bytes.
//!
//! Guarantees: each number has one encoding, and any other bytes are refused. Leaves to others: versions; the order of
//! the encodings is not that of the numbers.

use super::{Decimal, SCALE_LIMIT, Wide};
use crate::error::{Error, Result};

const NEGATIVE: u8 = 0x80;
const MAGNITUDE_BYTES_MAX: usize = 64;

impl Decimal {
    pub(crate) fn encode(&self, to: &mut Vec<u8>) {
        let bytes: [u8; MAGNITUDE_BYTES_MAX] = self.magnitude.to_be_bytes();
        let start = bytes.iter().position(|&byte| byte != 0).unwrap_or(bytes.len());
        let trimmed = &bytes[start..];
        to.push(self.scale | if self.negative { NEGATIVE } else { 0 });
        // At most 64, so the conversion always succeeds.
        to.push(u8::try_from(trimmed.len()).unwrap_or(u8::MAX));
        to.extend_from_slice(trimmed);
    }

    /// Removes one number from the front of `from` and returns it.
    pub(crate) fn decode(from: &mut &[u8]) -> Result<Self> {
        let (value, rest) =
            decode(from).ok_or_else(|| Error::corrupt("a stored decimal cannot be decoded"))?;
        *from = rest;
        Ok(value)
    }
}

fn decode(from: &[u8]) -> Option<(Decimal, &[u8])> {
    let [tag, length, rest @ ..] = from else { return None };
    let length = usize::from(*length);
    if length > MAGNITUDE_BYTES_MAX {
        return None;
    }
    let (bytes, rest) = rest.split_at_checked(length)?;
    if bytes.first() == Some(&0) {
        return None;
    }
    let read = Decimal {
        magnitude: Wide::try_from_be_slice(bytes)?,
        scale: tag & !NEGATIVE,
        negative: tag & NEGATIVE != 0,
    };
    let normal = Decimal::normal(read.negative, read.magnitude, read.scale);
    (read == normal && read.scale <= SCALE_LIMIT).then_some((read, rest))
}
