//! The flags of the benchmark of metering.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::rpc::settings::built_logmill;

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum MeasurementPart {
    Deliveries,
}

/// Measures metering: usage over HTTP, queries during it, webhooks after it
#[derive(Clone, Debug, Parser)]
#[command(name = "meter", version)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Engines to measure
    #[arg(long, value_delimiter = ',', default_value = "sqlite,postgresql")]
    pub engines: Vec<String>,
    /// Number of events sent in batches of 1000, before anything else is measured
    #[arg(long, default_value_t = 2_000_000)]
    pub events: u64,
    /// Duration of each further load, in seconds
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Number of connections that send batches
    #[arg(long, default_value_t = 16)]
    pub connections: usize,
    /// Number of connections that send single events
    #[arg(long, default_value_t = 256)]
    pub single_connections: usize,
    /// Number of customers
    #[arg(long, default_value_t = 1_000)]
    pub customers: u64,
    /// Percentage of events that are sent again
    #[arg(long, default_value_t = 5)]
    pub duplicates_percent: u64,
    /// Number of days before now that have usage
    #[arg(long, default_value_t = 30)]
    pub days: u64,
    /// Events happen when they are sent; else at random over those days, the worst case
    #[arg(long)]
    pub live: bool,
    /// Number of webhook endpoints; one of ten is dead
    #[arg(long, default_value_t = 10)]
    pub endpoints: usize,
    /// Number of deliveries to live endpoints when only deliveries are measured
    #[arg(long, default_value_t = 100_000)]
    pub deliveries: u64,
    /// Measure only this
    #[arg(long)]
    pub only: Option<MeasurementPart>,
    /// Path of the server [default: the result of `cargo build --release -p logmill`]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// A smoke run; its figures mean nothing
    #[arg(long)]
    pub quick: bool,
}

impl Settings {
    #[must_use]
    pub fn settled(mut self) -> Self {
        if self.quick {
            self.events = 20_000;
            self.seconds = 1.0;
            self.customers = 50;
            self.deliveries = 1_000;
        }
        self
    }

    pub fn logmill(&self) -> PathBuf {
        self.logmill.clone().unwrap_or_else(built_logmill)
    }
}
