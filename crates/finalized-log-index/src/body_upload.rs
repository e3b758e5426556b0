//! Uploads bodies: blobs are written as they fill, so that at most one is in memory.
//!
//! Guarantees: nothing written here counts before the chunk that lists it is published. Leaves to others: publication
//! ([`crate::publish`]).

use crate::bodies::blob::{BLOCKS_MAX, BodiesBuilder};
use crate::body_keys::TailBodies;
use crate::error::{Error, Result};
use crate::publish::Attempt;
use crate::records;
use crate::records::chunks::BodiesRef;
use crate::state::SharedIndex;
use crate::tail::SectionView;
use crate::types::Body;

/// A blob of bodies is written when it reaches this size.
const BLOB_BYTES: usize = 16 << 20;
/// Page size of scans of the tail.
const BODIES_PER_SCAN: usize = 16;

/// The bodies of a chunk under construction.
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
        shared: &SharedIndex,
        number: u64,
        body: Option<Body>,
    ) -> Result<()> {
        if let Some(attempt) = &mut self.attempt {
            shared.keep_attempt(attempt).await?;
        }
        if self.building.is_none() && self.written.is_empty() && body.is_none() {
            // No bodies are kept, or none so far: these blocks need no entry.
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

    /// Ends the current blob, if any; the next body opens another.
    pub(crate) async fn end_blob(&mut self, shared: &SharedIndex) -> Result<()> {
        self.write(shared).await
    }

    async fn write(&mut self, shared: &SharedIndex) -> Result<()> {
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

    /// Writes the rest; returns the attempt that all blobs belong to.
    pub(crate) async fn finish(
        mut self,
        shared: &SharedIndex,
    ) -> Result<(Attempt, Vec<BodiesRef>)> {
        self.write(shared).await?;
        let attempt = match self.attempt {
            Some(attempt) => attempt,
            None => shared.begin_attempt().await?,
        };
        Ok((attempt, self.written))
    }
}

impl TailBodies {
    /// Refuses a block without a stored body that should have one.
    fn check_absent(&self, number: u64) -> Result<()> {
        if !self.has(number) {
            return Ok(());
        }
        let what = format!("the body of block {number} is missing in the tail");
        Err(Error::corrupt(what).at_block(number))
    }
}

impl SharedIndex {
    /// Writes the bodies of a section of the tail; fails if one of `known` is missing.
    pub(crate) async fn seal_bodies(
        &self,
        section: &SectionView,
        generation: u64,
        known: &TailBodies,
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
                    known.check_absent(absent)?;
                    upload.push(self, absent, None).await?;
                }
                let body = records::body::decode(&record.value);
                let body = body.map_err(|error| error.at_block(number))?;
                upload.push(self, number, Some(body)).await?;
                next = number + 1;
            }
        }
        let has_any = next > section.blocks.start;
        for absent in next..section.blocks.end {
            known.check_absent(absent)?;
            if has_any {
                upload.push(self, absent, None).await?;
            }
        }
        upload.finish(self).await
    }
}
