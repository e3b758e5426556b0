//! The bodies of blocks: everything kept of them besides their logs, in separate blobs.
//!
//! In the tail a body is a record. When a section is sealed or a chunk is built, its bodies are written to blobs that
//! the chunk's entry lists; a merge takes them over unchanged. Bodies are found by block number and by transaction
//! hash.
//!
//! Guarantees: a body that is found is the one that was added with its block; damage is an error that names the blob.
//! Leaves to others: the content of a body, and comparing the full transaction hash (only its first bytes are kept).

mod blob;
mod upload;

use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::{B256, Bytes};
use logmill_io::BlobStore;
use logmill_work::IntervalSet;
use quick_cache::Weighter;
use quick_cache::sync::Cache;

pub(crate) use blob::EncodedBodies;
pub(crate) use upload::BodiesUpload;

use crate::codec::{as_u64, to_usize};
use crate::error::{Error, Result};
use crate::index::{LogIndex, SharedIndex, Snapshot};
use crate::records;
use crate::records::chunks::BodiesRef;
use crate::types::{Body, FinalizedBlock};
use blob::{BodiesDirectory, offsets_in};

/// zstd level; hardly slower than lz4, and a quarter smaller.
const COMPRESSION: i32 = 1;
/// Runs of the tail are joined unless the previous one is at least this many times larger.
const RUN_RATIO: usize = 2;
/// Approximate size of a directory or group in memory.
const PART_BYTES_ROUGHLY: u64 = 256 << 10;
/// How often a lookup is retried because blocks were sealed or merged in the meantime.
const REPLANS_MAX: usize = 100;

/// The block of a transaction; `key` is the beginning of its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransactionAt {
    pub(crate) key: u64,
    pub(crate) block: u64,
}

/// Which blocks have bodies, and which transactions those hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BodyKeys {
    /// Blocks with bodies, ascending.
    pub(crate) blocks: Vec<u64>,
    pub(crate) transactions: Vec<TransactionAt>,
}

impl BodyKeys {
    pub(crate) fn of(blocks: &[FinalizedBlock]) -> Self {
        let mut keys = Self::default();
        for (block, body) in blocks.iter().filter_map(|b| Some((b.number, b.body.as_ref()?))) {
            keys.blocks.push(block);
            let transactions = body.transactions.iter();
            keys.transactions
                .extend(transactions.map(|hash| TransactionAt { key: key_of(hash), block }));
        }
        keys
    }

    /// Drops the keys of a block.
    pub(crate) fn without(mut self, number: u64) -> Self {
        self.blocks.retain(|block| *block != number);
        self.transactions.retain(|at| at.block != number);
        self
    }

    /// Adds the keys of other blocks.
    pub(crate) fn join(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        self.blocks.sort_unstable();
        self.transactions.extend(other.transactions);
    }

    /// Keeps the keys of blocks from `first` on.
    pub(crate) fn from(mut self, first: u64) -> Self {
        self.blocks.retain(|block| *block >= first);
        self.transactions.retain(|at| at.block >= first);
        self
    }
}

/// Keys of the bodies in the tail, shared with readers; transactions are in sorted runs.
#[derive(Clone, Debug, Default)]
pub(crate) struct TailBodies {
    blocks: IntervalSet,
    runs: Vec<Arc<Vec<TransactionAt>>>,
}

impl TailBodies {
    pub(crate) fn add(&mut self, fresh: BodyKeys) {
        for block in fresh.blocks {
            self.blocks.insert(&(block..block + 1));
        }
        let mut fresh = fresh.transactions;
        if fresh.is_empty() {
            return;
        }
        fresh.sort_unstable();
        while let Some(before) = self.runs.pop_if(|run| run.len() < fresh.len() * RUN_RATIO) {
            fresh.extend_from_slice(&before);
            fresh.sort_unstable();
        }
        self.runs.push(Arc::new(fresh));
    }

    pub(crate) fn forget_below(&mut self, block: u64) {
        self.blocks.remove(&(0..block));
        for run in &mut self.runs {
            if run.iter().any(|at| at.block < block) {
                *run = Arc::new(run.iter().filter(|at| at.block >= block).copied().collect());
            }
        }
        self.runs.retain(|run| !run.is_empty());
    }

    /// Whether a block has a body.
    pub(crate) fn has(&self, block: u64) -> bool {
        self.blocks.contains(block)
    }

    fn blocks_of(&self, key: u64) -> impl Iterator<Item = u64> {
        self.runs.iter().flat_map(move |run| {
            let first = run.partition_point(|at| at.key < key);
            run[first..].iter().take_while(move |at| at.key == key).map(|at| at.block)
        })
    }
}

/// Encodes the bodies of blocks as records.
pub(crate) async fn records_of(blocks: &[FinalizedBlock]) -> Vec<(u64, bytes::Bytes)> {
    let bodies = blocks.iter().filter_map(|block| Some((block.number, block.body.clone()?)));
    let bodies: Vec<(u64, Body)> = bodies.collect();
    if bodies.is_empty() {
        return Vec::new();
    }
    let encode = |(number, body): (u64, Body)| (number, records::body::encode(&body));
    logmill_io::compute(move || bodies.into_iter().map(encode).collect()).await
}

/// The first eight bytes of a transaction hash.
fn key_of(hash: &B256) -> u64 {
    let [first, ..] = hash.0.as_chunks::<8>().0 else {
        return 0;
    };
    u64::from_be_bytes(*first)
}

pub(crate) fn compress(bytes: &[u8]) -> Vec<u8> {
    // Compressing into memory does not fail; if it did, reading would refuse the empty result.
    zstd::bulk::compress(bytes, COMPRESSION).unwrap_or_default()
}

pub(crate) fn decompress(bytes: &[u8], length: usize) -> Result<bytes::Bytes> {
    let raw = zstd::bulk::decompress(bytes, length);
    let raw = raw.map_err(|error| Error::corrupt(format!("cannot be decompressed: {error}")))?;
    if raw.len() != length {
        return Err(Error::corrupt(format!("{} bytes, not {length}", raw.len())));
    }
    Ok(bytes::Bytes::from(raw))
}

impl LogIndex {
    /// The body of a covered block; none if the block is not covered or has no body.
    pub async fn body(&self, number: u64) -> Result<Option<Bytes>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.body_at(&snapshot, number).await {
                Err(error) => {
                    self.shared
                        .retry_or_note_damage(&snapshot, error, Some(number), &mut tries)
                        .await?;
                }
                Ok(BodyLookup::Body(body)) => return Ok(body),
                Ok(BodyLookup::NotInTail) => {
                    self.refresh().await?;
                    tries += 1;
                    // It should be there, unless its block was sealed or written again meanwhile.
                    if tail_mark(&snapshot) == tail_mark(&self.shared.snapshot()) {
                        let what = format!("the body of block {number} is missing in the tail");
                        let error = Error::corrupt(what);
                        self.shared.note_corruption(&snapshot, &error, None, Some(number));
                        return Err(error);
                    }
                    if tries > REPLANS_MAX {
                        let what = "the tail changes faster than it can be read".to_owned();
                        return Err(Error::Throttled { what });
                    }
                }
            }
        }
    }

    /// The covered blocks that may hold a transaction, newest first: nearly always one or none. Searches only blocks
    /// with bodies.
    pub async fn blocks_of_transaction(&self, hash: &B256) -> Result<Vec<u64>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.transaction_blocks(&snapshot, hash).await {
                Err(error) => {
                    self.shared.retry_or_note_damage(&snapshot, error, None, &mut tries).await?;
                }
                found => return found,
            }
        }
    }
}

/// Result of a lookup.
enum BodyLookup {
    Body(Option<Bytes>),
    /// The tail has no such record, or no longer has it.
    NotInTail,
}

/// What changes when blocks leave the tail or are written again.
fn tail_mark(snapshot: &Snapshot) -> Option<(u64, u64, u64)> {
    let replacements = snapshot.list.replacements.seq;
    snapshot.tail_state.as_ref().map(|tail| (tail.generation, tail.start, replacements))
}

impl SharedIndex {
    async fn body_at(&self, snapshot: &Snapshot, number: u64) -> Result<BodyLookup> {
        if !snapshot.coverage.iter().any(|range| range.contains(&number)) {
            return Ok(BodyLookup::Body(None));
        }
        if let Some(tail) = snapshot.tail_state.as_ref().filter(|tail| number >= tail.start) {
            if !snapshot.bodies.has(number) {
                return Ok(BodyLookup::Body(None));
            }
            let record = self.stores.meta.get(&self.keys.body(tail.generation, number)).await?;
            let Some(record) = record else {
                return Ok(BodyLookup::NotInTail);
            };
            return Ok(BodyLookup::Body(Some(records::body::decode(&record.value)?.bytes)));
        }
        let bodies = snapshot.list.containing(number).and_then(|entry| {
            entry.bodies.iter().find(|bodies| bodies.blocks.contains(&number)).cloned()
        });
        match bodies {
            None => Ok(BodyLookup::Body(None)),
            Some(bodies) => Ok(BodyLookup::Body(self.bodies.body(&bodies, number).await?)),
        }
    }

    async fn transaction_blocks(&self, snapshot: &Snapshot, hash: &B256) -> Result<Vec<u64>> {
        let key = key_of(hash);
        let covered = |block: &u64| snapshot.coverage.iter().any(|range| range.contains(block));
        let mut found: Vec<u64> = snapshot.bodies.blocks_of(key).filter(covered).collect();
        for entry in snapshot.list.iter().rev() {
            if !covered(&entry.blocks.start) {
                continue;
            }
            for bodies in entry.bodies.iter().rev() {
                found.extend(self.bodies.blocks_of(bodies, key).await?);
            }
            if !found.is_empty() {
                break;
            }
        }
        found.sort_unstable_by(|a, b| b.cmp(a));
        found.dedup();
        Ok(found)
    }
}

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

    async fn blocks_of(&self, bodies: &BodiesRef, key: u64) -> Result<Vec<u64>> {
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
