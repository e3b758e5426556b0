//! Hex strings as nodes accept them: quantities without leading zeros, data in whole bytes, both with `0x`.
//!
//! Guarantees: a string that geth rejects is rejected with geth's error text, so that clients recognize it. Leaves to
//! others: naming the parameter in the error.

use alloy_primitives::hex;

const QUANTITY_DIGITS_MAX: usize = 16;

/// Strips the prefix.
fn digits(text: &str) -> Result<&str, String> {
    if text.is_empty() {
        return Err("empty hex string".to_owned());
    }
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X"));
    digits.ok_or_else(|| "hex string without 0x prefix".to_owned())
}

/// A number of at most 64 bits.
pub(super) fn quantity(text: &str) -> Result<u64, String> {
    let digits = digits(text)?;
    match digits.as_bytes() {
        [] => return Err("hex string \"0x\"".to_owned()),
        [b'0', _, ..] => return Err("hex number with leading zero digits".to_owned()),
        more if more.len() > QUANTITY_DIGITS_MAX => return Err("hex number > 64 bits".to_owned()),
        _ => {}
    }
    expect_digits(digits)?;
    u64::from_str_radix(digits, 16).map_err(|_| "invalid hex string".to_owned())
}

/// Any number of bytes.
pub(super) fn data(text: &str) -> Result<Vec<u8>, String> {
    let digits = digits(text)?;
    if !digits.len().is_multiple_of(2) {
        return Err("hex string of odd length".to_owned());
    }
    expect_digits(digits)?;
    hex::decode(digits).map_err(|_| "invalid hex string".to_owned())
}

/// Exactly `N` bytes.
pub(super) fn fixed<const N: usize>(text: &str) -> Result<[u8; N], String> {
    let digits = digits(text)?;
    if digits.len() != 2 * N {
        return Err(format!("hex string has length {}, want {}", digits.len(), 2 * N));
    }
    expect_digits(digits)?;
    let mut bytes = [0; N];
    match hex::decode_to_slice(digits, &mut bytes) {
        Ok(()) => Ok(bytes),
        Err(_) => Err("invalid hex string".to_owned()),
    }
}

/// Rejects non-digits. The parsers below would accept a sign before a number and a second prefix before bytes.
fn expect_digits(digits: &str) -> Result<(), String> {
    match digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        true => Ok(()),
        false => Err("invalid hex string".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_strings_are_accepted_and_rejected_as_by_nodes() {
        for (text, expected) in [
            ("0x0", Ok(0)),
            ("0X1f", Ok(31)),
            ("0xffffffffffffffff", Ok(u64::MAX)),
            ("", Err("empty hex string")),
            ("12", Err("hex string without 0x prefix")),
            ("0x", Err("hex string \"0x\"")),
            ("0x00", Err("hex number with leading zero digits")),
            ("0x01", Err("hex number with leading zero digits")),
            ("0x1ffffffffffffffff", Err("hex number > 64 bits")),
            ("0x+5", Err("invalid hex string")),
            ("0x 5", Err("invalid hex string")),
            ("0xg", Err("invalid hex string")),
        ] {
            assert_eq!(quantity(text), expected.map_err(str::to_owned), "{text:?}");
        }
        for (text, expected) in [
            ("0x", Ok(vec![])),
            ("0x00Ff", Ok(vec![0, 255])),
            ("", Err("empty hex string")),
            ("00", Err("hex string without 0x prefix")),
            ("0x1", Err("hex string of odd length")),
            ("0xzz", Err("invalid hex string")),
            ("0x0x", Err("invalid hex string")),
        ] {
            assert_eq!(data(text), expected.map_err(str::to_owned), "{text:?}");
        }
        for (text, expected) in [
            ("0x0102", Ok([1, 2])),
            ("0102", Err("hex string without 0x prefix")),
            ("0x01", Err("hex string has length 2, want 4")),
            ("0x010203", Err("hex string has length 6, want 4")),
            ("0x0x02", Err("invalid hex string")),
            ("0xäß", Err("invalid hex string")),
        ] {
            assert_eq!(fixed::<2>(text), expected.map_err(str::to_owned), "{text:?}");
        }
    }
}
