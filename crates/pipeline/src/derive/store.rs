//! `Tables`: derived tables in a database.
//!
//! | table | what |
//! |---|---|
//! | `derive_line` | the generations of every processor: version, state, tables, and the tip blocks in them |
//! | `derive_lock` | one row, locked by transactions that create or replace generations |
//! | `address` | addresses as numbers (`intern`) |
//! | `c{chain}_g{generation}_{table}` | the final rows of a generation's table |
//! | `…_tip` | its rows of blocks that are not final, each with its block |
//! | `checkpoint` | heights of workers that write no tables |
//! | `indexing_checkpoints`, `worker_leases`, `last_block`, `block_jobs` | views with the names used by older systems |
//! | `coverage` | final blocks in a generation (owned by [`logmill_work::Coverage`]) |
//!
//! Guarantees: rows and their coverage change in one transaction; a covered block is not in the tip; a change planned
//! from an older state, or from blocks that may have been replaced since, is refused ([`Error::Overtaken`]); writes
//! under a lost lease are refused. Leaves to others: what to derive, and when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alloy_primitives::Address;
use finalized_log_index::ReplacementPosition;
use logmill_chain::BlockRef;
use logmill_io::sql::{Bulk, Execute};
use logmill_io::{ErrorKind, Fence, Sql, Tx, Value, params};
use logmill_work::{Coverage, Heights, IntervalSet, Queue};

use super::generation::{Generation, TipBlocks};
use super::intern::{Ids, Interner};
use super::rows::{Cell, Row, Rows};
use super::schema;
use super::table::{Fold, Table};
use crate::error::{Error, Result};
use crate::record;

pub mod checkpoints;
mod generations;
mod migrations;
mod replacements;
mod swap;

pub(crate) use generations::chain_param;
pub use migrations::MIGRATIONS;
pub(crate) use replacements::LogVerdict;
pub(crate) use replacements::{ReplacementOutcome, ReplacementPage};
pub use swap::{Permit, SwapOutcome};

/// Derived tables in a database. Clones share the same handle.
#[derive(Clone, Debug)]
pub struct Tables {
    sql: Sql,
    queue: Queue,
    interner: Arc<Interner>,
}

/// Rows of a range of final blocks, for one generation.
#[derive(Clone, Debug)]
pub struct RangeRows {
    pub generation: Generation,
    pub range: Heights,
    /// Must be folded.
    pub rows: Rows,
}

/// A change of a generation's tip.
#[derive(Clone, Debug)]
pub struct TipChange {
    pub generation: Generation,
    /// The tip that the change was planned from.
    pub before: TipBlocks,
    /// New blocks, above all that stay, with their rows, folded per block.
    pub added: Vec<(BlockRef, Rows)>,
    /// The tip afterwards. Every block of it must be in `before` or in `added`.
    pub after: TipBlocks,
}

/// Rows in the form in which the database takes them.
#[derive(Clone, Debug)]
pub(crate) struct PreparedRows {
    tables: Vec<(Bulk, Arc<[Vec<Value>]>)>,
}

/// A [`RangeRows`] whose rows are prepared.
#[derive(Clone, Debug)]
pub(crate) struct PreparedRange {
    pub(crate) generation: Generation,
    pub(crate) range: Heights,
    rows: PreparedRows,
}

impl Tables {
    /// Opens the tables for writing; creates or migrates them if necessary.
    pub async fn open(sql: Sql) -> Result<Self> {
        Self::open_beside(Queue::open(sql).await?).await
    }

    /// Opens the tables for writing in the database of a queue, which they share with others.
    pub async fn open_beside(queue: Queue) -> Result<Self> {
        queue.sql().migrate(&MIGRATIONS).await?;
        let (sql, interner) = (queue.sql().clone(), Arc::new(Interner::new()));
        Ok(Self { sql, queue, interner })
    }

    /// Opens the tables for reading.
    pub async fn open_read_only(sql: Sql) -> Result<Self> {
        Self::read_beside(Queue::open_read_only(sql).await?).await
    }

    /// Opens the tables for reading in the database of a queue, which they share with others.
    pub async fn read_beside(queue: Queue) -> Result<Self> {
        queue.sql().expect_migrated(&MIGRATIONS).await?;
        let (sql, interner) = (queue.sql().clone(), Arc::new(Interner::new()));
        Ok(Self { sql, queue, interner })
    }

    /// The same tables through another handle to the database.
    #[must_use]
    pub fn through(&self, sql: Sql) -> Self {
        let (queue, interner) = (self.queue.through(sql.clone()), Arc::new(Interner::new()));
        Self { sql, queue, interner }
    }

    pub fn sql(&self) -> &Sql {
        &self.sql
    }

    /// The job queue in the same database.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The number of an address; none if it was never stored.
    pub async fn address_id(&self, address: Address) -> Result<Option<i64>> {
        let ids = self.interner.find(&self.sql, [address].into()).await?;
        Ok(ids.get(&address).copied())
    }

    /// Prepares final rows for storage: replaces addresses with numbers and sorts the rows by key.
    pub(crate) async fn prepare(
        &self,
        generation: &Generation,
        rows: Rows,
    ) -> Result<PreparedRows> {
        let ids = self.interner.ids(&self.sql, addresses([&rows])).await?;
        let generation = generation.clone();
        Ok(logmill_io::compute(move || prepare_rows(&generation, rows, &ids)).await)
    }

    /// Stores prepared rows; must run in the transaction that covers their blocks.
    pub(crate) async fn apply_in(&self, tx: &Tx, rows: &PreparedRows) -> Result<()> {
        for (bulk, rows) in &rows.tables {
            tx.bulk(bulk, Arc::clone(rows)).await?;
        }
        Ok(())
    }

    /// Marks blocks as final in a generation and removes them from its tip. Returns the parts that were not covered
    /// before.
    pub(crate) async fn cover_in(
        &self,
        tx: &Tx,
        generation: &Generation,
        range: &Heights,
    ) -> Result<Vec<Heights>> {
        let tip = self.lock_tip(tx, generation).await?;
        let fresh = Coverage::cover(tx, &generation.scope(), range).await?;
        let (gone, kept): (Vec<_>, Vec<_>) =
            tip.0.into_iter().partition(|(number, _)| range.contains(number));
        if !gone.is_empty() {
            self.delete_tip(tx, generation, gone.into_iter().map(|(number, _)| number)).await?;
            self.store_tip(tx, generation, &TipBlocks(kept)).await?;
        }
        self.store_heights(tx, generation).await?;
        Ok(fresh)
    }

    /// Stores the highest covered range, for the view `indexing_checkpoints`.
    async fn store_heights(&self, tx: &Tx, generation: &Generation) -> Result<()> {
        let covered = Coverage::read(tx, &generation.scope()).await?.done;
        let Some(last) = covered.ranges().next_back() else {
            return Ok(());
        };
        let height = |height: u64| i64::try_from(height).unwrap_or(i64::MAX);
        let mut params = generation_params(generation)?;
        params.extend(params![height(last.start), height(last.end) - 1]);
        let text =
            "UPDATE derive_line SET from_height = $4, last_height = $5, updated_at = now_ms()
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    /// Stores the rows of final blocks together with their coverage, for several generations at once.
    pub async fn commit(&self, fence: Option<&Fence>, parts: Vec<RangeRows>) -> Result<()> {
        let prepared = self.prepare_all(parts).await?;
        self.commit_prepared(fence, &prepared).await
    }

    pub(crate) async fn prepare_all(&self, parts: Vec<RangeRows>) -> Result<Vec<PreparedRange>> {
        let ids = self.interner.ids(&self.sql, addresses(parts.iter().map(|p| &p.rows))).await?;
        let prepare = move |part: RangeRows| {
            let rows = prepare_rows(&part.generation, part.rows, &ids);
            PreparedRange { generation: part.generation, range: part.range, rows }
        };
        Ok(logmill_io::compute(move || parts.into_iter().map(prepare).collect()).await)
    }

    pub(crate) async fn commit_prepared(
        &self,
        fence: Option<&Fence>,
        parts: &[PreparedRange],
    ) -> Result<()> {
        let at = &AtomicUsize::new(usize::MAX);
        let written = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            for (number, part) in parts.iter().enumerate() {
                at.store(number, Ordering::SeqCst);
                let fresh = self.cover_in(&tx, &part.generation, &part.range).await?;
                if fresh != [part.range.clone()] {
                    return Err(overtaken_error(&part.generation));
                }
                self.apply_in(&tx, &part.rows).await?;
            }
            at.store(usize::MAX, Ordering::SeqCst);
            Ok(())
        });
        let generation = |number: usize| parts.get(number).map(|part| &part.generation);
        written.await.map_err(|error| attribute(error, generation(at.load(Ordering::SeqCst))))
    }

    /// Changes the tips of several generations in one transaction.
    pub async fn commit_tip(&self, fence: Option<&Fence>, parts: Vec<TipChange>) -> Result<()> {
        let added = parts.iter().flat_map(|part| part.added.iter().map(|(_, rows)| rows));
        let ids = self.interner.ids(&self.sql, addresses(added)).await?;
        let ready = parts.into_iter().map(|mut part| {
            let rows = prepare_tip_rows(&part.generation, std::mem::take(&mut part.added), &ids);
            (part, rows)
        });
        let (ready, at) = (&ready.collect::<Vec<_>>(), &AtomicUsize::new(usize::MAX));
        let written = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            for (number, (part, rows)) in ready.iter().enumerate() {
                at.store(number, Ordering::SeqCst);
                self.change_tip(&tx, part, rows).await?;
            }
            at.store(usize::MAX, Ordering::SeqCst);
            Ok(())
        });
        let generation = |number: usize| ready.get(number).map(|(part, _)| &part.generation);
        written.await.map_err(|error| attribute(error, generation(at.load(Ordering::SeqCst))))
    }

    async fn change_tip(&self, tx: &Tx, part: &TipChange, rows: &PreparedRows) -> Result<()> {
        let generation = &part.generation;
        let tip = self.lock_tip(tx, generation).await?;
        let covered = Coverage::read(tx, &generation.scope()).await?.done;
        if tip != part.before || part.after.0.iter().any(|(number, _)| covered.contains(*number)) {
            return Err(overtaken_error(generation));
        }
        let gone = tip.0.iter().filter(|(number, hash)| !part.after.contains(*number, *hash));
        self.delete_tip(tx, generation, gone.map(|(number, _)| *number)).await?;
        self.apply_in(tx, rows).await?;
        self.store_tip(tx, generation, &part.after).await
    }

    /// The final blocks in a generation.
    pub async fn covered(&self, generation: &Generation) -> Result<IntervalSet> {
        Ok(Coverage::read(&self.sql, &generation.scope()).await?.done)
    }

    /// The blocks whose rows are in a generation's tip.
    pub async fn tip(&self, generation: &Generation) -> Result<TipBlocks> {
        let text = format!("SELECT tip, replacements, replacement_mark {GENERATION_ROW}");
        let found = self.sql.query(&text, generation_params(generation)?).await?;
        tip_of(generation, found.rows.first())
    }

    async fn lock_tip(&self, tx: &Tx, generation: &Generation) -> Result<TipBlocks> {
        let text =
            format!("SELECT tip, replacements, replacement_mark {GENERATION_ROW} FOR UPDATE");
        tip_of(generation, tx.execute(&text, generation_params(generation)?).await?.rows.first())
    }

    async fn store_tip(&self, tx: &Tx, generation: &Generation, tip: &TipBlocks) -> Result<()> {
        let mut params = generation_params(generation)?;
        params.push(record::encode(tip).into());
        let text = "UPDATE derive_line SET tip = $4, cleared = NULL
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    async fn delete_tip(
        &self,
        tx: &Tx,
        generation: &Generation,
        numbers: impl Iterator<Item = u64>,
    ) -> Result<()> {
        let numbers: Arc<[Vec<Value>]> =
            numbers.map(|number| params![i64::try_from(number).unwrap_or(i64::MAX)]).collect();
        for table in generation.processor.tables() {
            let (tip, block) = (generation.tip_table(table), schema::TIP_BLOCK);
            let text = format!("DELETE FROM {tip} WHERE {block} = $1");
            tx.execute_many(&text, Arc::clone(&numbers)).await?;
        }
        Ok(())
    }
}

const GENERATION_ROW: &str =
    "FROM derive_line WHERE chain_id = $1 AND processor = $2 AND generation = $3";

fn generation_params(generation: &Generation) -> Result<Vec<Value>> {
    let chain = chain_param(generation.chain_id)?;
    Ok(params![chain, generation.processor.name(), generation.number])
}

fn tip_of(generation: &Generation, row: Option<&logmill_io::sql::Row>) -> Result<TipBlocks> {
    // No row: another process has dropped the generation. Another position: the rows may come from blocks that were
    // replaced since.
    let row = row.ok_or_else(|| overtaken_error(generation))?;
    if position(row, 1, 2)? != generation.replacements {
        return Err(overtaken_error(generation));
    }
    let tip = record::decode(&row.blob(0)?, "the tip of derived tables");
    tip.map_err(|error| logmill_io::Error::Corrupt { what: error.to_string() }.into())
}

/// Position in the replacement log, from the columns of its number and mark.
pub(crate) fn position(
    row: &logmill_io::sql::Row,
    seq: usize,
    mark: usize,
) -> Result<ReplacementPosition> {
    let mark = row.opt_int(mark)?.map_or(0, i64::cast_unsigned);
    Ok(ReplacementPosition { seq: row.count(seq)?, mark })
}

/// The position recorded last, or the applied one if none was recorded.
pub(crate) fn seen(
    row: &logmill_io::sql::Row,
    applied: (usize, usize),
    seen: (usize, usize),
) -> Result<ReplacementPosition> {
    let (seq, mark) = if row.is_null(seen.0) { applied } else { seen };
    position(row, seq, mark)
}

async fn hold(tx: &Tx, fence: Option<&Fence>) -> Result<()> {
    if let Some(fence) = fence {
        tx.hold(fence).await?;
    }
    Ok(())
}

fn overtaken_error(generation: &Generation) -> Error {
    Error::Overtaken { processor: generation.processor.name() }
}

/// Attributes an error of a transaction to the generation that was being written, unless the store itself failed.
fn attribute(error: Error, generation: Option<&Generation>) -> Error {
    let processor = generation.map_or("derive", |generation| generation.processor.name());
    match error.kind() {
        ErrorKind::Conflict => Error::Overtaken { processor },
        ErrorKind::Transient | ErrorKind::Fenced => error,
        _ if generation.is_none() => error,
        _ => Error::Processor { processor, what: logmill_io::error_chain(&error) },
    }
}

/// All addresses in some rows.
fn addresses<'a>(rows: impl IntoIterator<Item = &'a Rows>) -> BTreeSet<Address> {
    let rows = rows.into_iter().flat_map(|rows| rows.tables().flat_map(|(_, rows)| rows));
    let cells = rows.flat_map(|row| &row.cells);
    cells.filter_map(|cell| if let Cell::Address(a) = cell { Some(*a) } else { None }).collect()
}

fn prepare_rows(generation: &Generation, rows: Rows, ids: &Ids) -> PreparedRows {
    let tables = rows.into_tables().into_iter().filter(|(_, rows)| !rows.is_empty());
    let tables = tables.map(|(table, rows)| {
        let mut rows: Vec<Vec<Value>> =
            rows.into_iter().map(|row| values(table, row, ids)).collect();
        sort(&mut rows, table.key_len());
        (schema::insert(table, &generation.table(table)), rows.into())
    });
    PreparedRows { tables: tables.collect() }
}

fn prepare_tip_rows(
    generation: &Generation,
    blocks: Vec<(BlockRef, Rows)>,
    ids: &Ids,
) -> PreparedRows {
    let mut tables = Vec::new();
    for (at, rows) in blocks {
        let number = i64::try_from(at.number).unwrap_or(i64::MAX);
        for (table, rows) in rows.into_tables().into_iter().filter(|(_, rows)| !rows.is_empty()) {
            let rows = rows.into_iter().map(|row| {
                let mut row = values(table, row, ids);
                row.push(number.into());
                row
            });
            let rows: Vec<Vec<Value>> = rows.collect();
            tables.push((schema::insert_tip(table, &generation.table(table)), rows.into()));
        }
    }
    PreparedRows { tables }
}

fn values(table: &Table, row: Row, ids: &Ids) -> Vec<Value> {
    let mut values = Vec::with_capacity(row.cells.len() + 3);
    values.extend(row.cells.into_iter().map(|cell| match cell {
        Cell::Null => Value::Null,
        Cell::Int(value) => Value::Int(value),
        Cell::Text(value) => Value::Text(value),
        Cell::Bytes(value) => Value::Blob(value),
        Cell::Amount(value) => Value::Amount(value),
        Cell::Address(address) => ids.get(&address).map_or(Value::Null, |id| Value::Int(*id)),
    }));
    if table.has(Fold::First) {
        values.push(row.first_at.into());
    }
    if table.has(Fold::Last) {
        values.push(row.last_at.into());
    }
    values
}

/// Sorts by key, the order of the tables: neighbours share pages, and all writers lock rows in the same order.
fn sort(rows: &mut [Vec<Value>], key_len: usize) {
    rows.sort_unstable_by(|a, b| {
        let pairs = a[..key_len].iter().zip(&b[..key_len]);
        let unequal = pairs.map(|(a, b)| compare(a, b)).find(|order| order.is_ne());
        unequal.unwrap_or(std::cmp::Ordering::Equal)
    });
}

fn compare(a: &Value, b: &Value) -> std::cmp::Ordering {
    match (a, b) {
        (Value::Int(a), Value::Int(b)) => a.cmp(b),
        (Value::Text(a), Value::Text(b)) => a.cmp(b),
        (Value::Blob(a), Value::Blob(b)) => a.cmp(b),
        (Value::Amount(a), Value::Amount(b)) => a.cmp(b),
        _ => std::cmp::Ordering::Equal,
    }
}
