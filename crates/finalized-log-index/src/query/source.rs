//! Sources of logs: a published chunk or a section of the tail, behind one interface.
//!
//! Guarantees: both kinds answer the same lookups. Leaves to others: which lookups to make.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::chunk::Directory;
use crate::codec::as_u64;
use crate::error::{Error, Result};
use crate::page::PageView;
use crate::query::ids::Ids;
use crate::reader::{ChunkReader, name_of};
use crate::records::chunks::ChunkEntry;
use crate::tail::SectionView;
use crate::term::Fingerprint;
use crate::terms::Group;
use crate::types::BlockRange;

#[derive(Clone, Debug)]
pub(crate) enum Source {
    Chunk(Arc<ChunkEntry>),
    Section(Arc<SectionView>),
}

#[derive(Debug)]
pub(crate) enum OpenSource {
    Chunk { entry: Arc<ChunkEntry>, directory: Arc<Directory> },
    Section(Arc<SectionView>),
}

impl Source {
    /// Token of a chunk; none for a section.
    pub(crate) fn token(&self) -> Option<u64> {
        match self {
            Self::Chunk(entry) => Some(entry.token),
            Self::Section(_) => None,
        }
    }

    pub(crate) async fn open(&self, reader: &ChunkReader) -> Result<OpenSource> {
        match self {
            Self::Chunk(entry) => {
                let directory = reader.directory(entry).await?;
                Ok(OpenSource::Chunk { entry: Arc::clone(entry), directory })
            }
            Self::Section(section) => Ok(OpenSource::Section(Arc::clone(section))),
        }
    }
}

impl OpenSource {
    /// Pages that may hold logs of these blocks.
    pub(crate) fn pages_of(&self, blocks: &BlockRange) -> Range<usize> {
        match self {
            Self::Chunk { directory, .. } => directory.pages_of(blocks),
            Self::Section(section) => section.pages().pages_of(blocks),
        }
    }

    /// Number of pages.
    pub(crate) fn page_count(&self) -> usize {
        match self {
            Self::Chunk { directory, .. } => directory.pages(),
            Self::Section(section) => section.pages().len(),
        }
    }

    /// Ids of the logs on a page.
    pub(crate) fn page_ids(&self, page: usize) -> Range<u32> {
        match self {
            Self::Chunk { directory, .. } => directory.page_ids(page),
            Self::Section(section) => {
                let page = section.pages().get(page);
                page.first_id..page.first_id + page.logs
            }
        }
    }

    /// The page that holds an id.
    pub(crate) fn page_of(&self, id: u32) -> usize {
        match self {
            Self::Chunk { directory, .. } => directory.page_of(id),
            Self::Section(section) => section.pages().page_of(id),
        }
    }

    /// Size of a page.
    pub(crate) fn page_bytes(&self, page: usize) -> u64 {
        match self {
            Self::Chunk { directory, .. } => {
                let range = directory.page_bytes(page);
                range.end - range.start
            }
            Self::Section(section) => as_u64(section.pages().get(page).bytes.len()),
        }
    }

    /// Looks up a term.
    pub(crate) async fn group(
        &self,
        reader: &ChunkReader,
        term: Fingerprint,
    ) -> Result<Option<Group>> {
        match self {
            Self::Chunk { entry, directory } => reader.group(entry, directory, term).await,
            Self::Section(section) => {
                let ids = section.ids(term);
                Ok((!ids.is_empty()).then_some(Group::Ids(ids)))
            }
        }
    }

    /// All ids of a group, read from its bitmap if necessary.
    pub(crate) async fn ids(&self, reader: &ChunkReader, group: Group) -> Result<Ids> {
        match (self, group) {
            (_, Group::Ids(ids)) => Ok(Ids::Few(ids)),
            (Self::Chunk { entry, directory }, Group::Bitmap(stored)) => {
                Ok(Ids::Many(reader.bitmap(entry, directory, &stored).await?))
            }
            (Self::Section(_), Group::Bitmap(_)) => Ok(Ids::Few(Vec::new())),
        }
    }

    /// Reads a page.
    pub(crate) async fn page(&self, reader: &ChunkReader, page: usize) -> Result<Bytes> {
        match self {
            Self::Chunk { entry, directory } => reader.page(entry, directory, page).await,
            Self::Section(section) => Ok(section.pages().get(page).bytes.clone()),
        }
    }

    /// Reads nearby pages, in ascending order.
    pub(crate) async fn pages(&self, reader: &ChunkReader, pages: &[usize]) -> Result<Vec<Bytes>> {
        match self {
            Self::Chunk { entry, directory } => reader.pages(entry, directory, pages).await,
            Self::Section(section) => {
                let all = section.pages();
                Ok(pages.iter().map(|page| all.get(*page).bytes.clone()).collect())
            }
        }
    }

    /// Opens a page and checks that it belongs to this source.
    pub(crate) fn view(&self, page: usize, bytes: Bytes) -> Result<PageView> {
        let view = PageView::open(bytes).map_err(|error| self.named(error))?;
        let ids = self.page_ids(page);
        let fits = as_u64(view.len()) == u64::from(ids.end - ids.start)
            && (0..view.len()).all(|position| self.holds(view.block_number(position)));
        if fits {
            Ok(view)
        } else {
            Err(self.named(Error::corrupt("a page does not fit its directory")))
        }
    }

    fn holds(&self, block: u64) -> bool {
        match self {
            Self::Chunk { directory, .. } => directory.blocks.contains(&block),
            Self::Section(section) => section.blocks.contains(&block),
        }
    }

    /// Adds the name of the chunk to an error.
    pub(crate) fn named(&self, error: Error) -> Error {
        match self {
            Self::Chunk { entry, .. } => error.in_chunk(&name_of(entry)),
            Self::Section(_) => error,
        }
    }
}
