//! Stores that run an action just before each of their operations.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use finalized_log_index::Stores;
use futures::future::BoxFuture;
use logmill_io::{
    Batch, BlobMeta, BlobName, BlobStore, Key, KeyRange, MetaStore, Record, Result, Timestamp,
    Version,
};

type Action = Box<dyn Fn(u64) -> BoxFuture<'static, ()> + Send + Sync>;

/// The action is called before each operation with its number, starting at 0.
pub(crate) struct Hook {
    operations: AtomicU64,
    action: Action,
}

impl Hook {
    pub(crate) fn new(
        action: impl Fn(u64) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self { operations: AtomicU64::new(0), action: Box::new(action) })
    }

    /// Number of operations so far.
    pub(crate) fn operations(&self) -> u64 {
        self.operations.load(Ordering::SeqCst)
    }

    /// Wraps the stores with this hook.
    pub(crate) fn before(self: &Arc<Self>, stores: &Stores) -> Stores {
        Stores {
            meta: Arc::new(HookedStore { store: Arc::clone(&stores.meta), hook: Arc::clone(self) }),
            blobs: Arc::new(HookedStore {
                store: Arc::clone(&stores.blobs),
                hook: Arc::clone(self),
            }),
            ..stores.clone()
        }
    }

    async fn act(&self) {
        (self.action)(self.operations.fetch_add(1, Ordering::SeqCst)).await;
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hook({})", self.operations())
    }
}

#[derive(Debug)]
struct HookedStore<S> {
    store: S,
    hook: Arc<Hook>,
}

#[async_trait::async_trait]
impl MetaStore for HookedStore<Arc<dyn MetaStore>> {
    async fn get(&self, key: &Key) -> Result<Option<Record>> {
        self.hook.act().await;
        self.store.get(key).await
    }

    async fn scan(&self, range: &KeyRange, limit: usize) -> Result<Vec<(Key, Record)>> {
        self.hook.act().await;
        self.store.scan(range, limit).await
    }

    async fn commit(&self, batch: Batch) -> Result<Vec<Option<Version>>> {
        self.hook.act().await;
        self.store.commit(batch).await
    }

    async fn now(&self) -> Result<Timestamp> {
        self.hook.act().await;
        self.store.now().await
    }
}

#[async_trait::async_trait]
impl BlobStore for HookedStore<Arc<dyn BlobStore>> {
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()> {
        self.hook.act().await;
        self.store.put(name, bytes).await
    }

    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>> {
        self.hook.act().await;
        self.store.get(name).await
    }

    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>> {
        self.hook.act().await;
        self.store.get_range(name, range).await
    }

    async fn delete(&self, name: &BlobName) -> Result<()> {
        self.hook.act().await;
        self.store.delete(name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>> {
        self.hook.act().await;
        self.store.list(prefix, after, limit).await
    }
}
