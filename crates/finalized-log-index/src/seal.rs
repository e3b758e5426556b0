//! Maintenance: sealing complete sections of the tail into chunks, and merging the pieces of complete chunks.
//!
//! Both work on what no longer changes, so ingest and queries go on meanwhile; only the commit that publishes takes
//! the writer's lock. A merge of pieces has the bytes that one section of all their blocks would have had.
//!
//! Guarantees: crashed or repeated anywhere, the blocks of a section are in the tail or in one listed chunk, never
//! in none or both. Leaves to others: when to run ([`Writer::maintain`]), and deleting what is replaced
//! ([`crate::gc`]).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::{ErrorKind, Key};

use crate::chunk;
use crate::error::{Error, Result};
use crate::index::Shared;
use crate::publish::{Beside, Role};
use crate::records::chunks::ChunkEntry;
use crate::section::{Content, End};
use crate::tail::{SectionView, Tail};
use crate::writer::Writer;

/// The most records of the tail that a seal deletes; garbage collection takes the rest.
const DELETED_PER_SEAL: usize = 4_096;

/// How long maintenance waits after an error.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// What maintenance did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintained {
    /// Sections of the tail that became chunks or pieces.
    pub sealed: usize,
    /// Chunks that were merged from pieces.
    pub merged: usize,
}

impl Writer {
    /// Seals and merges everything that is due. Runs beside ingest and queries.
    pub async fn maintain(&self) -> Result<Maintained> {
        let mut done = Maintained::default();
        loop {
            // Between any two merges: the tail waits for a seal, and nobody waits for a merge.
            while self.seal_next().await? {
                done.sealed += 1;
            }
            if !self.merge_next().await? {
                return Ok(done);
            }
            done.merged += 1;
        }
    }

    /// Maintains whenever there is something to do, for as long as it is polled; ends with an error that a repetition
    /// would not take away.
    pub async fn maintain_always(&self) -> Result<Infallible> {
        loop {
            match self.maintain().await {
                Err(error) if error.kind() == ErrorKind::Transient => {
                    tracing::warn!(error = logmill_io::chain(&error), "maintenance is tried again");
                    self.shared().stores.clock.sleep(RETRY_WAIT).await;
                }
                Err(error) => return Err(error),
                Ok(_) => self.sealable.notified().await,
            }
        }
    }

    /// Seals the oldest complete section of the tail; false if there is none.
    pub async fn seal_next(&self) -> Result<bool> {
        let _sealing = self.sealing.lock().await;
        let shared = self.shared();
        let section = {
            let mut followed = shared.followed.lock().await;
            self.usable(&mut followed).await?;
            let tail = followed.tail.as_ref();
            tail.and_then(|tail| Some((Arc::clone(tail.sealable()?), tail.state.generation)))
        };
        let Some((section, generation)) = section else {
            return Ok(false);
        };
        let (attempt, bodies) = shared.seal_bodies(&section, generation).await?;
        let content = Arc::clone(&section);
        let encoded = logmill_io::compute(move || chunk::encode(content.content())).await;
        let role = Role {
            chunk_start: section.chunk_start,
            ends_chunk: section.end == Some(End::Chunk),
            anchored: true,
            bodies,
        };
        let entry = shared.upload(&attempt, &encoded, role).await?;
        let mut followed = shared.followed.lock().await;
        self.usable(&mut followed).await?;
        let Some(tail) = followed.tail.as_ref() else {
            return Ok(false);
        };
        // Meanwhile another process may have sealed it, or the tail may have been thrown away.
        let same = |front: &Arc<SectionView>| {
            front.blocks == section.blocks && front.last_hash == section.last_hash
        };
        if !tail.sealable().is_some_and(same) {
            return Ok(true);
        }
        let delete = shared.sealed_keys(tail, &section, &entry);
        let mut after = tail.state_after_seal(&section);
        after.epoch = self.epoch().cast_unsigned();
        let beside = Beside {
            tail: Some(after.clone()),
            delete,
            fence: Some(self.fence()),
            ..Beside::default()
        };
        let tail = followed.tail.take();
        followed.tail_known = false;
        let published = shared.publish(&mut followed, &attempt, &entry, &beside).await;
        let version = match published {
            Err(Error::Standby) => return Err(self.lost()),
            Err(error) => return Err(self.unless_lost(error).await),
            Ok((_, None)) => return self.renew().await.map(|()| true),
            Ok((_, version)) => version,
        };
        followed.tail_version = version;
        followed.tail = tail.map(|mut tail| {
            tail.trim(&after);
            tail
        });
        followed.tail_known = true;
        shared.show(&followed);
        tracing::info!(
            first_block = entry.blocks.start,
            block_num = entry.blocks.end - 1,
            writer_epoch = self.epoch(),
            logs = entry.logs,
            bytes = entry.bytes,
            "sealed"
        );
        Ok(true)
    }

    /// The lease is held, the tail is known, and nothing forbids to write.
    async fn usable(&self, followed: &mut crate::index::Followed) -> Result<()> {
        self.keep_lease().await?;
        if !followed.tail_known {
            self.shared().follow(followed).await?;
        }
        self.refuse_degraded(followed).await
    }

    /// Merges the pieces of the oldest complete chunk; false if there is none.
    pub async fn merge_next(&self) -> Result<bool> {
        let _merging = self.merging.lock().await;
        let shared = self.shared();
        let group = {
            let mut followed = shared.followed.lock().await;
            self.usable(&mut followed).await?;
            followed.list.mergeable().into_iter().next()
        };
        let Some(pieces) = group else {
            return Ok(false);
        };
        let started = shared.stores.clock.monotonic();
        let encoded = match shared.merge(&pieces).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return self.judge_damage(&pieces, error).await;
            }
            encoded => encoded?,
        };
        let role = Role {
            chunk_start: encoded.blocks.start,
            ends_chunk: true,
            anchored: pieces.iter().any(|piece| piece.anchored),
            bodies: pieces.iter().flat_map(|piece| piece.bodies.iter().cloned()).collect(),
        };
        let attempt = shared.begin_attempt().await?;
        let entry = shared.upload(&attempt, &encoded, role).await?;
        let beside = Beside {
            replaced: pieces.iter().map(|piece| piece.token).collect(),
            fence: Some(self.fence()),
            ..Beside::default()
        };
        {
            let mut followed = shared.followed.lock().await;
            match shared.publish(&mut followed, &attempt, &entry, &beside).await {
                Err(Error::Standby) => return Err(self.lost()),
                Err(error) => return Err(self.unless_lost(error).await),
                Ok(_) => {}
            }
            shared.show(&followed);
        }
        tracing::info!(
            first_block = entry.blocks.start,
            block_num = entry.blocks.end - 1,
            writer_epoch = self.epoch(),
            pieces = pieces.len(),
            bytes = entry.bytes,
            "merged"
        );
        let took = shared.stores.clock.monotonic().saturating_sub(started);
        let percent = shared.settings.merge_cpu_percent;
        shared.stores.clock.sleep(took * (100 - percent) / percent).await;
        Ok(true)
    }
}

impl Writer {
    /// Why something could not be published: before all, because somebody else has done it, who writes now.
    async fn unless_lost(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Conflict {
            return error;
        }
        self.renew().await.err().filter(|lost| lost.kind() == ErrorKind::Fenced).unwrap_or(error)
    }

    /// Pieces that can not be read are damage, unless another writer has merged them meanwhile.
    async fn judge_damage(&self, pieces: &[Arc<ChunkEntry>], error: Error) -> Result<bool> {
        self.renew().await?;
        let shared = self.shared();
        let mut followed = shared.followed.lock().await;
        shared.follow_chunks(&mut followed).await?;
        if pieces.iter().any(|piece| followed.list.by_token(piece.token).is_none()) {
            return Ok(true);
        }
        shared.note_corruption(&error, None);
        Err(error)
    }
}

impl Shared {
    /// The records of the tail that are not needed once a section is sealed, not too many.
    fn sealed_keys(&self, tail: &Tail, section: &SectionView, entry: &ChunkEntry) -> Vec<Key> {
        let generation = tail.state.generation;
        let batches = tail.batches_below(section.blocks.end, DELETED_PER_SEAL).into_iter();
        let batches = batches.map(|first| self.keys.tail_batch(generation, first));
        let bodies = section.blocks.clone().filter(|_| !entry.bodies.is_empty());
        let bodies = bodies.take(DELETED_PER_SEAL).map(|number| self.keys.body(generation, number));
        batches.chain(bodies).collect()
    }

    async fn merge(&self, pieces: &[Arc<ChunkEntry>]) -> Result<chunk::EncodedChunk> {
        let mut contents = Vec::with_capacity(pieces.len());
        for piece in pieces {
            contents.push(self.reader.content(piece).await?);
        }
        logmill_io::compute(move || Ok(chunk::encode(Content::concat(contents)?))).await
    }
}
