//! The outside world: time, randomness, tasks, stores, SQL and other people's servers.
//!
//! Everything that Logmill does not decide itself comes in through this crate, in a real kind, an in-memory
//! kind and a faulty kind, so that the crates above can be tested to death on one thread.
//!
//! - [`Clock`], [`Entropy`], [`Tasks`]: the only places that read a clock, draw randomness or start tasks.
//! - [`MetaStore`]: small mutable records with versions, atomic batches and fences.
//! - [`BlobStore`]: large immutable things.
//! - [`mod@file`]: plain files that others made or will read.
//! - [`mod@disk`]: free space, and whether a folder can be written.
//! - [`mod@private`]: files and folders of their owner alone.
//! - [`Sql`]: one thin face over SQLite and PostgreSQL.
//! - [`wire`]: clients of other people's servers, by HTTP, WebSocket and Unix socket.
//! - [`Faulty`], [`Faults`]: failure on purpose.
//! - [`meta::conformance`], [`blob::conformance`]: what every kind must pass.
//!
//! Guarantees: no other crate touches disk, network, clock or randomness. Leaves to others: chains, jobs, and
//! what any of the stored bytes mean.

// The ban list of `clippy.toml` names what only this crate may do.
#![allow(clippy::disallowed_methods)]

pub mod blob;
mod clock;
pub mod disk;
mod entropy;
mod error;
mod fault;
pub mod file;
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
pub use entropy::{Entropy, OsEntropy, SeededEntropy};
pub use error::{Error, ErrorKind, Result, chain};
pub use fault::{Fault, Faults, Faulty};
pub use meta::{Batch, Condition, Fence, Key, KeyRange, MetaStore, MetaStoreExt, Record, Version};
pub use open_files::raise_open_files;
pub use proof::proof_cases;
pub use sql::{Amount, Row, Sql, Tx, Value};
pub use task::{Panicked, Tasks, apart, compute};
pub use violation::Violation;
