//! Sightings: the chain's head as the process that writes last saw it, kept in the shared store.
//!
//! A process that does not write asks no node for the head. It learns from this record how far its view lags, and
//! whether any process still reaches the chain.
//!
//! Guarantees: only the holder of the index's writer lease can change the record, by its fence; a reader gets an age
//! that is measured by the store's clock alone. Leaves to others: how old is too old.
//!
//! Stored form, at `PREFIX/seen`: JSON `{"v":1,"owner":…,"head":…,"seen_at_ms":…,"damaged":…}`.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::{Batch, Condition, Fence, Key, MetaStore};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

const VERSION: u8 = 1;

/// The head as it was last seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sighting {
    /// The highest block that a node reported.
    pub head: u64,
    /// How long ago a node did.
    pub age: Duration,
    /// The process that asked.
    pub owner: String,
    /// How many stored blocks the audit of that process has found damaged.
    pub damaged: u64,
}

/// The record of one chain's sightings.
#[derive(Clone, Debug)]
pub struct Sightings {
    meta: Arc<dyn MetaStore>,
    key: Key,
}

#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    v: u8,
    owner: String,
    head: u64,
    seen_at_ms: i64,
    damaged: u64,
}

impl Sightings {
    /// The record of the chain whose tip has this prefix.
    pub fn new(meta: Arc<dyn MetaStore>, prefix: &str) -> Self {
        Self { meta, key: Key::from(format!("{prefix}/seen")) }
    }

    /// The last sighting; none if there never was one.
    pub async fn read(&self) -> Result<Option<Sighting>> {
        let Some(record) = self.meta.get(&self.key).await? else {
            return Ok(None);
        };
        let stored: Stored = serde_json::from_slice(&record.value)
            .map_err(|error| Error::corrupt(format!("{}: {error}", self.key)))?;
        if stored.v != VERSION {
            return Err(Error::corrupt(format!("{} has version {}", self.key, stored.v)));
        }
        let age_ms = self.meta.now().await?.millis().saturating_sub(stored.seen_at_ms);
        Ok(Some(Sighting {
            head: stored.head,
            age: Duration::from_millis(u64::try_from(age_ms).unwrap_or(0)),
            owner: stored.owner,
            damaged: stored.damaged,
        }))
    }

    /// Replaces the sighting; refused to a writer that was replaced itself.
    pub(crate) async fn publish(&self, seen: &Sighting, fence: Fence) -> Result<()> {
        let age_ms = i64::try_from(seen.age.as_millis()).unwrap_or(i64::MAX);
        let stored = Stored {
            v: VERSION,
            owner: seen.owner.clone(),
            head: seen.head,
            seen_at_ms: self.meta.now().await?.millis().saturating_sub(age_ms),
            damaged: seen.damaged,
        };
        let value = serde_json::to_vec(&stored);
        let value = value.map_err(|error| Error::Invalid { what: error.to_string() })?;
        let batch = Batch::new().put(self.key.clone(), value, Condition::Any).fenced(fence);
        self.meta.commit(batch).await?;
        Ok(())
    }
}
