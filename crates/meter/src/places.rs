//! Places: which events belong to which series and fifteen minutes.
//!
//! An index entry per event on arrival would rewrite a page for every series in every transaction. So a transaction
//! writes the places of its events as one list; once there are many, all lists are sorted together and become index
//! entries.
//!
//! ```text
//!   events of one transaction ──▶ a list ─┐
//!   events of the next one    ──▶ a list ─┼─ many at once, sorted ──▶ meter_place (bucket, series, seq)
//!                              …          ┘
//! ```
//!
//! Guarantees: the place of every event in the database is in a list or in the index, written in the transaction that
//! writes the event. A search for events of a place reads the lists first, so that it misses none that moves in
//! between. Leaves to others: the events themselves ([`crate::stored_event`]), and archived ones.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Sql, Tx, Value, params};

use crate::error::{Error, Result};
use crate::meter::{Head, Meter};
use crate::partials::Place;
use crate::stored_event;

/// Number of events after which lists become index entries. Every search for events of a place reads all lists.
pub(crate) const UNPLACED_MAX: u64 = 100_000;
/// Number of event numbers that one check covers.
const EVENTS_PER_CHECK: i64 = 20_000;

/// Bucket, series and number of one event, as in a list.
type ListedPlace = (i64, i64, i64);

impl Meter {
    /// Writes the places of new events as a list.
    pub(crate) async fn place(
        &self,
        tx: &Tx,
        head: &mut Head,
        placed: &[ListedPlace],
    ) -> Result<()> {
        let Some(first_seq) = placed.iter().map(|(_, _, seq)| *seq).min() else { return Ok(()) };
        let list = postcard::to_allocvec(placed).map_err(|error| unreadable(&error))?;
        let text = "INSERT INTO meter_unplaced (first_seq, places) VALUES ($1, $2)";
        tx.execute(text, params![first_seq, list]).await?;
        head.unplaced += i64::try_from(placed.len()).unwrap_or(i64::MAX);
        if head.unplaced.cast_unsigned() >= self.sizes.unplaced_max {
            place_all(tx, head).await?;
        }
        Ok(())
    }

    /// Turns all lists into index entries.
    pub(crate) async fn place_all(&self) -> Result<()> {
        let lists = "SELECT count(*) FROM meter_unplaced";
        if self.sql.query(lists, params![]).await?.row()?.int(0)? == 0 {
            return Ok(());
        }
        self.sql
            .write(|tx| async move {
                let mut head = Head::lock(&tx).await?;
                place_all(&tx, &mut head).await?;
                head.store(&tx).await
            })
            .await?;
        Ok(())
    }
}

async fn place_all(tx: &Tx, head: &mut Head) -> Result<()> {
    let mut placed = Vec::new();
    for list in lists(tx).await? {
        placed.extend(list);
    }
    placed.sort_unstable();
    let rows = placed.into_iter().map(|(bucket, series, seq)| params![bucket, series, seq]);
    tx.bulk(&PLACES, rows.collect::<Vec<Vec<Value>>>()).await?;
    tx.execute("DELETE FROM meter_unplaced", params![]).await?;
    head.unplaced = 0;
    Ok(())
}

async fn lists(on: &impl Execute) -> Result<Vec<Vec<ListedPlace>>> {
    let found = on.execute("SELECT places FROM meter_unplaced", params![]).await?;
    let list = |bytes: &[u8]| postcard::from_bytes(bytes).map_err(|error| unreadable(&error));
    found.rows.iter().map(|row| list(&row.blob(0)?)).collect()
}

const PLACES: Bulk = Bulk {
    table: Cow::Borrowed("meter_place"),
    columns: Cow::Borrowed(&[
        ("bucket", ColumnType::Int),
        ("series", ColumnType::Int),
        ("seq", ColumnType::Int),
    ]),
    key_columns: 3,
    on_conflict: Cow::Borrowed(""),
};

/// The numbers of events at these places that are in lists.
pub(crate) async fn listed_at(on: &impl Execute, places: &[Place]) -> Result<BTreeSet<i64>> {
    let wanted: HashSet<(i64, i64)> =
        places.iter().map(|place| (place.bucket, place.series)).collect();
    let mut seqs = BTreeSet::new();
    for list in lists(on).await? {
        let here =
            list.into_iter().filter(|(bucket, series, _)| wanted.contains(&(*bucket, *series)));
        seqs.extend(here.map(|(_, _, seq)| seq));
    }
    Ok(seqs)
}

/// The numbers of all events at these places.
pub(crate) async fn seqs_at(on: &impl Execute, places: &[Place]) -> Result<BTreeSet<i64>> {
    let mut seqs = listed_at(on, places).await?;
    let list: Vec<(i64, i64)> = places.iter().map(|place| (place.bucket, place.series)).collect();
    let list = serde_json::to_string(&list).map_err(|error| unreadable(&error))?;
    let text = "SELECT p.seq FROM json_list($1) CROSS JOIN meter_place p
                WHERE p.bucket = CAST(value ->> 0 AS BIGINT)
                    AND p.series = CAST(value ->> 1 AS BIGINT)";
    for row in &on.execute(text, params![list]).await?.rows {
        seqs.insert(row.int(0)?);
    }
    Ok(seqs)
}

/// Adds the index entry of one event, unless it exists.
pub(crate) async fn enter(tx: &Tx, place: Place, seq: i64) -> Result<()> {
    let text = "INSERT INTO meter_place (bucket, series, seq) VALUES ($1, $2, $3)
                ON CONFLICT (bucket, series, seq) DO NOTHING";
    tx.execute(text, params![place.bucket, place.series, seq]).await?;
    Ok(())
}

/// Number of events in the database that are in no list and have no entry; with `repair` they get one.
pub(crate) async fn unplaced(sql: &Sql, repair: bool) -> Result<u64> {
    let text = "SELECT coalesce(max(seq), 0) FROM meter_event";
    let last = sql.query(text, params![]).await?.row()?.int(0)?;
    let mut unplaced = 0;
    let mut from = 0;
    while from <= last {
        let text = "SELECT min(seq) FROM meter_event WHERE seq >= $1";
        let Some(next) = sql.query(text, params![from]).await?.row()?.opt_int(0)? else { break };
        let end = next.saturating_add(EVENTS_PER_CHECK);
        let text = "SELECT e.bucket, e.series, e.seq FROM meter_event e
                    WHERE e.seq >= $1 AND e.seq < $2 AND NOT EXISTS (
                        SELECT 1 FROM meter_place p
                        WHERE p.bucket = e.bucket AND p.series = e.series AND p.seq = e.seq)";
        let found = sql.query(text, params![next, end]).await?;
        for row in &found.rows {
            let place = Place { bucket: row.int(0)?, series: row.int(1)? };
            let seq = row.int(2)?;
            // It may have arrived after the lists were read, or may have been archived since.
            let missing = sql.write(|tx| async move { Ok(mend(&tx, place, seq, repair).await?) });
            unplaced += u64::from(missing.await?);
        }
        from = end;
    }
    Ok(unplaced)
}

/// Whether an event has no entry, checked under the head's lock.
async fn mend(tx: &Tx, place: Place, seq: i64, repair: bool) -> Result<bool> {
    Head::lock(tx).await?;
    // A damaged event would be entered at a wrong place.
    let there = stored_event::get(tx, seq).await?.is_some();
    let missing = there && !seqs_at(tx, &[place]).await?.contains(&seq);
    if missing && repair {
        enter(tx, place, seq).await?;
    }
    Ok(missing)
}

fn unreadable(error: &dyn std::error::Error) -> Error {
    Error::corrupt(format!("a list of places: {error}"))
}
