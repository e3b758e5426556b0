//! Entries of an e2store file: type, length and data.
//!
//! ```text
//! type u16 LE │ length u32 LE │ reserved u16, zero │ data
//! ```
//!
//! Guarantees: an entry that claims more than [`ENTRY_BYTES_MAX`] is refused. Leaves to others: the data.

use std::path::Path;

use crate::error::Error;

/// Length of the head that precedes an entry's data.
pub(super) const HEAD_BYTES: usize = 8;
/// Maximum size of an entry; the largest real ones have a few megabytes.
pub(super) const ENTRY_BYTES_MAX: usize = 32 << 20;

/// Types of entries.
pub(super) const VERSION: u16 = 0x3265;
pub(super) const HEADER: u16 = 0x03;
pub(super) const BODY: u16 = 0x04;
pub(super) const RECEIPTS: u16 = 0x05;
pub(super) const TOTAL_DIFFICULTY: u16 = 0x06;
pub(super) const ACCUMULATOR: u16 = 0x07;
pub(super) const BLOCK_INDEX: u16 = 0x3266;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryHead {
    pub(super) kind: u16,
    pub(super) length: usize,
}

impl EntryHead {
    pub(super) fn encode(self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..2].copy_from_slice(&self.kind.to_le_bytes());
        let length = u32::try_from(self.length).unwrap_or(u32::MAX);
        bytes[2..6].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: [u8; HEAD_BYTES]) -> Result<Self, String> {
        let [a, b, l0, l1, l2, l3, r0, r1] = bytes;
        if [r0, r1] != [0, 0] {
            return Err("the reserved bytes of an entry are not zero".to_owned());
        }
        let length = usize::try_from(u32::from_le_bytes([l0, l1, l2, l3]));
        match length {
            Ok(length) if length <= ENTRY_BYTES_MAX => {
                Ok(Self { kind: u16::from_le_bytes([a, b]), length })
            }
            _ => Err(format!("an entry has more than {ENTRY_BYTES_MAX} bytes")),
        }
    }
}

/// Splits an entry of the given type off the front of `bytes`.
pub(super) fn take<'a>(bytes: &mut &'a [u8], kind: u16) -> Result<&'a [u8], String> {
    let (head, rest) = bytes.split_first_chunk().ok_or("an entry is cut short")?;
    let head = EntryHead::decode(*head)?;
    if head.kind != kind {
        return Err(format!("an entry has type {:#06x} instead of {kind:#06x}", head.kind));
    }
    let (data, rest) =
        rest.split_at_checked(head.length).ok_or("an entry extends beyond the end")?;
    *bytes = rest;
    Ok(data)
}

/// Error with the position of the damage.
pub(super) fn corrupt(path: &Path, offset: u64, what: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("{} at byte {offset}: {what}", path.display()))
}
