//! Keys: which (source, id) were seen, for ever.
//!
//! A table with a unique index of random keys gets slower as it grows, and rewrites a page for every key. So there is
//! none: an event carries its key, those of the newest events are kept in memory, and those of older ones in sorted,
//! immutable blobs with a filter in memory.
//!
//! ```text
//!   0 ………………… sealed_seq ………………… next_seq
//!   runs of blobs: filter first,       in memory; another process's are read from its events,
//!   then one page of a blob            under the lock that makes numbers follow commits
//! ```
//!
//! Guarantees: every key is in a blob or in memory by the time it is looked for under the head's lock: the head says up
//! to which number events are sealed and how many there are, and who is behind reads what is missing. Leaves to others:
//! what a key stands for, and keeping events whose keys are not sealed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use logmill_io::sql::Execute;
use logmill_io::{BlobName, BlobStore, Sql, Tx, params};

use crate::checksum::key_is_whole;
use crate::error::{Error, Result};
use crate::event::Key;
use crate::meter::Head;

mod filter;
mod run;
mod seal;
mod segment;

use run::Run;
use segment::{Record, Segment};

/// How many keys are kept in memory before they are sealed, and how many a blob has at least before the next one.
pub(crate) const KEYS_PER_BLOB: u64 = 500_000;
/// For how many keys there is always room in memory.
const ROOM_KEPT: usize = 100_000;
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
    /// For which stretch of events sealing was asked for last.
    asked: AtomicI64,
}

/// Which blobs there are, as of a version.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) version: i64,
    runs: Vec<Arc<Run>>,
}

/// Keys of events that are not sealed, up to a number.
#[derive(Debug, Default)]
struct Recent {
    end_seq: i64,
    keys: HashMap<Key, Seen>,
}

impl Recent {
    /// Forgets keys that are in blobs. A map keeps the room that it once needed, unless it is told.
    fn forget_before(&mut self, sealed_seq: i64) {
        self.keys.retain(|_, seen| seen.seq >= sealed_seq);
        self.end_seq = self.end_seq.max(sealed_seq);
        if self.keys.capacity() > ROOM_KEPT && self.keys.capacity() / 4 > self.keys.len() {
            self.keys.shrink_to((2 * self.keys.len()).max(ROOM_KEPT));
        }
    }
}

/// A stretch of events, from one number to before another.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    first: i64,
    end: i64,
}

impl Keys {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, per_blob: u64) -> Self {
        let (known, recent, asked) = (RwLock::default(), Mutex::default(), AtomicI64::new(0));
        Self { blobs, known, recent, per_blob, asked }
    }

    /// Which blobs there are, as far as is known here.
    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn recent(&self) -> MutexGuard<'_, Recent> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks again which blobs there are, and forgets the keys that are in them.
    pub(crate) async fn reload(&self, sql: &Sql) -> Result<Arc<Known>> {
        let mut failed = None;
        let (known, sealed_seq) = loop {
            let listed = Listed::read(sql).await?;
            match self.open(&listed).await {
                Ok(runs) => break (Known { version: listed.version, runs }, listed.sealed_seq),
                Err(error) if failed == Some(listed.version) => return Err(error),
                // Others may have taken its place since it was listed.
                Err(_) => failed = Some(listed.version),
            }
        };
        let known = Arc::new(known);
        {
            let mut newest = self.known.write().unwrap_or_else(PoisonError::into_inner);
            // Who is slow does not bring back what was.
            if newest.version <= known.version {
                *newest = Arc::clone(&known);
            }
        }
        self.recent().forget_before(sealed_seq);
        Ok(known)
    }

    /// The number of a stretch of events, if so many keys are in memory that they should be sealed now; once for each
    /// stretch.
    pub(crate) fn should_seal(&self) -> Option<i64> {
        let recent = self.recent();
        let waiting = u64::try_from(recent.keys.len()).unwrap_or(u64::MAX);
        if waiting < self.per_blob.saturating_mul(2) {
            return None;
        }
        let stretch = recent.end_seq / count(self.per_blob).max(1);
        (self.asked.swap(stretch, Ordering::Relaxed) != stretch).then_some(stretch)
    }

    /// Opens the blobs that are not open yet.
    async fn open(&self, listed: &Listed) -> Result<Vec<Arc<Run>>> {
        let before = self.known();
        let parts = before.runs.iter().flat_map(|run| &run.parts);
        let open: HashMap<&str, &Arc<Segment>> =
            parts.map(|part| (part.name.as_str(), part)).collect();
        let mut runs: Vec<Arc<Run>> = Vec::new();
        for stretch in listed.parts.chunk_by(|one, next| one.0.first == next.0.first) {
            let Some(&(Stretch { first, end }, _)) = stretch.first() else { continue };
            let mut parts = Vec::new();
            for (_, blob) in stretch {
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

    /// Those of `keys` that are in sealed blobs, and which blobs these are.
    pub(crate) async fn find_sealed(
        &self,
        sql: &Sql,
        keys: impl Iterator<Item = Key> + Clone,
    ) -> Result<(Arc<Known>, HashMap<Key, Seen>)> {
        let mut known = self.known();
        loop {
            match self.find_in(&known, keys.clone()).await {
                Ok(found) => return Ok((known, found)),
                Err(error) => {
                    // A blob is deleted once others have taken its place.
                    let now = self.reload(sql).await?;
                    if now.version == known.version {
                        return Err(error);
                    }
                    known = now;
                }
            }
        }
    }

    async fn find_in(
        &self,
        known: &Known,
        keys: impl Iterator<Item = Key> + Clone,
    ) -> Result<HashMap<Key, Seen>> {
        let mut found = HashMap::new();
        for run in &known.runs {
            for key in keys.clone().filter(|key| run.may_hold(*key)) {
                if let Some(record) = run.find(&*self.blobs, key).await? {
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
        let text = "SELECT next_seq FROM meter_head WHERE id = 1";
        let end = sql.query(text, params![]).await?.row()?.int(0)?;
        self.catch_up(&sql.reading(), end).await?;
        let mut found: HashMap<Key, Seen> = {
            let recent = self.recent();
            keys.iter().filter_map(|key| Some((*key, *recent.keys.get(key)?))).collect()
        };
        // Only then which blobs there are: what is not recent any more is in one of them.
        self.reload(sql).await?;
        let rest: Vec<Key> = keys.iter().filter(|key| !found.contains_key(key)).copied().collect();
        let (_, sealed) = self.find_sealed(sql, rest.into_iter()).await?;
        found.extend(sealed);
        Ok(found)
    }
}

/// Which blobs there are, as the database says.
struct Listed {
    version: i64,
    sealed_seq: i64,
    parts: Vec<(Stretch, String)>,
}

impl Listed {
    async fn read(sql: &Sql) -> Result<Self> {
        // One statement, so that version and list are of the same moment.
        let text = "SELECT h.keys_version, h.sealed_seq, k.first_seq, k.end_seq, k.blob
                    FROM meter_head h LEFT JOIN meter_keys k ON 1 = 1
                    WHERE h.id = 1 ORDER BY k.first_seq, k.part";
        let mut listed = Self { version: 0, sealed_seq: 0, parts: Vec::new() };
        for row in &sql.query(text, params![]).await?.rows {
            (listed.version, listed.sealed_seq) = (row.int(0)?, row.int(1)?);
            if let Some(blob) = row.opt_text(4)? {
                let stretch = Stretch { first: row.int(2)?, end: row.int(3)? };
                listed.parts.push((stretch, blob.to_owned()));
            }
        }
        Ok(listed)
    }
}

/// The keys of some events. By their numbers, which have few gaps: asked for the first so many of a long stretch,
/// PostgreSQL sorts all of it.
async fn page(on: &impl Execute, stretch: Stretch) -> Result<Vec<Record>> {
    let text = "SELECT key_hi, key_lo, content, seq, checks FROM meter_event
                WHERE seq >= $1 AND seq < $2";
    let found = on.execute(text, params![stretch.first, stretch.end]).await?;
    let records = found.rows.iter().map(|row| {
        let key = Key { hi: row.int(0)?, lo: row.int(1)? };
        let seen = Seen { content: row.int(2)?, seq: row.int(3)? };
        if !key_is_whole(seen.seq, key, seen.content, row.opt_int(4)?) {
            return Err(Error::DamagedEvent { seq: seen.seq });
        }
        Ok(Record { key, seen })
    });
    records.collect()
}

/// A count as the stores keep it.
pub(crate) fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_of_many_keys_is_given_back_when_they_are_sealed() {
        let seen = |seq: i64| (Key { hi: seq, lo: seq }, Seen { content: 0, seq });
        let mut recent = Recent::default();
        recent.keys.extend((0..1_000_000).map(seen));
        assert!(recent.keys.capacity() >= 1_000_000);
        recent.forget_before(990_000);
        assert_eq!((recent.keys.len(), recent.end_seq), (10_000, 990_000));
        assert!(recent.keys.capacity() < 3 * ROOM_KEPT, "{}", recent.keys.capacity());
        recent.forget_before(1_000_000);
        assert!(recent.keys.is_empty());
    }
}
