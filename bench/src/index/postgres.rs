//! PostgreSQL: a table with one row per log and the usual indexes, filled by binary COPY.

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use finalized_log_index::{
    Address, B256, BlockLog, Blocks, Bytes, Filter, FinalizedBlock, Log, Topics,
};
use futures::{SinkExt, pin_mut};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

use super::copy::Rows;
use super::engine::{Cost, Engine, FoundLogs, IndexSize, QueryMode, QueryOutcome, Stopwatch, trim};
use super::filter_sql::Conditions;
use crate::cpu;
use crate::postgres::Server;

const DATABASE: &str = "logs";

/// Server settings besides those of every benchmark: memory for the indexes, and fewer full-page writes.
pub const SERVER_SETTINGS: &[(&str, &str)] =
    &[("shared_buffers", "4GB"), ("max_wal_size", "32GB"), ("wal_compression", "lz4")];

/// Session settings: a plan for each query by its terms, since some are frequent and some are rare; costs of memory
/// and solid-state disks.
const SESSION: &str = "SET plan_cache_mode = force_custom_plan;
    SET random_page_cost = 1.1;
    SET effective_cache_size = '12GB';
    SET work_mem = '64MB';
    SET max_parallel_workers_per_gather = 2;";

const SCHEMA: &str = "CREATE TABLE blocks (number bigint PRIMARY KEY, timestamp bigint NOT NULL,
        hash bytea NOT NULL UNIQUE, parent_hash bytea NOT NULL);
    CREATE TABLE logs (block bigint NOT NULL, log_index int NOT NULL, transaction_index int NOT NULL,
        transaction_hash bytea NOT NULL, address bytea NOT NULL,
        topic0 bytea, topic1 bytea, topic2 bytea, topic3 bytea, data bytea NOT NULL,
        PRIMARY KEY (block, log_index));
    CREATE INDEX ON logs (address, block);
    CREATE INDEX ON logs (topic0, block) WHERE topic0 IS NOT NULL;
    CREATE INDEX ON logs (topic1, block) WHERE topic1 IS NOT NULL;
    CREATE INDEX ON logs (topic2, block) WHERE topic2 IS NOT NULL;
    CREATE INDEX ON logs (topic3, block) WHERE topic3 IS NOT NULL;
    ALTER TABLE logs ALTER data SET STORAGE MAIN;
    ALTER TABLE logs ALTER address SET STATISTICS 1000;
    ALTER TABLE logs ALTER topic0 SET STATISTICS 1000;";

const COLUMNS: &str = "l.block, l.log_index, l.transaction_index, l.transaction_hash, l.address, \
                       l.topic0, l.topic1, l.topic2, l.topic3, l.data";

pub struct Postgres {
    server: Arc<Server>,
    client: Client,
    version: String,
    statements: std::collections::BTreeMap<String, Statement>,
}

impl Postgres {
    pub async fn create(server: Arc<Server>) -> anyhow::Result<Self> {
        server.create(DATABASE).await?;
        let client = server.connect(DATABASE).await?;
        client.batch_execute(SESSION).await?;
        client.batch_execute(SCHEMA).await?;
        let version = client.query_one("SELECT current_setting('server_version')", &[]).await?;
        let version = version.get(0);
        Ok(Self { server, client, version, statements: Default::default() })
    }

    async fn copy(&mut self, blocks: &[FinalizedBlock]) -> anyhow::Result<()> {
        let (block_rows, log_rows) = rows(blocks);
        let transaction = self.client.transaction().await?;
        for (table, rows) in [("blocks", block_rows), ("logs", log_rows)] {
            let copy = format!("COPY {table} FROM STDIN (FORMAT binary)");
            let sink = transaction.copy_in(&copy).await?;
            pin_mut!(sink);
            sink.send(rows).await?;
            sink.finish().await?;
        }
        transaction.commit().await?;
        Ok(())
    }

    async fn statement(&mut self, sql: String) -> anyhow::Result<Statement> {
        if let Some(statement) = self.statements.get(&sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(&sql).await?;
        self.statements.insert(sql, statement.clone());
        Ok(statement)
    }

    async fn range(&mut self, filter: &Filter) -> anyhow::Result<Option<(i64, i64)>> {
        match &filter.blocks {
            Blocks::Range(range) | Blocks::Covered(range) => {
                Ok(Some((i64::try_from(*range.start())?, i64::try_from(*range.end())?)))
            }
            Blocks::Hash(hash) => {
                let sql = "SELECT number FROM blocks WHERE hash = $1".to_owned();
                let find = self.statement(sql).await?;
                let row = self.client.query_opt(&find, &[&hash.as_slice()]).await?;
                Ok(row.map(|row| (row.get(0), row.get(0))))
            }
        }
    }

    async fn find(&mut self, filter: &Filter) -> anyhow::Result<Vec<Log>> {
        let Some((first, last)) = self.range(filter).await? else { return Ok(Vec::new()) };
        let conditions = Conditions::of(filter, '$', 3);
        let limit =
            filter.max_results.map_or(String::new(), |limit| format!(" LIMIT {}", limit + 1));
        let sql = format!(
            "SELECT {COLUMNS} FROM logs l WHERE block BETWEEN $1 AND $2{} \
             ORDER BY block, log_index{limit}",
            conditions.and()
        );
        let select = self.statement(sql).await?;
        let mut parameters: Vec<&(dyn ToSql + Sync)> = vec![&first, &last];
        for term in &conditions.terms {
            parameters.push(term);
        }
        let rows = self.client.query(&select, &parameters).await?;
        let mut numbers: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
        numbers.dedup();
        // One more round trip for the blocks of the answer: a join would read one for each log.
        let sql = "SELECT hash, timestamp FROM blocks WHERE number = ANY($1) ORDER BY number";
        let read_blocks = self.statement(sql.to_owned()).await?;
        let blocks = match numbers.as_slice() {
            [] => Vec::new(),
            _ => self.client.query(&read_blocks, &[&numbers]).await?,
        };
        let mut logs = joined(&rows, &blocks)?;
        trim(&mut logs, filter.max_results, |log| log.block_number);
        Ok(logs)
    }
}

fn rows(blocks: &[FinalizedBlock]) -> (bytes::Bytes, bytes::Bytes) {
    let mut block_rows = Rows::new(blocks.len() * 128);
    let mut log_rows = Rows::new(blocks.iter().map(|block| block.logs.len()).sum::<usize>() * 320);
    for block in blocks {
        block_rows.row(4);
        block_rows.big(block.number);
        block_rows.big(block.timestamp);
        block_rows.bytes(block.hash.as_slice());
        block_rows.bytes(block.parent_hash.as_slice());
        for log in &block.logs {
            log_rows.row(10);
            log_rows.big(block.number);
            log_rows.int(log.log_index);
            log_rows.int(log.transaction_index);
            log_rows.bytes(log.transaction_hash.as_slice());
            log_rows.bytes(log.address.as_slice());
            for position in 0..4 {
                match log.topics.get(position) {
                    Some(topic) => log_rows.bytes(topic.as_slice()),
                    None => log_rows.null(),
                }
            }
            log_rows.bytes(&log.data);
        }
    }
    (block_rows.finish(), log_rows.finish())
}

/// Joins logs with the hash and time of their blocks; both are in the order of the chain.
fn joined(rows: &[Row], blocks: &[Row]) -> anyhow::Result<Vec<Log>> {
    let mut logs: Vec<Log> = Vec::with_capacity(rows.len());
    let mut blocks = blocks.iter();
    for row in rows {
        let number = u64::try_from(row.get::<_, i64>(0))?;
        let (block_hash, block_timestamp) = match logs.last() {
            Some(last) if last.block_number == number => (last.block_hash, last.block_timestamp),
            _ => {
                let block = blocks.next().ok_or_else(|| anyhow::anyhow!("no block {number}"))?;
                (B256::from_slice(block.get(0)), u64::try_from(block.get::<_, i64>(1))?)
            }
        };
        let log = log(row)?;
        logs.push(Log { block_number: number, block_hash, block_timestamp, log });
    }
    Ok(logs)
}

fn log(row: &Row) -> anyhow::Result<BlockLog> {
    let topics = (5..9).map_while(|column| row.get::<_, Option<&[u8]>>(column));
    Ok(BlockLog {
        address: Address::from_slice(row.get(4)),
        topics: topics.map(B256::from_slice).collect::<Topics>(),
        data: Bytes::copy_from_slice(row.get(9)),
        transaction_hash: B256::from_slice(row.get(3)),
        transaction_index: u32::try_from(row.get::<_, i32>(2))?,
        log_index: u32::try_from(row.get::<_, i32>(1))?,
    })
}

#[async_trait(?Send)]
impl Engine for Postgres {
    fn name(&self) -> &'static str {
        "postgresql"
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        vec![("postgresql", self.version.clone())]
    }

    fn tuning(&self) -> String {
        let server: Vec<String> =
            SERVER_SETTINGS.iter().map(|(name, value)| format!("{name} = {value}")).collect();
        let session = SESSION.replace("SET ", "").replace("\n    ", " ");
        format!("{}; {session} binary COPY, prepared statements, VACUUM ANALYZE", server.join("; "))
    }

    async fn ingest(&mut self, blocks: Vec<FinalizedBlock>) -> anyhow::Result<Cost> {
        let watch = Stopwatch::start();
        self.copy(&blocks).await?;
        Ok(watch.stop())
    }

    async fn settle(&mut self) -> anyhow::Result<Cost> {
        let watch = Stopwatch::start();
        self.client.batch_execute("CHECKPOINT").await?;
        Ok(watch.stop())
    }

    async fn prepare_queries(&mut self) -> anyhow::Result<()> {
        Ok(self.client.batch_execute("VACUUM ANALYZE").await?)
    }

    async fn query(&mut self, filter: &Filter, mode: QueryMode) -> anyhow::Result<QueryOutcome> {
        let start = Instant::now();
        let logs = self.find(filter).await?;
        let elapsed = start.elapsed();
        let results = logs.len();
        Ok(QueryOutcome {
            elapsed,
            results,
            found: (mode == QueryMode::Logs).then_some(FoundLogs::Logs(logs)),
        })
    }

    async fn disk_bytes(&mut self) -> anyhow::Result<u64> {
        let sql =
            "SELECT (pg_total_relation_size('logs') + pg_total_relation_size('blocks'))::bigint";
        Ok(u64::try_from(self.client.query_one(sql, &[]).await?.get::<_, i64>(0))?)
    }

    async fn index_size(&mut self) -> anyhow::Result<Option<IndexSize>> {
        let sql = "SELECT (pg_indexes_size('logs') - pg_relation_size('logs_pkey'))::bigint";
        let bytes = u64::try_from(self.client.query_one(sql, &[]).await?.get::<_, i64>(0))?;
        Ok(Some(IndexSize { bytes, values: None }))
    }

    fn server_cpu_s(&self) -> anyhow::Result<f64> {
        cpu::of_server(self.server.postmaster())
    }
}
