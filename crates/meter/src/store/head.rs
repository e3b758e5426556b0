//! The head of the meter: one row that every change of usage locks first.
//!
//! Guarantees: numbers are assigned in the order of commits, because only the holder of the lock takes any. Leaves to
//! others: what the numbers stand for.

use logmill_io::sql::Execute;
use logmill_io::{Tx, params};

use crate::store::place::Place;

/// The head row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// The number of the next event.
    pub(crate) seq: i64,
    pub(crate) name: i64,
    pub(crate) keys_version: i64,
    /// Number of events whose places are in lists.
    pub(crate) unplaced: i64,
    /// The bucket and series below which partials are stored series by series.
    pub(crate) settled: (i64, i64),
}

impl Head {
    /// Locks the head for this transaction: no other transaction changes usage before it ends.
    pub(crate) async fn lock(tx: &Tx) -> logmill_io::Result<Self> {
        let text = "SELECT next_seq, next_name, keys_version, unplaced, settled_bucket,
                        settled_series
                    FROM meter_head WHERE id = 1 FOR UPDATE";
        let answer = tx.execute(text, params![]).await?;
        let row = answer.row()?;
        Ok(Self {
            seq: row.int(0)?,
            name: row.int(1)?,
            keys_version: row.int(2)?,
            unplaced: row.int(3)?,
            settled: (row.int(4)?, row.int(5)?),
        })
    }

    /// Writes the changed fields.
    pub(crate) async fn store(&self, tx: &Tx) -> logmill_io::Result<()> {
        let text = "UPDATE meter_head SET next_seq = $1, next_name = $2, unplaced = $3,
                        settled_bucket = $4, settled_series = $5 WHERE id = 1";
        let (bucket, series) = self.settled;
        tx.execute(text, params![self.seq, self.name, self.unplaced, bucket, series]).await?;
        Ok(())
    }

    /// Whether the partial of this place is stored series by series.
    pub(crate) fn is_settled(&self, place: Place) -> bool {
        (place.bucket, place.series) < self.settled
    }
}
