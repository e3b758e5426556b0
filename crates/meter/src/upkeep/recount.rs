//! The recount: recomputes every partial from its events and compares it with the stored one.
//!
//! Guarantees: it reads all events, archived ones included, bucket by bucket, while recording continues. A difference
//! is verified under the head's lock before it is reported. Usage is changed only if repair is requested. A damaged
//! event, and a damaged name of a customer or series, is an error that names it. Usage of
//! chains is also compared with the stored blocks ([`chains`]), and aggregates with their revisions (`aggregates`).
//! Leaves to others: showing progress.

use std::collections::{BTreeMap, BTreeSet};

use logmill_io::{Sql, Tx, params};

use crate::Meter;
use crate::error::{Error, Result};
use crate::partial::Partial;
use crate::settings::EventType;
use crate::store::archive::{ArchivedEvents, Slice, join_archived, slices_of};
use crate::store::head::Head;
use crate::store::names::{
    self, CUSTOMER, SERIES, SERIES_COLUMNS, customer_at, read_series, series_at,
};
use crate::store::partials;
use crate::store::place::Place;
use crate::store::place_index;
use crate::store::stored_event::{self, COLUMNS, StoredEvent};

mod aggregates;
pub mod chains;

use chains::{ChainChecks, ChainRecount, StoredUsage};

/// Number of events that one query reads.
const EVENTS_PER_PAGE: i64 = 5_000;
/// Number of event numbers that one check of index entries covers.
const EVENTS_PER_CHECK: i64 = 20_000;
/// Maximum number of differences that are listed.
const DIFFERENCES_MAX: usize = 100;

/// Result of a recount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecountReport {
    /// Events read.
    pub events: u64,
    /// Partials compared.
    pub partials: u64,
    /// Partials that differ, events without an index entry, and aggregates that differ from their newest revision.
    pub wrong: u64,
    /// The first of them: customer, event type and group, start of the bucket; or the id of the aggregate.
    pub differences: Vec<String>,
    /// How many of them were repaired.
    pub repaired: u64,
    /// Result of comparing chain usage with stored blocks.
    pub chains: ChainRecount,
}

/// Events of one bucket while its series are compared.
#[derive(Default)]
struct BucketEvents {
    /// Events in the database, by series.
    events: BTreeMap<i64, Vec<StoredEvent>>,
}

/// Cache of the last slice: it may have events of thousands of consecutive buckets.
#[derive(Default)]
struct SliceCache(Option<(Slice, Vec<StoredEvent>)>);

impl SliceCache {
    async fn events(&mut self, meter: &Meter, slice: Slice) -> Result<&[StoredEvent]> {
        let read = match self.0.take().filter(|(last, _)| *last == slice) {
            Some(read) => read,
            None => {
                let events = meter.archive.read_slice(&slice).await?;
                (slice, events)
            }
        };
        Ok(&self.0.insert(read).1)
    }
}

impl Meter {
    /// Recounts everything. `progress` is called with the number of events read.
    pub async fn recount(
        &self,
        repair: bool,
        progress: impl FnMut(u64) + Send,
    ) -> Result<RecountReport> {
        self.recount_with(repair, &[], progress).await
    }

    /// Like [`Meter::recount`], and compares usage of these chains with their stored blocks.
    pub async fn recount_with(
        &self,
        repair: bool,
        chains: &[&dyn StoredUsage],
        mut progress: impl FnMut(u64) + Send,
    ) -> Result<RecountReport> {
        let mut report = RecountReport::default();
        names::check_all(&self.sql.reading()).await?;
        let mut checks = ChainChecks::new(self, chains).await?;
        place_index::place_all(&self.sql).await?;
        let unplaced = unplaced(&self.sql, repair).await?;
        if unplaced > 0 {
            report.wrong += unplaced;
            report.repaired += if repair { unplaced } else { 0 };
            let said = format!("{unplaced} events have no index entry");
            report.differences.push(said);
        }
        let mut after = i64::MIN;
        let mut read = SliceCache::default();
        while let Some(bucket) = self.next_bucket(after).await? {
            self.recount_bucket(bucket, repair, &mut read, &mut report, &mut checks).await?;
            checks.close(self, bucket).await?;
            progress(report.events);
            after = bucket;
        }
        checks.close(self, i64::MAX).await?;
        report.chains = checks.found;
        // Every place with events was compared. Any further partials have no events at all.
        let text = "SELECT (SELECT count(*) FROM meter_partial)
                        + (SELECT count(*) FROM meter_partial_recent)";
        if self.sql.query(text, params![]).await?.row()?.count(0)? > report.partials {
            // In the order in which partials move.
            self.find_orphans("meter_partial_recent", repair, &mut report).await?;
            self.find_orphans("meter_partial", repair, &mut report).await?;
        }
        // After the partials, which decide what is right.
        self.recount_aggregates(repair, &mut report).await?;
        Ok(report)
    }

    /// The first bucket after this one that has events, in the database or the archive.
    async fn next_bucket(&self, after: i64) -> Result<Option<i64>> {
        let text = "SELECT min(bucket) FROM meter_place WHERE bucket > $1";
        let here = self.sql.query(text, params![after]).await?.row()?.opt_int(0)?;
        let text = "SELECT min(bucket) FROM meter_archive_bucket WHERE bucket > $1";
        let archived = self.sql.query(text, params![after]).await?.row()?.opt_int(0)?;
        Ok([here, archived].into_iter().flatten().min())
    }

    async fn recount_bucket(
        &self,
        bucket: i64,
        repair: bool,
        read: &mut SliceCache,
        report: &mut RecountReport,
        checks: &mut ChainChecks<'_>,
    ) -> Result<()> {
        let mut archived: BTreeMap<i64, BTreeMap<i64, StoredEvent>> = BTreeMap::new();
        for slice in slices_of(&self.sql, &BTreeSet::from([bucket])).await? {
            let events = read.events(self, slice).await?;
            for event in events.iter().filter(|event| event.place.bucket == bucket) {
                archived.entry(event.place.series).or_default().insert(event.seq, event.clone());
            }
        }
        let mut series_left: BTreeSet<i64> = archived.keys().copied().collect();
        let mut gathered = BucketEvents::default();
        let mut after = (i64::MIN, i64::MIN);
        loop {
            let page = self.events_after(bucket, after).await?;
            let last = page.last().map(|event| (event.place.series, event.seq));
            for event in page {
                gathered.events.entry(event.place.series).or_default().push(event);
            }
            // The last series of a page may continue on the next one.
            let done: Vec<i64> = match last {
                Some((series, _)) => gathered.events.range(..series).map(|(at, _)| *at).collect(),
                None => gathered.events.keys().copied().chain(series_left.clone()).collect(),
            };
            for series in done {
                series_left.remove(&series);
                let here = gathered.events.remove(&series).unwrap_or_default();
                let there: Vec<StoredEvent> =
                    archived.remove(&series).unwrap_or_default().into_values().collect();
                let place = Place { series, bucket };
                let events = join_archived(here, &there);
                checks.add(self, &events).await?;
                self.recount_place(place, events, repair, report).await?;
            }
            let Some(last) = last else { return Ok(()) };
            after = last;
        }
    }

    async fn events_after(&self, bucket: i64, after: (i64, i64)) -> Result<Vec<StoredEvent>> {
        let text = format!(
            "SELECT {COLUMNS} FROM meter_place p JOIN meter_event e ON e.seq = p.seq
             WHERE p.bucket = $1 AND (p.series > $2 OR (p.series = $2 AND p.seq > $3))
             ORDER BY p.series, p.seq LIMIT {EVENTS_PER_PAGE}"
        );
        let found = self.sql.query(&text, params![bucket, after.0, after.1]).await?;
        found.rows.iter().map(StoredEvent::from_row).collect()
    }

    async fn recount_place(
        &self,
        place: Place,
        events: Vec<StoredEvent>,
        repair: bool,
        report: &mut RecountReport,
    ) -> Result<()> {
        report.events += u64::try_from(events.len()).unwrap_or(u64::MAX);
        report.partials += 1;
        let expected = self.fold_place(place, events).await?;
        let stored = partials::read(&self.sql.reading(), &[place]).await?;
        if is_same(stored.get(&place), &expected) {
            return Ok(());
        }
        // Usage may have been recorded between the two reads.
        if self.check_locked(place, repair).await? {
            return Ok(());
        }
        report.wrong += 1;
        report.repaired += u64::from(repair);
        if report.differences.len() < DIFFERENCES_MAX {
            report.differences.push(self.name_of(place).await?);
        }
        Ok(())
    }

    async fn fold_place(&self, place: Place, events: Vec<StoredEvent>) -> Result<Partial> {
        let name = read_series(&self.sql.reading(), place.series).await?.0;
        let event_type = self.settings.events.get(&name).ok_or_else(|| {
            Error::invalid(format!("event type {name} has usage but is not configured"))
        })?;
        partials::fold(event_type, events)
    }

    /// Whether a partial is right, checked under the head's lock; a wrong one is repaired if requested.
    async fn check_locked(&self, place: Place, repair: bool) -> Result<bool> {
        let name = read_series(&self.sql.reading(), place.series).await?.0;
        let event_type = self
            .settings
            .events
            .get(&name)
            .ok_or_else(|| Error::invalid(format!("event type {name} is not configured")))?;
        loop {
            let archived = &self.archive.read(&self.sql, &[place]).await?;
            let checked = self
                .sql
                .write(|tx| async move { check_in(&tx, place, event_type, archived, repair).await })
                .await?;
            if let Some(right) = checked {
                return Ok(right);
            }
        }
    }

    /// Finds partials without any events.
    async fn find_orphans(
        &self,
        table: &str,
        repair: bool,
        report: &mut RecountReport,
    ) -> Result<()> {
        let mut after = Place { series: i64::MIN, bucket: i64::MIN };
        loop {
            let text = format!(
                "SELECT p.series, p.bucket FROM {table} p
                 WHERE (p.series > $1 OR (p.series = $1 AND p.bucket > $2))
                     AND NOT EXISTS (SELECT 1 FROM meter_place l JOIN meter_event e ON e.seq = l.seq
                         WHERE l.bucket = p.bucket AND l.series = p.series)
                 ORDER BY p.series, p.bucket LIMIT 1000"
            );
            let found = self.sql.query(&text, params![after.series, after.bucket]).await?;
            for row in &found.rows {
                after = Place { series: row.int(0)?, bucket: row.int(1)? };
                let archived = self.archive.read(&self.sql, &[after]).await?;
                let events = archived.into_events();
                if events.is_empty() {
                    self.recount_place(after, events, repair, report).await?;
                }
            }
            if found.rows.is_empty() {
                return Ok(());
            }
        }
    }

    async fn name_of(&self, place: Place) -> Result<String> {
        let text = format!(
            "SELECT {SERIES}, {CUSTOMER} FROM meter_series s
             LEFT JOIN meter_customer c ON c.id = s.customer WHERE s.id = $1"
        );
        let found = self.sql.query(&text, params![place.series]).await?;
        let row = found.row()?;
        let (names, customer) = (series_at(row, 0)?, customer_at(row, SERIES_COLUMNS)?);
        let start = crate::period::format_time(crate::period::Bucket(place.bucket).start());
        Ok(format!("{customer} {} {} at {start}", names.event_type, names.dims))
    }
}

/// Whether a partial is right; `None` if events were archived since they were read.
async fn check_in(
    tx: &Tx,
    place: Place,
    event_type: &EventType,
    archived: &ArchivedEvents,
    repair: bool,
) -> Result<Option<bool>> {
    let mut head = Head::lock(tx).await?;
    if !archived.is_current(tx).await? {
        return Ok(None);
    }
    let events = join_archived(stored_event::at(tx, &[place]).await?, archived.of(place));
    let expected = partials::fold(event_type, events)?;
    let stored = partials::read(tx, &[place]).await?;
    let right = is_same(stored.get(&place), &expected);
    if !right && repair {
        partials::write(tx, &head, &[(place, expected)]).await?;
        touch(tx, place).await?;
        head.seq += 1;
        head.store(tx).await?;
    }
    Ok(Some(right))
}

fn is_same(stored: Option<&Partial>, expected: &Partial) -> bool {
    match stored {
        Some(stored) => stored == expected,
        None => expected.is_empty(),
    }
}

async fn touch(tx: &Tx, place: Place) -> Result<()> {
    let (_, customer) = read_series(tx, place.series).await?;
    partials::touch(tx, [(place.bucket, customer)].into_iter()).await
}

/// Number of events in the database that are in no list and have no entry; with `repair` they get one.
async fn unplaced(sql: &Sql, repair: bool) -> Result<u64> {
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
            let missing = sql.write(|tx| async move { mend(&tx, place, seq, repair).await });
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
    let missing = there && !place_index::seqs_at(tx, &[place]).await?.contains(&seq);
    if missing && repair {
        place_index::enter(tx, place, seq).await?;
    }
    Ok(missing)
}
