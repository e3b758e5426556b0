//! A [`MetaStore`] or [`BlobStore`] that injects the faults of a plan.
//!
//! Guarantees: every operation of the store counts as one operation of the plan. Leaves to others: when a fault
//! happens ([`crate::Faults`]).

use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use crate::blob::{BlobMeta, BlobName, BlobStore};
use crate::clock::Timestamp;
use crate::error::Result;
use crate::fault::Faults;
use crate::meta::{Batch, Key, KeyRange, MetaStore, Record, Version};

/// A store that injects faults.
#[derive(Debug)]
pub struct FaultyStore<S> {
    store: S,
    faults: Arc<Faults>,
}

impl<S> FaultyStore<S> {
    pub fn new(store: S, faults: Arc<Faults>) -> Self {
        Self { store, faults }
    }
}

#[async_trait]
impl MetaStore for FaultyStore<Arc<dyn MetaStore>> {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.faults.run(self.store.get(key)).await
    }

    async fn scan(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Record)>> {
        self.faults.run(self.store.scan(range, limit)).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Option<Version>>> {
        self.faults.run(self.store.commit(batch)).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.faults.run(self.store.now()).await
    }

    async fn is_gone(&self, owner: &str) -> Result<bool> {
        self.faults.run(self.store.is_gone(owner)).await
    }
}

#[async_trait]
impl BlobStore for FaultyStore<Arc<dyn BlobStore>> {
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()> {
        self.faults.run(self.store.put(name, bytes)).await
    }

    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>> {
        self.faults.run(self.store.get(name)).await
    }

    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>> {
        self.faults.run(self.store.get_range(name, range)).await
    }

    async fn delete(&self, name: &BlobName) -> Result<()> {
        self.faults.run(self.store.delete(name)).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>> {
        self.faults.run(self.store.list(prefix, after, limit)).await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::entropy::SeededEntropy;
    use crate::error::Error;
    use crate::fault::Fault;
    use crate::meta::{Condition, MemoryMeta, MetaStoreExt};

    fn store() -> Arc<dyn MetaStore> {
        MemoryMeta::shared(crate::SystemClock::shared(), SeededEntropy::shared(1))
    }

    async fn value(store: &Arc<dyn MetaStore>, key: &Key) -> Option<Bytes> {
        store.get(key).await.expect("the plain store works").map(|record| record.value)
    }

    #[tokio::test]
    async fn a_fault_before_has_no_effect_and_a_fault_after_loses_only_the_answer() {
        let key = Key::from("k");
        for (fault, stored) in [(Fault::Before, None), (Fault::After, Some(Bytes::from("v")))] {
            let plain = store();
            let faulty = FaultyStore::new(Arc::clone(&plain), Faults::at(0, fault));
            let put = faulty.put(key.clone(), "v", Condition::Any).await;
            put.expect_err("the fault shows");
            assert_eq!(value(&plain, &key).await, stored, "{fault:?}");
            faulty.put(key.clone(), "w", Condition::Any).await.expect("the next operation works");
        }
    }

    #[tokio::test]
    async fn after_a_crash_every_operation_fails() {
        let key = Key::from("k");
        for (fault, stored) in
            [(Fault::CrashBefore, None), (Fault::CrashAfter, Some(Bytes::from("v")))]
        {
            let plain = store();
            let faulty = FaultyStore::new(Arc::clone(&plain), Faults::at(1, fault));
            faulty.get(&key).await.expect("operation 0 works");
            faulty.put(key.clone(), "v", Condition::Any).await.expect_err("operation 1 dies");
            let after = faulty.get(&key).await.expect_err("dead");
            assert!(matches!(after, Error::Crashed { operation: 1 }), "{after}");
            assert_eq!(value(&plain, &key).await, stored, "{fault:?}");
        }
    }

    #[tokio::test]
    async fn equal_seeds_produce_equal_faults() {
        let run = async |seed| {
            let faults = Faults::seeded(SeededEntropy::shared(seed), 200, 200);
            let faulty = FaultyStore::new(store(), Arc::clone(&faults));
            let mut outcomes = Vec::new();
            for number in 0..50_u8 {
                let put = faulty.put(Key::from(&[number][..]), "v", Condition::Any).await;
                outcomes.push(put.map(|_| ()).map_err(|error| error.to_string()));
            }
            outcomes
        };
        let first = run(3).await;
        assert_eq!(first, run(3).await);
        assert_ne!(first, run(4).await);
        assert!(first.iter().any(Result::is_ok) && first.iter().any(Result::is_err));
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_store_delays_every_operation() {
        let faulty = FaultyStore::new(store(), Faults::slow(Duration::from_secs(2)));
        let started = tokio::time::Instant::now();
        faulty.get(&Key::from("k")).await.expect("slow, not broken");
        assert_eq!(started.elapsed(), Duration::from_secs(2));
    }
}
