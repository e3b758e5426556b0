//! Well-known job queues from the registry, on the same PostgreSQL server as ours.
//!
//! `apalis` is a general framework with many back ends. `graphile_worker` is built only for PostgreSQL and for
//! throughput: it claims single jobs, or batches through a local queue with batched acknowledgements, and it deletes
//! finished jobs, so its table stays small.

mod apalis;
mod graphile;

use std::str::FromStr;
use std::time::Duration;

use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgPool, PgPoolOptions};

use crate::engine::Engine;
use crate::settings::Settings;

/// The peers, in the order of the report.
pub fn engines(settings: &Settings) -> Vec<Box<dyn Engine>> {
    vec![
        Box::new(apalis::Apalis { batch: settings.apalis_batch }),
        Box::new(graphile::Graphile { batch: settings.graphile_batch }),
    ]
}

/// A pool without sqlx's default ping before each use, which would cost the peers a round trip per statement. All
/// connections are opened before the clock starts.
async fn pool(url: &str, connections: usize) -> anyhow::Result<PgPool> {
    let connections = u32::try_from(connections)?;
    let options = PgConnectOptions::from_str(url)?.disable_statement_logging();
    Ok(PgPoolOptions::new()
        .min_connections(connections)
        .max_connections(connections)
        .acquire_timeout(Duration::from_secs(60))
        .idle_timeout(None)
        .max_lifetime(None)
        .test_before_acquire(false)
        .connect_with(options)
        .await?)
}
