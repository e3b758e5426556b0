//! The state of an index in a process: what is known of the store, and the snapshot that queries work on.
//!
//! Guarantees: readers take no locks; a snapshot never changes and has no gap between chunks and tail. Leaves to
//! others: bringing the state up to date ([`crate::follow`]), and the operations.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use logmill_io::blob::MemoryBlobs;
use logmill_io::meta::MemoryMeta;
use logmill_io::{BlobStore, Clock, Entropy, Faults, FaultyStore, MetaStore, Tasks, Version};
use tokio::sync::{Mutex, watch};

use crate::bodies::BodyReader;
use crate::body_keys::TailBodies;
use crate::chunk_list::ChunkList;
use crate::damage_notes::SharedDamageNotes;
use crate::error::{Error, Result};
use crate::metric::Metrics;
use crate::reader::ChunkReader;
use crate::records::Keys;
use crate::records::degraded::Degradation;
use crate::records::tail_state::TailState;
use crate::settings::Settings;
use crate::tail::{Tail, TailView};
use crate::types::BlockRange;

/// The outside world of an index.
#[derive(Clone, Debug)]
pub struct Stores {
    /// Holds the records.
    pub meta: Arc<dyn MetaStore>,
    /// Holds chunks and bodies.
    pub blobs: Arc<dyn BlobStore>,
    /// Measures leases and deadlines.
    pub clock: Arc<dyn Clock>,
    /// Draws tokens of attempts and the index's identity.
    pub entropy: Arc<dyn Entropy>,
}

impl Stores {
    /// Empty stores that end with the process.
    pub fn memory(clock: Arc<dyn Clock>, entropy: Arc<dyn Entropy>) -> Self {
        let meta = MemoryMeta::shared(Arc::clone(&clock), Arc::clone(&entropy));
        Self { meta, blobs: MemoryBlobs::shared(), clock, entropy }
    }

    /// The same stores, seen by a process that these faults disturb.
    pub fn with_faults(&self, faults: &Arc<Faults>) -> Self {
        let (meta, blobs) = (Arc::clone(&self.meta), Arc::clone(&self.blobs));
        Self {
            meta: Arc::new(FaultyStore::new(meta, Arc::clone(faults))),
            blobs: Arc::new(FaultyStore::new(blobs, Arc::clone(faults))),
            ..self.clone()
        }
    }
}

/// State that all handles of one index in a process share.
pub(crate) struct SharedIndex {
    pub(crate) stores: Stores,
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(crate) reader: ChunkReader,
    pub(crate) bodies: BodyReader,
    pub(crate) metrics: Metrics,
    /// Held by the task that changes the store or follows it, but not by readers.
    pub(crate) followed: Mutex<IndexState>,
    pub(crate) snapshot: ArcSwap<Snapshot>,
    /// Notified when the set of covered blocks changes.
    pub(crate) coverage_changed: watch::Sender<()>,
    /// Damage that a reader or builder of this process has found and that no writer has stored yet.
    pub(crate) noted: SharedDamageNotes,
    /// Whether a writer of this process keeps the tail.
    pub(crate) writes: AtomicBool,
    /// Number of queries so far.
    pub(crate) queries: AtomicU64,
    /// Read-ahead tasks; they end with the index.
    pub(crate) background: std::sync::Mutex<Tasks<()>>,
}

/// The state of the store as this process knows it.
#[derive(Debug, Default)]
pub(crate) struct IndexState {
    pub(crate) list: Arc<ChunkList>,
    pub(crate) list_version: Option<Version>,
    /// None before the first block, and after a commit whose outcome is not known.
    pub(crate) tail: Option<Tail>,
    pub(crate) tail_version: Option<Version>,
    /// Whether `tail` equals the stored tail; if not, it is loaded again before use.
    pub(crate) tail_known: bool,
    pub(crate) degraded: Option<Degradation>,
}

/// What a query works on.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) list: Arc<ChunkList>,
    pub(crate) tail_state: Option<TailState>,
    pub(crate) tail: TailView,
    /// Keys of the bodies in the tail.
    pub(crate) bodies: TailBodies,
    pub(crate) coverage: Vec<BlockRange>,
    pub(crate) degraded: Option<Degradation>,
}

impl IndexState {
    /// The state of the tail; `None` while it is not known.
    pub(crate) fn known_tail(&self) -> Option<&TailState> {
        self.tail.as_ref().filter(|_| self.tail_known).map(|tail| &tail.state)
    }
}

impl SharedIndex {
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The snapshot, unless the index is degraded so that reads stop.
    pub(crate) fn readable(&self) -> Result<Arc<Snapshot>> {
        let snapshot = self.snapshot();
        match snapshot.degraded.as_ref().filter(|degraded| degraded.stops_reads()) {
            Some(degraded) => Err(Error::Degraded { reason: degraded.reason.clone() }),
            None => Ok(snapshot),
        }
    }

    /// Installs a snapshot of the known state.
    pub(crate) fn install_snapshot(&self, followed: &IndexState) {
        let (tail_state, tail, bodies) = if followed.tail_known {
            let tail = followed.tail.as_ref();
            let bodies = tail.map(|tail| tail.bodies().clone()).unwrap_or_default();
            let state = tail.map(|tail| tail.state.clone());
            (state, tail.map(Tail::view).unwrap_or_default(), bodies)
        } else {
            // The outcome of a commit is unknown; the previous snapshot is still valid.
            let shown = self.snapshot();
            (shown.tail_state.clone(), shown.tail.clone(), shown.bodies.clone())
        };
        let tail_state = tail_state.map(|state| above_chunks(state, &followed.list));
        let coverage = followed.list.coverage(tail_state.as_ref());
        let before = self.snapshot.swap(Arc::new(Snapshot {
            list: Arc::clone(&followed.list),
            coverage: coverage.clone(),
            tail,
            bodies,
            tail_state,
            degraded: self.known_degradation(followed),
        }));
        if before.coverage != coverage {
            self.coverage_changed.send_replace(());
        }
    }

    /// Why the index is degraded: the stored reason, and damage that was only noted so far.
    pub(crate) fn known_degradation(&self, followed: &IndexState) -> Option<Degradation> {
        let noted = self.noted.load_full();
        let noted =
            noted.and_then(|noted| noted.still_stored(&followed.list, followed.known_tail()));
        match (followed.degraded.clone(), noted) {
            (Some(stored), Some(noted)) => Some(stored.with(&noted)),
            (stored, noted) => stored.or(noted),
        }
    }

    pub(crate) fn has_writer(&self) -> bool {
        self.writes.load(Ordering::SeqCst)
    }
}

/// Removes from a tail state the blocks that chunks already hold: when another process has become the writer, the
/// chunks are followed before the tail is.
fn above_chunks(mut state: TailState, list: &ChunkList) -> TailState {
    if let Some(last) = list.iter().next_back()
        && last.blocks.end > state.start
    {
        state.start = last.blocks.end;
        state.start_parent = last.last_hash;
        if state.end <= state.start {
            state.end = state.start;
            state.head_hash = last.last_hash;
        }
    }
    state
}
