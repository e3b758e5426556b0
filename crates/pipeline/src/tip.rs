//! The tip: blocks that are not final yet, stored as records and cached in memory.
//!
//! | key below the prefix | content | written by |
//! |---|---|---|
//! | `tip` | number and hash of each block of the tip, and the safe block | the one writer, fenced |
//! | `tip/NUMBER-HASH` | a complete block | the commit that lists it; an unlisted block does not count |
//!
//! Guarantees: the tip changes in one commit, fenced by the lease of the index's writer; its blocks link to each
//! other. A `TipSnapshot` never changes. Leaves to others: what the tip should be (the forward ingester).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use alloy_primitives::B256;
use arc_swap::ArcSwap;
use bytes::Bytes;
use logmill_chain::{Block, BlockRef, stored};
use logmill_io::{Batch, Condition, Fence, Key, MetaStore, Version};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::record;
use crate::sighting::Sightings;

/// Largest encoded block of the tip.
const BLOCK_BYTES_MAX: usize = 128 << 20;
/// How often the tip is read again because it changed during the read.
const READS_MAX: usize = 16;

/// The tip at one moment.
#[derive(Debug, Default)]
pub(crate) struct TipSnapshot {
    /// Lowest first; each is the parent of the next.
    pub(crate) blocks: Vec<Arc<Block>>,
    /// The safe block, if a node has reported one.
    pub(crate) safe: Option<BlockRef>,
    /// Version of the record `tip` that was read.
    version: Option<Version>,
}

impl TipSnapshot {
    /// The part of the tip above a finalized block: all blocks above it, or none if the finalized block is on another
    /// branch because the tip has changed since.
    pub(crate) fn above(self: Arc<Self>, finalized: Option<BlockRef>) -> Arc<Self> {
        let (Some(at), Some(first)) = (finalized, self.blocks.first()) else {
            return self;
        };
        if first.at.number > at.number {
            return self;
        }
        let known = self.blocks.iter().position(|block| block.at.hash == at.hash);
        let blocks = known.map_or_else(Vec::new, |at| self.blocks[at + 1..].to_vec());
        Arc::new(Self { blocks, safe: self.safe, version: self.version })
    }
}

#[derive(Debug)]
pub struct Tip {
    meta: Arc<dyn MetaStore>,
    prefix: String,
    now: ArcSwap<TipSnapshot>,
    /// Whether a commit's outcome is unknown: it may have succeeded though its answer was lost.
    in_doubt: AtomicBool,
}

/// Content of the record `tip`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct TipRecord {
    blocks: Vec<(u64, B256)>,
    safe: Option<BlockRef>,
}

impl Tip {
    /// Reads the tip whose keys begin with `prefix`.
    pub async fn open(meta: Arc<dyn MetaStore>, prefix: impl Into<String>) -> Result<Self> {
        let (prefix, now) = (prefix.into(), ArcSwap::default());
        let tip = Self { meta, prefix, now, in_doubt: AtomicBool::new(false) };
        let snapshot = tip.read_stored().await?;
        tip.install_snapshot(snapshot);
        Ok(tip)
    }

    pub(crate) fn now(&self) -> Arc<TipSnapshot> {
        self.now.load_full()
    }

    pub(crate) fn sightings(&self) -> Sightings {
        Sightings::new(Arc::clone(&self.meta), &self.prefix)
    }

    /// The store, and the key of another record of the same chain in it.
    pub(crate) fn sibling(&self, name: &str) -> (Arc<dyn MetaStore>, Key) {
        (Arc::clone(&self.meta), Key::from(format!("{}/{name}", self.prefix)))
    }

    /// Whether the tip must be read again before it is changed.
    pub(crate) fn in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::SeqCst)
    }

    /// Reads the stored tip, which another process may have changed. Readers do not see it before
    /// [`Tip::install_snapshot`].
    pub(crate) async fn read_stored(&self) -> Result<Arc<TipSnapshot>> {
        let mut missing = None;
        for _ in 0..READS_MAX {
            let Some(record) = self.meta.get(&self.state_key()).await? else {
                return Ok(Arc::default());
            };
            let known = self.now();
            if known.version == Some(record.version) {
                return Ok(known);
            }
            if missing.as_ref().is_some_and(|(version, _)| *version == record.version) {
                break;
            }
            let listed: TipRecord = record::decode(&record.value, "the record of the tip")?;
            match self.blocks_of(&known, &listed).await? {
                Ok(blocks) => {
                    let version = Some(record.version);
                    return Ok(Arc::new(TipSnapshot { blocks, safe: listed.safe, version }));
                }
                // No damage if the tip has changed since the list was read.
                Err(key) => missing = Some((record.version, key)),
            }
        }
        let what = missing.map_or_else(String::new, |(_, key)| format!("{key} is missing"));
        Err(Error::corrupt(what))
    }

    /// Makes a tip that was read visible to readers.
    pub(crate) fn install_snapshot(&self, snapshot: Arc<TipSnapshot>) {
        self.now.store(snapshot);
        self.in_doubt.store(false, Ordering::SeqCst);
    }

    /// The listed blocks, or the key of the first missing one.
    async fn blocks_of(
        &self,
        known: &TipSnapshot,
        listed: &TipRecord,
    ) -> Result<Result<Vec<Arc<Block>>, Key>> {
        let mut blocks = Vec::new();
        for (number, hash) in &listed.blocks {
            if let Some(block) = known.blocks.iter().find(|block| block.at.hash == *hash) {
                blocks.push(Arc::clone(block));
                continue;
            }
            let key = self.block_key(*number, hash);
            match self.read(&key, *number, *hash).await? {
                Some(block) => blocks.push(Arc::new(block)),
                None => return Ok(Err(key)),
            }
        }
        Ok(Ok(blocks))
    }

    async fn read(&self, key: &Key, number: u64, hash: B256) -> Result<Option<Block>> {
        let Some(record) = self.meta.get(key).await? else {
            return Ok(None);
        };
        let raw = record::decompress(&record.value, BLOCK_BYTES_MAX, &key.to_string())?;
        let block = stored::decode(&raw)?;
        if block.at.hash != hash || block.at.number != number {
            return Err(Error::corrupt(format!("{key} contains another block")));
        }
        Ok(Some(block))
    }

    /// Replaces the tip in one commit, which is the visibility barrier. Blocks that the tip already has are not written
    /// again. Returns the added and the removed blocks.
    pub(crate) async fn replace(
        &self,
        blocks: Vec<Arc<Block>>,
        safe: Option<BlockRef>,
        fence: Fence,
    ) -> Result<TipReplacement> {
        let before = self.now();
        let has = |list: &[Arc<Block>], block: &Block| {
            list.iter().any(|other| other.at.hash == block.at.hash)
        };
        let added: Vec<Arc<Block>> =
            blocks.iter().filter(|block| !has(&before.blocks, block)).cloned().collect();
        let gone: Vec<Arc<Block>> =
            before.blocks.iter().filter(|block| !has(&blocks, block)).cloned().collect();
        if added.is_empty() && gone.is_empty() && safe == before.safe {
            return Ok(TipReplacement { added, gone });
        }
        let listed = blocks.iter().map(|block| (block.at.number, block.at.hash)).collect();
        let listed = record::encode(&TipRecord { blocks: listed, safe });
        let condition = before.version.map_or(Condition::Absent, Condition::Version);
        let mut batch = Batch::new().put(self.state_key(), listed, condition);
        for (key, value) in self.records(added.clone()).await {
            batch = batch.put(key, value, Condition::Any);
        }
        for block in &gone {
            let key = self.block_key(block.at.number, &block.at.hash);
            batch = batch.delete(key, Condition::Any);
        }
        // Cleared by `install_snapshot` once the commit is acknowledged.
        self.in_doubt.store(true, Ordering::SeqCst);
        let versions = self.meta.commit(batch.fenced(fence)).await?;
        let version = versions.first().copied().flatten();
        self.install_snapshot(Arc::new(TipSnapshot { blocks, safe, version }));
        Ok(TipReplacement { added, gone })
    }

    async fn records(&self, blocks: Vec<Arc<Block>>) -> Vec<(Key, Bytes)> {
        let keyed: Vec<(Key, Arc<Block>)> = blocks
            .into_iter()
            .map(|block| (self.block_key(block.at.number, &block.at.hash), block))
            .collect();
        let encode =
            |(key, block): (Key, Arc<Block>)| (key, record::compress(&stored::encode(&block)));
        logmill_io::compute(move || keyed.into_iter().map(encode).collect()).await
    }

    fn state_key(&self) -> Key {
        Key::from(format!("{}/tip", self.prefix))
    }

    fn block_key(&self, number: u64, hash: &B256) -> Key {
        Key::from(format!("{}/tip/{number:016x}-{hash:x}", self.prefix))
    }
}

#[derive(Debug)]
pub(crate) struct TipReplacement {
    /// New blocks, lowest first.
    pub(crate) added: Vec<Arc<Block>>,
    /// Blocks that left the tip, lowest first: replaced, or final by now.
    pub(crate) gone: Vec<Arc<Block>>,
}
