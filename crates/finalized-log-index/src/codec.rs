//! Reading and writing numbers and bytes, with bounds on everything that is read.
//!
//! Guarantees: a [`Reader`] never reads beyond its bytes and never panics; whatever does not fit is
//! [`Error::Corrupt`]. Sealed bytes ([`seal`], [`unseal`]) carry a CRC-32C, so that a flipped bit anywhere in
//! them is found before they are looked at. Leaves to others: what the numbers mean.

use crate::error::{Error, Result};

/// The bytes of a checksum.
pub(crate) const CRC_BYTES: usize = 4;

/// Appends a number in base 128, lowest digits first.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(low_byte(number) | 0x80);
        number >>= 7;
    }
    out.push(low_byte(number));
}

#[expect(clippy::cast_possible_truncation, reason = "the low byte is what is wanted")]
fn low_byte(number: u64) -> u8 {
    number as u8
}

/// Appends a number of 32 bits.
pub(crate) fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Appends a number of 64 bits.
pub(crate) fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

/// Maps small numbers of both signs to small numbers.
pub(crate) fn zigzag(difference: i64) -> u64 {
    ((difference << 1) ^ (difference >> 63)).cast_unsigned()
}

fn unzigzag(number: u64) -> i64 {
    (number >> 1).cast_signed() ^ -((number & 1).cast_signed())
}

/// Appends the checksum of everything from `start` on.
pub(crate) fn seal(out: &mut Vec<u8>, start: usize) {
    let crc = crc32c::crc32c(&out[start..]);
    put_u32(out, crc);
}

/// The bytes before the checksum, if it is theirs.
pub(crate) fn unseal(bytes: &[u8]) -> Result<&[u8]> {
    let Some((body, crc)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(Error::corrupt(format!(
            "{} bytes are too few to hold a checksum",
            bytes.len()
        )));
    };
    let (stored, computed) = (u32::from_le_bytes(*crc), crc32c::crc32c(body));
    if stored != computed {
        return Err(Error::corrupt(format!("checksum {stored:08x}, but {computed:08x} computed")));
    }
    Ok(body)
}

/// A number that fits, or corruption.
pub(crate) fn to_usize(number: u64) -> Result<usize> {
    usize::try_from(number).map_err(|_| Error::corrupt(format!("{number} is too large")))
}

/// A length as a number of 64 bits.
pub(crate) fn as_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// A length as a number of 32 bits; callers have bounded it.
pub(crate) fn as_u32(length: usize) -> u32 {
    debug_assert!(u32::try_from(length).is_ok(), "{length} was to be bounded");
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Reads from bytes, front to back.
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

    pub(crate) fn remaining(&self) -> usize {
        self.rest.len()
    }

    pub(crate) fn take(&mut self, length: usize) -> Result<&'b [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(length) else {
            return Err(Error::corrupt(format!(
                "{length} bytes wanted where {} are left",
                self.rest.len()
            )));
        };
        self.rest = rest;
        Ok(taken)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let Some((taken, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(Error::corrupt(format!(
                "{N} bytes wanted where {} are left",
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
        Err(Error::corrupt("a number without an end"))
    }

    /// A difference of either sign, added to `base`.
    pub(crate) fn offset_from(&mut self, base: u64) -> Result<u64> {
        Ok(base.wrapping_add_signed(unzigzag(self.varint()?)))
    }

    /// A number of 32 bits in base 128.
    pub(crate) fn varint32(&mut self) -> Result<u32> {
        let number = self.varint()?;
        u32::try_from(number).map_err(|_| Error::corrupt(format!("{number} is too large")))
    }

    /// A count of things of which each takes at least one of the bytes left, or of `max` at most.
    pub(crate) fn count(&mut self, max: usize) -> Result<usize> {
        let number = to_usize(self.varint()?)?;
        if number > max {
            return Err(Error::corrupt(format!("a count of {number}, at most {max}")));
        }
        Ok(number)
    }

    /// Nothing may be left.
    pub(crate) fn end(&self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Error::corrupt(format!("{} bytes too many", self.rest.len())))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_come_back(numbers in prop::collection::vec(any::<u64>(), 0..20), base: u64) {
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
