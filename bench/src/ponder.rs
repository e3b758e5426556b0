//! The benchmark of end-to-end indexing: transfers and balances of a token, from a node to tables, against Ponder.
//!
//! | module | content |
//! |---|---|
//! | [`chain`] | the token on anvil, its balances, and the comparison with them |
//! | [`peer`] | Ponder as a process, on PostgreSQL |
//! | [`ours`] | Logmill as a process, on SQLite and on PostgreSQL |
//! | [`report`] | the result as JSON and as a table |

pub mod chain;
pub mod ours;
pub mod peer;
pub mod report;
pub mod settings;

use std::time::{Duration, Instant};

use crate::cpu;
use crate::postgres::Server as Postgres;
use crate::rpc::server::Server;

/// How often an indexer is polled.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Result of an indexer, from the start of its process until everything is in its tables.
#[derive(Clone, Debug)]
pub struct Run {
    pub seconds: f64,
    /// The part of `seconds` until it answered HTTP.
    pub start_seconds: f64,
    pub indexer_cpu_s: f64,
    /// CPU of anvil during the run.
    pub node_cpu_s: f64,
    /// CPU of PostgreSQL during the run; none on SQLite, which runs inside the indexer.
    pub database_cpu_s: Option<f64>,
    /// Number of rows in each of its tables.
    pub rows: Vec<(String, u64)>,
}

/// Measures a running indexer.
pub struct IndexerStopwatch<'a> {
    node: &'a Server,
    database: Option<&'a Postgres>,
    started: Instant,
    node_cpu_s: f64,
    database_cpu_s: Option<f64>,
}

impl<'a> IndexerStopwatch<'a> {
    /// Call this just before the indexer's process is started.
    pub fn start(node: &'a Server, database: Option<&'a Postgres>) -> anyhow::Result<Self> {
        let node_cpu_s = cpu::of_process(node.pid())?;
        let database_cpu_s = cpu_of(database)?;
        Ok(Self { node, database, started: Instant::now(), node_cpu_s, database_cpu_s })
    }

    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// Call this when the indexer is done; `start` is when it first answered.
    pub fn done(&self, indexer: &Server, start: Duration) -> anyhow::Result<Run> {
        let seconds = self.elapsed().as_secs_f64();
        let database_cpu_s = cpu_of(self.database)?.zip(self.database_cpu_s);
        Ok(Run {
            seconds,
            start_seconds: start.as_secs_f64(),
            indexer_cpu_s: cpu::of_process(indexer.pid())?,
            node_cpu_s: cpu::of_process(self.node.pid())? - self.node_cpu_s,
            database_cpu_s: database_cpu_s.map(|(after, before)| after - before),
            rows: Vec::new(),
        })
    }
}

fn cpu_of(database: Option<&Postgres>) -> anyhow::Result<Option<f64>> {
    database.map(|database| cpu::of_server(database.postmaster())).transpose()
}
