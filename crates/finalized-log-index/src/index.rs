//! `LogIndex`: the handle that reads an index and creates writers and builders.
//!
//! A query works on a snapshot: the published chunks and the tail. In the writer's process each commit installs a new
//! snapshot; in other processes [`LogIndex::refresh`] does, by following the store.
//!
//! Guarantees: an index is opened only with the bounds it was created with. Leaves to others: when to refresh, and the
//! queries ([`crate::query`], [`crate::lookup`]).

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, PoisonError};

use arc_swap::ArcSwap;
use logmill_io::{Condition, ErrorKind, MetaStoreExt};
use tokio::sync::{Mutex, watch};

use crate::bodies::BodyReader;
use crate::damage_notes::{DamageLocation, SharedDamageNotes};
use crate::error::{Error, Result};
use crate::metric::Metrics;
use crate::reader::ChunkReader;
use crate::records::chunks::ChunkEntry;
use crate::records::degraded::{Cause, Degradation};
use crate::records::{Keys, bounds};
use crate::settings::Settings;
use crate::state::{SharedIndex, Stores};
use crate::types::BlockRange;

/// The cache of bodies, which is separate, has this fraction of the size of the cache of logs.
const BODIES_CACHE_SHARE: u64 = 4;

/// An index of finalized logs; cheap to clone.
#[derive(Clone)]
pub struct LogIndex {
    pub(crate) shared: Arc<SharedIndex>,
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
}
