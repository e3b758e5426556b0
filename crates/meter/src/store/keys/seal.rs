//! Seals keys, and merges many short runs into few long ones.
//!
//! ```text
//!   run of 8 × 8 × n keys, in parts | run of 8 × n keys, in parts | n | n | n | n          n: `per_blob`
//! ```
//!
//! A new run has about `per_blob` keys; eight neighbours of the same length become one, part by part, so that memory
//! holds one part. With a billion keys a lookup probes fewer than thirty filters. A replacement is entered in one
//! transaction, and only if what it replaces is still listed.
//!
//! | blob | before it is put | entered | replaced |
//! |---|---|---|---|
//! | in `meter_keys_loose` | yes | no | yes, doomed |
//! | in `meter_keys` | no | yes | no |
//!
//! Guarantees: a listed blob is never deleted: only doomed ones are, and a doomed blob cannot be entered any more.
//! Blobs of a process that died before entering them are doomed after an hour. Leaves to others: when to seal and
//! merge.

use logmill_io::sql::Execute;
use logmill_io::{BlobName, Sql, Timestamp, Tx, params};

use super::run::{Run, Share};
use super::segment::{self, Record};
use super::{KEYS_PER_PAGE, Keys, SeqRange, count, page};
use crate::error::{Error, Result};

/// Number of neighbours that become one run.
const FAN: usize = 8;
/// How long a blob may wait to be entered.
const LOOSE_MS: i64 = 3_600_000;
/// Maximum number of doomed blobs that one call deletes.
const DOOMED_PER_PAGE: i64 = 100;

/// A new run, to be entered.
#[derive(Debug, Default)]
struct NewRun {
    /// The number of its first event, and one after its last.
    first: i64,
    end: i64,
    blobs: Vec<String>,
    /// The runs that it replaces, as ranges of event numbers.
    replaces: Vec<(i64, i64)>,
    /// The events that it seals for the first time.
    sealed: Option<SeqRange>,
}

impl NewRun {
    fn replace<'a>(&mut self, runs: impl IntoIterator<Item = &'a Run>) {
        for run in runs {
            self.first = self.first.min(run.first);
            self.replaces.push((run.first, run.end));
        }
    }
}

impl Keys {
    /// Seals the keys of the oldest unsealed events; returns false if there are too few, or, with `in_any_case`, none.
    pub(crate) async fn seal(&self, sql: &Sql, in_any_case: bool) -> Result<bool> {
        let text = "SELECT sealed_seq, next_seq FROM meter_head WHERE id = 1";
        let head = sql.query(text, params![]).await?;
        let (first, next) = (head.row()?.int(0)?, head.row()?.int(1)?);
        let most = count(self.per_blob);
        if first == next || (next - first < most && !in_any_case) {
            return Ok(false);
        }
        let range = SeqRange { first, end: next.min(first.saturating_add(most)) };
        let mut entry = NewRun { first, end: range.end, sealed: Some(range), ..NewRun::default() };
        // Read without blocking recorders: committed events below the next number do not change.
        let mut records = Vec::new();
        let mut rest = range;
        while rest.first < rest.end {
            let until = rest.end.min(rest.first.saturating_add(KEYS_PER_PAGE));
            records.extend(page(&sql.reading(), SeqRange { end: until, ..rest }).await?);
            rest.first = until;
        }
        let run_list = self.reload(sql).await?;
        let small = run_list.runs.last().filter(|run| run.keys() < self.per_blob);
        if let Some(small) = small {
            records.extend(small.read(&*self.blobs, Share { part: 0, parts: 1 }).await?);
            entry.replace([&**small]);
        }
        self.put_part(sql, &mut entry, records).await?;
        self.enter(sql, &entry).await?;
        Ok(true)
    }

    /// Merges neighbours of the same length into one run; returns false if there are too few.
    pub(crate) async fn merge(&self, sql: &Sql) -> Result<bool> {
        let run_list = self.reload(sql).await?;
        let same_length = |one: &_, other: &_| self.level(one) == self.level(other);
        let mut neighbours = run_list.runs.chunk_by(|one, other| same_length(&**one, &**other));
        let Some(runs) = neighbours.find(|runs| runs.len() >= FAN) else { return Ok(false) };
        let (Some(first), Some(last)) = (runs.first(), runs.last()) else { return Ok(false) };
        let mut entry = NewRun { first: first.first, end: last.end, ..NewRun::default() };
        entry.replace(runs.iter().map(AsRef::as_ref));
        let keys: u64 = runs.iter().map(|run| run.keys()).sum();
        let parts = keys.div_ceil(self.per_blob.saturating_mul(2).max(1));
        let parts = usize::try_from(parts).unwrap_or(usize::MAX);
        let mut read = 0;
        for part in 0..parts {
            let mut records = Vec::new();
            for run in runs {
                records.extend(run.read(&*self.blobs, Share { part, parts }).await?);
            }
            read += records.len();
            self.put_part(sql, &mut entry, records).await?;
        }
        if u64::try_from(read).ok() != Some(keys) {
            return Err(Error::corrupt(format!(
                "only {read} of {keys} keys were read from their blobs"
            )));
        }
        tracing::info!(runs = runs.len(), keys, parts, "merged runs of keys");
        self.enter(sql, &entry).await?;
        Ok(true)
    }

    /// How many times eight runs became one to build this.
    fn level(&self, run: &Run) -> u32 {
        let lengths = run.keys().checked_div(self.per_blob).unwrap_or_default().max(1);
        lengths.ilog(u64::try_from(FAN).unwrap_or(u64::MAX))
    }

    /// Puts the next part of a run.
    async fn put_part(
        &self,
        sql: &Sql,
        entry: &mut NewRun,
        mut records: Vec<Record>,
    ) -> Result<()> {
        let packed = logmill_io::compute(move || {
            records.sort_unstable_by_key(|record| record.key);
            segment::encode(&records)
        });
        let packed = packed.await?;
        let (end, part) = (entry.end, entry.blobs.len());
        let name = format!("meter/keys/{end:016}-{part:04}-{}", blake3::hash(&packed).to_hex());
        let name = BlobName::new(name)?;
        let since = sql.now().await?.millis();
        let text = "INSERT INTO meter_keys_loose (blob, doomed, since_ms) VALUES ($1, 0, $2)
                    ON CONFLICT (blob) DO UPDATE SET since_ms = excluded.since_ms
                        WHERE meter_keys_loose.doomed = 0
                    RETURNING blob";
        let blob = name.as_str();
        let announced = sql.write(|tx| async move { tx.execute(text, params![blob, since]).await });
        if announced.await?.rows.is_empty() {
            return Err(Error::conflict(format!("the blob {blob} is about to be deleted")));
        }
        self.blobs.put(&name, packed).await?;
        entry.blobs.push(name.as_str().to_owned());
        Ok(())
    }

    async fn enter(&self, sql: &Sql, entry: &NewRun) -> Result<()> {
        let now = sql.now().await?.millis();
        sql.write(|tx| async move { enter(&tx, entry, now).await }).await?;
        self.reload(sql).await?;
        Ok(())
    }

    /// Deletes doomed blobs.
    pub(crate) async fn tidy(&self, sql: &Sql) -> Result<()> {
        let text = "SELECT 1 FROM meter_keys_loose LIMIT 1";
        if sql.query(text, params![]).await?.rows.is_empty() {
            return Ok(());
        }
        let now = sql.now().await?;
        sql.write(|tx| async move { doom(&tx, now).await }).await?;
        loop {
            let text = format!(
                "SELECT blob FROM meter_keys_loose WHERE doomed = 1 LIMIT {DOOMED_PER_PAGE}"
            );
            let doomed = sql.query(&text, params![]).await?;
            if doomed.rows.is_empty() {
                return Ok(());
            }
            for row in &doomed.rows {
                let blob = row.text(0)?;
                self.blobs.delete(&BlobName::new(blob)?).await?;
                let text = "DELETE FROM meter_keys_loose WHERE blob = $1 AND doomed = 1";
                sql.write(|tx| async move { tx.execute(text, params![blob]).await }).await?;
            }
        }
    }
}

/// The visibility barrier: from here on lookups use these blobs.
async fn enter(tx: &Tx, entry: &NewRun, now: i64) -> logmill_io::Result<()> {
    let text = "SELECT sealed_seq FROM meter_head WHERE id = 1 FOR UPDATE";
    let sealed = tx.execute(text, params![]).await?.row()?.int(0)?;
    let text = "SELECT first_seq, end_seq FROM meter_keys
                WHERE first_seq >= $1 AND first_seq < $2 AND part = 0 ORDER BY first_seq";
    let found = tx.execute(text, params![entry.first, entry.end]).await?;
    let found: logmill_io::Result<Vec<(i64, i64)>> =
        found.rows.iter().map(|row| Ok((row.int(0)?, row.int(1)?))).collect();
    if found? != entry.replaces || entry.sealed.is_some_and(|range| range.first != sealed) {
        // Another process was faster; the blobs that were put are the same, or unused.
        return Ok(());
    }
    let text = "INSERT INTO meter_keys_loose (blob, doomed, since_ms)
                SELECT blob, 1, $3 FROM meter_keys WHERE first_seq >= $1 AND first_seq < $2
                ON CONFLICT (blob) DO UPDATE SET doomed = 1";
    tx.execute(text, params![entry.first, entry.end, now]).await?;
    let text = "DELETE FROM meter_keys WHERE first_seq >= $1 AND first_seq < $2";
    tx.execute(text, params![entry.first, entry.end]).await?;
    for (part, blob) in (0i64..).zip(&entry.blobs) {
        let text = "DELETE FROM meter_keys_loose WHERE blob = $1 AND doomed = 0 RETURNING blob";
        if tx.execute(text, params![blob.as_str()]).await?.rows.is_empty() {
            let what = format!("the blob {blob} waited too long and");
            return Err(logmill_io::Error::Conflict { what });
        }
        let text =
            "INSERT INTO meter_keys (first_seq, part, end_seq, blob) VALUES ($1, $2, $3, $4)";
        tx.execute(text, params![entry.first, part, entry.end, blob.as_str()]).await?;
    }
    let sealed = entry.sealed.map_or(sealed, |range| range.end);
    let text =
        "UPDATE meter_head SET sealed_seq = $1, keys_version = keys_version + 1 WHERE id = 1";
    tx.execute(text, params![sealed]).await?;
    Ok(())
}

/// Dooms the blobs of processes that died before entering them.
async fn doom(tx: &Tx, now: Timestamp) -> logmill_io::Result<()> {
    let text = "SELECT 1 FROM meter_head WHERE id = 1 FOR UPDATE";
    tx.execute(text, params![]).await?;
    // Blobs that a late process put again although they are entered.
    let text =
        "DELETE FROM meter_keys_loose WHERE doomed = 0 AND blob IN (SELECT blob FROM meter_keys)";
    tx.execute(text, params![]).await?;
    let text = "UPDATE meter_keys_loose SET doomed = 1 WHERE doomed = 0 AND since_ms < $1";
    tx.execute(text, params![now.millis().saturating_sub(LOOSE_MS)]).await?;
    Ok(())
}
