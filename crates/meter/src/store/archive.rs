//! The archive: old events, moved to immutable blobs. Partials stay, and so do keys.
//!
//! A slice of the oldest events is written as a blob. Then one transaction lists the slice with the buckets that it has
//! events of, and deletes exactly these events. Readers of events read both; a row in the database takes precedence
//! over its archived form, so that an archived event can be corrected.
//!
//! Guarantees: at any moment an event is in the database or in the archive, and readers find it. A damaged blob is an
//! error, and so is a blob larger than any that is written. Leaves to others: when events are old enough.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

use bytes::Bytes;
use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{BlobName, BlobStore, BlobStoreExt, Row, Sql, Timestamp, Tx, Value, params};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::period::Bucket;
use crate::store::head::Head;
use crate::store::place::Place;
use crate::store::stored_event::{COLUMNS, EventState, StoredEvent};

/// Maximum number of events in one slice; one transaction deletes them.
const EVENTS_PER_SLICE: usize = 4_000;
/// Maximum size of a slice, unpacked; a single larger event is a slice of its own.
pub(crate) const SLICE_BYTES: usize = 64 << 20;
/// Maximum number of events that one read takes for a slice; fewer if metadata can be large.
const EVENTS_PER_READ: usize = 500;
/// Maximum size of a blob, unpacked.
const BLOB_BYTES_MAX: usize = 256 << 20;
const LEVEL: i32 = 3;

/// An event in a blob, one line of JSON each, so that any tool can read it.
#[derive(Debug, Serialize, Deserialize)]
struct EventLine {
    seq: i64,
    series: i64,
    time_ms: i64,
    received_ms: i64,
    source: String,
    id: String,
    value: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    metadata: Option<String>,
    state: i64,
    content: i64,
}

/// Events of the slice being built, and their lines.
#[derive(Debug, Default)]
struct SliceBuilder {
    events: Vec<StoredEvent>,
    lines: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    number: i64,
    blob: BlobName,
    hash: Bytes,
}

/// Archived events of some places, as of one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ArchivedEvents {
    /// The newest slice that existed before they were read.
    newest: i64,
    events: HashMap<Place, Vec<StoredEvent>>,
}

impl ArchivedEvents {
    /// Whether no event was archived since. If false, some events may be neither here nor in the database.
    pub(crate) async fn is_current(&self, tx: &Tx) -> Result<bool> {
        Ok(newest(tx).await? == self.newest)
    }

    /// Whether the events of this place were read.
    pub(crate) fn knows(&self, place: Place) -> bool {
        self.events.contains_key(&place)
    }

    pub(crate) fn of(&self, place: Place) -> &[StoredEvent] {
        self.events.get(&place).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn into_events(self) -> Vec<StoredEvent> {
        self.events.into_values().flatten().collect()
    }
}

async fn newest(on: &impl Execute) -> Result<i64> {
    let text = "SELECT coalesce(max(number), 0) FROM meter_archive";
    Ok(on.execute(text, params![]).await?.row()?.int(0)?)
}

pub(crate) async fn is_archived(tx: &Tx, bucket: i64) -> Result<bool> {
    let text = "SELECT 1 FROM meter_archive_bucket WHERE bucket = $1 LIMIT 1";
    Ok(!tx.execute(text, params![bucket]).await?.rows.is_empty())
}

/// The blobs of archived events. The list of slices is in the database, which every method takes.
#[derive(Debug)]
pub(crate) struct Archive {
    blobs: Arc<dyn BlobStore>,
    /// Size of a slice, unpacked.
    slice_bytes: usize,
    /// Number of events that one read takes for a slice.
    events_per_read: usize,
}

impl Archive {
    pub(crate) fn new(
        blobs: Arc<dyn BlobStore>,
        slice_bytes: usize,
        metadata_bytes_max: usize,
    ) -> Self {
        // Bounds the bytes that are read in vain when events are large.
        let events_per_read = slice_bytes / metadata_bytes_max.max(1);
        let events_per_read = events_per_read.clamp(1, EVENTS_PER_READ);
        Self { blobs, slice_bytes, events_per_read }
    }

    /// Moves some events that happened before `before` and whose keys are sealed to a blob; returns how many.
    pub(crate) async fn add_some(&self, sql: &Sql, before: Timestamp) -> Result<usize> {
        let SliceBuilder { events, lines } = self.next_slice(sql, Bucket::of(before)).await?;
        if events.is_empty() {
            return Ok(0);
        }
        let packed = pack(&lines)?;
        let hash = blake3::hash(&packed);
        // Named by its hash: after a crash here, the retry puts the same blob.
        let name = BlobName::new(format!("meter/events/{}", hash.to_hex()))?;
        self.blobs.put(&name, packed).await?;
        let (events, name, hash) = (&events, &name, &hash);
        sql.write(|tx| async move { enter(&tx, events, name, hash.as_bytes()).await }).await?;
        Ok(events.len())
    }

    /// The oldest events before a bucket whose keys are sealed, enough for one slice.
    async fn next_slice(&self, sql: &Sql, before: Bucket) -> Result<SliceBuilder> {
        let at_once = self.events_per_read;
        let text = format!(
            "SELECT {COLUMNS} FROM meter_place p JOIN meter_event e ON e.seq = p.seq
             WHERE p.bucket < $1 AND p.seq < (SELECT sealed_seq FROM meter_head WHERE id = 1)
                 AND (p.bucket, p.series, p.seq) > ($2, $3, $4)
             ORDER BY p.bucket, p.series, p.seq LIMIT {at_once}"
        );
        let mut builder = SliceBuilder::default();
        loop {
            let after = builder.events.last().map_or((i64::MIN, i64::MIN, i64::MIN), |event| {
                (event.place.bucket, event.place.series, event.seq)
            });
            let params = params![before.0, after.0, after.1, after.2];
            let found = sql.query(&text, params).await?;
            for row in &found.rows {
                if !builder.add(StoredEvent::from_row(row)?, self.slice_bytes)? {
                    return Ok(builder);
                }
            }
            if found.rows.len() < at_once {
                return Ok(builder);
            }
        }
    }

    /// The archived events of these places. A caller that also reads events of the database must do that first:
    /// otherwise it would miss an event that moves in between.
    pub(crate) async fn read(&self, sql: &Sql, places: &[Place]) -> Result<ArchivedEvents> {
        let newest = newest(&sql.reading()).await?;
        let events = places.iter().map(|place| (*place, Vec::new())).collect();
        let mut archived = ArchivedEvents { newest, events };
        let buckets: BTreeSet<i64> = places.iter().map(|place| place.bucket).collect();
        for slice in slices_of(sql, &buckets).await? {
            for event in self.read_slice(&slice).await? {
                if let Some(events) = archived.events.get_mut(&event.place) {
                    // An event that was corrected after it was archived is archived again: the later slice wins.
                    events.retain(|earlier| earlier.seq != event.seq);
                    events.push(event);
                }
            }
        }
        Ok(archived)
    }

    pub(crate) async fn get(&self, sql: &Sql, seq: i64) -> Result<Option<StoredEvent>> {
        let text =
            "SELECT number, blob, hash FROM meter_archive WHERE seq_first <= $1 AND seq_last >= $1
                    ORDER BY number DESC";
        for row in &sql.query(text, params![seq]).await?.rows {
            let events = self.read_slice(&slice_of(row)?).await?;
            if let Some(event) = events.into_iter().find(|event| event.seq == seq) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    /// The archived events with these numbers; missing ones are left out.
    pub(crate) async fn get_many(
        &self,
        sql: &Sql,
        seqs: &BTreeSet<i64>,
    ) -> Result<Vec<StoredEvent>> {
        let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else { return Ok(Vec::new()) };
        let text = "SELECT number, blob, hash, seq_first, seq_last FROM meter_archive
                    WHERE seq_first <= $2 AND seq_last >= $1 ORDER BY number DESC";
        let mut left = seqs.clone();
        let mut found = Vec::new();
        for row in &sql.query(text, params![*first, *last]).await?.rows {
            if left.range(row.int(3)?..=row.int(4)?).next().is_none() {
                continue;
            }
            let events = self.read_slice(&slice_of(row)?).await?;
            found.extend(events.into_iter().filter(|event| left.remove(&event.seq)));
        }
        Ok(found)
    }

    pub(crate) async fn read_slice(&self, slice: &Slice) -> Result<Vec<StoredEvent>> {
        let packed = self.blobs.read(&slice.blob).await?;
        if blake3::hash(&packed).as_bytes() != &*slice.hash {
            return Err(Error::corrupt(format!(
                "the blob {} of archived events is damaged",
                slice.blob.as_str()
            )));
        }
        unpack(&packed, BLOB_BYTES_MAX)
    }
}

/// Whether events that are old enough for the archive have unsealed keys.
pub(crate) async fn is_unsealed(sql: &Sql, before: Timestamp) -> Result<bool> {
    let text = "SELECT 1 FROM meter_place WHERE bucket < $1
                    AND seq >= (SELECT sealed_seq FROM meter_head WHERE id = 1) LIMIT 1";
    let found = sql.query(text, params![Bucket::of(before).0]).await?;
    Ok(!found.rows.is_empty())
}

/// The slices with events of these buckets, oldest first.
pub(crate) async fn slices_of(sql: &Sql, buckets: &BTreeSet<i64>) -> Result<Vec<Slice>> {
    let text = "SELECT a.number, a.blob, a.hash FROM meter_archive_bucket b
                JOIN meter_archive a ON a.number = b.number
                WHERE b.bucket any_of(
                    SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
                ORDER BY a.number";
    let found = sql.query(text, params![Value::json(&json!(buckets))]).await?;
    let slices: Result<Vec<Slice>> = found.rows.iter().map(slice_of).collect();
    let mut slices = slices?;
    slices.dedup();
    Ok(slices)
}

/// All events of a place; those in the database take precedence over their archived form.
pub(crate) fn join_archived(
    database: Vec<StoredEvent>,
    archived: &[StoredEvent],
) -> Vec<StoredEvent> {
    let here: HashSet<i64> = database.iter().map(|event| event.seq).collect();
    let archived = archived.iter().filter(|event| !here.contains(&event.seq)).cloned();
    let mut all = database;
    all.extend(archived);
    all
}

fn slice_of(row: &Row) -> Result<Slice> {
    Ok(Slice { number: row.int(0)?, blob: BlobName::new(row.text(1)?)?, hash: row.blob(2)? })
}

pub(crate) async fn slice_with(sql: &Sql, number: i64) -> Result<Option<Slice>> {
    let text = "SELECT number, blob, hash FROM meter_archive WHERE number = $1";
    let found = sql.query(text, params![number]).await?;
    found.rows.first().map(slice_of).transpose()
}

/// The first slice after this number, and its number.
pub(crate) async fn slice_after(sql: &Sql, number: i64) -> Result<Option<(i64, Slice)>> {
    let text = "SELECT number, blob, hash FROM meter_archive WHERE number > $1
                ORDER BY number LIMIT 1";
    let found = sql.query(text, params![number]).await?;
    let slice = found.rows.first().map(slice_of).transpose()?;
    Ok(slice.map(|slice| (slice.number, slice)))
}

/// The visibility barrier: from here on these events are in the archive and nowhere else.
async fn enter(
    tx: &Tx,
    events: &[StoredEvent],
    name: &BlobName,
    hash: &[u8],
) -> logmill_io::Result<()> {
    let mut head = Head::lock(tx).await?;
    // An event that was corrected in the meantime differs from the one in the blob.
    let list: Vec<(i64, i64, String)> = events
        .iter()
        .map(|event| (event.seq, event.state.number(), event.value.to_string()))
        .collect();
    let list = serde_json::to_string(&list).unwrap_or_default();
    let text = "DELETE FROM meter_event WHERE seq any_of(
                    SELECT e.seq FROM json_list($1) CROSS JOIN meter_event e
                    WHERE e.seq = CAST(value ->> 0 AS BIGINT)
                        AND e.state = CAST(value ->> 1 AS BIGINT) AND e.amount = value ->> 2)";
    let deleted = tx.execute(text, params![list]).await?.changed;
    if deleted != u64::try_from(events.len()).unwrap_or(u64::MAX) {
        return Err(logmill_io::Error::Conflict { what: "a slice of events".to_owned() });
    }
    let rows = events.iter().map(|event| {
        let Place { series, bucket } = event.place;
        params![bucket, series, event.seq]
    });
    let text = "DELETE FROM meter_place WHERE bucket = $1 AND series = $2 AND seq = $3";
    tx.execute_many(text, rows.collect::<Vec<_>>()).await?;
    let number = head.seq;
    head.seq += 1;
    head.store(tx).await?;
    let buckets: BTreeSet<i64> = events.iter().map(|event| event.place.bucket).collect();
    let rows = buckets.into_iter().map(|bucket| params![bucket, number]);
    tx.bulk(&BUCKETS, rows.collect::<Vec<_>>()).await?;
    let seqs = events.iter().map(|event| event.seq);
    let text = "
        INSERT INTO meter_archive (number, seq_first, seq_last, events, blob, hash)
        VALUES ($1, $2, $3, $4, $5, $6)";
    let params = params![
        number,
        seqs.clone().min(),
        seqs.max(),
        i64::try_from(events.len()).unwrap_or(i64::MAX),
        name.as_str(),
        hash,
    ];
    tx.execute(text, params).await?;
    Ok(())
}

const BUCKETS: Bulk = Bulk {
    table: Cow::Borrowed("meter_archive_bucket"),
    columns: Cow::Borrowed(&[("bucket", ColumnType::Int), ("number", ColumnType::Int)]),
    key_columns: 2,
    on_conflict: Cow::Borrowed(""),
};

impl SliceBuilder {
    /// Adds an event; returns false if the slice is full.
    fn add(&mut self, event: StoredEvent, bytes_max: usize) -> Result<bool> {
        if self.events.len() >= EVENTS_PER_SLICE {
            return Ok(false);
        }
        let line = EventLine {
            seq: event.seq,
            series: event.place.series,
            time_ms: event.time.millis(),
            received_ms: event.received.millis(),
            source: event.source.clone(),
            id: event.id.clone(),
            value: event.value.to_string(),
            metadata: event.metadata.clone(),
            state: event.state.number(),
            content: event.content,
        };
        let before = self.lines.len();
        serde_json::to_writer(&mut self.lines, &line).map_err(|error| unreadable(&error))?;
        self.lines.push(b'\n');
        if self.lines.len() > bytes_max && !self.events.is_empty() {
            self.lines.truncate(before);
            return Ok(false);
        }
        self.events.push(event);
        Ok(true)
    }
}

fn pack(lines: &[u8]) -> Result<Bytes> {
    if lines.len() > BLOB_BYTES_MAX {
        return Err(too_large());
    }
    let packed = zstd::encode_all(lines, LEVEL).map_err(|error| unreadable(&error))?;
    Ok(packed.into())
}

fn unpack(packed: &[u8], bytes_max: usize) -> Result<Vec<StoredEvent>> {
    let mut lines = Vec::new();
    let reader = zstd::Decoder::new(packed).map_err(|error| unreadable(&error))?;
    // Reads one byte beyond the limit, to detect a blob that exceeds it.
    let most = u64::try_from(bytes_max).unwrap_or(u64::MAX).saturating_add(1);
    reader.take(most).read_to_end(&mut lines).map_err(|error| unreadable(&error))?;
    if lines.len() > bytes_max {
        return Err(too_large());
    }
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events = lines.map(|line| {
        let line: EventLine = serde_json::from_slice(line).map_err(|error| unreadable(&error))?;
        let time = Timestamp(line.time_ms);
        Ok(StoredEvent {
            seq: line.seq,
            place: Place { series: line.series, bucket: Bucket::of(time).0 },
            time,
            received: Timestamp(line.received_ms),
            source: line.source,
            id: line.id,
            value: Decimal::parse(&line.value)?,
            metadata: line.metadata,
            state: EventState::from_number(line.state)?,
            content: line.content,
        })
    });
    events.collect()
}

fn too_large() -> Error {
    Error::corrupt("a blob of archived events exceeds the size limit")
}

fn unreadable(error: &dyn std::error::Error) -> Error {
    Error::corrupt(format!("a blob of archived events cannot be read: {error}"))
}

#[cfg(test)]
mod tests;
