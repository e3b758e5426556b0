//! `MetaStore`: small mutable records with versions, conditions, atomic batches and fences.
//!
//! Kinds: [`MemoryMeta`], and [`SqlMeta`] over SQLite or PostgreSQL. Object stores are none: they can neither
//! batch nor fence.
//!
//! Guarantees, kept by every kind and checked by [`conformance`]:
//! - A [`Batch`] happens whole or not at all; if any condition or the fence does not hold, nothing changes.
//! - Of several writers with the same condition on one key, exactly one wins.
//! - A [`Version`] is never used twice, not even for a key that was deleted and written again.
//! - A batch that carries a [`Fence`] commits only while the store's counter of that name equals the fence's;
//!   the counter can not be raised between the check and the commit. Counters only grow.
//! - [`MetaStore::scan`] gives keys in the order of their bytes, at most `limit`.
//! - [`MetaStore::now`] is one clock for all who share the store (the server's, on PostgreSQL).
//!
//! Leaves to others: what the records mean, leases (`work::lease`), and trying again.

use std::fmt;
use std::ops::Bound;

use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Error, Result};

pub mod conformance;
mod memory;
mod sql;

pub use memory::MemoryMeta;
pub(crate) use sql::MIGRATIONS;
pub use sql::SqlMeta;

/// The longest key.
pub const KEY_BYTES_MAX: usize = 1_024;
/// The largest value of one record; what may be larger is a blob.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// The most operations of one batch.
pub const BATCH_OPS_MAX: usize = 10_000;
/// The most records of one scan.
pub const SCAN_LIMIT_MAX: usize = 10_000;

/// The name of a record. Keys order by their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

impl Key {
    /// The bytes of the key.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The key's bytes, shared.
    pub fn to_bytes(&self) -> Bytes {
        self.0.clone()
    }
}

impl From<&str> for Key {
    fn from(text: &str) -> Self {
        Self(Bytes::copy_from_slice(text.as_bytes()))
    }
}

impl From<String> for Key {
    fn from(text: String) -> Self {
        Self(Bytes::from(text))
    }
}

impl From<&[u8]> for Key {
    fn from(bytes: &[u8]) -> Self {
        Self(Bytes::copy_from_slice(bytes))
    }
}

impl From<Vec<u8>> for Key {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Bytes::from(bytes))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.escape_ascii())
    }
}

/// The mark of one write of one record: an opaque number that never comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub i64);

/// A value and the mark of the write that made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The value.
    pub value: Bytes,
    /// The mark of its write.
    pub version: Version,
}

/// What must hold of a key for an operation on it to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// Anything.
    Any,
    /// The key does not exist.
    Absent,
    /// The record is still the one of this version.
    Version(Version),
}

/// A counter of the store that only grows, and the value it must have: who holds a lease at a lower value
/// can not write any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fence {
    /// The name of the counter; a lease's name.
    pub name: String,
    /// The value that the holder was given.
    pub counter: i64,
}

impl Fence {
    /// The error of a writer whose fence is stale.
    pub fn stale(&self) -> Error {
        Error::Fenced { fence: self.name.clone(), counter: self.counter }
    }
}

/// One operation of a batch.
#[derive(Clone, Debug)]
pub enum Op {
    /// Writes a record.
    Put {
        /// Its key.
        key: Key,
        /// Its new value.
        value: Bytes,
        /// What must hold.
        condition: Condition,
    },
    /// Removes a record. [`Condition::Absent`] makes no sense here and is refused.
    Delete {
        /// Its key.
        key: Key,
        /// What must hold.
        condition: Condition,
    },
    /// Writes nothing: only checks.
    Check {
        /// The key to look at.
        key: Key,
        /// What must hold.
        condition: Condition,
    },
    /// Raises a counter to a higher value; a conflict if it is not higher than what is there.
    Raise(Fence),
}

impl Op {
    /// The key of a record operation.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } | Self::Check { key, .. } => Some(key),
            Self::Raise(_) => None,
        }
    }

    fn raised(&self) -> Option<&str> {
        match self {
            Self::Raise(fence) => Some(&fence.name),
            _ => None,
        }
    }
}

/// Operations that happen together or not at all.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub(crate) ops: Vec<Op>,
    pub(crate) fence: Option<Fence>,
}

impl Batch {
    /// A batch that does nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The batch happens only while this fence holds.
    #[must_use]
    pub fn fenced(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

    /// Adds a write.
    #[must_use]
    pub fn put(
        mut self,
        key: impl Into<Key>,
        value: impl Into<Bytes>,
        condition: Condition,
    ) -> Self {
        self.ops.push(Op::Put { key: key.into(), value: value.into(), condition });
        self
    }

    /// Adds a removal.
    #[must_use]
    pub fn delete(mut self, key: impl Into<Key>, condition: Condition) -> Self {
        self.ops.push(Op::Delete { key: key.into(), condition });
        self
    }

    /// Adds a condition on a record that is not written.
    #[must_use]
    pub fn check(mut self, key: impl Into<Key>, condition: Condition) -> Self {
        self.ops.push(Op::Check { key: key.into(), condition });
        self
    }

    /// Adds the raising of a counter.
    #[must_use]
    pub fn raise(mut self, fence: Fence) -> Self {
        self.ops.push(Op::Raise(fence));
        self
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Refuses what no store should be asked: too much, too long, one key or counter twice.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.ops.len() > BATCH_OPS_MAX {
            return Err(Error::invalid(format!(
                "a batch of {} operations: at most {BATCH_OPS_MAX} are allowed",
                self.ops.len()
            )));
        }
        let mut keys: Vec<&Key> = self.ops.iter().filter_map(Op::key).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("a batch names the key {} twice", pair[0])));
        }
        let mut raised: Vec<&str> = self.ops.iter().filter_map(Op::raised).collect();
        raised.sort_unstable();
        if let Some(pair) = raised.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("a batch raises the fence {} twice", pair[0])));
        }
        self.ops.iter().try_for_each(validate_op)
    }
}

fn validate_op(op: &Op) -> Result<()> {
    if let Some(key) = op.key()
        && key.as_bytes().len() > KEY_BYTES_MAX
    {
        return Err(Error::invalid(format!("a key of more than {KEY_BYTES_MAX} bytes")));
    }
    match op {
        Op::Put { key, value, .. } if value.len() > VALUE_BYTES_MAX => {
            Err(Error::invalid(format!(
                "a value of {} bytes for {key}: at most {VALUE_BYTES_MAX} are allowed",
                value.len()
            )))
        }
        Op::Delete { key, condition: Condition::Absent } => {
            Err(Error::invalid(format!("a delete of {key} on the condition that it is absent")))
        }
        _ => Ok(()),
    }
}

/// A half-open range of keys.
#[derive(Clone, Debug)]
pub struct KeyRange {
    /// Where it starts.
    pub start: Bound<Key>,
    /// Where it ends.
    pub end: Bound<Key>,
}

impl KeyRange {
    /// All keys.
    pub fn all() -> Self {
        Self { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// The keys that begin with `prefix`.
    pub fn prefix(prefix: impl Into<Key>) -> Self {
        let prefix: Key = prefix.into();
        let end = successor(prefix.as_bytes()).map_or(Bound::Unbounded, Bound::Excluded);
        Self { start: Bound::Included(prefix), end }
    }

    /// The same range, from just after `key`: the next page of a scan.
    #[must_use]
    pub fn after(mut self, key: Key) -> Self {
        self.start = Bound::Excluded(key);
        self
    }
}

/// The first key after all that begin with `prefix`; none if every later key does.
fn successor(prefix: &[u8]) -> Option<Key> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut bytes = prefix[..=last].to_vec();
    bytes[last] += 1;
    Some(Key::from(bytes))
}

/// Small mutable records; see the module.
#[async_trait]
pub trait MetaStore: Send + Sync + fmt::Debug {
    /// The record of a key, if there is one.
    async fn get(&self, key: &Key) -> Result<Option<Record>>;

    /// The records of a range in the order of their keys, at most `limit` (and [`SCAN_LIMIT_MAX`]).
    async fn scan(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Record)>>;

    /// Does all of the batch or nothing, and gives for each operation the version it wrote, if it wrote.
    async fn commit(&self, batch: Batch) -> Result<Vec<Option<Version>>>;

    /// The store's clock: one for all processes that share the store.
    async fn now(&self) -> Result<Timestamp>;

    /// Whether the process that goes by this owner name is known to have ended; see [`crate::Sql::is_gone`]. A store
    /// that cannot know says no.
    async fn is_gone(&self, _owner: &str) -> Result<bool> {
        Ok(false)
    }
}

/// What follows from the few methods of a store.
#[async_trait]
pub trait MetaStoreExt: MetaStore {
    /// The record of a key that must exist.
    async fn read(&self, key: &Key) -> Result<Record> {
        let found = self.get(key).await?;
        found.ok_or_else(|| Error::NotFound { what: format!("the record {key}") })
    }

    /// Writes one record.
    async fn put(
        &self,
        key: impl Into<Key> + Send,
        value: impl Into<Bytes> + Send,
        condition: Condition,
    ) -> Result<Version> {
        self.put_fenced(key, value, condition, None).await
    }

    /// Writes one record while a fence holds.
    async fn put_fenced(
        &self,
        key: impl Into<Key> + Send,
        value: impl Into<Bytes> + Send,
        condition: Condition,
        fence: Option<Fence>,
    ) -> Result<Version> {
        let mut batch = Batch::new().put(key, value, condition);
        batch.fence = fence;
        let versions = self.commit(batch).await?;
        let version = versions.into_iter().next().flatten();
        version.ok_or_else(|| Error::corrupt("a store gave no version for its write"))
    }

    /// Removes one record.
    async fn delete(&self, key: impl Into<Key> + Send, condition: Condition) -> Result<()> {
        self.commit(Batch::new().delete(key, condition)).await.map(|_| ())
    }
}

impl<S: MetaStore + ?Sized> MetaStoreExt for S {}
