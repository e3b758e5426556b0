//! The state of a collector beside its tables: where it began, the last final block it has seen, and when it last made
//! progress.
//!
//! | record | value |
//! |---|---|
//! | `collect/CHAIN/CONSUMER/start` | first block to collect |
//! | `collect/CHAIN/CONSUMER/anchor` | number and hash of a final block |
//! | `collect/CHAIN/CONSUMER/seen` | when a worker last scanned blocks or saw the head, in ms of the store's clock |
//!
//! Guarantees: the start is set once. It can later move down, to add older blocks, but never up, past requested blocks.
//! The anchor only moves up, and only from a block that the chain still has, so any process notices a chain that
//! reverts a finalized block. Leaves to others: which blocks are collected (coverage).

use std::cmp::Ordering;
use std::sync::Arc;
use std::time::Duration;

use alloy_primitives::B256;
use logmill_chain::{BlockRef, NodeSource};
use logmill_io::meta::SqlMeta;
use logmill_io::{Condition, ErrorKind, Key, MetaStore, MetaStoreExt, Sql, Version, millis};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::record;

/// How often a write is retried because another process wrote.
const TRIES_MAX: usize = 8;

#[derive(Clone, Debug)]
pub(super) struct CollectorRecords {
    meta: Arc<dyn MetaStore>,
    start: Key,
    anchor: Key,
    seen: Key,
}

impl CollectorRecords {
    pub(super) fn new(sql: Sql, chain_id: u64, consumer: &str) -> Self {
        let key = |name: &str| Key::from(format!("collect/{chain_id}/{consumer}/{name}"));
        let (start, anchor, seen) = (key("start"), key("anchor"), key("seen"));
        Self { meta: SqlMeta::shared(sql), start, anchor, seen }
    }

    /// Records that a worker made progress this long ago, unless a later time is recorded.
    pub(super) async fn put_progress(&self, ago: Duration) -> Result<()> {
        let at_ms = self.meta.now().await?.millis().saturating_sub(millis(ago));
        if self.get_seen_ms().await?.is_none_or(|before| before < at_ms) {
            let value = record::encode(&at_ms);
            self.meta.put(self.seen.clone(), value, Condition::Any).await?;
        }
        Ok(())
    }

    /// Time since a worker last made progress; none if none ever has.
    pub(super) async fn progress_age(&self) -> Result<Option<Duration>> {
        let Some(at_ms) = self.get_seen_ms().await? else { return Ok(None) };
        let ago_ms = self.meta.now().await?.millis().abs_diff(at_ms);
        Ok(Some(Duration::from_millis(ago_ms)))
    }

    async fn get_seen_ms(&self) -> Result<Option<i64>> {
        let found = self.meta.get(&self.seen).await?;
        found.map(|found| record::decode(&found.value, "a collector's sighting")).transpose()
    }

    /// First block to collect; none if no collector has ever run.
    pub(super) async fn get_start(&self) -> Result<Option<u64>> {
        let found = self.meta.get(&self.start).await?;
        found.map(|found| record::decode(&found.value, "a collector's start")).transpose()
    }

    /// Sets the start, unless an equal or lower one is set; returns the start that applies.
    pub(super) async fn seed(&self, start: u64) -> Result<u64> {
        for _ in 0..TRIES_MAX {
            let condition = match self.meta.get(&self.start).await? {
                None => Condition::Absent,
                Some(found) => {
                    let before: u64 = record::decode(&found.value, "a collector's start")?;
                    if before <= start {
                        return Ok(before);
                    }
                    Condition::Version(found.version)
                }
            };
            match self.meta.put(self.start.clone(), record::encode(&start), condition).await {
                Ok(_) => return Ok(start),
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(Error::corrupt("a collector's start changed during every attempt to set it"))
    }

    pub(super) async fn get_anchor(&self) -> Result<Option<Anchor>> {
        let found = self.meta.get(&self.anchor).await?;
        let anchor = found.map(|found| {
            let (number, hash) = record::decode(&found.value, "a collector's anchor")?;
            Ok(Anchor { number, hash, version: found.version })
        });
        anchor.transpose()
    }

    /// Replaces the anchor with a higher final block; does nothing if another process has replaced it first.
    pub(super) async fn put_anchor(&self, before: Option<&Anchor>, at: BlockRef) -> Result<()> {
        let condition = before.map_or(Condition::Absent, |at| Condition::Version(at.version));
        let anchor = record::encode(&(at.number, at.hash));
        match self.meta.put(self.anchor.clone(), anchor, condition).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            done => Ok(done.map(|_| ())?),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) number: u64,
    pub(super) hash: B256,
    version: Version,
}

impl Anchor {
    /// Checks that the chain, whose finalized head is `finalized`, still has this block. Passes if the node lags or
    /// does not have the block, because then it cannot be decided.
    pub(super) async fn check(&self, source: &dyn NodeSource, finalized: BlockRef) -> Result<()> {
        let reported = match self.number.cmp(&finalized.number) {
            Ordering::Greater => None,
            Ordering::Equal => Some(finalized.hash),
            Ordering::Less => hash_at(source, self.number).await?,
        };
        match reported {
            Some(reported) if reported != self.hash => {
                let (number, stored) = (self.number, self.hash);
                Err(Error::FinalityReverted { number, stored, reported })
            }
            _ => Ok(()),
        }
    }
}

/// The hash of a block; none if the node does not have it.
async fn hash_at(source: &dyn NodeSource, number: u64) -> Result<Option<B256>> {
    #[derive(Deserialize)]
    struct Fields {
        hash: B256,
    }
    let answer = source.pass("eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#)).await?;
    let fields: Option<Fields> = serde_json::from_str(&answer).map_err(|error| {
        let what = format!("block {number}");
        logmill_chain::Error::Unavailable {
            what,
            why: format!("the answer is not a block: {error}"),
        }
    })?;
    Ok(fields.map(|fields| fields.hash))
}
