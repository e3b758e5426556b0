//! Blobs in memory: the reference for the other implementations, and the store of quick tests.
//!
//! Guarantees: those of the trait, by one lock. There is no durability.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Bound, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    BlobMeta, BlobName, BlobStore, LIST_LIMIT_MAX, beyond_the_end, taken, validate_put,
    validate_range,
};
use crate::error::Result;

#[derive(Default)]
pub struct MemoryBlobs {
    blobs: Mutex<BTreeMap<BlobName, Bytes>>,
}

impl MemoryBlobs {
    pub fn shared() -> Arc<dyn BlobStore> {
        Arc::new(Self::default())
    }

    fn blobs(&self) -> MutexGuard<'_, BTreeMap<BlobName, Bytes>> {
        self.blobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Prints the number of blobs, not their contents, which may be gigabytes.
impl fmt::Debug for MemoryBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryBlobs({} blobs)", self.blobs().len())
    }
}

#[async_trait]
impl BlobStore for MemoryBlobs {
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()> {
        validate_put(name, &bytes)?;
        let mut blobs = self.blobs();
        let stored = blobs.entry(name.clone()).or_insert_with(|| bytes.clone());
        if *stored == bytes { Ok(()) } else { Err(taken(name)) }
    }

    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>> {
        Ok(self.blobs().get(name).cloned())
    }

    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>> {
        validate_range(name, &range)?;
        let Some(bytes) = self.get(name).await? else {
            return Ok(None);
        };
        let within = |end: u64| usize::try_from(end).ok().filter(|end| *end <= bytes.len());
        match (within(range.start), within(range.end)) {
            (Some(start), Some(end)) => Ok(Some(bytes.slice(start..end))),
            _ => Err(beyond_the_end(name, &range, bytes.len() as u64)),
        }
    }

    async fn delete(&self, name: &BlobName) -> Result<()> {
        self.blobs().remove(name);
        Ok(())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>> {
        let blobs = self.blobs();
        let later = match after {
            Some(after) => blobs.range((Bound::Excluded(after), Bound::Unbounded)),
            None => blobs.range::<BlobName, _>(..),
        };
        let matching = later.filter(|(name, _)| name.as_str().starts_with(prefix));
        let metas = matching
            .map(|(name, bytes)| BlobMeta { name: name.clone(), bytes: bytes.len() as u64 });
        Ok(metas.take(limit.min(LIST_LIMIT_MAX)).collect())
    }
}
