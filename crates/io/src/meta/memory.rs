//! Records in memory: the reference for the other implementations, and the store of quick tests.
//!
//! Guarantees: those of the trait, by one lock. There is no durability.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use super::{Batch, Condition, Key, KeyRange, MetaStore, Op, Record, SCAN_LIMIT_MAX, Version};
use crate::clock::{Clock, Timestamp};
use crate::entropy::Entropy;
use crate::error::{Error, Result};

#[derive(Debug)]
pub struct MemoryMeta {
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    records: BTreeMap<Key, Record>,
    counters: BTreeMap<String, i64>,
}

impl MemoryMeta {
    pub fn shared(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Arc<dyn MetaStore> {
        Arc::new(Self { clock, entropy, state: Mutex::default() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[async_trait]
impl MetaStore for MemoryMeta {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        Ok(self.state().records.get(key).cloned())
    }

    async fn scan(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Record)>> {
        if is_empty(range) {
            return Ok(Vec::new());
        }
        let bounds = (range.start.clone(), range.end.clone());
        let state = self.state();
        let found = state.records.range(bounds).take(limit.min(SCAN_LIMIT_MAX));
        Ok(found.map(|(key, record)| (key.clone(), record.clone())).collect())
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Option<Version>>> {
        batch.validate()?;
        let mut state = self.state();
        if let Some(fence) = &batch.fence
            && state.counters.get(&fence.name) != Some(&fence.counter)
        {
            return Err(fence.stale());
        }
        batch.ops.iter().try_for_each(|op| state.check(op))?;
        Ok(batch.ops.into_iter().map(|op| state.apply(op, &*self.entropy)).collect())
    }

    async fn now(&self) -> Result<Timestamp> {
        Ok(self.clock.now())
    }
}

impl State {
    fn check(&self, op: &Op) -> Result<()> {
        let (key, condition) = match op {
            Op::Put { key, condition, .. }
            | Op::Delete { key, condition }
            | Op::Check { key, condition } => (key, condition),
            Op::Raise(fence) => {
                let current = self.counters.get(&fence.name);
                return if current.is_none_or(|current| *current < fence.counter) {
                    Ok(())
                } else {
                    Err(Error::Conflict { what: format!("the fence {}", fence.name) })
                };
            }
        };
        let found = self.records.get(key).map(|record| record.version);
        let holds = match condition {
            Condition::Any => true,
            Condition::Absent => found.is_none(),
            Condition::Version(version) => found == Some(*version),
        };
        if holds { Ok(()) } else { Err(Error::Conflict { what: format!("the record {key}") }) }
    }

    fn apply(&mut self, op: Op, entropy: &dyn Entropy) -> Option<Version> {
        match op {
            Op::Put { key, value, .. } => {
                let version = Version(entropy.mark());
                self.records.insert(key, Record { value, version });
                Some(version)
            }
            Op::Delete { key, .. } => {
                self.records.remove(&key);
                None
            }
            Op::Check { .. } => None,
            Op::Raise(fence) => {
                self.counters.insert(fence.name, fence.counter);
                None
            }
        }
    }
}

/// Whether a range cannot contain any key; `BTreeMap::range` panics on such ranges.
fn is_empty(range: &KeyRange) -> bool {
    match (&range.start, &range.end) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(start), Bound::Included(end)) => start > end,
        (Bound::Included(start) | Bound::Excluded(start), Bound::Excluded(end))
        | (Bound::Excluded(start), Bound::Included(end)) => start >= end,
    }
}
