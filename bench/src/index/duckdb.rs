//! DuckDB: one wide table in the order of the chain, so that the minimum and maximum block of each row group narrow a
//! query.
//!
//! It runs as a Python process with DuckDB's own packages (`duckdb.py`). Rows are passed in as Arrow columns without
//! a copy, one transaction per commit, and out as an Arrow table: the fastest way that its users have for both. Times
//! are taken in that process and exclude the pipe.

use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use async_trait::async_trait;
use finalized_log_index::{BlockLog, Blocks, Filter, FinalizedBlock};
use serde_json::{Value, json};

use super::engine::{Cost, Engine, FoundLogs, QueryMode, QueryOutcome};
use super::filter_sql::Conditions;
use crate::cpu;

const PROGRAM: &str = include_str!("duckdb.py");

/// Size of the write-ahead log at which it is merged into the table's columns.
const CHECKPOINT_THRESHOLD: &str = "1GB";

/// Indexed columns of the variant with indexes: those whose terms are mostly rare. DuckDB does not use an index for
/// terms with many rows.
const INDEXED: [&str; 4] = ["address", "topic1", "topic2", "topic3"];

/// The table, open in a separate process.
pub struct DuckDb {
    has_indexes: bool,
    child: Child,
    requests: Option<BufWriter<ChildStdin>>,
    answers: BufReader<ChildStdout>,
    folder: PathBuf,
    hello: Value,
}

impl DuckDb {
    /// With or without ART indexes.
    pub fn create(python: &Path, folder: &Path, has_indexes: bool) -> anyhow::Result<Self> {
        let config = json!({ "checkpoint_threshold": CHECKPOINT_THRESHOLD });
        let mut child = Command::new(python)
            .args(["-c", PROGRAM])
            .arg(folder.join("logs.duckdb"))
            .arg(config.to_string())
            .arg(json!(if has_indexes { &INDEXED[..] } else { &[] }).to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| {
                format!("starting {}: run `tools/python.sh bench` first", python.display())
            })?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("DuckDB's process has no pipes");
        };
        let mut duckdb = Self {
            has_indexes,
            child,
            requests: Some(BufWriter::with_capacity(1 << 20, stdin)),
            answers: BufReader::with_capacity(1 << 20, stdout),
            folder: folder.to_owned(),
            hello: Value::Null,
        };
        duckdb.hello = duckdb.answer()?;
        Ok(duckdb)
    }

    fn ask(&mut self, request: &Value, buffers: &[Buffer]) -> anyhow::Result<Value> {
        let requests = self.requests.as_mut().context("DuckDB's process is closed")?;
        writeln!(requests, "{request}")?;
        for buffer in buffers {
            match buffer {
                None => requests.write_all(&(-1i64).to_le_bytes())?,
                Some(bytes) => {
                    requests.write_all(&i64::try_from(bytes.len())?.to_le_bytes())?;
                    requests.write_all(bytes)?;
                }
            }
        }
        requests.flush()?;
        self.answer()
    }

    fn answer(&mut self) -> anyhow::Result<Value> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "DuckDB's process has ended; see its message above");
        Ok(serde_json::from_str(&line)?)
    }

    fn run(&mut self, sql: &str) -> anyhow::Result<Duration> {
        elapsed(&self.ask(&json!({ "op": "run", "sql": sql }), &[])?)
    }
}

impl Drop for DuckDb {
    fn drop(&mut self) {
        // End of input ends the process.
        self.requests = None;
        let _ = self.child.wait();
    }
}

fn elapsed(answer: &Value) -> anyhow::Result<Duration> {
    answer["ns"].as_u64().map(Duration::from_nanos).context("an answer of DuckDB without its time")
}

/// Bytes of an Arrow buffer; none for the validity bitmap of a column without nulls.
type Buffer = Option<Vec<u8>>;

/// The rows of all logs as Arrow buffers, in the order of `LOGS` and then `BLOCKS` in `duckdb.py`.
fn buffers(blocks: &[FinalizedBlock]) -> Vec<Buffer> {
    let mut all = Vec::new();
    let mut column = |write: &dyn Fn(&FinalizedBlock, &BlockLog, &mut Vec<u8>)| {
        let mut bytes = Vec::new();
        for block in blocks {
            block.logs.iter().for_each(|log| write(block, log, &mut bytes));
        }
        all.extend([None, Some(bytes)]);
    };
    column(&|block, _, to| to.extend_from_slice(&block.number.to_le_bytes()));
    column(&|block, _, to| to.extend_from_slice(block.hash.as_slice()));
    column(&|block, _, to| to.extend_from_slice(&block.timestamp.to_le_bytes()));
    column(&|_, log, to| to.extend_from_slice(&log.log_index.to_le_bytes()));
    column(&|_, log, to| to.extend_from_slice(&log.transaction_index.to_le_bytes()));
    column(&|_, log, to| to.extend_from_slice(log.transaction_hash.as_slice()));
    column(&|_, log, to| to.extend_from_slice(log.address.as_slice()));
    let logs = || blocks.iter().flat_map(|block| &block.logs);
    for position in 0..4 {
        let mut bytes = Vec::new();
        let mut valid = vec![0u8; logs().count().div_ceil(8)];
        for (row, log) in logs().enumerate() {
            let topic = log.topics.get(position);
            valid[row / 8] |= u8::from(topic.is_some()) << (row % 8);
            bytes.extend_from_slice(topic.copied().unwrap_or_default().as_slice());
        }
        all.extend([Some(valid), Some(bytes)]);
    }
    let (mut ends, mut data) = (0i32.to_le_bytes().to_vec(), Vec::new());
    for log in logs() {
        data.extend_from_slice(&log.data);
        ends.extend_from_slice(&i32::try_from(data.len()).unwrap_or(i32::MAX).to_le_bytes());
    }
    all.extend([None, Some(ends), Some(data)]);
    let numbers = blocks.iter().flat_map(|block| block.number.to_le_bytes()).collect();
    let hashes = blocks.iter().flat_map(|block| block.hash.0).collect();
    all.extend([None, Some(numbers), None, Some(hashes)]);
    all
}

fn request(filter: &Filter, mode: QueryMode) -> Value {
    let conditions = Conditions::of(filter, '$', 1);
    let limit = filter.max_results.map_or(String::new(), |limit| format!(" LIMIT {}", limit + 1));
    let range = format!("block BETWEEN $first AND $last{}", conditions.and());
    let sql = if limit.is_empty() {
        format!("SELECT * FROM logs WHERE {range} ORDER BY block, log_index")
    } else {
        // Only row numbers are sorted and cut before whole rows are read.
        format!(
            "SELECT * FROM logs WHERE rowid IN (SELECT rowid FROM logs WHERE {range} \
             ORDER BY block, log_index{limit}) ORDER BY block, log_index"
        )
    };
    let (first, last, hash) = match &filter.blocks {
        Blocks::Range(range) | Blocks::Covered(range) => {
            (*range.start(), *range.end(), String::new())
        }
        Blocks::Hash(hash) => (0, 0, hex(hash.as_slice())),
    };
    let terms: Vec<String> = conditions.terms.iter().map(|term| hex(term)).collect();
    json!({
        "op": "query", "sql": sql, "terms": terms, "first": first, "last": last, "hash": hash,
        "limit": filter.max_results, "logs": mode == QueryMode::Logs,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[async_trait(?Send)]
impl Engine for DuckDb {
    fn name(&self) -> &'static str {
        if self.has_indexes { "duckdb-art" } else { "duckdb" }
    }

    fn versions(&self) -> Vec<(&'static str, String)> {
        let version = |name: &str| self.hello[name].as_str().unwrap_or("unknown").to_owned();
        vec![("duckdb", version("duckdb")), ("pyarrow", version("pyarrow"))]
    }

    fn tuning(&self) -> String {
        format!(
            "checkpoint_threshold = {CHECKPOINT_THRESHOLD}; rows in and out as Arrow, sorted by block; \
             ART indexes on {:?}; times without the pipe",
            if self.has_indexes { &INDEXED[..] } else { &[] }
        )
    }

    async fn ingest(&mut self, blocks: Vec<FinalizedBlock>) -> anyhow::Result<Cost> {
        let logs: usize = blocks.iter().map(|block| block.logs.len()).sum();
        let request = json!({ "op": "ingest", "logs": logs, "blocks": blocks.len() });
        let answer = self.ask(&request, &buffers(&blocks))?;
        Ok(Cost { elapsed: elapsed(&answer)?, client_cpu: Duration::ZERO })
    }

    async fn settle(&mut self) -> anyhow::Result<Cost> {
        Ok(Cost { elapsed: self.run("CHECKPOINT")?, client_cpu: Duration::ZERO })
    }

    async fn prepare_queries(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    async fn query(&mut self, filter: &Filter, mode: QueryMode) -> anyhow::Result<QueryOutcome> {
        let answer = self.ask(&request(filter, mode), &[])?;
        let count = |name: &str| usize::try_from(answer[name].as_u64().unwrap_or(0));
        let mut bytes = vec![0; count("bytes")?];
        self.answers.read_exact(&mut bytes)?;
        let found = (mode == QueryMode::Logs).then_some(FoundLogs::Encoded(bytes));
        Ok(QueryOutcome { elapsed: elapsed(&answer)?, results: count("results")?, found })
    }

    async fn disk_bytes(&mut self) -> anyhow::Result<u64> {
        super::engine::folder_bytes(&self.folder)
    }

    fn works_in_this_process(&self) -> bool {
        false
    }

    fn server_cpu_s(&self) -> anyhow::Result<f64> {
        cpu::of_server(self.child.id())
    }
}
