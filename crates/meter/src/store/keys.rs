//! Keys: which (source, id) pairs were seen, forever.
//!
//! A table with a unique index of random keys gets slower as it grows, and rewrites a page for every key. So there is
//! none: an event carries its key, the keys of the newest events are kept in memory, and those of older ones in sorted,
//! immutable blobs with a filter in memory.
//!
//! ```text
//!   0 ………………… sealed_seq ………………… next_seq
//!   runs of blobs: filter first,       in memory; keys of other processes are read from their events,
//!   then one page of a blob            under the lock that orders numbers like commits
//! ```
//!
//! Guarantees: every key is in a blob or in memory by the time it is looked up under the head's lock: the head holds
//! the number up to which events are sealed and the next number, and a process that is behind reads what it lacks.
//! Leaves to others: what a key stands for, and keeping events whose keys are not sealed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use logmill_io::sql::Execute;
use logmill_io::{BlobName, BlobStore, Sql, Tx, params};

use crate::error::{Error, Result};
use crate::event::Key;
use crate::store::checksum::key_is_whole;
use crate::store::head::Head;

mod filter;
mod run;
mod seal;
mod segment;

use run::Run;
use segment::{Record, Segment};

/// Keys that are kept in memory before they are sealed, and minimum number of keys of a blob before the next one
/// begins.
pub(crate) const KEYS_PER_BLOB: u64 = 500_000;
/// Capacity that the map in memory always keeps.
const ROOM_KEPT: usize = 100_000;
/// Maximum number of keys that one query reads.
const KEYS_PER_PAGE: i64 = 20_000;

/// The recorded event of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordedEvent {
    /// The hash of its content.
    pub(crate) content: i64,
    /// The number of its event.
    pub(crate) seq: i64,
}

#[derive(Debug)]
pub(crate) struct Keys {
    blobs: Arc<dyn BlobStore>,
    run_list: RwLock<Arc<RunList>>,
    recent: Mutex<RecentKeys>,
    per_blob: u64,
    /// The batch of events for which sealing was last requested.
    seal_requested: AtomicI64,
}

/// The blobs as of a version.
#[derive(Debug, Default)]
pub(crate) struct RunList {
    pub(crate) version: i64,
    runs: Vec<Arc<Run>>,
}

/// Keys of events that are not sealed, up to a number.
#[derive(Debug, Default)]
struct RecentKeys {
    end_seq: i64,
    keys: HashMap<Key, RecordedEvent>,
}

impl RecentKeys {
    /// Removes keys that are in blobs. A map keeps its capacity unless it is shrunk.
    fn forget_before(&mut self, sealed_seq: i64) {
        self.keys.retain(|_, event| event.seq >= sealed_seq);
        self.end_seq = self.end_seq.max(sealed_seq);
        if self.keys.capacity() > ROOM_KEPT && self.keys.capacity() / 4 > self.keys.len() {
            self.keys.shrink_to((2 * self.keys.len()).max(ROOM_KEPT));
        }
    }
}

/// A half-open range of event numbers.
#[derive(Clone, Copy, Debug)]
struct SeqRange {
    first: i64,
    end: i64,
}

impl Keys {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, per_blob: u64) -> Self {
        let (run_list, recent, seal_requested) =
            (RwLock::default(), Mutex::default(), AtomicI64::new(0));
        Self { blobs, run_list, recent, per_blob, seal_requested }
    }

    /// The blobs as this process knows them.
    fn run_list(&self) -> Arc<RunList> {
        Arc::clone(&self.run_list.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn recent(&self) -> MutexGuard<'_, RecentKeys> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reloads the list of blobs, and removes the keys that are in them from memory.
    pub(crate) async fn reload(&self, sql: &Sql) -> Result<Arc<RunList>> {
        let mut failed = None;
        let (run_list, sealed_seq) = loop {
            let listing = BlobListing::read(sql).await?;
            match self.open(&listing).await {
                Ok(runs) => break (RunList { version: listing.version, runs }, listing.sealed_seq),
                Err(error) if failed == Some(listing.version) => return Err(error),
                // Another run may have replaced it since it was listed.
                Err(_) => failed = Some(listing.version),
            }
        };
        let run_list = Arc::new(run_list);
        {
            let mut newest = self.run_list.write().unwrap_or_else(PoisonError::into_inner);
            // A slow reload must not restore an older list.
            if newest.version <= run_list.version {
                *newest = Arc::clone(&run_list);
            }
        }
        self.recent().forget_before(sealed_seq);
        Ok(run_list)
    }

    /// The number of a batch of events, if enough keys are in memory to be sealed now; returned once per batch.
    pub(crate) fn should_seal(&self) -> Option<i64> {
        let recent = self.recent();
        let waiting = u64::try_from(recent.keys.len()).unwrap_or(u64::MAX);
        if waiting < self.per_blob.saturating_mul(2) {
            return None;
        }
        let batch = recent.end_seq / count(self.per_blob).max(1);
        (self.seal_requested.swap(batch, Ordering::Relaxed) != batch).then_some(batch)
    }

    /// Opens the blobs that are not open yet.
    async fn open(&self, listing: &BlobListing) -> Result<Vec<Arc<Run>>> {
        let before = self.run_list();
        let parts = before.runs.iter().flat_map(|run| &run.parts);
        let open: HashMap<&str, &Arc<Segment>> =
            parts.map(|part| (part.name.as_str(), part)).collect();
        let mut runs: Vec<Arc<Run>> = Vec::new();
        for range in listing.parts.chunk_by(|one, next| one.0.first == next.0.first) {
            let Some(&(SeqRange { first, end }, _)) = range.first() else { continue };
            let mut parts = Vec::new();
            for (_, blob) in range {
                parts.push(match open.get(blob.as_str()) {
                    Some(part) => Arc::clone(part),
                    None => {
                        let name = BlobName::new(blob.as_str())?;
                        Arc::new(Segment::open(&*self.blobs, name).await?)
                    }
                });
            }
            runs.push(Arc::new(Run { first, end, parts }));
        }
        Ok(runs)
    }

    /// Those of `keys` that are in sealed blobs, and the blobs that were searched.
    pub(crate) async fn find_sealed(
        &self,
        sql: &Sql,
        keys: impl Iterator<Item = Key> + Clone,
    ) -> Result<(Arc<RunList>, HashMap<Key, RecordedEvent>)> {
        let mut run_list = self.run_list();
        loop {
            match self.find_in(&run_list, keys.clone()).await {
                Ok(found) => return Ok((run_list, found)),
                Err(error) => {
                    // A blob is deleted once another has replaced it.
                    let now = self.reload(sql).await?;
                    if now.version == run_list.version {
                        return Err(error);
                    }
                    run_list = now;
                }
            }
        }
    }

    async fn find_in(
        &self,
        run_list: &RunList,
        keys: impl Iterator<Item = Key> + Clone,
    ) -> Result<HashMap<Key, RecordedEvent>> {
        let mut found = HashMap::new();
        for run in &run_list.runs {
            for key in keys.clone().filter(|key| run.may_hold(*key)) {
                if let Some(record) = run.find(&*self.blobs, key).await? {
                    found.insert(key, record.event);
                }
            }
        }
        Ok(found)
    }

    /// Those of `keys` whose events are not sealed. The caller's transaction holds the head's lock.
    pub(crate) async fn find_recent(
        &self,
        tx: &Tx,
        head: &Head,
        keys: impl Iterator<Item = Key>,
    ) -> Result<HashMap<Key, RecordedEvent>> {
        self.catch_up(tx, head.seq).await?;
        let recent = self.recent();
        Ok(keys.filter_map(|key| Some((key, *recent.keys.get(&key)?))).collect())
    }

    /// Reads the keys of events that other processes recorded, up to a number. They are committed, even if this
    /// transaction is rolled back.
    async fn catch_up(&self, on: &impl Execute, end_seq: i64) -> Result<()> {
        loop {
            let from = self.recent().end_seq;
            if from >= end_seq {
                return Ok(());
            }
            let until = end_seq.min(from.saturating_add(KEYS_PER_PAGE));
            let page = page(on, SeqRange { first: from, end: until }).await?;
            let mut recent = self.recent();
            recent.keys.extend(page.into_iter().map(|record| (record.key, record.event)));
            recent.end_seq = recent.end_seq.max(until);
        }
    }

    /// Keeps the keys of committed events. Keys of earlier events may still be missing here.
    pub(crate) fn remember(
        &self,
        claims: impl Iterator<Item = (Key, RecordedEvent)>,
        first: i64,
        end: i64,
    ) {
        let mut recent = self.recent();
        recent.keys.extend(claims);
        if recent.end_seq >= first {
            recent.end_seq = recent.end_seq.max(end);
        }
    }

    pub(crate) async fn get(&self, sql: &Sql, keys: &[Key]) -> Result<HashMap<Key, RecordedEvent>> {
        let text = "SELECT next_seq FROM meter_head WHERE id = 1";
        let end = sql.query(text, params![]).await?.row()?.int(0)?;
        self.catch_up(&sql.reading(), end).await?;
        let mut found: HashMap<Key, RecordedEvent> = {
            let recent = self.recent();
            keys.iter().filter_map(|key| Some((*key, *recent.keys.get(key)?))).collect()
        };
        // The blobs come last: a key that is no longer recent is in one of them.
        self.reload(sql).await?;
        let rest: Vec<Key> = keys.iter().filter(|key| !found.contains_key(key)).copied().collect();
        let (_, sealed) = self.find_sealed(sql, rest.into_iter()).await?;
        found.extend(sealed);
        Ok(found)
    }
}

/// The blobs as the database lists them.
struct BlobListing {
    version: i64,
    sealed_seq: i64,
    parts: Vec<(SeqRange, String)>,
}

impl BlobListing {
    async fn read(sql: &Sql) -> Result<Self> {
        // One statement, so that version and list are of the same moment.
        let text = "SELECT h.keys_version, h.sealed_seq, k.first_seq, k.end_seq, k.blob
                    FROM meter_head h LEFT JOIN meter_keys k ON 1 = 1
                    WHERE h.id = 1 ORDER BY k.first_seq, k.part";
        let mut listing = Self { version: 0, sealed_seq: 0, parts: Vec::new() };
        for row in &sql.query(text, params![]).await?.rows {
            (listing.version, listing.sealed_seq) = (row.int(0)?, row.int(1)?);
            if let Some(blob) = row.opt_text(4)? {
                let range = SeqRange { first: row.int(2)?, end: row.int(3)? };
                listing.parts.push((range, blob.to_owned()));
            }
        }
        Ok(listing)
    }
}

/// The keys of some events, selected by their numbers, which have few gaps: with a `LIMIT` over a long range,
/// PostgreSQL would sort all of it.
async fn page(on: &impl Execute, range: SeqRange) -> Result<Vec<Record>> {
    let text = "SELECT key_hi, key_lo, content, seq, checks FROM meter_event
                WHERE seq >= $1 AND seq < $2";
    let found = on.execute(text, params![range.first, range.end]).await?;
    let records = found.rows.iter().map(|row| {
        let key = Key { hi: row.int(0)?, lo: row.int(1)? };
        let event = RecordedEvent { content: row.int(2)?, seq: row.int(3)? };
        if !key_is_whole(event.seq, key, event.content, row.opt_int(4)?) {
            return Err(Error::DamagedEvent { seq: event.seq });
        }
        Ok(Record { key, event })
    });
    records.collect()
}

/// A count as the database stores it.
pub(crate) fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_many_keys_is_released_when_they_are_sealed() {
        let event = |seq: i64| (Key { hi: seq, lo: seq }, RecordedEvent { content: 0, seq });
        let mut recent = RecentKeys::default();
        recent.keys.extend((0..1_000_000).map(event));
        assert!(recent.keys.capacity() >= 1_000_000);
        recent.forget_before(990_000);
        assert_eq!((recent.keys.len(), recent.end_seq), (10_000, 990_000));
        assert!(recent.keys.capacity() < 3 * ROOM_KEPT, "{}", recent.keys.capacity());
        recent.forget_before(1_000_000);
        assert!(recent.keys.is_empty());
    }
}
