//! The bodies of blocks: everything kept of them besides their logs, in separate blobs.
//!
//! In the tail a body is a record. When a section is sealed or a chunk is built, its bodies are written to blobs that
//! the chunk's entry lists; a merge takes them over unchanged.
//!
//! Guarantees: a body that is found is the one that was added with its block; damage is an error that names the blob.
//! Leaves to others: the content of a body, writing blobs ([`crate::body_upload`]), and bodies in the tail.

pub(crate) mod blob;

use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::Bytes;
use logmill_io::BlobStore;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

use crate::codec::{as_u64, to_usize};
use crate::error::{Error, Result};
use crate::records::chunks::BodiesRef;
use blob::{BodiesDirectory, offsets_in};

/// Approximate size of a directory or group in memory.
const PART_BYTES_ROUGHLY: u64 = 256 << 10;

/// Reads blobs of bodies through a bounded cache.
#[derive(Debug)]
pub(crate) struct BodyReader {
    blobs: Arc<dyn BlobStore>,
    prefix: String,
    cache: Cache<(u64, u64, BodyPart), CachedBodyPart, BodyPartWeighter>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum BodyPart {
    Directory,
    Group(usize),
}

#[derive(Clone, Debug)]
enum CachedBodyPart {
    Directory(Arc<BodiesDirectory>),
    Group(bytes::Bytes),
}

#[derive(Clone, Debug)]
struct BodyPartWeighter;

impl Weighter<(u64, u64, BodyPart), CachedBodyPart> for BodyPartWeighter {
    fn weight(&self, _: &(u64, u64, BodyPart), cached: &CachedBodyPart) -> u64 {
        let bytes = match cached {
            CachedBodyPart::Directory(directory) => directory.weight(),
            CachedBodyPart::Group(group) => group.len(),
        };
        as_u64(bytes + size_of::<CachedBodyPart>())
    }
}

impl BodyReader {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, prefix: String, cache_bytes: u64) -> Self {
        let items = usize::try_from(cache_bytes / PART_BYTES_ROUGHLY).unwrap_or(usize::MAX);
        let cache = Cache::with_weighter(items.max(16), cache_bytes, BodyPartWeighter);
        Self { blobs, prefix, cache }
    }

    pub(crate) async fn body(&self, bodies: &BodiesRef, number: u64) -> Result<Option<Bytes>> {
        let directory = self.directory(bodies).await?;
        let offset = to_usize(number - bodies.blocks.start)?;
        let Some((group, place)) = directory.place(offset) else {
            return Ok(None);
        };
        Ok(Some(Bytes::from(self.group(bodies, &directory, group).await?.slice(place))))
    }

    pub(crate) async fn blocks_of(&self, bodies: &BodiesRef, key: u64) -> Result<Vec<u64>> {
        let directory = self.directory(bodies).await?;
        let mut found = Vec::new();
        for bucket in directory.buckets(key) {
            let bytes = self.bytes(bodies, bucket).await?;
            let offsets =
                offsets_in(&bytes, key).map_err(|error| error.in_chunk(&name_of(bodies)))?;
            found.extend(offsets.into_iter().map(|offset| bodies.blocks.start + offset));
        }
        found.retain(|number| bodies.blocks.contains(number));
        Ok(found)
    }

    async fn directory(&self, bodies: &BodiesRef) -> Result<Arc<BodiesDirectory>> {
        let key = (bodies.token, bodies.blocks.start, BodyPart::Directory);
        if let Some(CachedBodyPart::Directory(directory)) = self.cache.get(&key) {
            return Ok(directory);
        }
        let bytes = self.bytes(bodies, bodies.directory_at..bodies.bytes).await?;
        let directory = BodiesDirectory::decode(&bytes);
        let directory = Arc::new(directory.map_err(|error| error.in_chunk(&name_of(bodies)))?);
        self.cache.insert(key, CachedBodyPart::Directory(Arc::clone(&directory)));
        Ok(directory)
    }

    async fn group(
        &self,
        bodies: &BodiesRef,
        directory: &BodiesDirectory,
        group: usize,
    ) -> Result<bytes::Bytes> {
        let key = (bodies.token, bodies.blocks.start, BodyPart::Group(group));
        if let Some(CachedBodyPart::Group(bytes)) = self.cache.get(&key) {
            return Ok(bytes);
        }
        let bytes = self.bytes(bodies, directory.group(group)).await?;
        let raw = directory.open_group(group, &bytes);
        let raw = raw.map_err(|error| error.in_chunk(&name_of(bodies)))?;
        self.cache.insert(key, CachedBodyPart::Group(raw.clone()));
        Ok(raw)
    }

    async fn bytes(&self, bodies: &BodiesRef, range: Range<u64>) -> Result<bytes::Bytes> {
        let name = bodies.blob_name(&self.prefix)?;
        match self.blobs.get_range(&name, range).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(Error::ChunkMissing { chunk: name_of(bodies) }),
            Err(error) if error.kind() == logmill_io::ErrorKind::Invalid => {
                Err(Error::corrupt(error.to_string()).in_chunk(&name_of(bodies)))
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Name of a blob of bodies in errors.
pub(crate) fn name_of(bodies: &BodiesRef) -> String {
    format!(
        "the chunk of the bodies of blocks {} to {} (attempt {:016x})",
        bodies.blocks.start,
        bodies.blocks.end - 1,
        bodies.token
    )
}

#[cfg(test)]
mod tests;
