//! The archive: old events, moved to immutable blobs. Partials stay, and so do keys.
//!
//! A slice of the oldest events is written down as a blob; then one transaction enters it in the list and deletes
//! exactly these events. Whoever reads events reads both, and a row in the database comes before its archived form, so
//! that an archived event can be corrected.
//!
//! Guarantees: an event is in the database or in the archive at any moment, and found by whoever looks for it; a
//! damaged blob is an error. Leaves to others: how old is old.

use std::collections::{HashMap, HashSet};
use std::io::Read;

use bytes::Bytes;
use logmill_io::sql::Execute;
use logmill_io::{BlobName, BlobStoreExt, Row, Timestamp, Tx, params};
use serde::{Deserialize, Serialize};

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::meter::{Head, Meter};
use crate::partials::Place;
use crate::period::Bucket;
use crate::stored::{COLUMNS, EventState, StoredEvent};

/// The most events of one slice; one transaction deletes them.
const EVENTS_PER_SLICE: usize = 4_000;
/// The largest blob, unpacked.
const BLOB_BYTES_MAX: u64 = 256 << 20;
const LEVEL: i32 = 3;

/// An event in a blob, one line of JSON each, so that any tool can read it.
#[derive(Debug, Serialize, Deserialize)]
struct Line {
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

/// A slice of the archive.
#[derive(Clone, Debug)]
pub(crate) struct Slice {
    blob: BlobName,
    hash: Bytes,
}

/// Archived events of some places, as of a moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Archived {
    /// The newest slice that was there before they were read.
    newest: i64,
    events: HashMap<Place, Vec<StoredEvent>>,
}

impl Archived {
    /// Whether no event was archived since. Else some events of a place may be neither here nor in the database.
    pub(crate) async fn is_current(&self, tx: &Tx) -> Result<bool> {
        Ok(newest(tx).await? == self.newest)
    }

    /// Whether the events of this place were looked for.
    pub(crate) fn knows(&self, place: Place) -> bool {
        self.events.contains_key(&place)
    }

    /// The events of this place.
    pub(crate) fn of(&self, place: Place) -> &[StoredEvent] {
        self.events.get(&place).map_or(&[], Vec::as_slice)
    }

    /// All of them.
    pub(crate) fn into_events(self) -> Vec<StoredEvent> {
        self.events.into_values().flatten().collect()
    }
}

/// The number of the newest slice.
async fn newest(on: &impl Execute) -> Result<i64> {
    let text = "SELECT coalesce(max(number), 0) FROM meter_archive";
    Ok(on.execute(text, params![]).await?.row()?.int(0)?)
}

/// Whether there may be archived events of this bucket.
pub(crate) async fn is_archived(tx: &Tx, bucket: i64) -> Result<bool> {
    let text = "SELECT 1 FROM meter_archive WHERE bucket_last >= $1 AND bucket_first <= $1 LIMIT 1";
    Ok(!tx.execute(text, params![bucket]).await?.rows.is_empty())
}

impl Meter {
    /// Moves events that happened before a moment to blobs, some of those whose keys are sealed; gives how many.
    pub async fn archive_some(&self, before: Timestamp) -> Result<usize> {
        let text = format!(
            "SELECT {COLUMNS} FROM meter_place p JOIN meter_event e ON e.seq = p.seq
             WHERE p.bucket < $1 AND p.seq < (SELECT sealed_seq FROM meter_head WHERE id = 1)
             ORDER BY p.bucket, p.series, p.seq LIMIT {EVENTS_PER_SLICE}"
        );
        let found = self.sql.query(&text, params![Bucket::of(before).0]).await?;
        let events: Result<Vec<StoredEvent>> =
            found.rows.iter().map(StoredEvent::from_row).collect();
        let events = events?;
        if events.is_empty() {
            return Ok(0);
        }
        let packed = pack(&events)?;
        let hash = blake3::hash(&packed);
        // Named by what is in it: whoever dies here and comes again puts the same blob.
        let name = BlobName::new(format!("meter/events/{}", hash.to_hex()))?;
        self.blobs.put(&name, packed).await?;
        let (events, name, hash) = (&events, &name, &hash);
        self.sql.write(|tx| async move { enter(&tx, events, name, hash.as_bytes()).await }).await?;
        Ok(events.len())
    }

    /// Whether events that are to be archived have keys that are not sealed.
    pub(crate) async fn is_unsealed(&self, before: Timestamp) -> Result<bool> {
        let text = "SELECT 1 FROM meter_place WHERE bucket < $1
                        AND seq >= (SELECT sealed_seq FROM meter_head WHERE id = 1) LIMIT 1";
        let found = self.sql.query(text, params![Bucket::of(before).0]).await?;
        Ok(!found.rows.is_empty())
    }

    /// The archived events of these places. Whoever reads events of the database as well reads those first, or an event
    /// that moves in between would be in neither.
    pub(crate) async fn read_archived(&self, places: &[Place]) -> Result<Archived> {
        let newest = newest(&self.sql.reading()).await?;
        let events = places.iter().map(|place| (*place, Vec::new())).collect();
        let mut archived = Archived { newest, events };
        let (Some(first), Some(last)) = (
            places.iter().map(|place| place.bucket).min(),
            places.iter().map(|place| place.bucket).max(),
        ) else {
            return Ok(archived);
        };
        for slice in self.slices(first, last).await? {
            for event in self.read_slice(&slice).await? {
                if let Some(events) = archived.events.get_mut(&event.place) {
                    // One that was corrected after it was archived is archived again: the later slice counts.
                    events.retain(|earlier| earlier.seq != event.seq);
                    events.push(event);
                }
            }
        }
        Ok(archived)
    }

    /// The slices that may hold events of these buckets.
    pub(crate) async fn slices(&self, first: i64, last: i64) -> Result<Vec<Slice>> {
        let text = "SELECT blob, hash FROM meter_archive
                    WHERE bucket_last >= $1 AND bucket_first <= $2 ORDER BY number";
        let found = self.sql.query(text, params![first, last]).await?;
        found.rows.iter().map(slice_of).collect()
    }

    /// The archived event with this number.
    pub(crate) async fn get_archived(&self, seq: i64) -> Result<Option<StoredEvent>> {
        let text = "SELECT blob, hash FROM meter_archive WHERE seq_first <= $1 AND seq_last >= $1
                    ORDER BY number DESC";
        for row in &self.sql.query(text, params![seq]).await?.rows {
            let events = self.read_slice(&slice_of(row)?).await?;
            if let Some(event) = events.into_iter().find(|event| event.seq == seq) {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    pub(crate) async fn read_slice(&self, slice: &Slice) -> Result<Vec<StoredEvent>> {
        let packed = self.blobs.read(&slice.blob).await?;
        if blake3::hash(&packed).as_bytes() != &*slice.hash {
            return Err(Error::corrupt(format!(
                "the blob {} of events is damaged",
                slice.blob.as_str()
            )));
        }
        unpack(&packed)
    }
}

/// All events of a place: what is in the database comes before its archived form.
pub(crate) fn joined(database: Vec<StoredEvent>, archived: &[StoredEvent]) -> Vec<StoredEvent> {
    let here: HashSet<i64> = database.iter().map(|event| event.seq).collect();
    let archived = archived.iter().filter(|event| !here.contains(&event.seq)).cloned();
    let mut all = database;
    all.extend(archived);
    all
}

fn slice_of(row: &Row) -> Result<Slice> {
    Ok(Slice { blob: BlobName::new(row.text(0)?)?, hash: row.blob(1)? })
}

/// The visibility barrier: from here on these events are in the archive and nowhere else.
async fn enter(
    tx: &Tx,
    events: &[StoredEvent],
    name: &BlobName,
    hash: &[u8],
) -> logmill_io::Result<()> {
    let mut head = Head::lock(tx).await?;
    // An event that was corrected in the meantime is not what was written down.
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
    let buckets = events.iter().map(|event| event.place.bucket);
    let seqs = events.iter().map(|event| event.seq);
    let text = "
        INSERT INTO meter_archive (number, bucket_first, bucket_last, seq_first, seq_last, events,
            blob, hash)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
    let params = params![
        number,
        buckets.clone().min(),
        buckets.max(),
        seqs.clone().min(),
        seqs.max(),
        i64::try_from(events.len()).unwrap_or(i64::MAX),
        name.as_str(),
        hash,
    ];
    tx.execute(text, params).await?;
    Ok(())
}

fn pack(events: &[StoredEvent]) -> Result<Bytes> {
    let mut lines = Vec::new();
    for event in events {
        let line = Line {
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
        serde_json::to_writer(&mut lines, &line).map_err(|error| unreadable(&error))?;
        lines.push(b'\n');
    }
    let packed = zstd::encode_all(lines.as_slice(), LEVEL).map_err(|error| unreadable(&error))?;
    Ok(packed.into())
}

fn unpack(packed: &[u8]) -> Result<Vec<StoredEvent>> {
    let mut lines = Vec::new();
    let reader = zstd::Decoder::new(packed).map_err(|error| unreadable(&error))?;
    reader.take(BLOB_BYTES_MAX).read_to_end(&mut lines).map_err(|error| unreadable(&error))?;
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events = lines.map(|line| {
        let line: Line = serde_json::from_slice(line).map_err(|error| unreadable(&error))?;
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

fn unreadable(error: &dyn std::error::Error) -> Error {
    Error::corrupt(format!("a blob of events: {error}"))
}
