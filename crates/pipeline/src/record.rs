//! Encoding of records: a version byte, the contents, and a CRC-32C.
//!
//! Guarantees: a flipped bit anywhere is detected before the contents are parsed. Leaves to others: the contents.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};

const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;
/// zstd level: hardly slower than lz4, and a quarter smaller.
const COMPRESSION: i32 = 1;
const LENGTH_BYTES: usize = 4;

/// Encodes a value with postcard.
pub(crate) fn encode(value: &impl Serialize) -> Bytes {
    // Serializing into memory fails only for types that postcard does not support, and ours are supported.
    seal(postcard::to_extend(value, vec![VERSION]).unwrap_or_default())
}

pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8], what: &str) -> Result<T> {
    let contents = open(bytes, what)?;
    postcard::from_bytes(contents).map_err(|error| Error::corrupt(format!("{what}: {error}")))
}

pub(crate) fn compress(bytes: &[u8]) -> Bytes {
    let mut out = vec![VERSION];
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    out.extend_from_slice(&length.to_le_bytes());
    // Compressing into memory does not fail; if it did, the empty output would be refused when read.
    out.extend_from_slice(&zstd::bulk::compress(bytes, COMPRESSION).unwrap_or_default());
    seal(out)
}

/// Decompresses a record of at most `bytes_max` bytes.
pub(crate) fn decompress(bytes: &[u8], bytes_max: usize, what: &str) -> Result<Vec<u8>> {
    let contents = open(bytes, what)?;
    let parts = contents.split_first_chunk::<LENGTH_BYTES>();
    let (length, rest) = parts.ok_or_else(|| Error::corrupt(format!("{what} is too short")))?;
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length > bytes_max {
        return Err(Error::corrupt(format!("{what} has {length} bytes, at most {bytes_max}")));
    }
    let raw = zstd::bulk::decompress(rest, length);
    let raw = raw.map_err(|error| Error::corrupt(format!("{what}: {error}")))?;
    if raw.len() != length {
        return Err(Error::corrupt(format!("{what} has {} bytes, not {length}", raw.len())));
    }
    Ok(raw)
}

fn seal(mut out: Vec<u8>) -> Bytes {
    let crc = crc32c::crc32c(&out);
    out.extend_from_slice(&crc.to_le_bytes());
    Bytes::from(out)
}

fn open<'b>(bytes: &'b [u8], what: &str) -> Result<&'b [u8]> {
    let Some((body, crc)) = bytes.split_last_chunk::<CRC_BYTES>() else {
        return Err(Error::corrupt(format!("{what} is too short")));
    };
    if crc32c::crc32c(body) != u32::from_le_bytes(*crc) {
        return Err(Error::corrupt(format!("{what} has a wrong checksum")));
    }
    match body.split_first() {
        Some((&VERSION, contents)) => Ok(contents),
        _ => Err(Error::corrupt(format!("{what} has an unknown version"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_value_and_any_bytes_round_trip(
            value in any::<(u64, String, Vec<u8>, Option<i32>)>(),
            bytes in prop::collection::vec(any::<u8>(), 0..2_000),
        ) {
            let read: (u64, String, Vec<u8>, Option<i32>) =
                decode(&encode(&value), "it").expect("read");
            prop_assert_eq!(read, value);
            let read = decompress(&compress(&bytes), bytes.len(), "it").expect("read");
            prop_assert_eq!(read, bytes);
        }

        /// With a valid checksum, as a hostile store would return.
        #[test]
        fn foreign_bytes_are_an_error_or_a_value_and_never_a_panic(
            bytes in prop::collection::vec(any::<u8>(), 0..200),
            versioned in any::<bool>(),
        ) {
            let mut bytes = bytes;
            if versioned {
                bytes.insert(0, VERSION);
            }
            let record = seal(bytes.clone());
            let _ = decode::<Vec<(u64, String)>>(&record, "it");
            let _ = decode::<Vec<u8>>(&bytes, "it");
            if let Ok(raw) = decompress(&record, 1 << 16, "it") {
                prop_assert!(raw.len() <= 1 << 16);
            }
        }
    }

    #[test]
    fn a_record_that_claims_to_be_huge_is_refused_before_allocating() {
        for length in [u32::MAX, 1 << 31, 1_001] {
            let mut bytes = vec![VERSION];
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&zstd::bulk::compress(&[7; 5_000], 1).expect("compressed"));
            let error = decompress(&seal(bytes), 1_000, "it").expect_err("too long");
            assert!(error.to_string().contains("at most 1000"), "{error}");
        }
        // A record that states less than it contains.
        let mut bytes = vec![VERSION, 10, 0, 0, 0];
        bytes.extend_from_slice(&zstd::bulk::compress(&[7; 5_000], 1).expect("compressed"));
        decompress(&seal(bytes), 1_000, "it").expect_err("more than it says");
        // A list of four billion in a few bytes.
        let bytes = seal(vec![VERSION, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 2, 3]);
        decode::<Vec<(u64, u64)>>(&bytes, "it").expect_err("too short");
    }

    #[test]
    fn records_round_trip_and_a_flipped_bit_is_found() {
        let bytes = compress(b"some bytes that come back");
        assert_eq!(decompress(&bytes, 100, "it").expect("read"), b"some bytes that come back");
        assert!(decompress(&bytes, 10, "it").is_err(), "too long");
        let value = encode(&(7_u64, "seven".to_owned()));
        let (number, name): (u64, String) = decode(&value, "it").expect("read");
        assert_eq!((number, name.as_str()), (7, "seven"));
        for record in [bytes, value] {
            for bit in 0..record.len() * 8 {
                let mut damaged = record.to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(decompress(&damaged, 100, "it").is_err());
                assert!(decode::<(u64, String)>(&damaged, "it").is_err());
            }
        }
    }
}
