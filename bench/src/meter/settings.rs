//! What the benchmark of metering is told.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};

use crate::rpc::settings::built_logmill;

/// A part of the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Only {
    Deliveries,
}

/// The load, the engines, and where the program is.
#[derive(Clone, Debug, Parser)]
#[command(name = "meter", version)]
pub struct Settings {
    /// Write the result to this file, as one JSON object
    #[arg(long)]
    pub json: Option<PathBuf>,
    /// Engines to measure
    #[arg(long, value_delimiter = ',', default_value = "sqlite,postgresql")]
    pub engines: Vec<String>,
    /// Events that are sent in batches of 1000, before anything else is measured
    #[arg(long, default_value_t = 2_000_000)]
    pub events: u64,
    /// Seconds of each further load
    #[arg(long, default_value_t = 10.0)]
    pub seconds: f64,
    /// Connections that send batches
    #[arg(long, default_value_t = 16)]
    pub connections: usize,
    /// Connections that send events one by one
    #[arg(long, default_value_t = 256)]
    pub single_connections: usize,
    /// Customers
    #[arg(long, default_value_t = 1_000)]
    pub customers: u64,
    /// Of a hundred events so many are sent again
    #[arg(long, default_value_t = 5)]
    pub duplicates_percent: u64,
    /// Over how many days before now usage lies
    #[arg(long, default_value_t = 30)]
    pub days: u64,
    /// Events happen when they are sent; else at random over those days, the worst case
    #[arg(long)]
    pub live: bool,
    /// Endpoints that webhooks go to; one of ten is dead
    #[arg(long, default_value_t = 10)]
    pub endpoints: usize,
    /// Deliveries that are measured alone, at endpoints that live
    #[arg(long, default_value_t = 100_000)]
    pub deliveries: u64,
    /// Measure this alone
    #[arg(long)]
    pub only: Option<Only>,
    /// The server [default: what `cargo build --release -p logmill` makes]
    #[arg(long)]
    pub logmill: Option<PathBuf>,
    /// A smoke run, figures without meaning
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
