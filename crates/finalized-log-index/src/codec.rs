//! Reads and writes numbers and bytes; everything read is bounds-checked.
//!
//! Guarantees: a [`Reader`] never reads beyond its bytes and never panics; input that does not fit is
//! [`Error::Corrupt`]. Sealed bytes ([`seal`], [`unseal`]) carry a CRC-32C, so a flipped bit is found before they are
//! decoded. Leaves to others: what the numbers mean.

use crate::error::{Error, Result};

pub(crate) const CRC_BYTES: usize = 4;
/// zstd level; hardly slower than lz4, and a quarter smaller.
const COMPRESSION: i32 = 1;

/// Appends a number in base 128, least significant digits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(low_byte(number) | 0x80);
        number >>= 7;
    }
    out.push(low_byte(number));
}

#[expect(clippy::cast_possible_truncation, reason = "only the low byte is needed")]
fn low_byte(number: u64) -> u8 {
    number as u8
}

/// Appends a little-endian number.
pub(crate) fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a little-endian number.
pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Maps signed numbers of small magnitude to small unsigned numbers.
pub(crate) fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Appends the checksum of `out[start..]`.
pub(crate) fn seal(out: &mut Vec<u8>, start: usize) {
    let crc = crc32c::crc32c(&out[start..]);
    put_u32(out, crc);
}

/// Checks the checksum and returns the bytes before it.
pub(crate) fn unseal(bytes: &[u8]) -> Result<&[u8]> {
    let Some((body, crc)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(Error::corrupt(format!(
            "{} bytes are too few to hold a checksum",
            bytes.len()
        )));
    };
    let (stored, computed) = (u32::from_le_bytes(*crc), crc32c::crc32c(body));
    if stored != computed {
        return Err(Error::corrupt(format!(
            "the stored checksum is {stored:08x}, but the computed one is {computed:08x}"
        )));
    }
    Ok(body)
}

/// Reports a number that does not fit as corruption.
pub(crate) fn to_usize(number: u64) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::corrupt(format!("{number} is too large")))
}

pub(crate) fn as_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// The caller has bounded the length.
pub(crate) fn as_u32(length: usize) -> u32 {
    debug_assert!(u32::try_from(length).is_ok(), "{length} must be bounded");
    u32::try_from(length).unwrap_or(u32::MAX)
}

#[derive(Clone, Debug)]
pub(crate) struct Reader<'b> {
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The bytes that have not been read yet.
    pub(crate) fn rest(&self) -> &'b [u8] {
        self.rest
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'b [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return Err(Error::corrupt(format!(
                "{length} bytes expected, but {} are left",
                self.rest.len()
            )));
        };
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Error::corrupt(format!(
                "{N} bytes expected, but {} are left",
                self.rest.len()
            )));
        };
        self.rest = rest;
        Ok(*taken)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn varint(&mut self) -> Result<u64> {
        // Most numbers are small.
        if let [byte, rest @ ..] = self.rest
            && *byte < 0x80
        {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        let mut number = 0_u64;
        for (position, byte) in self.rest.iter().enumerate().take(10) {
            let digits = u64::from(byte & 0x7f);
            let shift = position * 7;
            if shift == 63 && digits > 1 {
                break;
            }
            number |= digits << shift;
            if byte & 0x80 == 0 {
                self.rest = &self.rest[position + 1..];
                return Ok(number);
            }
        }
        Err(Error::corrupt("a varint does not end"))
    }

    /// Reads a zigzag difference and adds it to `base`.
    pub(crate) fn offset_from(&mut self, base: u64) -> Result<u64> {
        Ok(base.wrapping_add_signed(unzigzag(self.varint()?)))
    }

    /// Reads a base-128 number that must fit 32 bits.
    pub(crate) fn varint32(&mut self) -> Result<u32> {
        let number = self.varint()?;
        u32::try_from(number).map_err(|_| Error::corrupt(format!("{number} is too large")))
    }

    /// Reads a count of at most `max`, so that it is safe to allocate for it.
    pub(crate) fn count(&mut self, max: usize) -> Result<usize> {
        let number = to_usize(self.varint()?)?;
        if number > max {
            return Err(Error::corrupt(format!("a count is {number}, at most {max} is allowed")));
        }
        Ok(number)
    }

    /// Fails if bytes are left.
    pub(crate) fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Error::corrupt(format!("{} unexpected bytes at the end", self.rest.len())))
    }
}

pub(crate) fn compress(bytes: &[u8]) -> Vec<u8> {
    // Compressing into memory does not fail; if it did, reading would refuse the empty result.
    zstd::bulk::compress(bytes, COMPRESSION).unwrap_or_default()
}

pub(crate) fn decompress(bytes: &[u8], length: usize) -> Result<bytes::Bytes> {
    let raw = zstd::bulk::decompress(bytes, length);
    let raw = raw.map_err(|error| Error::corrupt(format!("cannot be decompressed: {error}")))?;
    if raw.len() != length {
        return Err(Error::corrupt(format!("{} bytes, not {length}", raw.len())));
    }
    Ok(bytes::Bytes::from(raw))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_round_trip(numbers in prop::collection::vec(any::<u64>(), 0..20), base: u64) {
            let mut bytes = Vec::new();
            for number in &numbers {
                put_varint(&mut bytes, *number);
                put_varint(&mut bytes, zigzag(number.wrapping_sub(base).cast_signed()));
                put_u64(&mut bytes, *number);
            }
            let mut reader = Reader::new(&bytes);
            for number in &numbers {
                prop_assert_eq!(reader.varint().expect("written"), *number);
                prop_assert_eq!(reader.offset_from(base).expect("written"), *number);
                prop_assert_eq!(reader.u64().expect("written"), *number);
            }
            prop_assert!(reader.end().is_ok());
        }

        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let mut reader = Reader::new(&bytes);
            while reader.varint().is_ok() {}
            let _ = reader.count(3);
            let _ = reader.array::<8>();
            let _ = unseal(&bytes);
        }

        #[test]
        fn a_flipped_bit_breaks_the_seal(
            body in prop::collection::vec(any::<u8>(), 0..64),
            at: usize,
        ) {
            let mut bytes = body.clone();
            seal(&mut bytes, 0);
            prop_assert_eq!(unseal(&bytes).expect("sealed"), &body[..]);
            let bit = at % (bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(unseal(&bytes).is_err());
        }
    }
}
