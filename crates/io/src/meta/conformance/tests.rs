//! Tests the suite itself: it accepts the memory store and rejects every flawed store.

use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;

use super::super::{MemoryMeta, Record, SCAN_LIMIT_MAX};
use super::*;
use crate::clock::{SystemClock, Timestamp};
use crate::entropy::{OsEntropy, SeededEntropy};
use crate::error::Error;

#[derive(Clone, Copy, Debug)]
enum Flaw {
    None,
    /// Checks the conditions, yields, and then writes regardless of concurrent changes.
    ChecksThenWrites,
    /// The same with the fence.
    FenceOutsideOfTheWrite,
    ScansBackwards,
    IgnoresTheLimit,
    /// Checks the fence for writes, but not for deletes.
    DeletesUnfenced,
    AppliesHalfABatch,
}

#[derive(Debug)]
struct FlawedStore {
    store: Arc<dyn MetaStore>,
    flaw: Flaw,
}

impl FlawedStore {
    async fn holds(&self, op: &Op) -> Result<()> {
        let (Op::Put { key, condition, .. }
        | Op::Delete { key, condition }
        | Op::Check { key, condition }) = op
        else {
            return Ok(());
        };
        let found = self.store.get(key).await?.map(|record| record.version);
        match condition {
            Condition::Absent if found.is_some() => {}
            Condition::Version(version) if found != Some(*version) => {}
            _ => return Ok(()),
        }
        Err(Error::Conflict { what: key.to_string() })
    }
}

fn unconditional(op: &mut Op) {
    if let Op::Put { condition, .. } | Op::Delete { condition, .. } | Op::Check { condition, .. } =
        op
    {
        *condition = Condition::Any;
    }
}

#[async_trait]
impl MetaStore for FlawedStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.store.get(key).await
    }

    async fn scan(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Record)>> {
        match self.flaw {
            Flaw::ScansBackwards => {
                let mut found = self.store.scan(range, limit).await?;
                found.reverse();
                Ok(found)
            }
            Flaw::IgnoresTheLimit => self.store.scan(range, SCAN_LIMIT_MAX).await,
            _ => self.store.scan(range, limit).await,
        }
    }

    async fn commit(&self, mut batch: Batch) -> Result<Vec<Option<Version>>> {
        batch.validate()?;
        match self.flaw {
            Flaw::ChecksThenWrites => {
                for op in &batch.ops {
                    self.holds(op).await?;
                }
                tokio::task::yield_now().await;
                batch.ops.iter_mut().for_each(unconditional);
            }
            Flaw::FenceOutsideOfTheWrite => {
                if let Some(fence) = batch.fence.take() {
                    self.store.commit(Batch::new().fenced(fence)).await?;
                    tokio::task::yield_now().await;
                }
            }
            Flaw::DeletesUnfenced => {
                let delete = |op: &Op| matches!(op, Op::Delete { .. });
                if batch.ops.iter().all(delete) {
                    batch.fence = None;
                }
            }
            Flaw::AppliesHalfABatch => {
                let fence = batch.fence;
                let mut versions = Vec::new();
                for op in batch.ops {
                    let one = Batch { ops: vec![op], fence: fence.clone() };
                    versions.extend(self.store.commit(one).await?);
                }
                return Ok(versions);
            }
            _ => {}
        }
        self.store.commit(batch).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.store.now().await
    }
}

/// Repeats itself after a few draws.
#[derive(Debug, Default)]
struct PeriodicEntropy(AtomicU64);

impl Entropy for PeriodicEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        let drawn = self.0.fetch_add(1, Ordering::SeqCst) % 7 + 1;
        bytes.iter_mut().zip((drawn << 8).to_le_bytes()).for_each(|(byte, value)| *byte = value);
    }
}

async fn verdict(store: Arc<dyn MetaStore>) -> Option<&'static str> {
    run(&store, &OsEntropy).await.err().map(|violation| violation.case)
}

#[tokio::test]
async fn the_suite_names_the_guarantee_that_a_store_breaks() {
    let cases = [
        (Flaw::None, None),
        (Flaw::ChecksThenWrites, Some("of many inserts of one key exactly one wins")),
        (
            Flaw::FenceOutsideOfTheWrite,
            Some("no write with a stale fence lands after the take-over"),
        ),
        (Flaw::ScansBackwards, Some("a scan returns the keys of its range in byte order")),
        (Flaw::IgnoresTheLimit, Some("a scan returns the keys of its range in byte order")),
        (Flaw::DeletesUnfenced, Some("a stale fence is refused, and counters only grow")),
        (Flaw::AppliesHalfABatch, Some("a batch happens completely or not at all")),
    ];
    for (flaw, broken) in cases {
        let store = MemoryMeta::shared(SystemClock::shared(), SeededEntropy::shared(1));
        assert_eq!(verdict(Arc::new(FlawedStore { store, flaw })).await, broken, "{flaw:?}");
    }
}

#[tokio::test]
async fn the_suite_rejects_a_store_that_reuses_versions() {
    let store = MemoryMeta::shared(SystemClock::shared(), Arc::new(PeriodicEntropy::default()));
    assert_eq!(verdict(store).await, Some("a version is never used twice"));
}
