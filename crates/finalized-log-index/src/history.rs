//! History: builds chunks of any range, by any number of workers in any order.
//!
//! A worker pushes the blocks of its range through the same sections as the tail and publishes each chunk when it is
//! complete. Workers coordinate only through the chunk list: the second worker with a range finds it published. A
//! chunk counts as covered once it is linked to an anchor ([`crate::chunk_list`]).
//!
//! Guarantees: the same blocks produce the same bytes, regardless of the worker. Leaves to others: which range to
//! build (jobs), and the source of blocks.

use std::sync::Arc;

use futures::{Stream, StreamExt, pin_mut};
use tokio::sync::MutexGuard;

use crate::body_upload::BodiesUpload;
use crate::chunk::{self, EncodedChunk};
use crate::error::{Error, Result};
use crate::index::LogIndex;
use crate::publish::{PublishEffects, Role};
use crate::records::chunks::ChunkEntry;
use crate::section::{ChunkPrefix, Content, End, Section};
use crate::state::IndexState;
use crate::types::{BlockRange, FinalizedBlock};

impl LogIndex {
    /// Builds and publishes the chunks of `range` from its blocks, which must come in order. Returns the published
    /// entries. A range that was published before with the same bytes is not an error.
    pub async fn build_chunk(
        &self,
        range: BlockRange,
        blocks: impl Stream<Item = Result<FinalizedBlock>>,
    ) -> Result<Vec<Arc<ChunkEntry>>> {
        if range.is_empty() {
            return Err(Error::Invalid { what: format!("the range {range:?} is empty") });
        }
        pin_mut!(blocks);
        let mut published = Vec::new();
        let mut next = range.start;
        while next < range.end {
            let mut building = ChunkBuilder::new(self, next);
            let mut end = End::Open;
            while end != End::Chunk && building.next < range.end {
                let Some(block) = blocks.next().await else {
                    return Err(Error::Invalid {
                        what: format!("blocks of {range:?} end before {}", building.next),
                    });
                };
                let block = block?;
                end = building.push(&block)?;
                building.push_body(self, block).await?;
            }
            next = building.next;
            published.push(self.publish_built(building).await?);
        }
        Ok(published)
    }

    async fn publish_built(&self, building: ChunkBuilder) -> Result<Arc<ChunkEntry>> {
        let shared = &self.shared;
        let anchored = building.anchored;
        let (content, bodies) = building.finish();
        let (mut attempt, bodies) = bodies.finish(shared).await?;
        let encoded: EncodedChunk = logmill_io::compute(move || chunk::encode(content)).await;
        shared.keep_attempt(&mut attempt).await?;
        let chunk_start = encoded.blocks.start;
        let role = Role { chunk_start, ends_chunk: true, anchored, bodies };
        let entry = shared.upload(&attempt, &encoded, role).await?;
        let mut followed: MutexGuard<'_, IndexState> = shared.followed.lock().await;
        let effects = PublishEffects::default();
        let (entry, _) = shared.publish(&mut followed, &attempt, &entry, &effects).await?;
        shared.install_snapshot(&followed);
        Ok(entry)
    }
}

/// A chunk under construction.
struct ChunkBuilder {
    section: Section,
    first_block: u64,
    parent_hash: Option<alloy_primitives::B256>,
    next: u64,
    last_hash: Option<alloy_primitives::B256>,
    anchors: Vec<(u64, alloy_primitives::B256)>,
    anchored: bool,
    bodies: BodiesUpload,
}

impl ChunkBuilder {
    fn new(index: &LogIndex, first_block: u64) -> Self {
        let settings = index.settings();
        Self {
            section: Section::new(settings.bounds(), first_block, ChunkPrefix::default()),
            first_block,
            parent_hash: None,
            next: first_block,
            last_hash: None,
            anchors: settings.anchors.clone(),
            anchored: false,
            bodies: BodiesUpload::default(),
        }
    }

    fn push(&mut self, block: &FinalizedBlock) -> Result<End> {
        block.validate()?;
        if block.number != self.next {
            return Err(Error::InvalidSequence { expected: self.next, got: block.number });
        }
        if self.last_hash.is_some_and(|hash| hash != block.parent_hash) {
            let what = "its parent hash is not the hash of the previous block".to_owned();
            return Err(Error::InvalidBlock { number: block.number, what });
        }
        for (number, hash) in &self.anchors {
            if *number == block.number && *hash != block.hash {
                let what = format!("its hash is {}, but the anchor has {hash}", block.hash);
                return Err(Error::InvalidBlock { number: block.number, what });
            }
            self.anchored |= *number == block.number;
        }
        self.parent_hash.get_or_insert(block.parent_hash);
        self.last_hash = Some(block.hash);
        self.next = block.number + 1;
        Ok(self.section.push(block))
    }

    async fn push_body(&mut self, index: &LogIndex, block: FinalizedBlock) -> Result<()> {
        self.bodies.push(&index.shared, block.number, block.body).await
    }

    fn finish(self) -> (Content, BodiesUpload) {
        let content = Content {
            first_block: self.first_block,
            parent_hash: self.parent_hash.unwrap_or_default(),
            run: self.section.finish(),
        };
        (content, self.bodies)
    }
}
