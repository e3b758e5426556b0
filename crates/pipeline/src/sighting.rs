//! Sightings: the chain's head as the writing process last saw it, kept in the shared store.
//!
//! A process that does not write does not ask nodes for the head. It learns from this record how far its view lags, and
//! whether any process still reaches the chain.
//!
//! Guarantees: only the holder of the index's writer lease can change the record, which its fence enforces; the age of
//! a sighting is measured by the store's clock alone. Leaves to others: how old is too old.
//!
//! Stored form, at `PREFIX/seen`: JSON `{"v":1,"owner":…,"head":…,"stored":…,"seen_at_ms":…,"damaged":…}`, with
//! `"uncompared":{"from":…,"to":…,"why":…}` where there are such blocks. Records of earlier versions lack `stored`.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::{Batch, Condition, Fence, Key, MetaStore};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const VERSION: u8 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// Highest block that a node reported.
    pub head: u64,
    /// Highest block that the writing process had stored by then. A reader's own view may be ahead of it by the blocks
    /// stored since.
    pub stored: Option<u64>,
    /// Time since a node reported the head.
    pub age: Duration,
    /// The process that asked the node.
    pub owner: String,
    /// Number of stored blocks that the audit of that process has found damaged.
    pub damaged: u64,
    /// Final blocks stored without node fields, as far as that process knows.
    pub uncompared: Option<UncomparedBlocks>,
}

/// Final blocks without node fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UncomparedBlocks {
    pub from: u64,
    /// The last such block; blocks between the two may be complete.
    pub to: u64,
    /// Why the last attempt to fetch some of them failed.
    pub why: Option<String>,
}

#[derive(Clone, Debug)]
pub struct Sightings {
    meta: Arc<dyn MetaStore>,
    key: Key,
}

#[derive(Debug, Serialize, Deserialize)]
struct StoredSighting {
    v: u8,
    owner: String,
    head: u64,
    #[serde(default)]
    stored: Option<u64>,
    seen_at_ms: i64,
    damaged: u64,
    /// Absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    uncompared: Option<UncomparedBlocks>,
}

impl Sightings {
    /// The record of the chain whose tip has this prefix.
    pub fn new(meta: Arc<dyn MetaStore>, prefix: &str) -> Self {
        Self { meta, key: Key::from(format!("{prefix}/seen")) }
    }

    /// The last sighting, if there is one.
    pub async fn read(&self) -> Result<Option<Sighting>> {
        let Some(record) = self.meta.get(&self.key).await? else {
            return Ok(None);
        };
        let stored: StoredSighting = serde_json::from_slice(&record.value)
            .map_err(|error| Error::corrupt(format!("{}: {error}", self.key)))?;
        if stored.v != VERSION {
            return Err(Error::corrupt(format!("{} has version {}", self.key, stored.v)));
        }
        // A time in the future means that the clock was set back. Its distance from now counts as the age: an age of
        // zero would let a dead writer look alive until the clock has caught up.
        let age_ms = self.meta.now().await?.millis().abs_diff(stored.seen_at_ms);
        Ok(Some(Sighting {
            head: stored.head,
            stored: stored.stored,
            age: Duration::from_millis(age_ms),
            owner: stored.owner,
            damaged: stored.damaged,
            uncompared: stored.uncompared,
        }))
    }

    /// Replaces the sighting; a writer that has lost its lease is fenced.
    pub(crate) async fn publish(&self, seen: &Sighting, fence: Fence) -> Result<()> {
        let age_ms = i64::try_from(seen.age.as_millis()).unwrap_or(i64::MAX);
        let stored = StoredSighting {
            v: VERSION,
            owner: seen.owner.clone(),
            head: seen.head,
            stored: seen.stored,
            seen_at_ms: self.meta.now().await?.millis().saturating_sub(age_ms),
            damaged: seen.damaged,
            uncompared: seen.uncompared.clone(),
        };
        let value = serde_json::to_vec(&stored);
        let value = value.map_err(|error| Error::Invalid { what: error.to_string() })?;
        let batch = Batch::new().put(self.key.clone(), value, Condition::Any).fenced(fence);
        self.meta.commit(batch).await?;
        Ok(())
    }
}
