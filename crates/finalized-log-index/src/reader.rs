//! Reads parts of chunks through a bounded cache.
//!
//! Guarantees: every part is checked before use; pages are checked when they are opened. Absence and damaged parts are
//! never cached. A damaged or missing part is an error that names the chunk. Leaves to others: handling that error
//! ([`crate::query`]).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use logmill_io::BlobStore;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use roaring::RoaringBitmap;

use crate::chunk::{Directory, decode_content};
use crate::codec::{as_u64, to_usize, unseal};
use crate::error::{Error, Result};
use crate::metric::Metrics;
use crate::records::chunks::ChunkEntry;
use crate::section::{BlockRow, Content};
use crate::term::Fingerprint;
use crate::terms::{self, BitmapRef, Group};

/// Approximate size of a directory.
const DIRECTORY_BYTES_ROUGHLY: u64 = 64 << 10;
/// Minimum weight of an entry, which bounds the number of entries in a cache.
const ENTRY_BYTES_MIN: u64 = 512;
/// Approximate size of a bucket or page.
const PART_BYTES_ROUGHLY: u64 = 4 << 10;

/// Part of a chunk; with the chunk's token, the key of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum ChunkPart {
    Directory,
    Bucket(usize),
    Bitmap(u64),
    Page(usize),
    Blocks,
}

#[derive(Clone, Debug)]
enum CachedPart {
    Directory(Arc<Directory>),
    Bucket(Bytes),
    Bitmap(Arc<RoaringBitmap>),
    Page(Bytes),
    Blocks(Arc<Vec<BlockRow>>),
}

#[derive(Clone, Debug)]
struct PartWeighter;

impl Weighter<(u64, ChunkPart), CachedPart> for PartWeighter {
    fn weight(&self, _: &(u64, ChunkPart), cached: &CachedPart) -> u64 {
        let bytes = match cached {
            CachedPart::Directory(directory) => directory.weight(),
            CachedPart::Bucket(bucket) => bucket.len(),
            CachedPart::Bitmap(bitmap) => bitmap.serialized_size(),
            CachedPart::Page(page) => page.len(),
            CachedPart::Blocks(blocks) => blocks.len() * size_of::<BlockRow>(),
        };
        as_u64(bytes + size_of::<(u64, ChunkPart)>() + size_of::<CachedPart>()).max(ENTRY_BYTES_MIN)
    }
}

#[derive(Debug)]
pub(crate) struct ChunkReader {
    blobs: Arc<dyn BlobStore>,
    prefix: String,
    metrics: Metrics,
    /// Every query of a chunk needs its directory.
    directories: Cache<(u64, ChunkPart), CachedPart, PartWeighter>,
    /// All other parts; a separate cache, so that they do not evict directories.
    parts: Cache<(u64, ChunkPart), CachedPart, PartWeighter>,
}

impl ChunkReader {
    pub(crate) fn new(
        blobs: Arc<dyn BlobStore>,
        prefix: String,
        cache_bytes: u64,
        metrics: Metrics,
    ) -> Self {
        let half = cache_bytes / 2;
        let cache = |item_bytes: u64| {
            let items = usize::try_from(half / item_bytes).unwrap_or(usize::MAX);
            Cache::with_weighter(items.max(16), half, PartWeighter)
        };
        let (directories, parts) = (cache(DIRECTORY_BYTES_ROUGHLY), cache(PART_BYTES_ROUGHLY));
        Self { blobs, prefix, metrics, directories, parts }
    }

    async fn bytes(&self, chunk: &ChunkEntry, range: Range<u64>) -> Result<Bytes> {
        let name = chunk.blob_name(&self.prefix)?;
        self.metrics.blob_read(range.end - range.start);
        match self.blobs.get_range(&name, range).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(missing(chunk)),
            Err(error) if error.kind() == logmill_io::ErrorKind::Invalid => {
                Err(Error::corrupt(error.to_string()).in_chunk(&name_of(chunk)))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn cached(&self, chunk: &ChunkEntry, part: ChunkPart) -> Option<CachedPart> {
        let cached = self.cache(part).get(&(chunk.token, part));
        self.metrics.cache_looked_up(cached.is_some());
        cached
    }

    fn keep(&self, chunk: &ChunkEntry, part: ChunkPart, cached: CachedPart) {
        self.cache(part).insert((chunk.token, part), cached);
    }

    fn cache(&self, part: ChunkPart) -> &Cache<(u64, ChunkPart), CachedPart, PartWeighter> {
        if part == ChunkPart::Directory { &self.directories } else { &self.parts }
    }

    /// Reads the directory and checks it against the entry.
    pub(crate) async fn directory(&self, chunk: &ChunkEntry) -> Result<Arc<Directory>> {
        if let Some(CachedPart::Directory(directory)) = self.cached(chunk, ChunkPart::Directory) {
            return Ok(directory);
        }
        let bytes = self.bytes(chunk, chunk.directory_at..chunk.bytes).await?;
        let directory = Directory::decode(&bytes, chunk.directory_at);
        let directory = directory.map_err(|error| error.in_chunk(&name_of(chunk)))?;
        let fits = directory.blocks == chunk.blocks
            && directory.logs == chunk.logs
            && directory.parent_hash == chunk.parent_hash
            && directory.last_hash == chunk.last_hash;
        if !fits {
            return Err(Error::corrupt("its content differs from the published entry")
                .in_chunk(&name_of(chunk)));
        }
        let directory = Arc::new(directory);
        self.keep(chunk, ChunkPart::Directory, CachedPart::Directory(Arc::clone(&directory)));
        Ok(directory)
    }

    /// Looks up a term in its bucket.
    pub(crate) async fn group(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
        fingerprint: Fingerprint,
    ) -> Result<Option<Group>> {
        let index = terms::bucket_index(fingerprint, directory.bucket_bits);
        let part = ChunkPart::Bucket(index);
        let find = |bucket: &[u8]| {
            let found = terms::find(bucket, fingerprint, directory.bucket_bits);
            found.map_err(|error| error.in_chunk(&name_of(chunk)))
        };
        if let Some(CachedPart::Bucket(bucket)) = self.cached(chunk, part) {
            return find(&bucket);
        }
        let bucket = self.bytes(chunk, directory.bucket_bytes(index)).await?;
        let found = find(&bucket)?;
        self.keep(chunk, part, CachedPart::Bucket(bucket));
        Ok(found)
    }

    /// Reads the ids of a larger group.
    pub(crate) async fn bitmap(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
        stored: &BitmapRef,
    ) -> Result<Arc<RoaringBitmap>> {
        let part = ChunkPart::Bitmap(stored.bytes.start);
        if let Some(CachedPart::Bitmap(bitmap)) = self.cached(chunk, part) {
            return Ok(bitmap);
        }
        let within = |error: Error| error.in_chunk(&name_of(chunk));
        let range = directory.posting_bytes(&stored.bytes).map_err(within)?;
        let bytes = self.bytes(chunk, range).await?;
        let bitmap = terms::read_bitmap(&bytes, stored).map_err(within)?;
        if stored.max >= directory.logs {
            return Err(within(Error::corrupt("a bitmap refers to logs that do not exist")));
        }
        let bitmap = Arc::new(bitmap);
        self.keep(chunk, part, CachedPart::Bitmap(Arc::clone(&bitmap)));
        Ok(bitmap)
    }

    /// Reads a page unchecked; opening it checks it.
    pub(crate) async fn page(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
        page: usize,
    ) -> Result<Bytes> {
        let part = ChunkPart::Page(page);
        if let Some(CachedPart::Page(page)) = self.cached(chunk, part) {
            return Ok(page);
        }
        let bytes = self.bytes(chunk, directory.page_bytes(page)).await?;
        // A damaged page is read again by the next query: the blob may have been restored by then.
        if unseal(&bytes).is_ok() {
            self.keep(chunk, part, CachedPart::Page(bytes.clone()));
        }
        Ok(bytes)
    }

    /// Reads several nearby pages, in ascending order, with one request. They are not cached: bulk reads would evict
    /// what lookups need.
    pub(crate) async fn pages(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
        pages: &[usize],
    ) -> Result<Vec<Bytes>> {
        let (Some(first), Some(last)) = (pages.first(), pages.last().copied()) else {
            return Ok(Vec::new());
        };
        let start = directory.page_bytes(*first).start;
        let bytes = self.bytes(chunk, start..directory.page_bytes(last).end).await?;
        let slices = pages.iter().map(|page| {
            let range = directory.page_bytes(*page);
            Ok(bytes.slice(to_usize(range.start - start)?..to_usize(range.end - start)?))
        });
        slices.collect()
    }

    /// Reads the blocks.
    pub(crate) async fn blocks(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
    ) -> Result<Arc<Vec<BlockRow>>> {
        if let Some(CachedPart::Blocks(blocks)) = self.cached(chunk, ChunkPart::Blocks) {
            return Ok(blocks);
        }
        let bytes = self.bytes(chunk, directory.blocks_bytes()).await?;
        let blocks = directory.decode_blocks(&bytes);
        let blocks = Arc::new(blocks.map_err(|error| error.in_chunk(&name_of(chunk)))?);
        self.keep(chunk, ChunkPart::Blocks, CachedPart::Blocks(Arc::clone(&blocks)));
        Ok(blocks)
    }

    /// Reads the whole chunk and checks it against the entry's hash.
    pub(crate) async fn content(&self, chunk: &ChunkEntry) -> Result<Content> {
        let name = chunk.blob_name(&self.prefix)?;
        let Some(bytes) = self.blobs.get(&name).await? else {
            return Err(missing(chunk));
        };
        if blake3::hash(&bytes).as_bytes() != &chunk.blake3 {
            return Err(Error::corrupt("its content differs from the published entry")
                .in_chunk(&name_of(chunk)));
        }
        decode_content(&bytes, chunk.directory_at).map_err(|error| error.in_chunk(&name_of(chunk)))
    }
}

/// Name of a chunk in errors.
pub(crate) fn name_of(chunk: &ChunkEntry) -> String {
    format!(
        "the chunk of blocks {} to {} (attempt {:016x})",
        chunk.blocks.start,
        chunk.blocks.end - 1,
        chunk.token
    )
}

fn missing(chunk: &ChunkEntry) -> Error {
    Error::ChunkMissing { chunk: name_of(chunk) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_has_a_bound_of_bytes_and_a_bound_of_entries() {
        let bytes = 64 << 10;
        let cache: Cache<(u64, ChunkPart), CachedPart, PartWeighter> =
            Cache::with_weighter(16, bytes, PartWeighter);
        for number in 0..10_000 {
            cache.insert((number, ChunkPart::Page(0)), CachedPart::Page(Bytes::new()));
        }
        let entries_max = usize::try_from(bytes / ENTRY_BYTES_MIN).expect("few");
        assert!(cache.len() <= entries_max && cache.len() > entries_max / 2, "{}", cache.len());
        for number in 0..10_000 {
            cache.insert(
                (number, ChunkPart::Page(1)),
                CachedPart::Page(Bytes::from(vec![0; 4_000])),
            );
        }
        assert!(cache.weight() <= bytes, "{}", cache.weight());
        assert!(cache.len() <= entries_max, "{}", cache.len());
    }
}
