//! Checks a damaged place again, by reading the stores and not the caches.
//!
//! A process that does not write cannot mend what its queries find damaged. It checks the place again, which rules out
//! a read that went wrong once, and reports it to the process that writes. That process checks the place as well,
//! before anything is changed: the reporting process may have a broken disk or network.
//!
//! Guarantees: all bytes of the place are compared with what was published; a place that proves to be intact is no
//! longer noted as damaged. Leaves to others: reporting, and writing blocks again.

use logmill_io::{BlobName, BlobStore, ErrorKind};

use crate::bodies;
use crate::damage_notes::DamageLocation;
use crate::error::{Error, Result};
use crate::index::LogIndex;
use crate::reader;
use crate::records::degraded::DamagedBlocks;
use crate::state::{SharedIndex, Snapshot};

/// What a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recheck {
    /// The place no longer holds the bytes that were found damaged: they were replaced, merged or removed.
    Gone,
    /// The stored bytes are those that were written.
    Intact,
    /// The damage is stored. It is noted, as if a query had found it.
    Damaged(DamagedBlocks),
}

impl LogIndex {
    /// Damage that this process came upon, at places that are known and hold what was read. In the process that writes,
    /// such damage stops writes until it is refilled; in others, it concerns only this process until it is reported.
    pub fn noted_damage(&self) -> Vec<(DamageLocation, DamagedBlocks)> {
        self.shared.located_damage()
    }

    /// Checks a place of the current snapshot again. An error is a failure of the stores and tells nothing about the
    /// place.
    pub async fn recheck(&self, place: DamageLocation) -> Result<Recheck> {
        let snapshot = self.shared.readable()?;
        let tail = snapshot.tail_state.as_ref();
        if place == DamageLocation::Unknown || !place.is_current(&snapshot.list, tail) {
            return Ok(Recheck::Gone);
        }
        let read = match place {
            DamageLocation::Tail { number, .. } => self.body(number).await.map(drop),
            _ => self.shared.reread(&snapshot, place).await,
        };
        match read {
            Ok(()) => {
                let followed = self.shared.followed.lock().await;
                self.shared.forget_location(place);
                self.shared.install_snapshot(&followed);
                Ok(Recheck::Intact)
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => {
                self.note_once(&snapshot, place, error).await?;
                let noted = self.noted_at(place);
                Ok(noted.map_or(Recheck::Gone, Recheck::Damaged))
            }
            Err(error) => Err(error),
        }
    }

    /// Notes damage, unless it is noted already or its place has been replaced while it was read.
    async fn note_once(
        &self,
        snapshot: &Snapshot,
        place: DamageLocation,
        error: Error,
    ) -> Result<()> {
        if self.noted_at(place).is_some() {
            return Ok(());
        }
        match self.shared.retry_or_note_damage(snapshot, error, None, &mut 0).await {
            Err(error) if error.kind() != ErrorKind::Corrupt => Err(error),
            _ => Ok(()),
        }
    }

    fn noted_at(&self, place: DamageLocation) -> Option<DamagedBlocks> {
        let mut noted = self.noted_damage().into_iter();
        noted.find_map(|(at, damaged)| (at == place).then_some(damaged))
    }
}

impl SharedIndex {
    /// Reads the blob at a place and compares it with the chunk list.
    async fn reread(&self, snapshot: &Snapshot, place: DamageLocation) -> Result<()> {
        match place {
            DamageLocation::Chunk(token) => {
                let Some(entry) = snapshot.list.by_token(token) else { return Ok(()) };
                let (blob, name) = (entry.blob_name(&self.keys.blobs())?, reader::name_of(entry));
                compare(&*self.stores.blobs, &blob, entry.blake3, &name).await
            }
            DamageLocation::Bodies { token, start } => {
                let entry = snapshot.list.containing(start);
                let found = entry.and_then(|entry| entry.bodies.iter().find(|b| b.token == token));
                let Some(found) = found else { return Ok(()) };
                let (blob, name) = (found.blob_name(&self.keys.blobs())?, bodies::name_of(found));
                compare(&*self.stores.blobs, &blob, found.blake3, &name).await
            }
            DamageLocation::Tail { .. } | DamageLocation::Unknown => Ok(()),
        }
    }
}

async fn compare(
    blobs: &dyn BlobStore,
    blob: &BlobName,
    published: [u8; 32],
    name: &str,
) -> Result<()> {
    let Some(bytes) = blobs.get(blob).await? else {
        return Err(Error::ChunkMissing { chunk: name.to_owned() });
    };
    let hash = logmill_io::compute(move || blake3::hash(&bytes)).await;
    if *hash.as_bytes() != published {
        return Err(Error::corrupt("its bytes differ from the published ones").in_chunk(name));
    }
    Ok(())
}
