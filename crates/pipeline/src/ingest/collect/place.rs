//! What a collector remembers beside its tables: where it began, and the last final block it has seen.
//!
//! | record | value |
//! |---|---|
//! | `collect/CHAIN/CONSUMER/start` | the first block that is wanted |
//! | `collect/CHAIN/CONSUMER/anchor` | number and hash of a final block |
//!
//! Guarantees: the start is set once; later it can move down, to bring in older blocks, and never up, past blocks that
//! were wanted. An anchor only moves up, and only from a block that the chain still has: a chain that takes back what
//! it had called final is noticed, also by the next process. Leaves to others: what is collected (coverage).

use std::cmp::Ordering;
use std::sync::Arc;

use alloy_primitives::B256;
use logmill_chain::{BlockRef, ChainSource};
use logmill_io::meta::SqlMeta;
use logmill_io::{Condition, ErrorKind, Key, MetaStore, MetaStoreExt, Sql, Version};
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::record;

/// How often a write is tried anew because another process wrote.
const TRIES_MAX: usize = 8;

/// The records of one collector.
#[derive(Clone, Debug)]
pub(super) struct Place {
    meta: Arc<dyn MetaStore>,
    start: Key,
    anchor: Key,
}

impl Place {
    pub(super) fn new(sql: Sql, chain_id: u64, consumer: &str) -> Self {
        let key = |name: &str| Key::from(format!("collect/{chain_id}/{consumer}/{name}"));
        Self { meta: SqlMeta::shared(sql), start: key("start"), anchor: key("anchor") }
    }

    /// The first block that is wanted, if a collector has ever run.
    pub(super) async fn get_start(&self) -> Result<Option<u64>> {
        let found = self.meta.get(&self.start).await?;
        found.map(|found| record::decode(&found.value, "a collector's start")).transpose()
    }

    /// Sets where to begin, unless it is set; gives where collecting begins.
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
        Err(Error::corrupt("a collector's start changes all the time"))
    }

    /// The last final block that was seen.
    pub(super) async fn get_anchor(&self) -> Result<Option<Anchor>> {
        let found = self.meta.get(&self.anchor).await?;
        let anchor = found.map(|found| {
            let (number, hash) = record::decode(&found.value, "a collector's anchor")?;
            Ok(Anchor { number, hash, version: found.version })
        });
        anchor.transpose()
    }

    /// Remembers a final block in place of an earlier one; who comes later than another process leaves it.
    pub(super) async fn put_anchor(&self, before: Option<&Anchor>, at: BlockRef) -> Result<()> {
        let condition = before.map_or(Condition::Absent, |at| Condition::Version(at.version));
        let anchor = record::encode(&(at.number, at.hash));
        match self.meta.put(self.anchor.clone(), anchor, condition).await {
            Err(error) if error.kind() == ErrorKind::Conflict => Ok(()),
            done => Ok(done.map(|_| ())?),
        }
    }
}

/// A final block that was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) number: u64,
    pub(super) hash: B256,
    version: Version,
}

impl Anchor {
    /// Whether the chain, which says that `finalized` is final, still has this block. It can not be told by a node that
    /// lags, or that does not keep the block.
    pub(super) async fn check(&self, source: &dyn ChainSource, finalized: BlockRef) -> Result<()> {
        let said = match self.number.cmp(&finalized.number) {
            Ordering::Greater => None,
            Ordering::Equal => Some(finalized.hash),
            Ordering::Less => hash_at(source, self.number).await?,
        };
        match said {
            Some(said) if said != self.hash => {
                let (number, stored) = (self.number, self.hash);
                Err(Error::FinalityReverted { number, stored, said })
            }
            _ => Ok(()),
        }
    }
}

/// The hash of a block; none if the node that was asked does not have it.
async fn hash_at(source: &dyn ChainSource, number: u64) -> Result<Option<B256>> {
    #[derive(Deserialize)]
    struct Fields {
        hash: B256,
    }
    let answer = source.pass("eth_getBlockByNumber", &format!(r#"["{number:#x}",false]"#)).await?;
    let fields: Option<Fields> = serde_json::from_str(&answer).map_err(|error| {
        let what = format!("block {number}");
        logmill_chain::Error::Unavailable { what, why: format!("no block: {error}") }
    })?;
    Ok(fields.map(|fields| fields.hash))
}
