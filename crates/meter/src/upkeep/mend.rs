//! Mends damaged events: restores them as they were recorded, or removes them with a note.
//!
//! | copy of the event | action |
//! |---|---|
//! | in a slice of the archive, or in a copy of the database | the row is written again, with the corrections since |
//! | none | the row is removed, with a note of actor and reason, and its periods are corrected |
//! | none, but it is usage of a stored block | the same, and the relay records the usage again |
//!
//! Guarantees: only an event whose row is damaged is changed, and only to a row with valid checksums; everything is one
//! transaction under the head's lock. Leaves to others: finding damage ([`crate::upkeep::audit`]), authorization.

use std::collections::BTreeSet;

use logmill_io::sql::Execute;
use logmill_io::{Sql, Tx, params};

use crate::Meter;
use crate::aggregate::due::AGGREGATE_JOB;
use crate::chains;
use crate::error::{Error, Result};
use crate::event::Key;
use crate::ingest::corrections::{NOTE, check_reason, fold_again};
use crate::period::Bucket;
use crate::store::archive::ArchivedEvents;
use crate::store::checksum::EventColumns;
use crate::store::head::Head;
use crate::store::names::read_series;
use crate::store::place::Place;
use crate::store::place_index;
use crate::store::stored_event::{self, COLUMNS, STORE, StoredEvent, row_of};

/// Maximum number of attempts when events are archived concurrently.
const TRIES_MAX: u32 = 10;
/// Action in the note of a lost event.
const LOST: &str = "lost";

/// An event that was removed because its row was damaged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostEvent {
    pub seq: i64,
    /// The row as it was found, for the operator.
    pub row: String,
    /// The amount in the damaged row, which may be wrong.
    amount: String,
    /// The places where the index lists it.
    places: Vec<Place>,
    /// The id in the damaged row, if it is usage of a chain.
    chain_usage: Option<String>,
}

impl Meter {
    /// Restores a damaged event as it was recorded: from a copy of the database if one is given, else from the archive.
    /// Corrections made since are kept.
    pub async fn restore_event(&self, seq: i64, copy: Option<&Sql>) -> Result<StoredEvent> {
        self.damaged_row(seq).await?;
        let (found, place) = match copy {
            Some(copy) => (get_checked(copy, seq).await?, "the copy"),
            None => (self.archive.get(&self.sql, seq).await?, "the archive"),
        };
        let missing = || Error::not_found(format!("event with sequence {seq} in {place}"));
        let event = found.ok_or_else(missing)?;
        self.expect_same(&event).await?;
        let (event, _) = self.as_of(event, u64::MAX).await?;
        place_index::place_all(&self.sql).await?;
        let written = &event;
        self.sql
            .write(|tx| async move {
                let mut head = Head::lock(&tx).await?;
                let text = "DELETE FROM meter_event WHERE seq = $1";
                tx.execute(text, params![written.seq]).await?;
                tx.execute(STORE, row_of(written)).await?;
                place_index::enter(&tx, written.place, written.seq).await?;
                forget_finding(&tx, written.seq).await?;
                head.seq += 1;
                Ok::<_, Error>(head.store(&tx).await?)
            })
            .await?;
        Ok(event)
    }

    /// Removes damaged events that cannot be restored. Their usage no longer counts, and a note records the reason.
    pub async fn mark_lost(
        &self,
        seqs: &BTreeSet<i64>,
        reason: &str,
        actor: &str,
    ) -> Result<Vec<LostEvent>> {
        check_reason(reason)?;
        place_index::place_all(&self.sql).await?;
        let mut lost = Vec::new();
        for seq in seqs {
            let event = self.damaged_row(*seq).await?;
            if self.archive.get(&self.sql, *seq).await?.is_some() {
                let why = format!("the archive has the event with sequence {seq}: restore it");
                return Err(Error::conflict(why));
            }
            lost.push(event);
        }
        let places: BTreeSet<Place> =
            lost.iter().flat_map(|event| event.places.iter().copied()).collect();
        let places: Vec<Place> = places.into_iter().collect();
        for _ in 0..TRIES_MAX {
            let archived = &self.archive.read(&self.sql, &places).await?;
            let (lost_now, places) = (&lost, &places);
            let removed = self.sql.write(|tx| async move {
                self.remove_lost(&tx, lost_now, places, (reason, actor), archived).await
            });
            if removed.await? {
                self.queue.wakes().wake(AGGREGATE_JOB);
                return Ok(lost);
            }
        }
        Err(Error::conflict("gave up: events kept being archived concurrently"))
    }

    /// Returns false if events were archived since they were read.
    async fn remove_lost(
        &self,
        tx: &Tx,
        lost: &[LostEvent],
        places: &[Place],
        (reason, actor): (&str, &str),
        archived: &ArchivedEvents,
    ) -> Result<bool> {
        let mut head = Head::lock(tx).await?;
        if !archived.is_current(tx).await? {
            return Ok(false);
        }
        for event in lost {
            for table in ["meter_event", "meter_place"] {
                let text = format!("DELETE FROM {table} WHERE seq = $1");
                tx.execute(&text, params![event.seq]).await?;
            }
            let place = event.places.first().copied().unwrap_or(Place { series: 0, bucket: 0 });
            let note = params![
                event.seq,
                place.series,
                place.bucket,
                LOST,
                event.amount.as_str(),
                None::<String>,
                reason,
                actor,
            ];
            tx.execute(NOTE, note).await?;
            forget_finding(tx, event.seq).await?;
            if let Some(id) = &event.chain_usage {
                chains::forget_usage(tx, id).await?;
            }
        }
        fold_again(tx, &head, places, archived, &self.settings).await?;
        for place in places {
            let (_, customer) = read_series(tx, place.series).await?;
            self.make_corrected_due(tx, customer, Bucket(place.bucket)).await?;
        }
        head.seq += 1;
        head.store(tx).await?;
        Ok(true)
    }

    /// The row of an event; an error if it is not damaged.
    async fn damaged_row(&self, seq: i64) -> Result<LostEvent> {
        let reading = self.sql.reading();
        match stored_event::get(&reading, seq).await {
            Err(Error::DamagedEvent { .. }) => {}
            Err(error) => return Err(error),
            Ok(None) => return Err(Error::not_found(format!("event with sequence {seq}"))),
            Ok(Some(_)) => {
                let why = format!("the event with sequence {seq} is not damaged");
                return Err(Error::invalid(why));
            }
        }
        let text = "SELECT bucket, series FROM meter_place WHERE seq = $1";
        let entries = reading.execute(text, params![seq]).await?;
        let entry = |row: &logmill_io::Row| {
            Ok::<_, Error>(Place { bucket: row.int(0)?, series: row.int(1)? })
        };
        let places = entries.rows.iter().map(entry).collect::<Result<Vec<Place>>>()?;
        let text = format!("SELECT {COLUMNS} FROM meter_event e WHERE e.seq = $1");
        let found = reading.execute(&text, params![seq]).await?;
        let row = found.row()?;
        let amount = row.text(AMOUNT_COLUMN).unwrap_or("unreadable").to_owned();
        let id = row.text(ID_COLUMN).unwrap_or_default().to_owned();
        let is_chain = row.text(SOURCE_COLUMN).is_ok_and(|source| source.starts_with("eip155:"));
        let chain_usage = is_chain.then_some(id);
        Ok(LostEvent { seq, row: format!("{row:?}"), amount, places, chain_usage })
    }

    /// Refuses an event of an unrelated database that happens to have the same number.
    async fn expect_same(&self, event: &StoredEvent) -> Result<()> {
        let key = Key::of(&event.source, &event.id);
        let known = self.keys.get(&self.sql, &[key]).await?.remove(&key);
        if known.is_some_and(|known| known.seq != event.seq) {
            let (id, seq) = (&event.id, event.seq);
            let why = format!(
                "the event with sequence {seq} of the copy is {id}, which has another sequence here"
            );
            return Err(Error::conflict(why));
        }
        let text = "SELECT 1 FROM meter_place WHERE seq = $1 AND NOT (bucket = $2 AND series = $3)";
        let params = params![event.seq, event.place.bucket, event.place.series];
        if !self.sql.query(text, params).await?.rows.is_empty() {
            let seq = event.seq;
            let why =
                format!("the event with sequence {seq} of the copy has another customer or time");
            return Err(Error::conflict(why));
        }
        Ok(())
    }
}

/// Indexes of source, id and amount in [`COLUMNS`].
const SOURCE_COLUMN: usize = 5;
const ID_COLUMN: usize = 6;
const AMOUNT_COLUMN: usize = 7;

/// An event of a copy, whose row must have checksums.
async fn get_checked(copy: &Sql, seq: i64) -> Result<Option<StoredEvent>> {
    let text = format!("SELECT {COLUMNS} FROM meter_event e WHERE e.seq = $1");
    let found = copy.query(&text, params![seq]).await?;
    let Some(row) = found.rows.first() else { return Ok(None) };
    let event = StoredEvent::from_row(row)?;
    if !EventColumns::has_checks(row) {
        let why = format!("the event with sequence {seq} of the copy has no checksum");
        return Err(Error::invalid(why));
    }
    Ok(Some(event))
}

async fn forget_finding(tx: &Tx, seq: i64) -> Result<()> {
    let text = "DELETE FROM meter_damage WHERE kind IN ('event', 'place') AND number = $1";
    tx.execute(text, params![seq]).await?;
    Ok(())
}
