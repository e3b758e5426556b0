//! The checksum of a stored event, in the column `checks` of its row.
//!
//! ```text
//!   checks (64 bits) = CRC-32C of (seq, key, content) in the upper half │ CRC-32C of all columns in the lower half
//! ```
//!
//! Two halves, because sealing reads keys without the rest of the row. Every write of a row writes `checks` too; rows
//! of versions that had no checksums have `NULL`, and are not checked.
//!
//! Guarantees: a row with one changed bit, or a burst of up to 32, is never taken for the one that was written. Leaves
//! to others: rows that are gone (a sidecar detects a database that stepped back), and what to do about damage
//! (`docs/runbooks/damaged-usage.md`).

use logmill_io::Row;

use crate::error::{Error, Result};
use crate::event::Key;
use crate::store::place::Place;

/// The columns of an event's row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventColumns<'a> {
    pub(crate) seq: i64,
    pub(crate) place: Place,
    pub(crate) time_ms: i64,
    pub(crate) received_ms: i64,
    pub(crate) source: &'a str,
    pub(crate) id: &'a str,
    pub(crate) amount: &'a str,
    pub(crate) metadata: Option<&'a str>,
    pub(crate) state: i64,
    pub(crate) key: Key,
    pub(crate) content: i64,
}

impl<'a> EventColumns<'a> {
    /// Reads the columns of [`crate::store::stored_event::COLUMNS`] and verifies them; a column that cannot be read is
    /// damage too.
    pub(crate) fn read(row: &'a Row) -> Result<Self> {
        let seq = row.int(0)?;
        let damaged = |_| Error::DamagedEvent { seq };
        let columns = Self::parse(row, seq).map_err(damaged)?;
        match row.opt_int(CHECKS_COLUMN).map_err(damaged)? {
            Some(checks) if checks != columns.checks() => Err(Error::DamagedEvent { seq }),
            _ => Ok(columns),
        }
    }

    fn parse(row: &'a Row, seq: i64) -> logmill_io::Result<Self> {
        Ok(Self {
            seq,
            place: Place { bucket: row.int(1)?, series: row.int(2)? },
            time_ms: row.int(3)?,
            received_ms: row.int(4)?,
            source: row.text(5)?,
            id: row.text(6)?,
            amount: row.text(7)?,
            metadata: row.opt_text(8)?,
            state: row.int(9)?,
            content: row.int(10)?,
            key: Key { hi: row.int(11)?, lo: row.int(12)? },
        })
    }

    pub(crate) fn has_checks(row: &Row) -> bool {
        !row.is_null(CHECKS_COLUMN)
    }

    /// The value of the column `checks`.
    pub(crate) fn checks(&self) -> i64 {
        let whole = u64::from(self.checksum());
        let key = u64::from(key_checksum(self.seq, self.key, self.content));
        ((key << 32) | whole).cast_signed()
    }

    fn checksum(&self) -> u32 {
        let length = |text: &str| i64::try_from(text.len()).unwrap_or(i64::MAX);
        let metadata = self.metadata.unwrap_or_default();
        let mut checksum = crc32c::crc32c(
            bytes_of([
                self.seq,
                self.place.bucket,
                self.place.series,
                self.time_ms,
                self.received_ms,
                self.state,
                self.key.hi,
                self.key.lo,
                self.content,
                // Lengths, so that no byte can move from one text to its neighbour.
                (length(self.source) << 32) | length(self.id),
                length(self.amount),
                self.metadata.map_or(-1, length),
            ])
            .as_flattened(),
        );
        for text in [self.source, self.id, self.amount, metadata] {
            checksum = crc32c::crc32c_append(checksum, text.as_bytes());
        }
        checksum
    }
}

/// Index of `checks` in [`crate::store::stored_event::COLUMNS`].
const CHECKS_COLUMN: usize = 13;

/// Whether the key of an event is the one that was written; true if the row has no checksum.
pub(crate) fn key_is_whole(seq: i64, key: Key, content: i64, checks: Option<i64>) -> bool {
    checks.is_none_or(|checks| {
        checks.cast_unsigned() >> 32 == u64::from(key_checksum(seq, key, content))
    })
}

fn key_checksum(seq: i64, key: Key, content: i64) -> u32 {
    crc32c::crc32c(bytes_of([seq, key.hi, key.lo, content]).as_flattened())
}

fn bytes_of<const N: usize>(numbers: [i64; N]) -> [[u8; 8]; N] {
    numbers.map(i64::to_le_bytes)
}
