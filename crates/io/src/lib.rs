//! The outside world: time, randomness, tasks, stores, SQL and remote servers.
//!
//! All input that Logmill does not control comes through this crate, as a real, an in-memory and a
//! fault-injecting implementation, so that the crates above can be tested exhaustively on one thread.
//!
//! - [`Clock`], [`Entropy`], [`Tasks`]: the only places that read a clock, draw randomness or start tasks.
//! - [`MetaStore`]: small mutable records with versions, atomic batches and fences.
//! - [`BlobStore`]: large immutable objects.
//! - [`mod@file`]: plain files made by, or for, other programs.
//! - [`mod@disk`]: free space, and whether a folder can be written.
//! - [`mod@private`]: files and folders that only their owner may read.
//! - [`Sql`]: one thin interface to SQLite and PostgreSQL.
//! - [`wire`]: clients of remote servers, by HTTP, WebSocket and Unix socket.
//! - [`mod@group_commit`]: callers that share a commit.
//! - [`FaultyStore`], [`Faults`], [`CrashMatrix`]: fault injection.
//! - [`meta::conformance`], [`blob::conformance`]: tests that every implementation must pass.
//!
//! Guarantees: no other crate touches disk, network, clock or randomness. Leaves to others: chains, jobs, and
//! the meaning of stored bytes.

// `clippy.toml` bans these methods everywhere else.
#![allow(clippy::disallowed_methods)]

pub mod blob;
mod clock;
mod crash_matrix;
pub mod disk;
mod entropy;
mod error;
mod fault;
mod faulty_store;
mod fence;
pub mod file;
pub mod group_commit;
pub mod meta;
mod open_files;
pub mod private;
mod proof;
pub mod sql;
mod task;
mod violation;
pub mod wire;

pub use blob::{BlobMeta, BlobName, BlobStore, BlobStoreExt};
pub use clock::{Clock, SimClock, SystemClock, Timestamp, millis};
pub use crash_matrix::CrashMatrix;
pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use error::{Error, ErrorKind, Result, error_chain};
pub use fault::{Fault, Faults};
pub use faulty_store::FaultyStore;
pub use fence::Fence;
pub use meta::{Batch, Condition, Key, KeyRange, MetaStore, MetaStoreExt, Record, Version};
pub use open_files::raise_open_files;
pub use proof::proof_cases;
pub use sql::{Amount, Row, Sql, Tx, Value};
pub use task::{TaskPanic, Tasks, apart, compute, in_crowd};
pub use violation::Violation;
