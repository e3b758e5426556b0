//! `Tables`: derived tables in a database.
//!
//! | table | what |
//! |---|---|
//! | `derive_line` | the generations of every processor: version, state, tables, and the tip blocks that they hold |
//! | `derive_lock` | one row, which who makes or replaces generations holds |
//! | `address` | addresses as numbers (`intern`) |
//! | `c{chain}_g{generation}_{table}` | the final rows of a generation's table |
//! | `…_tip` | its rows of blocks that are not final, each with its block |
//! | `indexing_checkpoints`, `worker_leases`, `last_block`, `block_jobs` | views by the names that older systems have |
//! | `coverage` | which final blocks are in a generation (of [`logmill_work::Coverage`]) |
//!
//! Guarantees: rows and the coverage that speaks for them change in one transaction; a block that is covered is not in
//! the tip; a change planned from an older state, or from blocks that may have been replaced since, is refused
//! ([`Error::Overtaken`]); what a holder of a lost lease writes is refused. Leaves to others: what to derive, and when.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use alloy_primitives::Address;
use logmill_chain::BlockRef;
use logmill_io::sql::{Bulk, Execute, Migration, Migrations};
use logmill_io::{ErrorKind, Fence, Sql, Tx, Value, params};
use logmill_work::{Coverage, Heights, IntervalSet, Queue};

use super::intern::{Ids, Interner};
use super::line::{Line, TipBlocks};
use super::rows::{Cell, Row, Rows};
use super::schema;
use super::table::{Fold, Table};
use crate::error::{Error, Result};
use crate::record;

mod lines;
mod replacements;

pub(crate) use lines::chain_param;
pub use replacements::ReplacementOutcome;

/// The tables of this module.
pub static MIGRATIONS: Migrations = Migrations {
    component: "derive",
    list: &[
        Migration {
            name: "lines_and_addresses",
            statements: "
            CREATE TABLE address (
                id {seq},
                address {bytes} NOT NULL UNIQUE
            );
            CREATE TABLE derive_lock (id BIGINT NOT NULL PRIMARY KEY);
            INSERT INTO derive_lock (id) VALUES (1);
            CREATE TABLE derive_line (
                chain_id BIGINT NOT NULL,
                processor {name} NOT NULL,
                generation BIGINT NOT NULL,
                version BIGINT NOT NULL,
                parameters TEXT NOT NULL,
                tables TEXT NOT NULL,
                state BIGINT NOT NULL,
                indexed BIGINT NOT NULL,
                tip {bytes} NOT NULL,
                from_height BIGINT,
                last_height BIGINT,
                created_at BIGINT NOT NULL,
                updated_at BIGINT NOT NULL,
                PRIMARY KEY (chain_id, processor, generation)
            );
            CREATE VIEW indexing_checkpoints AS
                SELECT chain_id, processor AS service_name, from_height, last_height, updated_at
                FROM derive_line WHERE state = 1;
            CREATE VIEW worker_leases AS
                SELECT c.chain_id, c.consumer AS worker_type, c.start_height AS from_height,
                    c.end_height AS to_height, j.owner AS leased_by, j.lease_until AS lease_expires_at,
                    CASE WHEN j.state = 2 THEN 'COMPLETED' WHEN j.state = 1 THEN 'ACTIVE'
                         WHEN j.state = 0 AND j.attempts = 0 THEN 'PENDING' ELSE 'FAILED' END AS status,
                    j.attempts AS attempt, j.error AS last_error, j.created_at
                FROM coverage_claim AS c JOIN job AS j ON j.kind = c.job_kind AND j.key = c.job_key;
            CREATE VIEW last_block AS
                SELECT chain_id, consumer, MAX(end_height) AS block_number
                FROM coverage_claim GROUP BY chain_id, consumer;
            CREATE VIEW block_jobs AS
                SELECT c.chain_id, c.consumer, c.start_height AS from_block, c.end_height - 1 AS to_block,
                    CASE WHEN j.state = 2 THEN 'completed' WHEN j.state = 1 THEN 'processing'
                         WHEN j.state = 0 AND j.attempts = 0 THEN 'pending' ELSE 'failed' END AS status,
                    j.owner AS locked_by, j.lease_until AS locked_until, j.attempts, j.error, j.created_at
                FROM coverage_claim AS c JOIN job AS j ON j.kind = c.job_kind AND j.key = c.job_key;",
            postgres_only: "ALTER TABLE address ADD PRIMARY KEY (id);",
        },
        Migration {
            name: "replacements",
            statements: "
                ALTER TABLE derive_line ADD COLUMN replacements BIGINT NOT NULL DEFAULT 0;
                ALTER TABLE derive_line ADD COLUMN behind TEXT;",
            postgres_only: "",
        },
    ],
};

/// Inside transactions errors are the store's.
type Stored<T> = logmill_io::Result<T>;

/// Derived tables in a database. Clones are handles to the same.
#[derive(Clone, Debug)]
pub struct Tables {
    sql: Sql,
    queue: Queue,
    interner: Arc<Interner>,
}

/// Rows of a range of final blocks, for one line.
#[derive(Clone, Debug)]
pub struct Part {
    /// Whose tables.
    pub line: Line,
    /// Which blocks.
    pub range: Heights,
    /// Their rows, folded.
    pub rows: Rows,
}

/// A change of the blocks that are not final, for one line.
#[derive(Clone, Debug)]
pub struct TipPart {
    /// Whose tables.
    pub line: Line,
    /// The tip that the change was planned from.
    pub before: TipBlocks,
    /// Blocks that come, above all that stay, with their rows, folded per block.
    pub added: Vec<(BlockRef, Rows)>,
    /// The tip afterwards: what of it is neither in `before` nor added is an error.
    pub after: TipBlocks,
}

/// Rows as the database takes them.
#[derive(Clone, Debug)]
pub struct Prepared {
    tables: Vec<(Bulk, Arc<[Vec<Value>]>)>,
}

/// Rows of a range of final blocks for one line, as the database takes them.
#[derive(Clone, Debug)]
pub(crate) struct PreparedPart {
    pub(crate) line: Line,
    pub(crate) range: Heights,
    rows: Prepared,
}

impl Tables {
    /// Opens the tables of a database, to be changed: makes or updates them if need be.
    pub async fn open(sql: Sql) -> Result<Self> {
        let queue = Queue::open(sql.clone()).await?;
        sql.migrate(&MIGRATIONS).await?;
        Ok(Self { sql, queue, interner: Arc::new(Interner::new()) })
    }

    /// Opens the tables of a database, to be read.
    pub async fn open_read_only(sql: Sql) -> Result<Self> {
        let queue = Queue::open_read_only(sql.clone()).await?;
        sql.expect_migrated(&MIGRATIONS).await?;
        Ok(Self { sql, queue, interner: Arc::new(Interner::new()) })
    }

    /// The same tables through another handle to the database.
    #[must_use]
    pub fn through(&self, sql: Sql) -> Self {
        let (queue, interner) = (self.queue.through(sql.clone()), Arc::new(Interner::new()));
        Self { sql, queue, interner }
    }

    /// The database.
    pub fn sql(&self) -> &Sql {
        &self.sql
    }

    /// The queue of the same database.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// The number of an address; none if no row names it.
    pub async fn address_id(&self, address: Address) -> Result<Option<i64>> {
        let ids = self.interner.find(&self.sql, [address].into()).await?;
        Ok(ids.get(&address).copied())
    }

    /// Makes rows ready to be stored as final ones: addresses become numbers, and rows lie in the order of their keys.
    pub async fn prepare(&self, line: &Line, rows: Rows) -> Result<Prepared> {
        let ids = self.interner.ids(&self.sql, addresses([&rows])).await?;
        let line = line.clone();
        Ok(logmill_io::compute(move || prepared(&line, rows, &ids)).await)
    }

    /// Stores prepared rows, in the transaction that covers their blocks.
    pub async fn apply_in(&self, tx: &Tx, rows: &Prepared) -> Stored<()> {
        for (bulk, rows) in &rows.tables {
            tx.bulk(bulk, Arc::clone(rows)).await?;
        }
        Ok(())
    }

    /// Marks blocks as final in a line, and takes them from its tip. Gives the parts that were not covered before.
    pub async fn cover_in(&self, tx: &Tx, line: &Line, range: &Heights) -> Stored<Vec<Heights>> {
        let tip = self.lock_tip(tx, line).await?;
        let fresh = Coverage::cover(tx, &line.scope(), range).await?;
        let (gone, kept): (Vec<_>, Vec<_>) =
            tip.0.into_iter().partition(|(number, _)| range.contains(number));
        if !gone.is_empty() {
            self.delete_tip(tx, line, gone.into_iter().map(|(number, _)| number)).await?;
            self.store_tip(tx, line, &TipBlocks(kept)).await?;
        }
        self.store_heights(tx, line).await?;
        Ok(fresh)
    }

    /// The last range that is covered, for people who look at checkpoints.
    async fn store_heights(&self, tx: &Tx, line: &Line) -> Stored<()> {
        let covered = Coverage::read(tx, &line.scope()).await?.done;
        let Some(last) = covered.ranges().next_back() else {
            return Ok(());
        };
        let height = |height: u64| i64::try_from(height).unwrap_or(i64::MAX);
        let mut params = line_params(line)?;
        params.extend(params![height(last.start), height(last.end) - 1]);
        let text =
            "UPDATE derive_line SET from_height = $4, last_height = $5, updated_at = now_ms()
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    /// Stores the rows of final blocks together with their coverage, for several lines at once.
    pub async fn commit(&self, fence: Option<&Fence>, parts: Vec<Part>) -> Result<()> {
        let prepared = self.prepare_all(parts).await?;
        self.commit_prepared(fence, &prepared).await
    }

    /// Makes the rows of several lines ready to be stored.
    pub(crate) async fn prepare_all(&self, parts: Vec<Part>) -> Result<Vec<PreparedPart>> {
        let ids = self.interner.ids(&self.sql, addresses(parts.iter().map(|p| &p.rows))).await?;
        let prepare = move |part: Part| {
            let rows = prepared(&part.line, part.rows, &ids);
            PreparedPart { line: part.line, range: part.range, rows }
        };
        Ok(logmill_io::compute(move || parts.into_iter().map(prepare).collect()).await)
    }

    /// Stores prepared rows with their coverage.
    pub(crate) async fn commit_prepared(
        &self,
        fence: Option<&Fence>,
        parts: &[PreparedPart],
    ) -> Result<()> {
        let at = &AtomicUsize::new(usize::MAX);
        let written = self.sql.write(|tx| async move {
            hold(&tx, fence).await?;
            for (number, part) in parts.iter().enumerate() {
                at.store(number, Ordering::SeqCst);
                let fresh = self.cover_in(&tx, &part.line, &part.range).await?;
                if fresh != [part.range.clone()] {
                    return Err(overtaken(&part.line));
                }
                self.apply_in(&tx, &part.rows).await?;
            }
            at.store(usize::MAX, Ordering::SeqCst);
            Ok(())
        });
        let line = |number: usize| parts.get(number).map(|part| &part.line);
        written.await.map_err(|error| blamed(error, line(at.load(Ordering::SeqCst))))
    }

    /// Changes the tips of several lines at once.
    pub async fn commit_tip(&self, fence: Option<&Fence>, parts: Vec<TipPart>) -> Result<()> {
        let added = parts.iter().flat_map(|part| part.added.iter().map(|(_, rows)| rows));
        let ids = self.interner.ids(&self.sql, addresses(added)).await?;
        let ready = parts.into_iter().map(|mut part| {
            let rows = prepared_tip(&part.line, std::mem::take(&mut part.added), &ids);
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
        let line = |number: usize| ready.get(number).map(|(part, _)| &part.line);
        written.await.map_err(|error| blamed(error, line(at.load(Ordering::SeqCst))))
    }

    async fn change_tip(&self, tx: &Tx, part: &TipPart, rows: &Prepared) -> Stored<()> {
        let line = &part.line;
        let tip = self.lock_tip(tx, line).await?;
        let covered = Coverage::read(tx, &line.scope()).await?.done;
        if tip != part.before || part.after.0.iter().any(|(number, _)| covered.contains(*number)) {
            return Err(overtaken(line));
        }
        let gone = tip.0.iter().filter(|(number, hash)| !part.after.contains(*number, *hash));
        self.delete_tip(tx, line, gone.map(|(number, _)| *number)).await?;
        self.apply_in(tx, rows).await?;
        self.store_tip(tx, line, &part.after).await
    }

    /// Which final blocks are in a line.
    pub async fn covered(&self, line: &Line) -> Result<IntervalSet> {
        Ok(Coverage::read(&self.sql, &line.scope()).await?.done)
    }

    /// The blocks whose rows are in a line's tip.
    pub async fn tip(&self, line: &Line) -> Result<TipBlocks> {
        let text = format!("SELECT tip, replacements {LINE}");
        let found = self.sql.query(&text, line_params(line)?).await?;
        Ok(tip_of(line, found.rows.first())?)
    }

    async fn lock_tip(&self, tx: &Tx, line: &Line) -> Stored<TipBlocks> {
        let text = format!("SELECT tip, replacements {LINE} FOR UPDATE");
        tip_of(line, tx.execute(&text, line_params(line)?).await?.rows.first())
    }

    async fn store_tip(&self, tx: &Tx, line: &Line, tip: &TipBlocks) -> Stored<()> {
        let mut params = line_params(line)?;
        params.push(record::encode(tip).into());
        let text = "UPDATE derive_line SET tip = $4
            WHERE chain_id = $1 AND processor = $2 AND generation = $3";
        tx.execute(text, params).await?;
        Ok(())
    }

    async fn delete_tip(
        &self,
        tx: &Tx,
        line: &Line,
        numbers: impl Iterator<Item = u64>,
    ) -> Stored<()> {
        let numbers: Arc<[Vec<Value>]> =
            numbers.map(|number| params![i64::try_from(number).unwrap_or(i64::MAX)]).collect();
        for table in line.processor.tables() {
            let (tip, block) = (line.tip_table(table), schema::TIP_BLOCK);
            let text = format!("DELETE FROM {tip} WHERE {block} = $1");
            tx.execute_many(&text, Arc::clone(&numbers)).await?;
        }
        Ok(())
    }
}

const LINE: &str = "FROM derive_line WHERE chain_id = $1 AND processor = $2 AND generation = $3";

fn line_params(line: &Line) -> Stored<Vec<Value>> {
    let chain = chain_param(line.chain_id)?;
    Ok(params![chain, line.processor.name(), line.generation])
}

fn tip_of(line: &Line, row: Option<&logmill_io::sql::Row>) -> Stored<TipBlocks> {
    // None if another process has retired it. Under another number, the rows may be of blocks that were replaced.
    let row = row.ok_or_else(|| overtaken(line))?;
    if row.count(1)? != line.replacements {
        return Err(overtaken(line));
    }
    let tip = record::decode(&row.blob(0)?, "the tip of derived tables");
    tip.map_err(|error| logmill_io::Error::Corrupt { what: error.to_string() })
}

async fn hold(tx: &Tx, fence: Option<&Fence>) -> Stored<()> {
    match fence {
        Some(fence) => tx.hold(fence).await,
        None => Ok(()),
    }
}

fn overtaken(line: &Line) -> logmill_io::Error {
    logmill_io::Error::Conflict { what: format!("what {} has derived", line.processor.name()) }
}

/// Whose fault an error of a transaction is: the line's that was worked on, unless the store failed.
fn blamed(error: logmill_io::Error, line: Option<&Line>) -> Error {
    let processor = line.map_or("derive", |line| line.processor.name());
    match error.kind() {
        ErrorKind::Conflict => Error::Overtaken { processor },
        ErrorKind::Transient | ErrorKind::Fenced => error.into(),
        _ if line.is_none() => error.into(),
        _ => Error::Processor { processor, what: logmill_io::chain(&error) },
    }
}

/// All addresses that rows name.
fn addresses<'a>(rows: impl IntoIterator<Item = &'a Rows>) -> BTreeSet<Address> {
    let rows = rows.into_iter().flat_map(|rows| rows.tables().flat_map(|(_, rows)| rows));
    let cells = rows.flat_map(|row| &row.cells);
    cells.filter_map(|cell| if let Cell::Address(a) = cell { Some(*a) } else { None }).collect()
}

fn prepared(line: &Line, rows: Rows, ids: &Ids) -> Prepared {
    let tables = rows.into_tables().into_iter().filter(|(_, rows)| !rows.is_empty());
    let tables = tables.map(|(table, rows)| {
        let mut rows: Vec<Vec<Value>> =
            rows.into_iter().map(|row| values(table, row, ids)).collect();
        sort(&mut rows, table.key_len());
        (schema::insert(table, &line.table(table)), rows.into())
    });
    Prepared { tables: tables.collect() }
}

fn prepared_tip(line: &Line, blocks: Vec<(BlockRef, Rows)>, ids: &Ids) -> Prepared {
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
            tables.push((schema::insert_tip(table, &line.table(table)), rows.into()));
        }
    }
    Prepared { tables }
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

/// In the order of the keys, as the tables lie: neighbours share pages, and no two writers lock in different orders.
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
