//! Reading parts of chunks, through one bounded cache.
//!
//! Guarantees: every part is checked before it is used, pages by whoever opens them; what is absent is never
//! cached. A part that is
//! damaged or missing is an error that names the chunk. Leaves to others: what to do about it
//! ([`crate::query`]).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use logmill_io::BlobStore;
use quick_cache::Weighter;
use quick_cache::sync::Cache;
use roaring::RoaringBitmap;

use crate::chunk::{Directory, decode_content};
use crate::codec::{as_u64, to_usize};
use crate::error::{Error, Result};
use crate::metric;
use crate::records::chunks::ChunkEntry;
use crate::section::{BlockRow, Content};
use crate::term::Fingerprint;
use crate::terms::{self, Group, Stored};

/// About the size of a directory.
const DIRECTORY_BYTES_ROUGHLY: u64 = 64 << 10;
/// About the size of a bucket or page.
const PART_BYTES_ROUGHLY: u64 = 4 << 10;

/// Which part of which chunk; chunks are told apart by the attempt that built them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Directory,
    Bucket(usize),
    Bitmap(u64),
    Page(usize),
    Blocks,
}

#[derive(Clone, Debug)]
enum Cached {
    Directory(Arc<Directory>),
    Bucket(Bytes),
    Bitmap(Arc<RoaringBitmap>),
    Page(Bytes),
    Blocks(Arc<Vec<BlockRow>>),
}

#[derive(Clone, Debug)]
struct Weigh;

impl Weighter<(u64, Part), Cached> for Weigh {
    fn weight(&self, _: &(u64, Part), cached: &Cached) -> u64 {
        let bytes = match cached {
            Cached::Directory(directory) => directory.weight(),
            Cached::Bucket(bucket) => bucket.len(),
            Cached::Bitmap(bitmap) => bitmap.serialized_size(),
            Cached::Page(page) => page.len(),
            Cached::Blocks(blocks) => blocks.len() * size_of::<BlockRow>(),
        };
        as_u64(bytes + size_of::<(u64, Part)>() + size_of::<Cached>())
    }
}

/// Reads chunks.
#[derive(Debug)]
pub(crate) struct ChunkReader {
    blobs: Arc<dyn BlobStore>,
    prefix: String,
    /// Directories: every query of a chunk needs its.
    directories: Cache<(u64, Part), Cached, Weigh>,
    /// All else, kept apart so that it drives no directory out.
    parts: Cache<(u64, Part), Cached, Weigh>,
}

impl ChunkReader {
    pub(crate) fn new(blobs: Arc<dyn BlobStore>, prefix: String, cache_bytes: u64) -> Self {
        let half = cache_bytes / 2;
        let cache = |item_bytes: u64| {
            let items = usize::try_from(half / item_bytes).unwrap_or(usize::MAX);
            Cache::with_weighter(items.max(16), half, Weigh)
        };
        let (directories, parts) = (cache(DIRECTORY_BYTES_ROUGHLY), cache(PART_BYTES_ROUGHLY));
        Self { blobs, prefix, directories, parts }
    }

    async fn bytes(&self, chunk: &ChunkEntry, range: Range<u64>) -> Result<Bytes> {
        let name = chunk.blob_name(&self.prefix)?;
        metric::blob_read(range.end - range.start);
        match self.blobs.get_range(&name, range).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(missing(chunk)),
            Err(error) if error.kind() == logmill_io::ErrorKind::Invalid => {
                Err(Error::corrupt(error.to_string()).in_chunk(&name_of(chunk)))
            }
            Err(error) => Err(error.into()),
        }
    }

    fn cached(&self, chunk: &ChunkEntry, part: Part) -> Option<Cached> {
        let cached = self.cache(part).get(&(chunk.token, part));
        metric::cache_looked_up(cached.is_some());
        cached
    }

    fn keep(&self, chunk: &ChunkEntry, part: Part, cached: Cached) {
        self.cache(part).insert((chunk.token, part), cached);
    }

    fn cache(&self, part: Part) -> &Cache<(u64, Part), Cached, Weigh> {
        if part == Part::Directory { &self.directories } else { &self.parts }
    }

    /// Where everything is.
    pub(crate) async fn directory(&self, chunk: &ChunkEntry) -> Result<Arc<Directory>> {
        if let Some(Cached::Directory(directory)) = self.cached(chunk, Part::Directory) {
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
            return Err(Error::corrupt("not what was published").in_chunk(&name_of(chunk)));
        }
        let directory = Arc::new(directory);
        self.keep(chunk, Part::Directory, Cached::Directory(Arc::clone(&directory)));
        Ok(directory)
    }

    /// What the chunk knows of a term.
    pub(crate) async fn group(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
        fingerprint: Fingerprint,
    ) -> Result<Option<Group>> {
        let index = terms::bucket_index(fingerprint, directory.bucket_bits);
        let part = Part::Bucket(index);
        let find = |bucket: &[u8]| {
            let found = terms::find(bucket, fingerprint, directory.bucket_bits);
            found.map_err(|error| error.in_chunk(&name_of(chunk)))
        };
        if let Some(Cached::Bucket(bucket)) = self.cached(chunk, part) {
            return find(&bucket);
        }
        let bucket = self.bytes(chunk, directory.bucket_bytes(index)).await?;
        let found = find(&bucket)?;
        self.keep(chunk, part, Cached::Bucket(bucket));
        Ok(found)
    }

    /// The ids of a larger group.
    pub(crate) async fn bitmap(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
        stored: &Stored,
    ) -> Result<Arc<RoaringBitmap>> {
        let part = Part::Bitmap(stored.bytes.start);
        if let Some(Cached::Bitmap(bitmap)) = self.cached(chunk, part) {
            return Ok(bitmap);
        }
        let within = |error: Error| error.in_chunk(&name_of(chunk));
        let range = directory.posting_bytes(&stored.bytes).map_err(within)?;
        let bytes = self.bytes(chunk, range).await?;
        let bitmap = terms::read_bitmap(&bytes, stored).map_err(within)?;
        if stored.max >= directory.logs {
            return Err(within(Error::corrupt("a bitmap of logs that are not there")));
        }
        let bitmap = Arc::new(bitmap);
        self.keep(chunk, part, Cached::Bitmap(Arc::clone(&bitmap)));
        Ok(bitmap)
    }

    /// A page, which whoever opens it checks.
    pub(crate) async fn page(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
        page: usize,
    ) -> Result<Bytes> {
        let part = Part::Page(page);
        if let Some(Cached::Page(page)) = self.cached(chunk, part) {
            return Ok(page);
        }
        let bytes = self.bytes(chunk, directory.page_bytes(page)).await?;
        self.keep(chunk, part, Cached::Page(bytes.clone()));
        Ok(bytes)
    }

    /// Several pages that lie near each other, in rising order, with one read. They are not kept: whoever reads many
    /// would only drive out what others look up.
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

    /// The blocks.
    pub(crate) async fn blocks(
        &self,
        chunk: &ChunkEntry,
        directory: &Directory,
    ) -> Result<Arc<Vec<BlockRow>>> {
        if let Some(Cached::Blocks(blocks)) = self.cached(chunk, Part::Blocks) {
            return Ok(blocks);
        }
        let bytes = self.bytes(chunk, directory.blocks_bytes()).await?;
        let blocks = directory.decode_blocks(&bytes);
        let blocks = Arc::new(blocks.map_err(|error| error.in_chunk(&name_of(chunk)))?);
        self.keep(chunk, Part::Blocks, Cached::Blocks(Arc::clone(&blocks)));
        Ok(blocks)
    }

    /// The whole chunk, compared with what was published.
    pub(crate) async fn content(&self, chunk: &ChunkEntry) -> Result<Content> {
        let name = chunk.blob_name(&self.prefix)?;
        let Some(bytes) = self.blobs.get(&name).await? else {
            return Err(missing(chunk));
        };
        if blake3::hash(&bytes).as_bytes() != &chunk.blake3 {
            return Err(Error::corrupt("not what was published").in_chunk(&name_of(chunk)));
        }
        decode_content(&bytes, chunk.directory_at).map_err(|error| error.in_chunk(&name_of(chunk)))
    }
}

/// How a chunk is named in errors.
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
