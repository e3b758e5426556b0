//! Maintenance: seals complete sections of the tail into chunks, and merges the pieces of complete chunks.
//!
//! Both work on data that no longer changes, so ingest and queries continue; only the publishing commit takes the
//! writer's lock. Merged pieces have the same bytes as one section of all their blocks.
//!
//! Guarantees: after a crash or retry at any point, the blocks of a section are either in the tail or in one listed
//! chunk, never in both or neither. Leaves to others: when to run ([`Writer::maintain`]), and deleting replaced blobs
//! ([`crate::gc`]).

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::{ErrorKind, Key};

use crate::body_keys::TailBodies;
use crate::chunk;
use crate::error::{Error, Result};
use crate::publish::{PublishEffects, Role};
use crate::records::chunks::ChunkEntry;
use crate::section::{Content, End};
use crate::state::{IndexState, SharedIndex};
use crate::tail::{SectionView, Tail};
use crate::writer::Writer;

/// Maximum number of tail records that a seal deletes; garbage collection deletes the rest.
const DELETED_PER_SEAL: usize = 4_096;

/// Delay after a transient error.
const RETRY_WAIT: Duration = Duration::from_secs(1);

/// Outcome of a run of maintenance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MaintenanceSummary {
    /// Sections of the tail that became chunks or pieces.
    pub sealed: usize,
    /// Chunks that were merged from pieces.
    pub merged: usize,
}

impl Writer {
    /// Seals and merges everything that is due. Runs beside ingest and queries.
    pub async fn maintain(&self) -> Result<MaintenanceSummary> {
        let mut done = MaintenanceSummary::default();
        loop {
            // Check before every merge: unsealed sections fill the tail, but nothing waits for a merge.
            while self.seal_next().await? {
                done.sealed += 1;
            }
            if !self.merge_next().await? {
                return Ok(done);
            }
            done.merged += 1;
        }
    }

    /// Runs maintenance whenever there is work, until the future is dropped; returns the first error that is not
    /// transient.
    pub async fn maintain_always(&self) -> Result<Infallible> {
        loop {
            match self.maintain().await {
                Err(error) if error.kind() == ErrorKind::Transient => {
                    tracing::warn!(
                        error = logmill_io::error_chain(&error),
                        "maintenance failed, retrying"
                    );
                    self.shared().stores.clock.sleep(RETRY_WAIT).await;
                }
                Err(error) => return Err(error),
                Ok(_) => self.sealable.notified().await,
            }
        }
    }

    /// Seals the oldest complete section of the tail; returns false if there is none.
    pub async fn seal_next(&self) -> Result<bool> {
        let _sealing = self.sealing.lock().await;
        let shared = self.shared();
        let Some((section, generation, known)) = self.section_to_seal().await? else {
            return Ok(false);
        };
        let (attempt, bodies) = match shared.seal_bodies(&section, generation, &known).await {
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                return self.judge_bodies(&section, error).await;
            }
            sealed => sealed?,
        };
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
        if !tail.sealable().is_some_and(|front| front.is_same(&section)) {
            return Ok(true);
        }
        let delete = shared.sealed_keys(tail, &section, &entry);
        let mut after = tail.state_after_seal(&section);
        after.epoch = self.epoch().cast_unsigned();
        let effects = PublishEffects {
            tail: Some(after.clone()),
            delete,
            fence: Some(self.fence()),
            ..PublishEffects::default()
        };
        let tail = followed.tail.take();
        followed.tail_known = false;
        let published = shared.publish(&mut followed, &attempt, &entry, &effects).await;
        let version = match published {
            Err(Error::Standby) => return Err(self.lost()),
            Err(error) => return Err(self.unless_lost(error).await),
            Ok((_, None)) => return self.renew().await.map(|()| true),
            Ok((_, version)) => version,
        };
        followed.tail_version = version;
        followed.tail = tail.map(|mut tail| {
            tail.trim(&after);
            tail.measure(&self.shared().metrics);
            tail
        });
        followed.tail_known = true;
        shared.install_snapshot(&followed);
        tracing::info!(
            first_block = entry.blocks.start,
            block_num = entry.blocks.end - 1,
            writer_epoch = self.epoch(),
            logs = entry.logs,
            bytes = entry.bytes,
            "sealed a section of the tail"
        );
        Ok(true)
    }

    /// The oldest complete section of the tail, its generation, and which of its blocks have bodies.
    async fn section_to_seal(&self) -> Result<Option<(Arc<SectionView>, u64, TailBodies)>> {
        let mut followed = self.shared().followed.lock().await;
        self.usable(&mut followed).await?;
        Ok(followed.tail.as_ref().and_then(|tail| {
            let section = Arc::clone(tail.sealable()?);
            Some((section, tail.state.generation, tail.bodies().clone()))
        }))
    }

    /// The lease is held, the tail is known, and nothing forbids to write.
    async fn usable(&self, followed: &mut IndexState) -> Result<()> {
        self.renew_if_due().await?;
        if !followed.tail_known {
            self.shared().follow(followed).await?;
        }
        self.refuse_degraded(followed).await
    }

    /// Merges the pieces of the oldest complete chunk; returns false if there is none.
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
        let effects = PublishEffects {
            replaced: pieces.iter().map(|piece| piece.token).collect(),
            fence: Some(self.fence()),
            ..PublishEffects::default()
        };
        {
            let mut followed = shared.followed.lock().await;
            match shared.publish(&mut followed, &attempt, &entry, &effects).await {
                Err(Error::Standby) => return Err(self.lost()),
                Err(error) => return Err(self.unless_lost(error).await),
                Ok(_) => {}
            }
            shared.install_snapshot(&followed);
        }
        tracing::info!(
            first_block = entry.blocks.start,
            block_num = entry.blocks.end - 1,
            writer_epoch = self.epoch(),
            pieces = pieces.len(),
            bytes = entry.bytes,
            "merged pieces into a chunk"
        );
        let took = shared.stores.clock.monotonic().saturating_sub(started);
        let percent = shared.settings.merge_cpu_percent;
        shared.stores.clock.sleep(took * (100 - percent) / percent).await;
        Ok(true)
    }
}

impl Writer {
    /// On a conflict, prefers the error that the lease is lost: the new writer caused the conflict.
    async fn unless_lost(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::Conflict {
            return error;
        }
        self.renew().await.err().filter(|lost| lost.kind() == ErrorKind::Fenced).unwrap_or(error)
    }

    /// Unreadable pieces are damage, unless another writer has merged and deleted them in the meantime.
    async fn judge_damage(&self, pieces: &[Arc<ChunkEntry>], error: Error) -> Result<bool> {
        self.renew().await?;
        let shared = self.shared();
        let mut followed = shared.followed.lock().await;
        shared.follow_chunks(&mut followed).await?;
        if pieces.iter().any(|piece| followed.list.by_token(piece.token).is_none()) {
            return Ok(true);
        }
        shared.note_corruption(&shared.snapshot(), &error, None, None);
        Err(error)
    }
}

impl Writer {
    /// Bodies of the tail that are missing or cannot be read are damage, unless another process has sealed them
    /// meanwhile.
    async fn judge_bodies(&self, section: &SectionView, error: Error) -> Result<bool> {
        self.renew().await?;
        let shared = self.shared();
        let mut followed = shared.followed.lock().await;
        followed.tail_known = false;
        shared.follow(&mut followed).await?;
        let front = followed.tail.as_ref().and_then(|tail| tail.sealable());
        if !front.is_some_and(|front| front.is_same(section)) {
            return Ok(true);
        }
        shared.note_corruption(&shared.snapshot(), &error, None, None);
        Err(error)
    }
}

impl SharedIndex {
    /// Tail records that are obsolete once the section is sealed, up to [`DELETED_PER_SEAL`] of each kind.
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
