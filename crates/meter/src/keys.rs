//! Keys: which (source, id) were seen, for ever.
//!
//! A table with a unique index of random keys gets slower as it grows, so it does not grow: when it is full the next
//! one takes the new keys, and the full one becomes a sorted, immutable blob with a filter in memory.
//!
//! ```text
//!   hot table ── full ──▶ closed table ── written down ──▶ sealed blob
//!   new keys go here      is looked up                     filter first, then one page of the blob
//! ```
//!
//! Guarantees: a key is in exactly one of them; a change of which tables there are raises the version that the head
//! holds, so that whoever claims keys under the head's lock knows whether it looked at all of them. Leaves to others:
//! what a key stands for.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use logmill_io::sql::Execute;
use logmill_io::{BlobName, BlobStore, Sql, Tx, Value, params};

use crate::error::{Error, Result};
use crate::event::Key;

mod filter;
mod segment;

use segment::{Record, Segment};

/// How many keys a table takes before the next one does.
pub(crate) const KEYS_PER_TABLE: u64 = 1_000_000;
/// How many keys are read at once while a table is written down.
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
    per_table: u64,
}

/// Which tables there are, as of a version.
#[derive(Debug, Default)]
pub(crate) struct Known {
    pub(crate) version: i64,
    hot: i64,
    closed: Vec<i64>,
    sealed: Vec<Arc<Segment>>,
}

/// The keys of a group of events that are new, each with the number that its event gets.
pub(crate) type Claims = [(Key, Seen)];

impl Keys {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, per_table: u64) -> Self {
        Self { blobs, known: RwLock::default(), per_table }
    }

    /// Which tables there are, as far as is known here.
    pub(crate) fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks again which tables there are.
    pub(crate) async fn reload(&self, sql: &Sql) -> Result<Arc<Known>> {
        let before = self.known();
        // One statement, so that version and list are of the same moment.
        let text = "SELECT h.keys_version, k.number, k.state, k.blob
                    FROM meter_head h CROSS JOIN meter_keys k WHERE h.id = 1 ORDER BY k.number";
        let mut known = Known::default();
        for row in &sql.query(text, params![]).await?.rows {
            known.version = row.int(0)?;
            let number = row.int(1)?;
            match row.int(2)? {
                HOT => known.hot = number,
                CLOSED => known.closed.push(number),
                _ => known.sealed.push(self.open(&before, number, row.text(3)?).await?),
            }
        }
        let known = Arc::new(known);
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&known);
        Ok(known)
    }

    async fn open(&self, before: &Known, number: i64, blob: &str) -> Result<Arc<Segment>> {
        if let Some(open) = before.sealed.iter().find(|segment| segment.number == number) {
            return Ok(Arc::clone(open));
        }
        let name = BlobName::new(blob)?;
        Ok(Arc::new(Segment::open(&*self.blobs, number, name).await?))
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

    /// Claims keys in a transaction that holds the head's lock; gives those that somebody claimed before.
    pub(crate) async fn claim(
        tx: &Tx,
        known: &Known,
        claims: &Claims,
    ) -> Result<HashMap<Key, Seen>> {
        let mut found = HashMap::new();
        if claims.is_empty() {
            return Ok(found);
        }
        for table in &known.closed {
            found.extend(find_in(tx, *table, claims.iter().map(|(key, _)| *key)).await?);
        }
        let mut list: Vec<&(Key, Seen)> =
            claims.iter().filter(|(key, _)| !found.contains_key(key)).collect();
        list.sort_unstable_by_key(|(key, _)| *key);
        let text = format!(
            "INSERT INTO meter_key_{} (hi, lo, content, seq)
             SELECT CAST(value ->> 0 AS BIGINT), CAST(value ->> 1 AS BIGINT),
                 CAST(value ->> 2 AS BIGINT), CAST(value ->> 3 AS BIGINT)
             FROM json_list($1) WHERE 1 = 1 ON CONFLICT (hi, lo) DO NOTHING",
            known.hot
        );
        let wanted = u64::try_from(list.len()).unwrap_or(u64::MAX);
        let inserted = tx.execute(&text, params![claims_json(&list)]).await?.changed;
        if inserted < wanted {
            // The rare case: some were there. Those that are ours have the number that we gave them.
            let there = find_in(tx, known.hot, list.iter().map(|(key, _)| *key)).await?;
            let ours: HashMap<Key, i64> = list.iter().map(|(key, seen)| (*key, seen.seq)).collect();
            found.extend(there.into_iter().filter(|(key, seen)| ours.get(key) != Some(&seen.seq)));
        }
        Ok(found)
    }

    /// Looks one key up.
    pub(crate) async fn get(&self, sql: &Sql, key: Key) -> Result<Option<Seen>> {
        loop {
            let known = self.reload(sql).await?;
            if let Some(seen) = self.find_sealed(&known, [key].into_iter()).await?.remove(&key) {
                return Ok(Some(seen));
            }
            let found = find_in_any(sql, &known, key).await;
            match found {
                // A table that was just sealed is no longer there.
                Err(error) if self.reload(sql).await?.version != known.version => {
                    tracing::debug!(error = error.chain(), "looked a key up again");
                }
                found => return found,
            }
        }
    }

    /// How many keys a table takes.
    pub(crate) fn per_table(&self) -> u64 {
        self.per_table
    }

    /// Starts the next table if the hot one is full.
    pub(crate) async fn rotate(&self, sql: &Sql) -> Result<bool> {
        let rotated = sql.write(|tx| async move { Ok(self.rotate_in(&tx).await?) }).await?;
        self.reload(sql).await?;
        Ok(rotated)
    }

    async fn rotate_in(&self, tx: &Tx) -> Result<bool> {
        let head = tx
            .execute(
                "SELECT key_table, key_rows FROM meter_head WHERE id = 1 FOR UPDATE",
                params![],
            )
            .await?;
        let (hot, rows) = (head.row()?.int(0)?, head.row()?.count(1)?);
        if rows < self.per_table {
            return Ok(false);
        }
        let next = hot + 1;
        let create = format!(
            "CREATE TABLE meter_key_{next} (hi BIGINT NOT NULL, lo BIGINT NOT NULL,
                content BIGINT NOT NULL, seq BIGINT NOT NULL, PRIMARY KEY (hi, lo)) {{clustered}}"
        );
        tx.execute(&create, params![]).await?;
        tx.execute(
            "UPDATE meter_keys SET state = $2, key_rows = $3 WHERE number = $1",
            params![hot, CLOSED, count(rows)],
        )
        .await?;
        tx.execute(
            "INSERT INTO meter_keys (number, state, key_rows) VALUES ($1, $2, 0)",
            params![next, HOT],
        )
        .await?;
        tx.execute(
            "UPDATE meter_head SET key_table = $1, key_rows = 0, keys_version = keys_version + 1
             WHERE id = 1",
            params![next],
        )
        .await?;
        Ok(true)
    }

    /// Writes the oldest closed table down as a blob; false if there is none.
    pub(crate) async fn seal(&self, sql: &Sql) -> Result<bool> {
        self.rotate(sql).await?;
        let known = self.known();
        let Some(number) = known.closed.first().copied() else { return Ok(false) };
        let mut records = Vec::new();
        while let Some(page) = self.page(sql, number, records.last()).await? {
            records.extend(page);
        }
        let name = BlobName::new(format!("meter/keys/{number:08}"))?;
        // Nobody writes to a closed table, so whoever seals it, and however often, puts the same bytes.
        self.blobs.put(&name, segment::encode(&records)?).await?;
        let text = name.as_str();
        sql.write(|tx| async move { publish(&tx, number, text).await }).await?;
        self.reload(sql).await?;
        Ok(true)
    }

    async fn page(
        &self,
        sql: &Sql,
        number: i64,
        last: Option<&Record>,
    ) -> Result<Option<Vec<Record>>> {
        let from = last.map_or(Key { hi: i64::MIN, lo: i64::MIN }, |record| record.key);
        let text = format!(
            "SELECT hi, lo, content, seq FROM meter_key_{number}
             WHERE hi > $1 OR (hi = $1 AND lo > $2) ORDER BY hi, lo LIMIT {KEYS_PER_PAGE}"
        );
        let page = sql.query(&text, params![from.hi, from.lo]).await?;
        let records: Result<Vec<Record>> = page
            .rows
            .iter()
            .map(|row| {
                let key = Key { hi: row.int(0)?, lo: row.int(1)? };
                Ok(Record { key, seen: Seen { content: row.int(2)?, seq: row.int(3)? } })
            })
            .collect();
        Ok(Some(records?).filter(|records| !records.is_empty()))
    }
}

const HOT: i64 = 0;
const CLOSED: i64 = 1;
const SEALED: i64 = 2;

/// The visibility barrier: from here on the blob is what counts, and the table is gone.
async fn publish(tx: &Tx, number: i64, blob: &str) -> logmill_io::Result<()> {
    tx.execute("SELECT id FROM meter_head WHERE id = 1 FOR UPDATE", params![]).await?;
    let changed = tx
        .execute(
            "UPDATE meter_keys SET state = $2, blob = $3 WHERE number = $1 AND state = $4",
            params![number, SEALED, blob, CLOSED],
        )
        .await?
        .changed;
    if changed == 0 {
        return Ok(());
    }
    tx.execute(&format!("DROP TABLE meter_key_{number}"), params![]).await?;
    tx.execute("UPDATE meter_head SET keys_version = keys_version + 1 WHERE id = 1", params![])
        .await?;
    Ok(())
}

async fn find_in_any(on: &impl Execute, known: &Known, key: Key) -> Result<Option<Seen>> {
    for table in known.closed.iter().chain([&known.hot]) {
        let found = find_in(on, *table, [key].into_iter()).await?;
        if let Some(seen) = found.get(&key) {
            return Ok(Some(*seen));
        }
    }
    Ok(None)
}

async fn find_in(
    on: &impl Execute,
    table: i64,
    keys: impl Iterator<Item = Key>,
) -> Result<HashMap<Key, Seen>> {
    let list: Vec<(i64, i64)> = keys.map(|key| (key.hi, key.lo)).collect();
    let list = serde_json::to_string(&list).map_err(|error| Error::corrupt(error.to_string()))?;
    let text = format!(
        "SELECT k.hi, k.lo, k.content, k.seq FROM json_list($1) CROSS JOIN meter_key_{table} k
         WHERE k.hi = CAST(value ->> 0 AS BIGINT) AND k.lo = CAST(value ->> 1 AS BIGINT)"
    );
    let mut found = HashMap::new();
    for row in &on.execute(&text, params![list]).await?.rows {
        let key = Key { hi: row.int(0)?, lo: row.int(1)? };
        found.insert(key, Seen { content: row.int(2)?, seq: row.int(3)? });
    }
    Ok(found)
}

fn claims_json(claims: &[&(Key, Seen)]) -> Value {
    use std::fmt::Write as _;
    let mut list = String::with_capacity(claims.len() * 80 + 2);
    list.push('[');
    for (index, (key, seen)) in claims.iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        // Writing to a string does not fail.
        let _ = write!(list, "{comma}[{},{},{},{}]", key.hi, key.lo, seen.content, seen.seq);
    }
    list.push(']');
    Value::Text(list)
}

/// A count as the stores keep it.
pub(crate) fn count(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
