//! Partials in the database: the summary of each series in each fifteen minutes.
//!
//! ```text
//!   meter_partial: series, then bucket       │ settled │   meter_partial_recent: bucket, then series
//!   a series over a long time is a few pages │         │   all series of the moment are a few pages
//! ```
//!
//! Reads go by series, writes by time. So current partials are in a table of their own, and move once little more usage
//! is expected for their time. Late usage goes to the table where its partial is.
//!
//! Guarantees: a partial is written in the transaction that writes, cancels or amends its events, so that it always
//! equals the fold over them; its revision is unique to the change. It is in one of the two tables, and the head
//! records which. Leaves to others: the fold ([`crate::partial`]), what follows from partials.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::time::Duration;

use logmill_io::sql::{Bulk, ColumnType, Execute};
use logmill_io::{Row, Sql, Timestamp, Tx, Value, millis, params};
use serde_json::json;

use crate::error::{Error, Result};
use crate::partial::{AddOutcome, HEAD_BYTES, OptionalParts, Partial, Sample};
use crate::period::Bucket;
use crate::settings::EventType;
use crate::store::archive::{ArchivedEvents, is_archived, join_archived};
use crate::store::head::Head;
use crate::store::place::Place;
use crate::store::stored_event::{self, StoredEvent};

/// Age at which partials settle.
const SETTLE_AFTER: Duration = Duration::from_secs(3_600);
/// Maximum number of partials that one transaction settles.
const SETTLED_AT_ONCE: i64 = 5_000;

/// Up to this many buckets, partials are selected by a list of buckets and a list of series.
const BUCKETS_BESIDE_MAX: usize = 4;

/// Places whose events are not all in the database.
#[derive(Debug)]
pub(crate) struct MissingArchive(pub(crate) Vec<Place>);

/// Moves old partials to the table that is ordered by series.
pub(crate) async fn settle(sql: &Sql) -> Result<()> {
    let now = sql.clock().now().millis();
    let until = Bucket::of(Timestamp(now.saturating_sub(millis(SETTLE_AFTER)))).0;
    while sql.write(|tx| async move { settle_some(&tx, until).await }).await? {}
    Ok(())
}

/// The partial of all events of one place.
pub(crate) fn fold(event_type: &EventType, mut events: Vec<StoredEvent>) -> Result<Partial> {
    events.sort_unstable_by_key(StoredEvent::position);
    let mut partial = Partial::new(OptionalParts::from(event_type));
    for event in events.iter().filter(|event| event.counts()) {
        let unique = event.unique(event_type);
        let sample = Sample { at: event.position(), value: event.value, unique: unique.as_deref() };
        if let AddOutcome::OutOfOrder = partial.add(&sample)? {
            return Err(Error::corrupt("sorted events are out of order"));
        }
    }
    Ok(partial)
}

/// Recomputes the partials of places whose new events cannot simply be added.
pub(crate) async fn recompute(
    tx: &Tx,
    places: &[(Place, &EventType)],
    archived: &ArchivedEvents,
) -> Result<Result<Vec<(Place, Partial)>, MissingArchive>> {
    let current = archived.is_current(tx).await?;
    let mut missing = Vec::new();
    for (place, _) in places {
        if !(current && archived.knows(*place)) && is_archived(tx, place.bucket).await? {
            missing.push(*place);
        }
    }
    if !missing.is_empty() {
        return Ok(Err(MissingArchive(missing)));
    }
    let list: Vec<Place> = places.iter().map(|(place, _)| *place).collect();
    let mut events: HashMap<Place, Vec<StoredEvent>> = HashMap::new();
    for event in stored_event::at(tx, &list).await? {
        events.entry(event.place).or_default().push(event);
    }
    let made = places.iter().map(|(place, event_type)| {
        let here = events.remove(place).unwrap_or_default();
        Ok((*place, fold(event_type, join_archived(here, archived.of(*place)))?))
    });
    Ok(Ok(made.collect::<Result<_>>()?))
}

/// Writes partials; empty ones are deleted.
pub(crate) async fn write(tx: &Tx, head: &Head, partials: &[(Place, Partial)]) -> Result<()> {
    let (mut settled, mut recent) = (Vec::new(), Vec::new());
    for (place, partial) in partials {
        let Place { series, bucket } = *place;
        match (partial.is_empty(), head.is_settled(*place)) {
            (true, true) => {
                let text = "DELETE FROM meter_partial WHERE series = $1 AND bucket = $2";
                tx.execute(text, params![series, bucket]).await?;
            }
            (true, false) => {
                let text = "DELETE FROM meter_partial_recent WHERE bucket = $1 AND series = $2";
                tx.execute(text, params![bucket, series]).await?;
            }
            (false, true) => settled.push(params![series, bucket, head.seq, partial.encode()]),
            (false, false) => recent.push(params![bucket, series, head.seq, partial.encode()]),
        }
    }
    tx.bulk(&SETTLED, settled).await?;
    tx.bulk(&RECENT, recent).await?;
    Ok(())
}

/// Moves some partials; returns whether there may be more.
async fn settle_some(tx: &Tx, until: i64) -> Result<bool> {
    let mut head = Head::lock(tx).await?;
    let text = format!(
        "SELECT bucket, series FROM meter_partial_recent WHERE bucket < $1
         ORDER BY bucket, series LIMIT 1 OFFSET {}",
        SETTLED_AT_ONCE - 1
    );
    let found = tx.execute(&text, params![until]).await?;
    let last = found.rows.first().map(|row| Ok::<_, Error>((row.int(0)?, row.int(1)?)));
    let last = last.transpose()?;
    let end = last.map_or((until, i64::MIN), |(bucket, series)| (bucket, series.saturating_add(1)));
    // A clock that went back must not lower the boundary.
    if end <= head.settled {
        return Ok(false);
    }
    let before = "(bucket, series) < ($1, $2)";
    let text = format!(
        "INSERT INTO meter_partial (series, bucket, revision, state)
         SELECT series, bucket, revision, state FROM meter_partial_recent WHERE {before}"
    );
    tx.execute(&text, params![end.0, end.1]).await?;
    let text = format!("DELETE FROM meter_partial_recent WHERE {before}");
    tx.execute(&text, params![end.0, end.1]).await?;
    head.settled = end;
    head.store(tx).await?;
    Ok(last.is_some())
}

/// The partials of these places that exist.
pub(crate) async fn read(on: &impl Execute, places: &[Place]) -> Result<HashMap<Place, Partial>> {
    // In the order in which they move.
    let mut found = read_from(on, "meter_partial_recent", places).await?;
    found.extend(read_from(on, "meter_partial", places).await?);
    Ok(found)
}

/// Like [`read`], for a caller that holds the head's lock and so knows the table of each partial.
pub(crate) async fn read_in(
    tx: &Tx,
    head: &Head,
    places: impl Iterator<Item = Place>,
) -> Result<HashMap<Place, Partial>> {
    let (settled, recent): (Vec<Place>, Vec<Place>) =
        places.partition(|place| head.is_settled(*place));
    let mut found = read_from(tx, "meter_partial_recent", &recent).await?;
    found.extend(read_from(tx, "meter_partial", &settled).await?);
    Ok(found)
}

async fn read_from(
    on: &impl Execute,
    table: &str,
    places: &[Place],
) -> Result<HashMap<Place, Partial>> {
    let mut found = HashMap::with_capacity(places.len());
    if places.is_empty() {
        return Ok(found);
    }
    let buckets: BTreeSet<i64> = places.iter().map(|place| place.bucket).collect();
    // With a list of pairs, PostgreSQL would read the whole table. So for few buckets there are two lists, which may
    // select a few more partials than requested.
    let (text, params) = if buckets.len() <= BUCKETS_BESIDE_MAX {
        let series: Vec<i64> = places.iter().map(|place| place.series).collect();
        let text = format!(
            "SELECT p.series, p.bucket, p.state FROM {table} p
             WHERE p.bucket any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
                 AND p.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($2))"
        );
        (text, params![Value::json(&json!(buckets)), Value::json(&json!(series))])
    } else {
        let pairs: Vec<(i64, i64)> =
            places.iter().map(|place| (place.series, place.bucket)).collect();
        let text = format!(
            "SELECT p.series, p.bucket, p.state FROM json_list($1) CROSS JOIN {table} p
             WHERE p.series = CAST(value ->> 0 AS BIGINT) AND p.bucket = CAST(value ->> 1 AS BIGINT)"
        );
        (text, params![Value::json(&json!(pairs))])
    };
    for row in &on.execute(&text, params).await?.rows {
        let place = Place { series: row.int(0)?, bucket: row.int(1)? };
        found.insert(place, Partial::decode(&row.blob(2)?)?);
    }
    Ok(found)
}

/// The buckets in `[$2, $3)` that have recent partials: one index lookup each.
const RECENT_BUCKETS: &str = "
    WITH RECURSIVE recent(bucket) AS (
        SELECT min(r.bucket) FROM meter_partial_recent r WHERE r.bucket >= $2 AND r.bucket < $3
        UNION ALL
        SELECT (SELECT min(r.bucket) FROM meter_partial_recent r
            WHERE r.bucket > recent.bucket AND r.bucket < $3)
        FROM recent WHERE recent.bucket IS NOT NULL)";

/// At most `most` partials of some series in some buckets: series, bucket, revision and state, in this order.
pub(crate) async fn of_series(
    on: &impl Execute,
    series: &[i64],
    buckets: &Range<i64>,
    most: i64,
) -> Result<Vec<Row>> {
    let text = format!(
        "{RECENT_BUCKETS}
         SELECT p.series, p.bucket, p.revision, p.state
         FROM meter_partial p
         WHERE p.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
             AND p.bucket >= $2 AND p.bucket < $3
         UNION ALL
         SELECT p.series, p.bucket, p.revision, p.state
         FROM meter_partial_recent p
         WHERE p.bucket any_of(SELECT bucket FROM recent)
             AND p.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
         ORDER BY 1, 2 LIMIT $4"
    );
    let list = Value::json(&json!(series));
    Ok(on.execute(&text, params![list, buckets.start, buckets.end, most]).await?.rows)
}

/// The places of some series in the newest of these buckets that have any, with the number of counting events. Places
/// whose events were all cancelled are included.
pub(crate) async fn newest_places(
    on: &impl Execute,
    series: &[i64],
    buckets: &Range<i64>,
    most: i64,
) -> Result<Vec<(Place, u64)>> {
    let text = format!(
        "{RECENT_BUCKETS}, found(series, bucket, state) AS (
             SELECT p.series, p.bucket, substr(p.state, 1, {HEAD_BYTES}) FROM meter_partial p
             WHERE p.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
                 AND p.bucket >= $2 AND p.bucket < $3
             UNION ALL
             SELECT p.series, p.bucket, substr(p.state, 1, {HEAD_BYTES})
             FROM meter_partial_recent p
             WHERE p.bucket any_of(SELECT bucket FROM recent)
                 AND p.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
             UNION ALL
             SELECT c.series, c.bucket, NULL FROM meter_correction c
             WHERE c.series any_of(SELECT CAST(CAST(value AS TEXT) AS BIGINT) FROM json_list($1))
                 AND c.bucket >= $2 AND c.bucket < $3)
         SELECT series, bucket, state FROM found WHERE bucket >= (
             SELECT min(bucket) FROM (
                 SELECT DISTINCT bucket FROM found ORDER BY bucket DESC LIMIT {most}) AS newest)"
    );
    let list = Value::json(&json!(series));
    let rows = on.execute(&text, params![list, buckets.start, buckets.end]).await?.rows;
    let mut places: BTreeMap<Place, u64> = BTreeMap::new();
    for row in &rows {
        let place = Place { series: row.int(0)?, bucket: row.int(1)? };
        let count = row.opt_blob(2)?.map(|head| Partial::count_of_head(&head)).transpose()?;
        *places.entry(place).or_default() += count.unwrap_or_default();
    }
    Ok(places.into_iter().collect())
}

/// The newest partial of a series before a bucket.
pub(crate) async fn last_before(
    on: &impl Execute,
    series: i64,
    bucket: i64,
) -> Result<Option<Partial>> {
    let text = format!(
        "{RECENT_BUCKETS}
         SELECT bucket, state FROM (SELECT bucket, state FROM meter_partial
             WHERE series = $1 AND bucket >= $2 AND bucket < $3 ORDER BY bucket DESC LIMIT 1) AS s
         UNION ALL
         SELECT bucket, state FROM (SELECT p.bucket AS bucket, p.state AS state
             FROM meter_partial_recent p
             WHERE p.bucket any_of(SELECT bucket FROM recent) AND p.series = $1
             ORDER BY p.bucket DESC LIMIT 1) AS r
         ORDER BY 1 DESC LIMIT 1"
    );
    let found = on.execute(&text, params![series, i64::MIN, bucket]).await?;
    found.rows.first().map(|row| Partial::decode(&row.blob(1)?)).transpose()
}

/// The newest partial before a bucket of each of some series that has one, by series: two statements, however many
/// series there are.
pub(crate) async fn newest_before(
    on: &impl Execute,
    series: &[i64],
    bucket: i64,
) -> Result<HashMap<i64, Row>> {
    let list = Value::json(&json!(series.iter().map(|id| [id]).collect::<Vec<_>>()));
    let recent = format!(
        "{RECENT_BUCKETS}
         SELECT p.series, p.bucket, p.state FROM meter_partial_recent p
         WHERE p.bucket any_of(SELECT bucket FROM recent) AND p.series any_of(
             SELECT CAST(value ->> 0 AS BIGINT) FROM json_list($1))
         ORDER BY p.bucket"
    );
    let settled = "
        SELECT p.series, p.bucket, p.state
        FROM (SELECT CAST(value ->> 0 AS BIGINT) AS series FROM json_list($1)) w
        JOIN meter_partial p ON p.series = w.series AND p.bucket = (
            SELECT max(b.bucket) FROM meter_partial b
            WHERE b.series = w.series AND b.bucket >= $2 AND b.bucket < $3)";
    let mut newest: HashMap<i64, Row> = HashMap::new();
    // In the order in which they move.
    for text in [recent.as_str(), settled] {
        let rows = on.execute(text, params![list.clone(), i64::MIN, bucket]).await?.rows;
        for row in rows {
            let (series, bucket) = (row.int(0)?, row.int(1)?);
            let known = newest.get(&series).map(|known| known.int(1)).transpose()?;
            if known.is_none_or(|known| known <= bucket) {
                newest.insert(series, row);
            }
        }
    }
    Ok(newest)
}

const SETTLED: Bulk = Bulk {
    table: Cow::Borrowed("meter_partial"),
    columns: Cow::Borrowed(&[
        ("series", ColumnType::Int),
        ("bucket", ColumnType::Int),
        ("revision", ColumnType::Int),
        ("state", ColumnType::Blob),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed(
        "DO UPDATE SET revision = excluded.revision, state = excluded.state",
    ),
};

const RECENT: Bulk = Bulk {
    table: Cow::Borrowed("meter_partial_recent"),
    columns: Cow::Borrowed(&[
        ("bucket", ColumnType::Int),
        ("series", ColumnType::Int),
        ("revision", ColumnType::Int),
        ("state", ColumnType::Blob),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed(
        "DO UPDATE SET revision = excluded.revision, state = excluded.state",
    ),
};

const TOUCHED: Bulk = Bulk {
    table: Cow::Borrowed("meter_touched"),
    columns: Cow::Borrowed(&[
        ("bucket", ColumnType::Int),
        ("customer", ColumnType::Int),
        ("events", ColumnType::Int),
    ]),
    key_columns: 2,
    on_conflict: Cow::Borrowed("DO UPDATE SET events = meter_touched.events + excluded.events"),
};

/// Marks that usage of customers in buckets changed.
pub(crate) async fn touch(tx: &Tx, changed: impl Iterator<Item = (i64, i64)>) -> Result<()> {
    let mut events: BTreeMap<(i64, i64), i64> = BTreeMap::new();
    for place in changed {
        *events.entry(place).or_default() += 1;
    }
    let rows: Vec<Vec<Value>> = events
        .into_iter()
        .map(|((bucket, customer), events)| params![bucket, customer, events])
        .collect();
    tx.bulk(&TOUCHED, rows).await?;
    Ok(())
}
