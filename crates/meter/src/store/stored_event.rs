//! Events as they are stored, and lists of them.
//!
//! Guarantees: an event that is read is the one that was written (`crate::store::checksum`); a page is bounded, and its
//! cursor continues where it ended. Leaves to others: archived events (`archive`), what an event adds to a partial.

use std::borrow::Cow;

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Row, Timestamp, Value, params};

use crate::decimal::Decimal;
use crate::error::{Error, Result};
use crate::event::{Key, unique_of};
use crate::partial::Position;
use crate::settings::EventType;
use crate::store::checksum::EventColumns;
use crate::store::place::Place;
use crate::store::place_index::seqs_at;

/// State of an event since it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventState {
    /// Unchanged.
    Recorded,
    /// Its value was changed.
    Amended,
    /// It no longer counts.
    Cancelled,
}

impl EventState {
    pub(crate) fn number(self) -> i64 {
        match self {
            Self::Recorded => 0,
            Self::Amended => 1,
            Self::Cancelled => 2,
        }
    }

    pub(crate) fn from_number(number: i64) -> Result<Self> {
        match number {
            0 => Ok(Self::Recorded),
            1 => Ok(Self::Amended),
            2 => Ok(Self::Cancelled),
            _ => Err(Error::corrupt(format!("an event in state {number}"))),
        }
    }

    /// The name in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Recorded => "recorded",
            Self::Amended => "amended",
            Self::Cancelled => "cancelled",
        }
    }
}

/// An event as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its number, in order of arrival.
    pub seq: i64,
    pub(crate) place: Place,
    /// When it happened.
    pub time: Timestamp,
    pub received: Timestamp,
    /// The sender.
    pub source: String,
    /// Unique within its source.
    pub id: String,
    pub value: Decimal,
    /// JSON text of an object.
    pub metadata: Option<String>,
    pub state: EventState,
    /// The hash of what was sent.
    pub(crate) content: i64,
}

impl StoredEvent {
    pub(crate) fn position(&self) -> Position {
        Position { time: self.time, received: self.received, seq: self.seq }
    }

    pub(crate) fn counts(&self) -> bool {
        self.state != EventState::Cancelled
    }

    pub(crate) fn unique(&self, event_type: &EventType) -> Option<Vec<u8>> {
        unique_of(self.metadata.as_deref(), event_type, self.value)
    }

    /// Reads a row, and verifies its checksums.
    pub(crate) fn from_row(row: &Row) -> Result<Self> {
        let columns = EventColumns::read(row)?;
        let damaged = |_| Error::DamagedEvent { seq: columns.seq };
        Ok(Self {
            seq: columns.seq,
            place: columns.place,
            time: Timestamp(columns.time_ms),
            received: Timestamp(columns.received_ms),
            source: columns.source.to_owned(),
            id: columns.id.to_owned(),
            value: Decimal::parse(columns.amount).map_err(damaged)?,
            metadata: columns.metadata.map(str::to_owned),
            state: EventState::from_number(columns.state).map_err(damaged)?,
            content: columns.content,
        })
    }

    /// The checksums of its row; see [`crate::store::checksum`]. Every write of a row includes them.
    pub(crate) fn checks(&self) -> i64 {
        let amount = self.value.to_string();
        let columns = EventColumns {
            seq: self.seq,
            place: self.place,
            time_ms: self.time.millis(),
            received_ms: self.received.millis(),
            source: &self.source,
            id: &self.id,
            amount: &amount,
            metadata: self.metadata.as_deref(),
            state: self.state.number(),
            key: Key::of(&self.source, &self.id),
            content: self.content,
        };
        columns.checks()
    }
}

/// The columns of an event `e`, as [`StoredEvent::from_row`] reads them.
pub(crate) const COLUMNS: &str = "e.seq, e.bucket, e.series, e.time_ms, e.received_ms, e.source,
    e.id, e.amount, e.metadata, e.state, e.content, e.key_hi, e.key_lo, e.checks";

/// Index of the event's time in [`COLUMNS`].
pub(crate) const TIME_COLUMN: usize = 3;

/// Number of [`COLUMNS`], and index of the first column after them.
pub(crate) const COLUMN_COUNT: usize = 14;

/// The events of some places that are in the database.
pub(crate) async fn at(on: &impl Execute, places: &[Place]) -> Result<Vec<StoredEvent>> {
    let seqs: Vec<i64> = seqs_at(on, places).await?.into_iter().collect();
    with_numbers(on, &seqs).await
}

/// The events with these numbers that are in the database.
pub(crate) async fn with_numbers(on: &impl Execute, seqs: &[i64]) -> Result<Vec<StoredEvent>> {
    let list = serde_json::to_string(seqs).map_err(|error| Error::corrupt(error.to_string()))?;
    let text = format!(
        "SELECT {COLUMNS} FROM json_list($1) CROSS JOIN meter_event e
         WHERE e.seq = CAST(CAST(value AS TEXT) AS BIGINT)"
    );
    let found = on.execute(&text, params![list]).await?;
    found.rows.iter().map(StoredEvent::from_row).collect()
}

pub(crate) async fn get(on: &impl Execute, seq: i64) -> Result<Option<StoredEvent>> {
    let text = format!("SELECT {COLUMNS} FROM meter_event e WHERE e.seq = $1");
    let found = on.execute(&text, params![seq]).await?;
    found.rows.first().map(StoredEvent::from_row).transpose()
}

/// New events.
pub(crate) const EVENTS: Bulk = Bulk {
    table: Cow::Borrowed("meter_event"),
    columns: Cow::Borrowed(&[
        ("seq", ColumnType::Int),
        ("bucket", ColumnType::Int),
        ("series", ColumnType::Int),
        ("time_ms", ColumnType::Int),
        ("received_ms", ColumnType::Int),
        ("source", ColumnType::Text),
        ("id", ColumnType::Text),
        ("amount", ColumnType::Text),
        ("metadata", ColumnType::Text),
        ("state", ColumnType::Int),
        ("key_hi", ColumnType::Int),
        ("key_lo", ColumnType::Int),
        ("content", ColumnType::Int),
        ("checks", ColumnType::Int),
    ]),
    key_columns: 1,
    on_conflict: Cow::Borrowed(""),
};

/// Writes an event again, or changes its value and state.
pub(crate) const STORE: &str = "
    INSERT INTO meter_event (seq, bucket, series, time_ms, received_ms, source, id, amount,
        metadata, state, key_hi, key_lo, content, checks)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
    ON CONFLICT (seq) DO UPDATE SET amount = excluded.amount, state = excluded.state,
        checks = excluded.checks";

/// The parameters of [`STORE`] for an event.
pub(crate) fn row_of(event: &StoredEvent) -> Vec<Value> {
    let key = Key::of(&event.source, &event.id);
    params![
        event.seq,
        event.place.bucket,
        event.place.series,
        event.time,
        event.received,
        event.source.as_str(),
        event.id.as_str(),
        event.value.to_string(),
        event.metadata.clone(),
        event.state.number(),
        key.hi,
        key.lo,
        event.content,
        event.checks(),
    ]
}
