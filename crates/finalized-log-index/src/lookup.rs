//! Lookups: a block by number or hash, a transaction by hash.
//!
//! Guarantees: a fingerprint only points at candidates; the hash itself is compared. Only covered blocks are found.
//! Leaves to others: transactions without logs, which the index does not know.

use alloy_primitives::B256;
use logmill_io::ErrorKind;

use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::index::{LogIndex, Shared, Snapshot};
use crate::query::{Opened, Source};
use crate::section::BlockRow;
use crate::term::{Fingerprint, Kind};
use crate::terms::Group;
use crate::types::{BlockInfo, BlockRange, Log};

/// How often a lookup is tried again because chunks were merged or pruned meanwhile.
const REPLANS_MAX: usize = 100;

impl LogIndex {
    /// A covered block, by its number.
    pub async fn block_by_number(&self, number: u64) -> Result<Option<BlockInfo>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.block_at(&snapshot, number).await {
                Err(error) => self.shared.look_again(&snapshot, error, &mut tries).await?,
                found => return found,
            }
        }
    }

    /// A covered block, by its hash.
    pub async fn block_by_hash(&self, hash: &B256) -> Result<Option<BlockInfo>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.find_block(&snapshot, hash).await {
                Err(error) => self.shared.look_again(&snapshot, error, &mut tries).await?,
                found => return found,
            }
        }
    }

    /// The logs of a transaction in a covered block; none if no transaction with logs has this hash.
    pub async fn logs_of_transaction(&self, hash: &B256) -> Result<Vec<Log>> {
        let mut tries = 0;
        loop {
            let snapshot = self.shared.readable()?;
            match self.shared.find_transaction(&snapshot, hash).await {
                Err(error) => self.shared.look_again(&snapshot, error, &mut tries).await?,
                found => return found,
            }
        }
    }
}

impl Shared {
    /// After a lookup that failed: fine if a chunk was merged away or pruned since the snapshot was taken, so that
    /// it is worth another try; else the error, noted if it is damage.
    pub(crate) async fn look_again(
        &self,
        snapshot: &Snapshot,
        error: Error,
        tries: &mut usize,
    ) -> Result<()> {
        if error.kind() != ErrorKind::Corrupt {
            return Err(error);
        }
        let mut followed = self.followed.lock().await;
        self.follow(&mut followed).await?;
        *tries += 1;
        let is_missing = matches!(error, Error::ChunkMissing { .. });
        if is_missing && followed.list.seq != snapshot.list.seq && *tries < REPLANS_MAX {
            return Ok(());
        }
        drop(followed);
        self.note_corruption(&error, None);
        Err(error)
    }

    async fn block_at(&self, snapshot: &Snapshot, number: u64) -> Result<Option<BlockInfo>> {
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

    /// A covered block of a snapshot, by its hash.
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

    async fn ids(&self, opened: &Opened, term: Fingerprint) -> Result<Vec<u32>> {
        match opened.group(&self.reader, term).await? {
            None => Ok(Vec::new()),
            Some(Group::Ids(ids)) => Ok(ids),
            Some(group) => Ok(opened.ids(&self.reader, group).await?.to_vec()),
        }
    }

    /// The rows of the blocks of a source, the number of the first, and the hash before it.
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
    async fn transaction_at(&self, opened: &Opened, id: u32, hash: &B256) -> Result<Vec<Log>> {
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

/// The covered sources of a snapshot, newest first: recent blocks are asked for most.
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
