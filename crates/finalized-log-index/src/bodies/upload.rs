//! Bodies on their way to the store: blobs are written as they fill, so that memory holds one at most.
//!
//! Guarantees: nothing written here counts before the chunk is published that names it. Leaves to others: publication
//! ([`crate::publish`]).

use super::blob::{BLOCKS_MAX, BodiesBuilder};
use crate::error::{Error, Result};
use crate::index::Shared;
use crate::publish::Attempt;
use crate::records;
use crate::records::chunks::BodiesRef;
use crate::tail::SectionView;
use crate::types::Body;

/// A blob of bodies is written when it has so many bytes.
const BLOB_BYTES: usize = 16 << 20;
/// The most bodies of one scan of the tail.
const BODIES_PER_SCAN: usize = 16;

/// The bodies of a chunk that is being built.
#[derive(Debug, Default)]
pub(crate) struct BodiesUpload {
    attempt: Option<Attempt>,
    building: Option<BodiesBuilder>,
    written: Vec<BodiesRef>,
}

impl BodiesUpload {
    /// Adds the body of the next block.
    pub(crate) async fn push(
        &mut self,
        shared: &Shared,
        number: u64,
        body: Option<Body>,
    ) -> Result<()> {
        if let Some(attempt) = &mut self.attempt {
            shared.keep_attempt(attempt).await?;
        }
        if self.building.is_none() && self.written.is_empty() && body.is_none() {
            // No bodies are kept, or none yet: then these blocks have none to be found.
            return Ok(());
        }
        let mut building = self.building.take().unwrap_or_else(|| BodiesBuilder::new(number));
        building.push(body.as_ref());
        if building.group_is_full() {
            building = logmill_io::compute(move || {
                building.end_group();
                building
            })
            .await;
        }
        let full = building.bytes() >= BLOB_BYTES || building.blocks() == BLOCKS_MAX;
        self.building = Some(building);
        if full {
            self.write(shared).await?;
        }
        Ok(())
    }

    /// Ends the blob that is being filled, if there is one: the next body opens another.
    pub(crate) async fn end_blob(&mut self, shared: &Shared) -> Result<()> {
        self.write(shared).await
    }

    async fn write(&mut self, shared: &Shared) -> Result<()> {
        let Some(building) = self.building.take().filter(|building| !building.is_empty()) else {
            return Ok(());
        };
        if self.attempt.is_none() {
            self.attempt = Some(shared.begin_attempt().await?);
        }
        if let Some(attempt) = &self.attempt {
            let encoded = logmill_io::compute(move || building.finish()).await;
            self.written.push(shared.upload_bodies(attempt, encoded).await?);
        }
        Ok(())
    }

    /// Writes what is left; gives the attempt that all of it belongs to.
    pub(crate) async fn finish(mut self, shared: &Shared) -> Result<(Attempt, Vec<BodiesRef>)> {
        self.write(shared).await?;
        let attempt = match self.attempt {
            Some(attempt) => attempt,
            None => shared.begin_attempt().await?,
        };
        Ok((attempt, self.written))
    }
}

impl Shared {
    /// Writes the bodies of a section of the tail.
    pub(crate) async fn seal_bodies(
        &self,
        section: &SectionView,
        generation: u64,
    ) -> Result<(Attempt, Vec<BodiesRef>)> {
        let mut upload = BodiesUpload::default();
        let mut range = self.keys.bodies_of(generation);
        range.start = std::ops::Bound::Included(self.keys.body(generation, section.blocks.start));
        range.end = std::ops::Bound::Excluded(self.keys.body(generation, section.blocks.end));
        let mut next = section.blocks.start;
        loop {
            let stored = self.stores.meta.scan(&range, BODIES_PER_SCAN).await?;
            let Some((last, _)) = stored.last() else {
                break;
            };
            range = range.after(last.clone());
            for (key, record) in &stored {
                let number = records::number_of(key)?;
                if number < next || number >= section.blocks.end {
                    return Err(Error::corrupt(format!("the body {key} is out of order")));
                }
                for absent in next..number {
                    upload.push(self, absent, None).await?;
                }
                let body = records::body::decode(&record.value)?;
                upload.push(self, number, Some(body)).await?;
                next = number + 1;
            }
        }
        if next > section.blocks.start {
            for absent in next..section.blocks.end {
                upload.push(self, absent, None).await?;
            }
        }
        upload.finish(self).await
    }
}
