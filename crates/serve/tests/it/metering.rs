//! Metering over HTTP, from usage to corrected aggregates, on both database engines.

mod access;
mod aggregates;
mod batches;
mod compressed;
mod corrections;
mod damage;
mod documented;
mod engine;
mod ground;
mod hooks;
mod lists;
mod naive;
mod once;
mod operations;
mod queries;
mod send;
mod sources;
mod stream;
mod trends;
