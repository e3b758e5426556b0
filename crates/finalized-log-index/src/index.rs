//! `LogIndex`: the handle that reads an index and creates writers and builders.
//!
//! A query works on a snapshot: the published chunks and the tail. In the writer's process each commit installs a new
//! snapshot; in other processes [`LogIndex::refresh`] does, by following the store.
//!
//! Guarantees: readers take no locks; a snapshot never changes and has no gap between chunks and tail. Leaves to
//! others: when to refresh.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};

use arc_swap::ArcSwap;
use logmill_io::{
    BlobStore, Clock, Condition, Entropy, ErrorKind, MetaStore, MetaStoreExt, Tasks, Version,
};
use tokio::sync::{Mutex, watch};

use crate::bodies::{BodyReader, TailBodies};
use crate::chunk_list::ChunkList;
use crate::damage_notes::{DamageLocation, SharedDamageNotes};
use crate::error::{Error, Result};
use crate::metric::Metrics;
use crate::reader::ChunkReader;
use crate::records::chunks::ChunkEntry;
use crate::records::degraded::{Cause, Degradation};
use crate::records::tail_state::TailState;
use crate::records::{Keys, bounds};
use crate::settings::Settings;
use crate::tail::{Tail, TailView};
use crate::types::BlockRange;

/// The cache of bodies, which is separate, has this fraction of the size of the cache of logs.
const BODIES_CACHE_SHARE: u64 = 4;

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

/// An index of finalized logs; cheap to clone.
#[derive(Clone)]
pub struct LogIndex {
    pub(crate) shared: Arc<SharedIndex>,
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
    coverage_changed: watch::Sender<()>,
    /// Damage that a reader or builder of this process has found and that no writer has stored yet.
    pub(crate) noted: SharedDamageNotes,
    /// Whether a writer of this process keeps the tail.
    pub(crate) writes: AtomicBool,
    /// Number of queries so far.
    pub(crate) queries: AtomicU64,
    /// Read-ahead tasks; they end with the index.
    background: std::sync::Mutex<Tasks<()>>,
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

impl LogIndex {
    /// Opens an index. Reads only its state, its chunk list and its tail.
    pub async fn open(stores: Stores, settings: Settings) -> Result<Self> {
        settings.validate()?;
        let keys = Keys::new(&settings.prefix);
        let metrics = Metrics::new(&settings.chain);
        let reader = ChunkReader::new(
            Arc::clone(&stores.blobs),
            keys.blobs(),
            settings.cache_bytes,
            metrics.clone(),
        );
        let bodies = BodyReader::new(
            Arc::clone(&stores.blobs),
            keys.blobs(),
            settings.cache_bytes / BODIES_CACHE_SHARE,
        );
        let index = Self {
            shared: Arc::new(SharedIndex {
                stores,
                settings,
                keys,
                reader,
                bodies,
                metrics,
                followed: Mutex::default(),
                snapshot: ArcSwap::default(),
                coverage_changed: watch::Sender::default(),
                noted: SharedDamageNotes::default(),
                writes: AtomicBool::new(false),
                queries: AtomicU64::new(0),
                background: std::sync::Mutex::default(),
            }),
        };
        index.shared.check_bounds().await?;
        index.refresh().await?;
        index.warm_in_background();
        Ok(index)
    }

    /// Replaces the bounds in `settings` by the stored ones, if the index exists. For readers, which need not know
    /// them.
    pub async fn with_stored_bounds(stores: &Stores, settings: Settings) -> Result<Settings> {
        let key = Keys::new(&settings.prefix).bounds();
        let Some(record) = stores.meta.get(&key).await? else { return Ok(settings) };
        let stored = bounds::decode(&record.value)?;
        Ok(Settings {
            cell_blocks: stored.cell_blocks,
            chunk_logs: stored.chunk_logs,
            piece_logs: stored.piece_logs,
            ..settings
        })
    }

    /// Starts reading the directories of the newest chunks, without waiting for it.
    fn warm_in_background(&self) {
        if self.shared.settings.warm_chunks == 0 {
            return;
        }
        let index = Arc::downgrade(&self.shared);
        let (snapshot, most) = (self.shared.snapshot(), self.shared.settings.warm_chunks);
        let chunks: Vec<Arc<ChunkEntry>> = snapshot.list.iter().rev().take(most).cloned().collect();
        let mut background = self.shared.background.lock().unwrap_or_else(PoisonError::into_inner);
        background.spawn(async move {
            for chunk in chunks {
                let Some(index) = index.upgrade() else { return };
                index.warm(&chunk).await;
            }
        });
    }

    /// Reads what other processes wrote. In the writer's process only chunks of others can be new. Damaged records
    /// stop reads until they can be read again.
    pub async fn refresh(&self) -> Result<()> {
        let mut followed = self.shared.followed.lock().await;
        self.shared.forget_metadata();
        let outcome = self.shared.follow(&mut followed).await;
        if let Err(error) = &outcome
            && error.kind() == ErrorKind::Corrupt
        {
            let found = Degradation::new(Cause::Metadata, logmill_io::error_chain(error));
            self.shared.note(&found, DamageLocation::Unknown);
        }
        outcome
    }

    /// The highest indexed block, if any.
    pub fn indexed_finalized_head(&self) -> Result<Option<u64>> {
        let snapshot = self.shared.readable()?;
        let head = snapshot.tail_state.as_ref().and_then(|tail| tail.end.checked_sub(1));
        Ok(head.filter(|head| snapshot.coverage.iter().any(|range| range.contains(head))))
    }

    /// Blocks that can be queried: disjoint ranges, lowest first.
    pub fn coverage(&self) -> Vec<BlockRange> {
        self.shared.snapshot().coverage.clone()
    }

    /// Changes whenever [`LogIndex::coverage`] does: by what this process publishes, and by what a refresh finds.
    pub fn coverage_changes(&self) -> watch::Receiver<()> {
        self.shared.coverage_changed.subscribe()
    }

    /// Block below which history was pruned on purpose; 0 if none was.
    pub fn pruned_below(&self) -> u64 {
        self.shared.snapshot().list.floor
    }

    /// All published chunks and pieces, covered or not, lowest first.
    pub fn chunks(&self) -> Vec<Arc<ChunkEntry>> {
        self.shared.snapshot().list.iter().cloned().collect()
    }

    /// The settings the index was opened with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }
}

impl fmt::Debug for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogIndex({}, {:?})", self.shared.settings.prefix, self.coverage())
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

    /// Stores the bounds, or compares them with what was stored.
    async fn check_bounds(&self) -> Result<()> {
        let wanted = self.settings.bounds();
        let key = self.keys.bounds();
        if self.stores.meta.get(&key).await?.is_none() {
            let put = self.stores.meta.put(key.clone(), bounds::encode(&wanted), Condition::Absent);
            match put.await {
                Err(error) if error.kind() != ErrorKind::Conflict => return Err(error.into()),
                _ => {}
            }
        }
        let stored = bounds::decode(&self.stores.meta.read(&key).await?.value)?;
        if stored != wanted {
            return Err(Error::Invalid {
                what: format!(
                    "this index was created with {stored}, the settings have {wanted}: \
                     set the same values, or build another index"
                ),
            });
        }
        Ok(())
    }

    /// Reads the directory of a chunk into the cache.
    async fn warm(&self, chunk: &ChunkEntry) {
        match self.reader.directory(chunk).await {
            Ok(_) => {}
            // Queries that need this chunk will fail; all others continue.
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.note_corruption(&self.snapshot(), &error, Some(chunk.token), None);
            }
            // A query will retry.
            Err(error) => {
                tracing::debug!(
                    error = logmill_io::error_chain(&error),
                    "cannot prefetch the directory of a chunk"
                );
            }
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
