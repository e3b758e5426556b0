//! Writes JSON quantities, bytes and objects into a buffer.
//!
//! Guarantees: allocates only to grow the buffer. Leaves to others: escaping; field names are our own constants.

use alloy_primitives::hex;

/// Writes bytes as `"0x…"`, two digits each.
pub fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(b"\"0x");
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    // The slice has exactly the size that is written.
    let _ = hex::encode_to_slice(bytes, &mut out[start..]);
    out.push(b'"');
}

/// Writes a number as `"0x…"`, without leading zeros.
pub fn quantity(out: &mut Vec<u8>, number: impl Into<u128>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let number = number.into();
    out.extend_from_slice(b"\"0x");
    let digits = (u128::BITS - number.leading_zeros()).div_ceil(4).max(1);
    for digit in (0..digits).rev() {
        let nibble = usize::try_from((number >> (4 * digit)) & 0xf).unwrap_or(0);
        out.push(DIGITS[nibble]);
    }
    out.push(b'"');
}

pub(super) fn list<T>(out: &mut Vec<u8>, items: &[T], mut write: impl FnMut(&mut Vec<u8>, &T)) {
    out.push(b'[');
    for (position, item) in items.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write(out, item);
    }
    out.push(b']');
}

/// Writes an object field by field.
pub(super) struct Object<'o> {
    out: &'o mut Vec<u8>,
    is_empty: bool,
}

impl<'o> Object<'o> {
    pub(super) fn open(out: &'o mut Vec<u8>) -> Self {
        out.push(b'{');
        Self { out, is_empty: true }
    }

    /// Continues an object that begins at `start` and whose closing brace was removed.
    pub(super) fn reopened(out: &'o mut Vec<u8>, start: usize) -> Self {
        let is_empty = out.len() <= start + 1;
        Self { out, is_empty }
    }

    /// Writes the field name and returns the buffer, to write the value.
    pub(super) fn field(&mut self, name: &str) -> &mut Vec<u8> {
        if !self.is_empty {
            self.out.push(b',');
        }
        self.is_empty = false;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    pub(super) fn close(self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn quantities_have_no_leading_zeros_and_bytes_have_all_of_theirs() {
        for (number, said) in [
            (0_u128, "\"0x0\""),
            (1, "\"0x1\""),
            (15, "\"0xf\""),
            (16, "\"0x10\""),
            (0x0102, "\"0x102\""),
            (u128::MAX, "\"0xffffffffffffffffffffffffffffffff\""),
        ] {
            assert_eq!(text(|out| quantity(out, number)), said);
        }
        assert_eq!(text(|out| bytes(out, &[])), "\"0x\"");
        assert_eq!(text(|out| bytes(out, &[0, 1, 0xab])), "\"0x0001ab\"");
    }
}
