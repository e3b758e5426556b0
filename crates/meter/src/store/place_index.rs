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
//! between. Leaves to others: the events themselves ([`crate::store::stored_event`]), and archived ones.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Sql, Tx, Value, params};

use crate::error::{Error, Result};
use crate::store::head::Head;
use crate::store::place::Place;

/// Number of events after which lists become index entries. Every search for events of a place reads all lists.
pub(crate) const UNPLACED_MAX: u64 = 100_000;

/// Bucket, series and number of one event, as in a list.
type ListedPlace = (i64, i64, i64);

/// Writes the places of new events as a list. All lists become index entries once they have `unplaced_max` events.
pub(crate) async fn add(
    tx: &Tx,
    head: &mut Head,
    placed: &[ListedPlace],
    unplaced_max: u64,
) -> Result<()> {
    let Some(first_seq) = placed.iter().map(|(_, _, seq)| *seq).min() else { return Ok(()) };
    let list = postcard::to_allocvec(placed).map_err(|error| unreadable(&error))?;
    let text = "INSERT INTO meter_unplaced (first_seq, places) VALUES ($1, $2)";
    tx.execute(text, params![first_seq, list]).await?;
    head.unplaced += i64::try_from(placed.len()).unwrap_or(i64::MAX);
    if head.unplaced.cast_unsigned() >= unplaced_max {
        place_all_in(tx, head).await?;
    }
    Ok(())
}

/// Turns all lists into index entries.
pub(crate) async fn place_all(sql: &Sql) -> Result<()> {
    let lists = "SELECT count(*) FROM meter_unplaced";
    if sql.query(lists, params![]).await?.row()?.int(0)? == 0 {
        return Ok(());
    }
    sql.write(|tx| async move {
        let mut head = Head::lock(&tx).await?;
        place_all_in(&tx, &mut head).await?;
        Ok(head.store(&tx).await?)
    })
    .await
}

async fn place_all_in(tx: &Tx, head: &mut Head) -> Result<()> {
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

fn unreadable(error: &dyn std::error::Error) -> Error {
    Error::corrupt(format!("a list of places: {error}"))
}
