//! Lookups: a block by number or hash, a transaction by hash.
//!
//! Guarantees: a fingerprint only selects candidates; the full hash is compared. Only covered blocks are found.
//! Leaves to others: transactions without logs, which the index does not know.

use alloy_primitives::B256;
use logmill_io::ErrorKind;

use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::index::LogIndex;
use crate::query::{OpenSource, Source};
use crate::section::BlockRow;
use crate::state::{SharedIndex, Snapshot};
use crate::term::{Fingerprint, Kind};
use crate::terms::Group;
use crate::types::{BlockInfo, BlockRange, Log};

/// How often a lookup is retried because chunks were merged or pruned in the meantime.
const REPLANS_MAX: usize = 100;

impl LogIndex {
    /// Looks up a covered block by its number.
    pub async fn block_by_number(&self, number: u64) -> Result<Option<BlockInfo>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.block_at(&snapshot, number).await {
                Err(error) => {
                    self.shared
                        .retry_or_note_damage(&snapshot, error, Some(number), &mut tries)
                        .await?;
                }
                found => return found,
            }
        }
    }

    /// Looks up a covered block by its hash.
    pub async fn block_by_hash(&self, hash: &B256) -> Result<Option<BlockInfo>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.find_block(&snapshot, hash).await {
                Err(error) => {
                    self.shared.retry_or_note_damage(&snapshot, error, None, &mut tries).await?;
                }
                found => return found,
            }
        }
    }

    /// The logs of a transaction in a covered block; empty if no transaction with logs has this hash.
    pub async fn logs_of_transaction(&self, hash: &B256) -> Result<Vec<Log>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.find_transaction(&snapshot, hash).await {
                Err(error) => {
                    self.shared.retry_or_note_damage(&snapshot, error, None, &mut tries).await?;
                }
                found => return found,
            }
        }
    }
}

impl SharedIndex {
    /// After a lookup that failed: fine if what it read was merged away, pruned or written again since the snapshot was
    /// taken, so that it is worth another try; else the error, noted if it is damage. `at` is the block that was looked
    /// up, if it was one.
    pub(crate) async fn retry_or_note_damage(
        &self,
        snapshot: &Snapshot,
        error: Error,
        at: Option<u64>,
        tries: &mut usize,
    ) -> Result<()> {
        if error.kind() != ErrorKind::Corrupt {
            return Err(error);
        }
        let mut followed = self.followed.lock().await;
        self.follow(&mut followed).await?;
        *tries += 1;
        let is_missing = matches!(error, Error::ChunkMissing { .. });
        let has_moved = is_missing && followed.list.seq != snapshot.list.seq;
        if has_moved || !self.is_current(&error, at, snapshot, &followed) {
            return if *tries < REPLANS_MAX { Ok(()) } else { Err(error) };
        }
        // Under the lock: a rewrite that lands from here on forgets it.
        self.note_corruption(snapshot, &error, None, at);
        Err(error)
    }

    pub(crate) async fn block_at(
        &self,
        snapshot: &Snapshot,
        number: u64,
    ) -> Result<Option<BlockInfo>> {
        for source in sources(snapshot, &(number..number.saturating_add(1))) {
            let (start, rows, parent) = self.rows(&source).await?;
            let Some(position) = position(start, number, rows.len()) else {
                continue;
            };
            return Ok(Some(info(start, &rows, parent, position)));
        }
        Ok(None)
    }

    async fn find_transaction(&self, snapshot: &Snapshot, hash: &B256) -> Result<Vec<Log>> {
        let term = Fingerprint::of_word(Kind::Transaction, hash);
        for source in all_sources(snapshot) {
            let opened = source.open(&self.reader).await?;
            for id in self.ids(&opened, term).await? {
                let logs = self.transaction_at(&opened, id, hash).await?;
                if !logs.is_empty() {
                    return Ok(logs);
                }
            }
        }
        Ok(Vec::new())
    }

    /// Finds a covered block of a snapshot by its hash.
    pub(crate) async fn find_block(
        &self,
        snapshot: &Snapshot,
        hash: &B256,
    ) -> Result<Option<BlockInfo>> {
        let term = Fingerprint::of_word(Kind::Block, hash);
        for source in all_sources(snapshot) {
            let opened = source.open(&self.reader).await?;
            if self.ids(&opened, term).await?.is_empty() {
                continue;
            }
            let (start, rows, parent) = self.rows(&source).await?;
            let Some(position) = rows.iter().position(|row| row.hash == *hash) else {
                continue;
            };
            let found = info(start, &rows, parent, position);
            if snapshot.coverage.iter().any(|range| range.contains(&found.number)) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    async fn ids(&self, opened: &OpenSource, term: Fingerprint) -> Result<Vec<u32>> {
        match opened.group(&self.reader, term).await? {
            None => Ok(Vec::new()),
            Some(Group::Ids(ids)) => Ok(ids),
            Some(group) => Ok(opened.ids(&self.reader, group).await?.to_vec()),
        }
    }

    /// The rows of the blocks of a source, with the number and the parent hash of the first.
    async fn rows(&self, source: &Source) -> Result<(u64, Vec<BlockRow>, B256)> {
        match source {
            Source::Chunk(entry) => {
                let directory = self.reader.directory(entry).await?;
                let rows = self.reader.blocks(entry, &directory).await?;
                Ok((entry.blocks.start, rows.to_vec(), entry.parent_hash))
            }
            Source::Section(section) => {
                let rows = section.rows().copied().collect();
                Ok((section.blocks.start, rows, section.parent_hash))
            }
        }
    }

    /// The logs of the transaction that starts at an id, if it has this hash.
    async fn transaction_at(&self, opened: &OpenSource, id: u32, hash: &B256) -> Result<Vec<Log>> {
        let mut logs = Vec::new();
        if opened.page_count() == 0 {
            return Ok(logs);
        }
        let mut page = opened.page_of(id);
        let mut position = id.checked_sub(opened.page_ids(page).start);
        while let Some(start) = position.and_then(|start| usize::try_from(start).ok()) {
            let view = opened.view(page, opened.page(&self.reader, page).await?)?;
            let before = logs.len();
            let of_tx = (start..view.len()).take_while(|p| view.transaction_hash(*p) == *hash);
            let positions: Vec<usize> = of_tx.collect();
            view.logs(&positions, &mut logs);
            let reached_end = logs.len() - before == view.len().saturating_sub(start);
            page += 1;
            position = (reached_end && page < opened.page_count()).then_some(0);
        }
        Ok(logs)
    }
}

fn position(start: u64, number: u64, rows: usize) -> Option<usize> {
    let position = usize::try_from(number.checked_sub(start)?).ok()?;
    (position < rows).then_some(position)
}

fn info(start: u64, rows: &[BlockRow], parent: B256, position: usize) -> BlockInfo {
    let row = &rows[position];
    let before = position.checked_sub(1).map_or(parent, |before| rows[before].hash);
    BlockInfo {
        number: start + as_u64(position),
        hash: row.hash,
        parent_hash: before,
        timestamp: row.timestamp,
        log_count: row.logs,
    }
}

/// The covered sources of a snapshot, newest first, because recent blocks are requested most.
fn all_sources(snapshot: &Snapshot) -> Vec<Source> {
    let mut all: Vec<Source> =
        snapshot.coverage.iter().flat_map(|range| sources(snapshot, range)).collect();
    all.reverse();
    all
}

fn sources(snapshot: &Snapshot, range: &BlockRange) -> Vec<Source> {
    let covered = |block: u64| snapshot.coverage.iter().any(|range| range.contains(&block));
    let ahead = crate::query::sources(snapshot, std::slice::from_ref(range));
    ahead.into_iter().filter(|(_, part)| covered(part.start)).map(|(source, _)| source).collect()
}
