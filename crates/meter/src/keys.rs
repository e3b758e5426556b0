//! Keys: which (source, id) were seen, for ever.
//!
//! A table with a unique index of random keys gets slower as it grows, and rewrites a page for every key. So there is
//! none: an event carries its key, those of the newest events are kept in memory, and those of older ones in sorted,
//! immutable blobs with a filter in memory.
//!
//! ```text
//!   0 ………………… sealed_seq ………………… next_seq
//!   sealed blobs: filter first,        in memory; another process's are read from its events,
//!   then one page of the blob          under the lock that makes numbers follow commits
//! ```
//!
//! Guarantees: every key is in a blob or in memory by the time it is looked for under the head's lock: the head says up
//! to which number events are sealed and how many there are, and who is behind reads what is missing. Leaves to others:
//! what a key stands for, and keeping events whose keys are not sealed.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use logmill_io::sql::Execute;
use logmill_io::{BlobName, BlobStore, Sql, Tx, params};

use crate::error::Result;
use crate::event::Key;
use crate::meter::Head;

mod filter;
mod segment;

use segment::{Record, Segment};

/// How many keys are kept in memory before they are sealed, and how many a blob has at least before the next one.
pub(crate) const KEYS_PER_BLOB: u64 = 500_000;
/// How many keys are read at once, at most.
const KEYS_PER_PAGE: i64 = 20_000;

/// What is known of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The hash of what it came with.
    pub(crate) content: i64,
    /// The number of its event.
    pub(crate) seq: i64,
}

/// All keys.
#[derive(Debug)]
pub(crate) struct Keys {
    blobs: Arc<dyn BlobStore>,
    known: RwLock<Arc<Known>>,
    recent: Mutex<Recent>,
    per_blob: u64,
}

/// Which blobs there are, as of a version.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) version: i64,
    sealed: Vec<Arc<Segment>>,
}

/// Keys of events that are not sealed, up to a number.
#[derive(Debug, Default)]
struct Recent {
    end_seq: i64,
    keys: HashMap<Key, Seen>,
}

/// A stretch of events whose keys are to be sealed.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    first: i64,
    end: i64,
}

impl Keys {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, per_blob: u64) -> Self {
        Self { blobs, known: RwLock::default(), recent: Mutex::default(), per_blob }
    }

    /// Which blobs there are, as far as is known here.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks again which blobs there are, and forgets the keys that are in them.
    pub(crate) async fn reload(&self, sql: &Sql) -> Result<Arc<Known>> {
        let before = self.known();
        // One statement, so that version and list are of the same moment.
        let text = "SELECT h.keys_version, h.sealed_seq, k.first_seq, k.blob
                    FROM meter_head h LEFT JOIN meter_keys k ON 1 = 1
                    WHERE h.id = 1 ORDER BY k.first_seq";
        let mut known = Known::default();
        let mut sealed_seq = 0;
        for row in &sql.query(text, params![]).await?.rows {
            (known.version, sealed_seq) = (row.int(0)?, row.int(1)?);
            if let Some(blob) = row.opt_text(3)? {
                known.sealed.push(self.open(&before, blob).await?);
            }
        }
        let known = Arc::new(known);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&known);
        let mut recent = self.recent();
        recent.keys.retain(|_, seen| seen.seq >= sealed_seq);
        recent.end_seq = recent.end_seq.max(sealed_seq);
        Ok(known)
    }

    async fn open(&self, before: &Known, blob: &str) -> Result<Arc<Segment>> {
        let name = BlobName::new(blob)?;
        if let Some(open) = before.sealed.iter().find(|segment| segment.name == name) {
            return Ok(Arc::clone(open));
        }
        Ok(Arc::new(Segment::open(&*self.blobs, name).await?))
    }

    /// Those of `keys` that are in sealed blobs.
    pub(crate) async fn find_sealed(
        &self,
        known: &Known,
        keys: impl Iterator<Item = Key> + Clone,
    ) -> Result<HashMap<Key, Seen>> {
        let mut found = HashMap::new();
        for segment in &known.sealed {
            for key in keys.clone().filter(|key| segment.may_hold(*key)) {
                if let Some(record) = segment.find(&*self.blobs, key).await? {
                    found.insert(key, record.seen);
                }
            }
        }
        Ok(found)
    }

    /// Those of `keys` whose events are not sealed; in a transaction that holds the head's lock.
    pub(crate) async fn find_recent(
        &self,
        tx: &Tx,
        head: &Head,
        keys: impl Iterator<Item = Key>,
    ) -> Result<HashMap<Key, Seen>> {
        self.catch_up(tx, head.seq).await?;
        let recent = self.recent();
        Ok(keys.filter_map(|key| Some((key, *recent.keys.get(&key)?))).collect())
    }

    /// Reads the keys of events that others recorded, up to a number. They are committed, whatever becomes of us.
    async fn catch_up(&self, on: &impl Execute, end_seq: i64) -> Result<()> {
        loop {
            let from = self.recent().end_seq;
            if from >= end_seq {
                return Ok(());
            }
            let until = end_seq.min(from.saturating_add(KEYS_PER_PAGE));
            let page = page(on, Stretch { first: from, end: until }).await?;
            let mut recent = self.recent();
            recent.keys.extend(page.into_iter().map(|record| (record.key, record.seen)));
            recent.end_seq = recent.end_seq.max(until);
        }
    }

    /// Keeps the keys of events that were committed. Those before them may not be known here yet.
    pub(crate) fn remember(&self, claims: impl Iterator<Item = (Key, Seen)>, first: i64, end: i64) {
        let mut recent = self.recent();
        recent.keys.extend(claims);
        if recent.end_seq >= first {
            recent.end_seq = recent.end_seq.max(end);
        }
    }

    /// Looks keys up.
    pub(crate) async fn get(&self, sql: &Sql, keys: &[Key]) -> Result<HashMap<Key, Seen>> {
        let known = self.reload(sql).await?;
        let text = "SELECT next_seq FROM meter_head WHERE id = 1";
        let end = sql.query(text, params![]).await?.row()?.int(0)?;
        // First what is recent: a key that is sealed in between is then found here, or in the blob.
        self.catch_up(&sql.reading(), end).await?;
        let mut found: HashMap<Key, Seen> = {
            let recent = self.recent();
            keys.iter().filter_map(|key| Some((*key, *recent.keys.get(key)?))).collect()
        };
        let rest = keys.iter().filter(|key| !found.contains_key(key)).copied();
        let sealed = self.find_sealed(&known, rest.collect::<Vec<_>>().into_iter()).await?;
        found.extend(sealed);
        Ok(found)
    }

    /// Seals the keys of the oldest events that are not sealed; false if there are too few, or none if it is to be done
    /// in any case.
    pub(crate) async fn seal(&self, sql: &Sql, in_any_case: bool) -> Result<bool> {
        let text = "SELECT sealed_seq, next_seq FROM meter_head WHERE id = 1";
        let head = sql.query(text, params![]).await?;
        let (first, next) = (head.row()?.int(0)?, head.row()?.int(1)?);
        let most = count(self.per_blob);
        if first == next || (next - first < most && !in_any_case) {
            return Ok(false);
        }
        let stretch = Stretch { first, end: next.min(first.saturating_add(most)) };
        // Read while nobody is kept from recording: what is committed below the next number stays as it is.
        let mut records = Vec::new();
        let mut rest = stretch;
        while rest.first < rest.end {
            let until = rest.end.min(rest.first.saturating_add(KEYS_PER_PAGE));
            records.extend(page(&sql.reading(), Stretch { end: until, ..rest }).await?);
            rest.first = until;
        }
        let known = self.reload(sql).await?;
        let small = known.sealed.last().filter(|segment| segment.keys < self.per_blob);
        if let Some(small) = small {
            records.extend(small.read(&*self.blobs).await?);
        }
        records.sort_unstable_by_key(|record| record.key);
        let packed = segment::encode(&records)?;
        let name = format!("meter/keys/{:016}-{}", stretch.end, blake3::hash(&packed).to_hex());
        let name = BlobName::new(name)?;
        self.blobs.put(&name, packed).await?;
        let instead = small.map(|small| small.name.as_str().to_owned());
        let (name, instead) = (name.as_str(), instead.as_deref());
        sql.write(|tx| async move { publish(&tx, stretch, name, instead).await }).await?;
        self.reload(sql).await?;
        Ok(true)
    }
}

/// The visibility barrier: from here on the blob is what counts.
async fn publish(
    tx: &Tx,
    stretch: Stretch,
    blob: &str,
    instead: Option<&str>,
) -> logmill_io::Result<()> {
    let text = "SELECT sealed_seq FROM meter_head WHERE id = 1 FOR UPDATE";
    if tx.execute(text, params![]).await?.row()?.int(0)? != stretch.first {
        // Somebody else was faster; what was put is the same or is not used.
        return Ok(());
    }
    let mut first = stretch.first;
    if let Some(instead) = instead {
        let text = "DELETE FROM meter_keys WHERE blob = $1 RETURNING first_seq";
        first = tx.execute(text, params![instead]).await?.row()?.int(0)?;
    }
    let text = "INSERT INTO meter_keys (first_seq, end_seq, blob) VALUES ($1, $2, $3)";
    tx.execute(text, params![first, stretch.end, blob]).await?;
    let text =
        "UPDATE meter_head SET sealed_seq = $1, keys_version = keys_version + 1 WHERE id = 1";
    tx.execute(text, params![stretch.end]).await?;
    Ok(())
}

/// The keys of some events. By their numbers, which have few gaps: asked for the first so many of a long stretch,
/// PostgreSQL sorts all of it.
async fn page(on: &impl Execute, stretch: Stretch) -> Result<Vec<Record>> {
    let text = "SELECT key_hi, key_lo, content, seq FROM meter_event WHERE seq >= $1 AND seq < $2";
    let found = on.execute(text, params![stretch.first, stretch.end]).await?;
    let records = found.rows.iter().map(|row| {
        let key = Key { hi: row.int(0)?, lo: row.int(1)? };
        Ok(Record { key, seen: Seen { content: row.int(2)?, seq: row.int(3)? } })
    });
    records.collect()
}

/// A count as the stores keep it.
pub(crate) fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
