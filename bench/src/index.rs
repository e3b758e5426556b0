//! The benchmark of the log index: the same chain in several stores, side by side in one run.
//!
//! Every engine ingests the same blocks with durable commits, in turns, and then answers the same queries, in turns.
//! Answers must be equal: a sample of every class is compared byte for byte before anything is timed.

pub mod answer;
pub mod append;
pub mod copy;
pub mod duckdb;
pub mod engine;
pub mod filter_sql;
pub mod logmill;
pub mod postgres;
pub mod queries;
pub mod report;
pub mod rounds;
pub mod settings;
pub mod sqlite;
