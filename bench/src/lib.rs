//! The harness of Logmill's benchmarks: real servers, peers from the registry, one JSON object per benchmark.
//!
//! It measures engines through their public interface and checks that the store contains what they report. It leaves
//! to the caller the choice of the machine and of a time when it is quiet.

pub mod api;
pub mod cpu;
pub mod derive;
pub mod engine;
pub mod http;
pub mod index;
pub mod ingest;
pub mod logmill;
pub mod machine;
pub mod memory;
pub mod meter;
pub mod peers;
pub mod pgbench;
pub mod ponder;
pub mod postgres;
pub mod report;
pub mod rounds;
pub mod rpc;
pub mod settings;
pub mod tally;
