//! The benchmark of indexing end to end: transfers and balances of a token, from a node to tables, beside Ponder.
//!
//! | module | what |
//! |---|---|
//! | [`chain`] | the token on anvil, who has how much of it, and the comparison with that |
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

/// How often an indexer is asked whether it is done.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What an indexer took, from the start of its process until everything was in its tables.
#[derive(Clone, Debug)]
pub struct Run {
    pub seconds: f64,
    /// Of those, until it answered HTTP.
    pub start_seconds: f64,
    pub indexer_cpu_s: f64,
    /// Of anvil meanwhile.
    pub node_cpu_s: f64,
    /// Of PostgreSQL meanwhile; none on SQLite, which is in the indexer.
    pub database_cpu_s: Option<f64>,
    /// How many rows its tables have.
    pub rows: Vec<(String, u64)>,
}

/// An indexer that runs.
pub struct Watch<'a> {
    node: &'a Server,
    database: Option<&'a Postgres>,
    started: Instant,
    node_cpu_s: f64,
    database_cpu_s: Option<f64>,
}

impl<'a> Watch<'a> {
    /// Its process is started next.
    pub fn start(node: &'a Server, database: Option<&'a Postgres>) -> anyhow::Result<Self> {
        let node_cpu_s = cpu::of_process(node.pid())?;
        let database_cpu_s = cpu_of(database)?;
        Ok(Self { node, database, started: Instant::now(), node_cpu_s, database_cpu_s })
    }

    /// How long it has been running.
    pub fn elapsed(&self) -> Duration {
        self.started.elapsed()
    }

    /// It is done, and answered since `start`.
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
