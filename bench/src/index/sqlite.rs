//! SQLite: a table with one row per log and the usual indexes.
//!
//! The primary key (block, log_index) is one integer, so that it is SQLite's rowid: the table is in the order of the
//! chain, and every index ends with the rowid, which makes `(address)` an index on `(address, block, log_index)`
//! without a second copy. Hash and time of a block are in a table of blocks and read once per block of an answer.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use async_trait::async_trait;
use finalized_log_index::{
    Address, B256, BlockLog, Blocks, Bytes, Filter, FinalizedBlock, Log, Topics,
};
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::engine::{Cost, Engine, FoundLogs, QueryMode, QueryOutcome, Stopwatch, trim};
use super::filter_sql::Conditions;

/// Bits of the rowid that hold the log index.
const LOG_BITS: u32 = 24;

/// The write-ahead log is checkpointed every 256 MiB: a page is then written once for many commits.
const PRAGMAS: &str = "PRAGMA page_size = 8192;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA cache_size = -1048576;
    PRAGMA mmap_size = 17179869184;
    PRAGMA wal_autocheckpoint = 32768;
    PRAGMA temp_store = MEMORY;";

const SCHEMA: &str = "CREATE TABLE blocks (number INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE,
        parent_hash BLOB NOT NULL, timestamp INTEGER NOT NULL);
    CREATE TABLE logs (id INTEGER PRIMARY KEY, transaction_index INTEGER NOT NULL,
        transaction_hash BLOB NOT NULL, address BLOB NOT NULL,
        topic0 BLOB, topic1 BLOB, topic2 BLOB, topic3 BLOB, data BLOB NOT NULL);
    CREATE INDEX by_address ON logs (address);
    CREATE INDEX by_topic0 ON logs (topic0) WHERE topic0 IS NOT NULL;
    CREATE INDEX by_topic1 ON logs (topic1) WHERE topic1 IS NOT NULL;
    CREATE INDEX by_topic2 ON logs (topic2) WHERE topic2 IS NOT NULL;
    CREATE INDEX by_topic3 ON logs (topic3) WHERE topic3 IS NOT NULL;";

const INSERT: &str = "INSERT INTO logs VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";

pub struct Sqlite {
    connection: Connection,
    folder: PathBuf,
}

impl Sqlite {
    pub fn create(folder: &Path) -> anyhow::Result<Self> {
        let connection = Connection::open(folder.join("logs.db"))?;
        connection.execute_batch(PRAGMAS)?;
        connection.execute_batch(SCHEMA).context("creating the tables")?;
        connection.set_prepared_statement_cache_capacity(64);
        Ok(Self { connection, folder: folder.to_owned() })
    }

    fn insert(&mut self, blocks: &[FinalizedBlock]) -> anyhow::Result<()> {
        let transaction = self.connection.transaction()?;
        let mut insert = transaction.prepare_cached(INSERT)?;
        let mut insert_block =
            transaction.prepare_cached("INSERT INTO blocks VALUES (?1, ?2, ?3, ?4)")?;
        for block in blocks {
            insert_block.execute(params![
                block.number,
                block.hash.as_slice(),
                block.parent_hash.as_slice(),
                block.timestamp
            ])?;
            for log in &block.logs {
                let topic = |n: usize| log.topics.get(n).map(|topic| topic.as_slice());
                insert.execute(params![
                    id(block.number, log.log_index),
                    log.transaction_index,
                    log.transaction_hash.as_slice(),
                    log.address.as_slice(),
                    topic(0),
                    topic(1),
                    topic(2),
                    topic(3),
                    &log.data[..],
                ])?;
            }
        }
        drop((insert, insert_block));
        transaction.commit()?;
        Ok(())
    }

    /// First and last block of a filter; none if there is no such block.
    fn range(&self, filter: &Filter) -> anyhow::Result<Option<(u64, u64)>> {
        match &filter.blocks {
            Blocks::Range(range) | Blocks::Covered(range) => {
                Ok(Some((*range.start(), *range.end())))
            }
            Blocks::Hash(hash) => {
                let mut find =
                    self.connection.prepare_cached("SELECT number FROM blocks WHERE hash = ?1")?;
                let number = find.query_row([hash.as_slice()], |row| row.get(0)).optional()?;
                Ok(number.map(|number| (number, number)))
            }
        }
    }

    fn find(&self, filter: &Filter) -> anyhow::Result<Vec<Log>> {
        let Some((first, last)) = self.range(filter)? else { return Ok(Vec::new()) };
        let conditions = Conditions::of(filter, '?', 4);
        // Without the hint, SQLite sometimes prefers to scan all rows of the range.
        let hint = if filter.addresses.is_empty() { "" } else { "INDEXED BY by_address" };
        // Only rowids are sorted and cut, from the index, before a row is read.
        let is_limited = filter.max_results.is_some();
        let inner =
            format!("{hint} WHERE id BETWEEN ?1 AND ?2{} ORDER BY id LIMIT ?3", conditions.and());
        let sql = if is_limited {
            format!("SELECT * FROM logs WHERE id IN (SELECT id FROM logs {inner}) ORDER BY id")
        } else {
            format!("SELECT * FROM logs {inner}")
        };
        let limit =
            filter.max_results.map_or(i64::MAX, |limit| i64::try_from(limit).unwrap_or(0) + 1);
        let mut select = self.connection.prepare_cached(&sql)?;
        select.raw_bind_parameter(1, id(first, 0))?;
        select.raw_bind_parameter(2, id(last + 1, 0) - 1)?;
        select.raw_bind_parameter(3, limit)?;
        for (n, term) in conditions.terms.iter().enumerate() {
            select.raw_bind_parameter(4 + n, term)?;
        }
        let mut read_block = self
            .connection
            .prepare_cached("SELECT hash, timestamp FROM blocks WHERE number = ?1")?;
        let mut logs: Vec<Log> = Vec::new();
        let mut rows = select.raw_query();
        while let Some(row) = rows.next()? {
            let number = row.get::<_, u64>(0)? >> LOG_BITS;
            let (hash, timestamp) = match logs.last() {
                Some(last) if last.block_number == number => {
                    (last.block_hash, last.block_timestamp)
                }
                _ => read_block.query_row([number], |row| {
                    Ok((B256::from_slice(row.get_ref(0)?.as_blob()?), row.get(1)?))
                })?,
            };
            logs.push(log(row, number, hash, timestamp)?);
        }
        trim(&mut logs, filter.max_results, |log| log.block_number);
        Ok(logs)
    }
}

fn id(block: u64, log_index: u32) -> i64 {
    i64::try_from(block << LOG_BITS | u64::from(log_index)).unwrap_or(i64::MAX)
}

fn log(row: &Row<'_>, number: u64, hash: B256, timestamp: u64) -> rusqlite::Result<Log> {
    let mut topics = Topics::new();
    for column in 4..8 {
        let Some(topic) = row.get_ref(column)?.as_blob_or_null()? else { break };
        topics.push(B256::from_slice(topic));
    }
    Ok(Log {
        block_number: number,
        block_hash: hash,
        block_timestamp: timestamp,
        log: BlockLog {
            address: Address::from_slice(row.get_ref(3)?.as_blob()?),
            topics,
            data: Bytes::copy_from_slice(row.get_ref(8)?.as_blob()?),
            transaction_hash: B256::from_slice(row.get_ref(2)?.as_blob()?),
            transaction_index: row.get(1)?,
            log_index: u32::try_from(row.get::<_, u64>(0)? & ((1 << LOG_BITS) - 1)).unwrap_or(0),
        },
    })
}

#[async_trait(?Send)]
impl Engine for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        vec![("sqlite", rusqlite::version().to_owned())]
    }

    fn tuning(&self) -> String {
        let pragmas = PRAGMAS.replace("PRAGMA ", "").replace("\n    ", " ");
        format!("{pragmas} prepared statements, integer primary key, partial indexes, ANALYZE")
    }

    async fn ingest(&mut self, blocks: Vec<FinalizedBlock>) -> anyhow::Result<Cost> {
        let watch = Stopwatch::start();
        self.insert(&blocks)?;
        Ok(watch.stop())
    }

    async fn settle(&mut self) -> anyhow::Result<Cost> {
        let watch = Stopwatch::start();
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
        Ok(watch.stop())
    }

    async fn prepare_queries(&mut self) -> anyhow::Result<()> {
        // Enough rows of each index to distinguish rare terms from frequent ones.
        Ok(self.connection.execute_batch("PRAGMA analysis_limit = 100000; ANALYZE;")?)
    }

    async fn query(&mut self, filter: &Filter, mode: QueryMode) -> anyhow::Result<QueryOutcome> {
        let start = Instant::now();
        let logs = self.find(filter)?;
        let elapsed = start.elapsed();
        let results = logs.len();
        Ok(QueryOutcome {
            elapsed,
            results,
            found: (mode == QueryMode::Logs).then_some(FoundLogs::Logs(logs)),
        })
    }

    async fn disk_bytes(&mut self) -> anyhow::Result<u64> {
        super::engine::folder_bytes(&self.folder)
    }
}
