//! `MetaStore`: small mutable records with versions, conditions, atomic batches and fences.
//!
//! Implementations: [`MemoryMeta`], and [`SqlMeta`] over SQLite or PostgreSQL. Object stores do not qualify:
//! they have neither batches nor fences.
//!
//! Guarantees of every implementation, checked by [`conformance`]:
//! - A [`Batch`] happens completely or not at all; if any condition or the fence does not hold, nothing
//!   changes.
//! - Of several writers with the same condition on one key, exactly one wins.
//! - A [`Version`] is never reused, not even for a key that was deleted and written again.
//! - A batch that carries a [`Fence`] commits only while the store's counter of that name equals the fence's;
//!   the counter cannot be raised between the check and the commit. Counters only grow.
//! - [`MetaStore::scan`] returns at most `limit` keys, in byte order.
//! - [`MetaStore::now`] is one clock for all processes that share the store (the server's, on PostgreSQL).
//!
//! Leaves to others: what the records mean, leases (`work::lease`), and retries.

use std::fmt;
use std::ops::Bound;

use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::Timestamp;
use crate::error::{Error, Result};
use crate::fence::Fence;

pub mod conformance;
mod memory;
mod sql;

pub use memory::MemoryMeta;
pub use sql::SqlMeta;

pub const KEY_BYTES_MAX: usize = 1_024;
/// Maximum size of a value; larger data belongs in a blob.
pub const VALUE_BYTES_MAX: usize = 64 << 20;
/// Maximum number of operations in a batch.
pub const BATCH_OPS_MAX: usize = 10_000;
/// Maximum number of records that a scan returns.
pub const SCAN_LIMIT_MAX: usize = 10_000;

/// Identifies a record. Keys are ordered by their bytes.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Bytes);

impl Key {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

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

/// Identifies one write of one record: an opaque number that is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Version(pub i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub value: Bytes,
    pub version: Version,
}

/// What must hold for an operation to happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Any,
    Absent,
    /// The record still has this version.
    Version(Version),
}

#[derive(Clone, Debug)]
pub enum Op {
    Put {
        key: Key,
        value: Bytes,
        condition: Condition,
    },
    /// [`Condition::Absent`] makes no sense here and is refused.
    Delete {
        key: Key,
        condition: Condition,
    },
    /// Writes nothing: only checks the condition.
    Check {
        key: Key,
        condition: Condition,
    },
    /// Raises a counter; a conflict unless the new value is higher.
    Raise(Fence),
}

impl Op {
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
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the batch conditional on this fence.
    #[must_use]
    pub fn fenced(mut self, fence: Fence) -> Self {
        self.fence = Some(fence);
        self
    }

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

    #[must_use]
    pub fn delete(mut self, key: impl Into<Key>, condition: Condition) -> Self {
        self.ops.push(Op::Delete { key: key.into(), condition });
        self
    }

    /// Adds a condition on a record that the batch does not write.
    #[must_use]
    pub fn check(mut self, key: impl Into<Key>, condition: Condition) -> Self {
        self.ops.push(Op::Check { key: key.into(), condition });
        self
    }

    #[must_use]
    pub fn raise(mut self, fence: Fence) -> Self {
        self.ops.push(Op::Raise(fence));
        self
    }

    pub fn len(&self) -> usize {
        self.ops.len()
    }

    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Rejects batches that are too large or use one key or counter twice.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.ops.len() > BATCH_OPS_MAX {
            return Err(Error::invalid(format!(
                "a batch has {} operations: at most {BATCH_OPS_MAX} are allowed",
                self.ops.len()
            )));
        }
        let mut keys: Vec<&Key> = self.ops.iter().filter_map(Op::key).collect();
        keys.sort_unstable();
        if let Some(pair) = keys.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(Error::invalid(format!("a batch uses the key {} twice", pair[0])));
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
        return Err(Error::invalid(format!("a key has more than {KEY_BYTES_MAX} bytes")));
    }
    match op {
        Op::Put { key, value, .. } if value.len() > VALUE_BYTES_MAX => {
            Err(Error::invalid(format!(
                "the value of {key} has {} bytes: at most {VALUE_BYTES_MAX} are allowed",
                value.len()
            )))
        }
        Op::Delete { key, condition: Condition::Absent } => {
            Err(Error::invalid(format!("cannot delete {key} on the condition that it is absent")))
        }
        _ => Ok(()),
    }
}

#[derive(Clone, Debug)]
pub struct KeyRange {
    pub start: Bound<Key>,
    pub end: Bound<Key>,
}

impl KeyRange {
    pub fn all() -> Self {
        Self { start: Bound::Unbounded, end: Bound::Unbounded }
    }

    /// All keys with this prefix.
    pub fn prefix(prefix: impl Into<Key>) -> Self {
        let prefix: Key = prefix.into();
        let end = successor(prefix.as_bytes()).map_or(Bound::Unbounded, Bound::Excluded);
        Self { start: Bound::Included(prefix), end }
    }

    /// The same range starting just after `key`: the next page of a scan.
    #[must_use]
    pub fn after(mut self, key: Key) -> Self {
        self.start = Bound::Excluded(key);
        self
    }
}

/// The first key after all keys with this prefix; `None` if there is no such key.
fn successor(prefix: &[u8]) -> Option<Key> {
    let last = prefix.iter().rposition(|byte| *byte != u8::MAX)?;
    let mut bytes = prefix[..=last].to_vec();
    bytes[last] += 1;
    Some(Key::from(bytes))
}

/// Small mutable records; see the module.
#[async_trait]
pub trait MetaStore: Send + Sync + fmt::Debug {
    async fn get(&self, key: &Key) -> Result<Option<Record>>;

    /// Returns the records of a range ordered by key, at most `limit` (and [`SCAN_LIMIT_MAX`]).
    async fn scan(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Record)>>;

    /// Applies the whole batch or nothing. Returns the version that each operation wrote, if it wrote one.
    async fn commit(&self, batch: Batch) -> Result<Vec<Option<Version>>>;

    /// The store's clock, shared by all processes that use the store.
    async fn now(&self) -> Result<Timestamp>;

    /// Whether the process with this owner name is known to have ended; see [`crate::Sql::is_gone`]. A store
    /// that cannot know returns false.
    async fn is_gone(&self, _owner: &str) -> Result<bool> {
        Ok(false)
    }
}

/// Methods derived from those of [`MetaStore`].
#[async_trait]
pub trait MetaStoreExt: MetaStore {
    /// Returns the record of a key that must exist.
    async fn read(&self, key: &Key) -> Result<Record> {
        let found = self.get(key).await?;
        found.ok_or_else(|| Error::NotFound { what: format!("the record {key}") })
    }

    async fn put(
        &self,
        key: impl Into<Key> + Send,
        value: impl Into<Bytes> + Send,
        condition: Condition,
    ) -> Result<Version> {
        self.put_fenced(key, value, condition, None).await
    }

    /// Writes one record if the fence holds.
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
        version.ok_or_else(|| Error::corrupt("the store returned no version for a write"))
    }

    async fn delete(&self, key: impl Into<Key> + Send, condition: Condition) -> Result<()> {
        self.commit(Batch::new().delete(key, condition)).await.map(|_| ())
    }
}

impl<S: MetaStore + ?Sized> MetaStoreExt for S {}
