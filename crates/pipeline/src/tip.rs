//! The tip: blocks that are not final yet, as records and in memory.
//!
//! | key below the prefix | what | who writes it |
//! |---|---|---|
//! | `tip` | which blocks the tip has, by number and hash, and the safe block | the one writer, fenced |
//! | `tip/NUMBER-HASH` | a block with everything | the commit that lists it, which alone makes it count |
//!
//! Guarantees: the tip changes in one commit, fenced by the lease of the index's writer; its blocks link to each
//! other. A [`Moment`] never changes. Leaves to others: what the tip should be (the forward ingester).

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

/// The largest block of the tip, encoded.
const BLOCK_BYTES_MAX: usize = 128 << 20;
/// How often the tip is read anew because it changes meanwhile.
const READS_MAX: usize = 16;

/// The tip at one moment.
#[derive(Debug, Default)]
pub struct Moment {
    /// Its blocks, lowest first; each is the parent of the next.
    pub(crate) blocks: Vec<Arc<Block>>,
    /// The safe block, if the chain has told of one.
    pub(crate) safe: Option<BlockRef>,
    /// The record that says so.
    version: Option<Version>,
}

impl Moment {
    /// What of it stands on a finalized block: all above it, or nothing if that block is of another branch, because the
    /// tip has changed since.
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

/// The tip of one chain.
#[derive(Debug)]
pub struct Tip {
    meta: Arc<dyn MetaStore>,
    prefix: String,
    now: ArcSwap<Moment>,
    /// Whether the outcome of a commit is open: it may have been made though its answer was lost.
    in_doubt: AtomicBool,
}

/// The record `tip`.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Listed {
    blocks: Vec<(u64, B256)>,
    safe: Option<BlockRef>,
}

impl Tip {
    /// The tip whose records begin with `prefix`, as it is stored.
    pub async fn open(meta: Arc<dyn MetaStore>, prefix: impl Into<String>) -> Result<Self> {
        let (prefix, now) = (prefix.into(), ArcSwap::default());
        let tip = Self { meta, prefix, now, in_doubt: AtomicBool::new(false) };
        let moment = tip.stored().await?;
        tip.show(moment);
        Ok(tip)
    }

    /// The tip at this moment.
    pub fn now(&self) -> Arc<Moment> {
        self.now.load_full()
    }

    /// The record of the chain's head beside it.
    pub(crate) fn sightings(&self) -> Sightings {
        Sightings::new(Arc::clone(&self.meta), &self.prefix)
    }

    /// Whether it has to be read anew before it is changed.
    pub(crate) fn in_doubt(&self) -> bool {
        self.in_doubt.load(Ordering::SeqCst)
    }

    /// The tip as it is stored: another process may have changed it. Nobody sees it before [`Tip::show`].
    pub(crate) async fn stored(&self) -> Result<Arc<Moment>> {
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
            let listed: Listed = record::decode(&record.value, "the record of the tip")?;
            match self.blocks_of(&known, &listed).await? {
                Ok(blocks) => {
                    let version = Some(record.version);
                    return Ok(Arc::new(Moment { blocks, safe: listed.safe, version }));
                }
                // Fine if the tip has changed since it was listed.
                Err(key) => missing = Some((record.version, key)),
            }
        }
        let what = missing.map_or_else(String::new, |(_, key)| format!("{key} is missing"));
        Err(Error::corrupt(what))
    }

    /// Makes a moment that was read the one that is seen.
    pub(crate) fn show(&self, moment: Arc<Moment>) {
        self.now.store(moment);
        self.in_doubt.store(false, Ordering::SeqCst);
    }

    /// The blocks of a list, or the key of one that is not there.
    async fn blocks_of(
        &self,
        known: &Moment,
        listed: &Listed,
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
            return Err(Error::corrupt(format!("{key} holds another block")));
        }
        Ok(Some(block))
    }

    /// Makes these blocks the tip, in one commit: the barrier after which they are seen. Blocks that it has already
    /// are not written again. Returns what came and what went.
    pub(crate) async fn replace(
        &self,
        blocks: Vec<Arc<Block>>,
        safe: Option<BlockRef>,
        fence: Fence,
    ) -> Result<Replaced> {
        let before = self.now();
        let has = |list: &[Arc<Block>], block: &Block| {
            list.iter().any(|other| other.at.hash == block.at.hash)
        };
        let added: Vec<Arc<Block>> =
            blocks.iter().filter(|block| !has(&before.blocks, block)).cloned().collect();
        let gone: Vec<Arc<Block>> =
            before.blocks.iter().filter(|block| !has(&blocks, block)).cloned().collect();
        if added.is_empty() && gone.is_empty() && safe == before.safe {
            return Ok(Replaced { added, gone });
        }
        let listed = blocks.iter().map(|block| (block.at.number, block.at.hash)).collect();
        let listed = record::encode(&Listed { blocks: listed, safe });
        let condition = before.version.map_or(Condition::Absent, Condition::Version);
        let mut batch = Batch::new().put(self.state_key(), listed, condition);
        for (key, value) in self.records(added.clone()).await {
            batch = batch.put(key, value, Condition::Any);
        }
        for block in &gone {
            let key = self.block_key(block.at.number, &block.at.hash);
            batch = batch.delete(key, Condition::Any);
        }
        // Until the answer is there.
        self.in_doubt.store(true, Ordering::SeqCst);
        let versions = self.meta.commit(batch.fenced(fence)).await?;
        let version = versions.first().copied().flatten();
        self.show(Arc::new(Moment { blocks, safe, version }));
        Ok(Replaced { added, gone })
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

/// What a commit of the tip did.
#[derive(Debug)]
pub(crate) struct Replaced {
    /// Blocks that came, lowest first.
    pub(crate) added: Vec<Arc<Block>>,
    /// Blocks that went, lowest first: replaced, or final by now.
    pub(crate) gone: Vec<Arc<Block>>,
}
