//! Fault injection: makes any store fail, lose an answer, be slow, or crash.
//!
//! A [`Faults`] plan counts the operations of all stores that share it and decides about each: fail before it
//! happens, let it happen and lose the answer, delay it, or crash. After a crash every further operation fails,
//! as for a process that is gone. [`FaultyStore`] wraps a [`crate::MetaStore`] or a [`crate::BlobStore`];
//! [`crate::Sql::with_faults`] wraps a database.
//!
//! Guarantees: plans with the same seed, given operations in the same order, make the same decisions. Leaves to
//! others: restarting (open a new handle to the same store, without the plan).

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use crate::blob::{BlobMeta, BlobName, BlobStore};
use crate::clock::Timestamp;
use crate::entropy::Entropy;
use crate::error::{Error, Result};
use crate::meta::{Batch, Key, KeyRange, MetaStore, Record, Version};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    None,
    /// The operation fails without effect.
    Before,
    /// The operation takes effect, but its answer is lost.
    After,
    /// The process crashes just before the operation.
    CrashBefore,
    /// The process crashes just after the operation.
    CrashAfter,
}

/// A plan of faults.
pub struct Faults {
    operations: AtomicU64,
    crashed_at: AtomicU64,
    latency: Duration,
    rule: Rule,
}

enum Rule {
    Never,
    At { operation: u64, fault: Fault },
    Chance { entropy: Arc<dyn Entropy>, before_permille: u64, after_permille: u64 },
}

const ALIVE: u64 = u64::MAX;

impl Faults {
    fn with_rule(rule: Rule) -> Arc<Self> {
        Arc::new(Self {
            operations: AtomicU64::new(0),
            crashed_at: AtomicU64::new(ALIVE),
            latency: Duration::ZERO,
            rule,
        })
    }

    /// Injects no faults; only counts operations.
    pub fn none() -> Arc<Self> {
        Self::with_rule(Rule::Never)
    }

    /// One fault, at the operation with this number (the first is 0).
    pub fn at(operation: u64, fault: Fault) -> Arc<Self> {
        Self::with_rule(Rule::At { operation, fault })
    }

    /// Random faults, with the given chances in a thousand before and after each operation.
    pub fn seeded(
        entropy: Arc<dyn Entropy>,
        before_permille: u64,
        after_permille: u64,
    ) -> Arc<Self> {
        Self::with_rule(Rule::Chance { entropy, before_permille, after_permille })
    }

    /// Delays every operation.
    pub fn slow(latency: Duration) -> Arc<Self> {
        Arc::new(Self {
            operations: AtomicU64::new(0),
            crashed_at: AtomicU64::new(ALIVE),
            latency,
            rule: Rule::Never,
        })
    }

    /// Number of operations so far.
    pub fn operations(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    pub fn crashed(&self) -> bool {
        self.crashed_at.load(Ordering::SeqCst) != ALIVE
    }

    pub async fn run<T>(&self, operation: impl Future<Output = Result<T>>) -> Result<T> {
        self.alive()?;
        let number = self.operations.fetch_add(1, Ordering::SeqCst);
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        match self.decide(number) {
            Fault::None => {
                let answer = operation.await;
                // A caller that was waiting for an answer when the process crashed does not get it.
                self.alive()?;
                answer
            }
            Fault::Before => Err(Error::Injected { operation: number }),
            Fault::CrashBefore => Err(self.crash(number)),
            Fault::After => {
                operation.await?;
                Err(Error::InDoubt {
                    doing: "an operation whose answer a test dropped".to_owned(),
                    source: Box::new(Error::Injected { operation: number }),
                })
            }
            Fault::CrashAfter => {
                operation.await?;
                Err(self.crash(number))
            }
        }
    }

    fn alive(&self) -> Result<()> {
        match self.crashed_at.load(Ordering::SeqCst) {
            ALIVE => Ok(()),
            operation => Err(Error::Crashed { operation }),
        }
    }

    fn crash(&self, operation: u64) -> Error {
        self.crashed_at.store(operation, Ordering::SeqCst);
        Error::Crashed { operation }
    }

    fn decide(&self, number: u64) -> Fault {
        match &self.rule {
            Rule::Never => Fault::None,
            Rule::At { operation, fault } if *operation == number => *fault,
            Rule::At { .. } => Fault::None,
            Rule::Chance { entropy, before_permille, after_permille } => {
                let drawn = entropy.below(1000);
                if drawn < *before_permille {
                    Fault::Before
                } else if drawn < before_permille + after_permille {
                    Fault::After
                } else {
                    Fault::None
                }
            }
        }
    }
}

impl fmt::Debug for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Faults({} operations, crashed: {})", self.operations(), self.crashed())
    }
}

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
    use super::*;
    use crate::entropy::SeededEntropy;
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
