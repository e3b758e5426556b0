//! `LogIndex`: the handle that reads an index, and from which writers and builders come.
//!
//! A query works on a snapshot: which chunks are published, and the tail. In the process of the writer each commit
//! puts a new snapshot in place; elsewhere [`LogIndex::refresh`] does, which follows the store.
//!
//! Guarantees: readers wait for nobody; a snapshot never changes and has no gap between chunks and tail. Leaves to
//! others: when to refresh.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::{ArcSwap, ArcSwapOption};
use logmill_io::{
    BlobStore, Clock, Condition, Entropy, ErrorKind, MetaStore, MetaStoreExt, Version,
};
use tokio::sync::Mutex;

use crate::bodies::{BodyReader, TailBodies};
use crate::chunk_list::ChunkList;
use crate::error::{Error, Result};
use crate::reader::ChunkReader;
use crate::records::chunks::ChunkEntry;
use crate::records::degraded::{Cause, Degraded};
use crate::records::tail_state::TailState;
use crate::records::{Keys, bounds};
use crate::settings::Settings;
use crate::tail::{Tail, TailView};
use crate::types::BlockRange;

/// The cache of bodies has this share of what the cache of logs has, beside it.
const BODIES_CACHE_SHARE: u64 = 4;

/// What an index stands on.
#[derive(Clone, Debug)]
pub struct Stores {
    /// Where its records are.
    pub meta: Arc<dyn MetaStore>,
    /// Where its chunks are.
    pub blobs: Arc<dyn BlobStore>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness, for the names of attempts.
    pub entropy: Arc<dyn Entropy>,
}

/// An index of finalized logs; cheap to clone.
#[derive(Clone)]
pub struct LogIndex {
    pub(crate) shared: Arc<Shared>,
}

/// What all handles of one index in a process share.
pub(crate) struct Shared {
    pub(crate) stores: Stores,
    pub(crate) settings: Settings,
    pub(crate) keys: Keys,
    pub(crate) reader: ChunkReader,
    pub(crate) bodies: BodyReader,
    /// What is known of the store. Whoever changes or follows it holds this; readers do not.
    pub(crate) followed: Mutex<Followed>,
    snapshot: ArcSwap<Snapshot>,
    /// Damage that a reader or builder of this process came upon and that no writer has stored yet.
    noted: ArcSwapOption<Noted>,
    /// Whether a writer of this process keeps the tail.
    pub(crate) writes: AtomicBool,
    /// How many queries there were.
    pub(crate) queries: AtomicU64,
}

/// What is known of the store.
#[derive(Debug, Default)]
pub(crate) struct Followed {
    pub(crate) list: Arc<ChunkList>,
    pub(crate) list_version: Option<Version>,
    /// None before the first block, and after a commit whose outcome is not known.
    pub(crate) tail: Option<Tail>,
    pub(crate) tail_version: Option<Version>,
    /// Whether `tail` is what the store holds; else it is loaded anew before it is used.
    pub(crate) tail_known: bool,
    pub(crate) degraded: Option<Degraded>,
}

/// Damage that was found but is not stored.
#[derive(Debug)]
struct Noted {
    degraded: Degraded,
    /// The chunk it was found in, if it was in one.
    token: Option<u64>,
}

/// What a query works on.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) list: Arc<ChunkList>,
    pub(crate) tail_state: Option<TailState>,
    pub(crate) tail: TailView,
    /// What is known of the bodies of the tail.
    pub(crate) bodies: TailBodies,
    pub(crate) coverage: Vec<BlockRange>,
    pub(crate) degraded: Option<Degraded>,
}

impl LogIndex {
    /// Opens an index: reads its state, its list of chunks and its tail, and nothing else.
    pub async fn open(stores: Stores, settings: Settings) -> Result<Self> {
        settings.validate()?;
        let keys = Keys::new(&settings.prefix);
        let reader =
            ChunkReader::new(Arc::clone(&stores.blobs), keys.blobs(), settings.cache_bytes);
        let bodies = BodyReader::new(
            Arc::clone(&stores.blobs),
            keys.blobs(),
            settings.cache_bytes / BODIES_CACHE_SHARE,
        );
        let index = Self {
            shared: Arc::new(Shared {
                stores,
                settings,
                keys,
                reader,
                bodies,
                followed: Mutex::default(),
                snapshot: ArcSwap::default(),
                noted: ArcSwapOption::default(),
                writes: AtomicBool::new(false),
                queries: AtomicU64::new(0),
            }),
        };
        index.shared.check_bounds().await?;
        index.refresh().await?;
        index.shared.warm().await?;
        Ok(index)
    }

    /// Follows what others wrote. In the process of the writer only chunks of others can be new. Damaged records stop
    /// reads until they can be read again.
    pub async fn refresh(&self) -> Result<()> {
        let mut followed = self.shared.followed.lock().await;
        self.shared.forget_metadata();
        let outcome = self.shared.follow(&mut followed).await;
        if let Err(error) = &outcome
            && error.kind() == ErrorKind::Corrupt
        {
            self.shared.note(Cause::Metadata, error, None);
        }
        outcome
    }

    /// The highest indexed block, if there is one.
    pub fn indexed_finalized_head(&self) -> Result<Option<u64>> {
        let snapshot = self.shared.readable()?;
        let head = snapshot.tail_state.as_ref().and_then(|tail| tail.end.checked_sub(1));
        Ok(head.filter(|head| snapshot.coverage.iter().any(|range| range.contains(head))))
    }

    /// What can be queried: disjoint ranges of blocks, lowest first.
    pub fn coverage(&self) -> Vec<BlockRange> {
        self.shared.snapshot().coverage.clone()
    }

    /// Below which block history was pruned on purpose.
    pub fn pruned_below(&self) -> u64 {
        self.shared.snapshot().list.floor
    }

    /// All published chunks, covered or not, lowest first.
    pub fn chunks(&self) -> Vec<Arc<ChunkEntry>> {
        self.shared.snapshot().list.iter().cloned().collect()
    }

    /// The settings it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.shared.settings
    }
}

impl fmt::Debug for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogIndex({}, {:?})", self.shared.settings.prefix, self.coverage())
    }
}

impl Shared {
    pub(crate) fn snapshot(&self) -> Arc<Snapshot> {
        self.snapshot.load_full()
    }

    /// The snapshot, unless reads are stopped.
    pub(crate) fn readable(&self) -> Result<Arc<Snapshot>> {
        let snapshot = self.snapshot();
        match snapshot.degraded.as_ref().filter(|degraded| degraded.stops_reads()) {
            Some(degraded) => Err(Error::Degraded { reason: degraded.reason.clone() }),
            None => Ok(snapshot),
        }
    }

    /// Puts a snapshot of what is known in place.
    pub(crate) fn show(&self, followed: &Followed) {
        let (tail_state, tail, bodies) = if followed.tail_known {
            let tail = followed.tail.as_ref();
            let bodies = tail.map(|tail| tail.bodies().clone()).unwrap_or_default();
            let state = tail.map(|tail| tail.state.clone());
            (state, tail.map(Tail::view).unwrap_or_default(), bodies)
        } else {
            // The outcome of a commit is open; what was shown before it still holds.
            let shown = self.snapshot();
            (shown.tail_state.clone(), shown.tail.clone(), shown.bodies.clone())
        };
        let tail_state = tail_state.map(|state| above_chunks(state, &followed.list));
        self.snapshot.store(Arc::new(Snapshot {
            list: Arc::clone(&followed.list),
            coverage: followed.list.coverage(tail_state.as_ref()),
            tail,
            bodies,
            tail_state,
            degraded: followed.degraded.clone().or_else(|| self.noted(&followed.list)),
        }));
    }

    /// The damage that was noted, unless the chunk it was found in is gone.
    fn noted(&self, list: &ChunkList) -> Option<Degraded> {
        let noted = self.noted.load_full()?;
        let listed = noted.token.is_none_or(|token| list.by_token(token).is_some());
        listed.then(|| noted.degraded.clone())
    }

    /// Notes damage that a reader or builder came upon. The writer stops at its next step and stores the reason.
    pub(crate) fn note_corruption(&self, error: &Error, token: Option<u64>) {
        self.note(Cause::Corruption, error, token);
    }

    fn note(&self, cause: Cause, error: &Error, token: Option<u64>) {
        let reason = logmill_io::chain(error);
        tracing::error!(reason, "the log index is damaged");
        let found = Degraded { cause, reason };
        self.noted.store(Some(Arc::new(Noted { degraded: found.clone(), token })));
        self.snapshot.rcu(|snapshot| {
            let found = found.clone();
            Snapshot {
                list: Arc::clone(&snapshot.list),
                tail_state: snapshot.tail_state.clone(),
                tail: snapshot.tail.clone(),
                bodies: snapshot.bodies.clone(),
                coverage: snapshot.coverage.clone(),
                degraded: snapshot.degraded.clone().or(Some(found)),
            }
        });
    }

    /// Forgets damaged records: they are about to be read again.
    fn forget_metadata(&self) {
        let noted = self.noted.load();
        if noted.as_ref().is_some_and(|noted| noted.degraded.cause == Cause::Metadata) {
            self.noted.store(None);
        }
    }

    /// Forgets damaged bytes that were noted: they have been written again. Should others be damaged too, their next
    /// reader notes it.
    pub(crate) fn forget_noted_corruption(&self) {
        let noted = self.noted.load();
        if noted.as_ref().is_some_and(|noted| noted.degraded.cause == Cause::Corruption) {
            self.noted.store(None);
        }
    }

    /// Forgets what was noted: an operator has looked.
    pub(crate) fn forget_noted(&self) {
        self.noted.store(None);
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
                    "this index was made with {stored:?} and is opened with {wanted:?}: \
                     use the same, or another prefix"
                ),
            });
        }
        Ok(())
    }

    /// Reads the directories of the newest chunks, so that the first queries find them.
    async fn warm(&self) -> Result<()> {
        let snapshot = self.snapshot();
        for chunk in snapshot.list.iter().rev().take(self.settings.warm_chunks) {
            match self.reader.directory(chunk).await {
                // What needs this chunk fails; all else goes on.
                Err(error) if error.kind() == ErrorKind::Corrupt => {
                    self.note_corruption(&error, Some(chunk.token));
                }
                outcome => drop(outcome?),
            }
        }
        Ok(())
    }

    pub(crate) fn has_writer(&self) -> bool {
        self.writes.load(Ordering::SeqCst)
    }
}

/// A state of the tail without the blocks that chunks hold by now: where somebody else has become the writer,
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
