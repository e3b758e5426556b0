//! Renders a change of a chain once and shares it among all subscribers.
//!
//! ```text
//!   change ─▶ announcement ─▶ per block: header, logs as JSON ─▶ per filter: which of them ─▶ messages
//!             (the same for all sockets)   (rendered by the first that needs it)
//! ```
//!
//! Guarantees: nothing here runs on the ingest task; while a change is among the newest, each header and log of its
//! blocks is rendered once and each filter is matched once, for any number of subscriptions. Memory is bounded by
//! [`RECENT_MAX`] and [`RECENT_BYTES_MAX`]; an evicted change is rendered again for sockets that lag. Leaves to others:
//! routing messages to subscribers ([`super::subscriptions`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use alloy_primitives::{Address, B256};
use finalized_log_index::{Filter, Log};
use logmill_chain::Block;
use logmill_chain::render::BlockRenderer;
use logmill_pipeline::{Change, block};

use super::answer::write_log;

/// Maximum number of changes whose rendering is kept.
const RECENT_MAX: usize = 64;
/// Maximum number of rendered bytes kept for all of them.
const RECENT_BYTES_MAX: usize = 64 << 20;
/// Maximum number of filters whose matches in one block are kept.
const FILTERS_MAX: usize = 16_384;
/// Estimated memory of a kept filter, without its matches.
const FILTER_BYTES_ROUGHLY: usize = 256;

/// The renderings of the newest changes of all chains.
#[derive(Debug, Default)]
pub(crate) struct Fanout {
    recent: Mutex<VecDeque<Arc<Announcement>>>,
}

/// A change, rendered on demand.
#[derive(Debug)]
pub(super) struct Announcement {
    change: Arc<Change>,
    blocks: Vec<AnnouncedBlock>,
    bytes: AtomicUsize,
}

#[derive(Debug)]
struct AnnouncedBlock {
    block: Arc<Block>,
    removed: bool,
    header: OnceLock<Option<Vec<u8>>>,
    logs: OnceLock<Vec<(Log, Vec<u8>)>>,
    /// The positions of the logs that match each filter.
    found: Mutex<BTreeMap<Arc<FilterKey>, Arc<[usize]>>>,
}

/// Filters with equal keys match the same logs and share their matches.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FilterKey {
    addresses: Vec<Address>,
    topics: Vec<Vec<B256>>,
}

impl Fanout {
    /// Returns the announcement of a change: the same one for every caller, while it is among the newest.
    pub(super) fn of(&self, change: &Arc<Change>) -> Arc<Announcement> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let known = recent.iter().rev().find(|known| Arc::ptr_eq(&known.change, change));
        if let Some(known) = known {
            return Arc::clone(known);
        }
        let announcement = Arc::new(Announcement::new(Arc::clone(change)));
        recent.push_back(Arc::clone(&announcement));
        let bytes = |all: &VecDeque<Arc<Announcement>>| -> usize {
            all.iter().map(|one| one.bytes.load(Ordering::Relaxed)).sum()
        };
        while recent.len() > RECENT_MAX || (recent.len() > 1 && bytes(&recent) > RECENT_BYTES_MAX) {
            recent.pop_front();
        }
        announcement
    }
}

impl Announcement {
    fn new(change: Arc<Change>) -> Self {
        let removed = change.removed.iter().map(|block| (block, true));
        let added = change.added.iter().map(|block| (block, false));
        let blocks = removed.chain(added).map(|(block, removed)| AnnouncedBlock {
            block: Arc::clone(block),
            removed,
            header: OnceLock::new(),
            logs: OnceLock::new(),
            found: Mutex::default(),
        });
        let blocks = blocks.collect();
        Self { change, blocks, bytes: AtomicUsize::new(0) }
    }

    /// Number of blocks: first the removed ones, highest first, then the added ones, lowest first.
    pub(super) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// The header of a block as JSON: `Some(None)` if the block was removed, `None` if it cannot be rendered.
    pub(super) fn header(&self, position: usize) -> Option<Option<&[u8]>> {
        let block = self.blocks.get(position)?;
        if block.removed {
            return Some(None);
        }
        let header = block.header.get_or_init(|| {
            let mut out = Vec::new();
            BlockRenderer::of(&block.block).ok()?.header(&mut out).ok()?;
            self.bytes.fetch_add(out.len(), Ordering::Relaxed);
            Some(out)
        });
        header.as_deref().map(Some)
    }

    /// The logs of a block that match a filter, each as JSON.
    pub(super) fn logs(
        &self,
        position: usize,
        filter: &Filter,
        key: &Arc<FilterKey>,
    ) -> impl Iterator<Item = &[u8]> {
        let block = self.blocks.get(position);
        let logs = block.map_or(&[][..], |block| self.rendered(block));
        let found =
            block.map(|block| block.found(logs, filter, key, &self.bytes)).unwrap_or_default();
        let each = (0..found.len()).filter_map(move |at| found.get(at).copied());
        each.filter_map(move |at| logs.get(at)).map(|(_, json)| json.as_slice())
    }

    fn rendered<'a>(&self, block: &'a AnnouncedBlock) -> &'a [(Log, Vec<u8>)] {
        block.logs.get_or_init(|| {
            let render = |log: Log| {
                let mut out = Vec::new();
                write_log(&mut out, &log, block.removed);
                self.bytes.fetch_add(2 * out.len(), Ordering::Relaxed);
                (log, out)
            };
            block::logs_of(&block.block).map(render).collect()
        })
    }
}

impl AnnouncedBlock {
    fn found(
        &self,
        logs: &[(Log, Vec<u8>)],
        filter: &Filter,
        key: &Arc<FilterKey>,
        bytes: &AtomicUsize,
    ) -> Arc<[usize]> {
        let known = || self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = known().get(key) {
            return Arc::clone(found);
        }
        let numbered = logs.iter().enumerate();
        let matching = numbered.filter(|(_, (log, _))| filter.matches(&log.log));
        let found: Arc<[usize]> = matching.map(|(position, _)| position).collect();
        let mut known = known();
        let size = FILTER_BYTES_ROUGHLY + size_of_val(&*found);
        if known.len() < FILTERS_MAX && bytes.load(Ordering::Relaxed) < RECENT_BYTES_MAX {
            bytes.fetch_add(size, Ordering::Relaxed);
            known.insert(Arc::clone(key), Arc::clone(&found));
        }
        found
    }
}

impl FilterKey {
    pub(super) fn of(filter: &Filter) -> Self {
        Self { addresses: filter.addresses.clone(), topics: filter.topics.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn change() -> Arc<Change> {
        Arc::new(Change::default())
    }

    #[test]
    fn all_subscribers_of_a_change_share_its_rendering() {
        let (fanout, change) = (Fanout::default(), change());
        let first = fanout.of(&change);
        assert!(Arc::ptr_eq(&first, &fanout.of(&change)));
        assert!(!Arc::ptr_eq(&first, &fanout.of(&self::change())), "another change");
    }

    #[test]
    fn kept_renderings_are_bounded() {
        let fanout = Fanout::default();
        let first = change();
        let kept = fanout.of(&first);
        for _ in 0..RECENT_MAX {
            fanout.of(&change());
        }
        assert!(!Arc::ptr_eq(&kept, &fanout.of(&first)), "it was pushed out");
        let large = fanout.of(&change());
        large.bytes.store(RECENT_BYTES_MAX + 1, Ordering::Relaxed);
        fanout.of(&change());
        assert_eq!(fanout.recent.lock().expect("fine").len(), 1, "what is large goes first");
    }
}
