//! The metrics recorder.
//!
//! Guarantees: one per process. Leaves to others: what is counted, and exporting it.

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use crate::error::{Error, Result};

/// Histogram bounds of `logmill_block_lag_seconds`.
const LAG_BUCKETS: [f64; 12] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// Installs the recorder, once per process, before any task runs: what is counted earlier is lost.
pub fn record_metrics() -> Result<PrometheusHandle> {
    let lag = Matcher::Full("logmill_block_lag_seconds".to_owned());
    let recorder = PrometheusBuilder::new().set_buckets_for_metric(lag, &LAG_BUCKETS);
    let recorder = recorder.and_then(PrometheusBuilder::install_recorder);
    recorder.map_err(Error::Metrics)
}
