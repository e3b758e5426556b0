//! History from era1 files: headers, bodies and receipts of a chain, 8 192 blocks a file, read without a node.
//!
//! All files of a folder form one history. Before the first block of a file is returned, all its headers and
//! total difficulties are read; they must produce the accumulator stated in the file and in its name. Then
//! batches of blocks are read, decompressed and verified concurrently, and returned in order.
//!
//! Guarantees: every block has passed [`crate::VerifyLevel::Full`], links to the one before it, and is in the
//! accumulator of its file. A damaged or hostile file is [`Error::Corrupt`], with the file and the position. At
//! most [`Era1Settings::read_ahead`] batches of [`BATCH_BYTES_MAX`] compressed bytes are in memory, unless
//! single blocks are larger. Leaves to others: where files come from. The accumulator is only the file's own:
//! to prove that it is the chain's, compare the names of the files with a trusted list.

pub mod accumulator;
mod decode;
mod entry;
mod file;
mod frame;
mod source;
mod writer;

use std::collections::VecDeque;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use alloy_primitives::B256;
use futures::stream::{self, BoxStream, StreamExt};
use logmill_io::compute;
use logmill_io::file::{ReadFile, files_of};

use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};
use file::{CheckedFile, FileName};

pub use source::Era1Source;
pub use writer::{FinishedFile, Writer};

const ENDING: &str = ".era1";
/// Maximum number of files: four times as many as mainnet has.
const FILES_MAX: usize = 8_192;
/// How many files are kept open, with the offsets of their blocks.
const OPEN_FILES_MAX: usize = 8;
/// How many files are checked in advance.
const FILES_AHEAD: usize = 2;
/// Maximum number of blocks in a batch.
const BATCH_BLOCKS_MAX: u64 = 128;
/// Maximum compressed size of a batch with more than one block.
pub const BATCH_BYTES_MAX: u64 = 1 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Era1Settings {
    pub folder: PathBuf,
    /// Network prefix of the file names; needed if the folder has files of several networks.
    pub network: Option<String>,
    /// The files do not contain the chain id.
    pub chain_id: u64,
    /// How many batches are read and verified concurrently.
    pub read_ahead: usize,
}

impl Era1Settings {
    /// Settings for all files of a folder.
    pub fn new(folder: impl Into<PathBuf>, chain_id: u64) -> Self {
        Self { folder: folder.into(), network: None, chain_id, read_ahead: 4 }
    }
}

/// The files of a chain. Clones share open files.
#[derive(Clone, Debug)]
pub struct Era1 {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Era1Settings,
    files: Vec<ListedFile>,
    /// Recently used files, the latest at the back.
    open: Mutex<VecDeque<(usize, Arc<CheckedFile>)>>,
}

#[derive(Debug)]
struct ListedFile {
    path: PathBuf,
    name: FileName,
    range: Range<u64>,
}

/// A part of a range: blocks of one file, or a block that no file has.
#[derive(Debug)]
enum FileRange {
    InFile(usize, Range<u64>),
    Missing(u64),
}

impl Era1 {
    /// Lists the files of a folder and the blocks of each. Their contents are checked when they are read.
    pub async fn open_folder(settings: Era1Settings) -> Result<Self> {
        compute(move || Self::list_files(settings)).await
    }

    /// The available blocks, as ranges without gaps.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for listed in &self.inner.files {
            match ranges.last_mut() {
                Some(last) if last.end == listed.range.start => last.end = listed.range.end,
                _ => ranges.push(listed.range.clone()),
            }
        }
        ranges
    }

    pub fn settings(&self) -> &Era1Settings {
        &self.inner.settings
    }

    /// The newest block of all files.
    pub async fn last(&self) -> Result<BlockRef> {
        let newest = self.inner.files.len().saturating_sub(1);
        Ok(self.checked(newest).await?.last())
    }

    /// Streams the blocks of a range in order. The first block that cannot be read ends the stream with an
    /// error.
    pub fn blocks(&self, range: Range<u64>) -> BoxStream<'static, Result<Block>> {
        let era1 = self.clone();
        let ahead = self.inner.settings.read_ahead.max(1);
        let pieces = stream::iter(self.plan(range));
        let opened = pieces.map(move |piece| era1.clone().open(piece)).buffered(FILES_AHEAD);
        let batches = opened.flat_map(stream::iter);
        let read = batches.map(|batch| async move {
            match batch {
                Ok((file, range)) => compute(move || file.read(range)).await,
                Err(error) => vec![Err(error)],
            }
        });
        let blocks = read.buffered(ahead).flat_map(stream::iter);
        let state = LinkCheck { before: None, over: false };
        blocks.scan(state, |link, block| std::future::ready(link.next(block))).boxed()
    }

    /// Finds a block by its hash. Searches all files, newest first, and so may take long.
    pub async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        for index in (0..self.inner.files.len()).rev() {
            let file = self.checked(index).await?;
            let Some(number) = file.number_of(hash) else {
                continue;
            };
            let block = compute(move || file.read(number..number + 1)).await.pop();
            return block.transpose();
        }
        Ok(None)
    }

    fn list_files(settings: Era1Settings) -> Result<Self> {
        let folder = settings.folder.display();
        let mut files = Vec::new();
        for path in files_of(&settings.folder, ENDING)? {
            let Some(name) = FileName::parse(&path) else {
                let what = format!(
                    "{} does not have the name of an era1 file: expected NETWORK-ERA-ROOT.era1",
                    path.display()
                );
                return Err(Error::Invalid { what });
            };
            if settings.network.as_ref().is_some_and(|network| *network != name.network) {
                continue;
            }
            if files.len() >= FILES_MAX {
                let what = format!("more than {FILES_MAX} era1 files in {folder}");
                return Err(Error::Invalid { what });
            }
            let range = file::range(&ReadFile::open(&path)?)?;
            files.push(ListedFile { path, name, range });
        }
        files.sort_by_key(|listed| listed.range.start);
        if files.is_empty() {
            return Err(Error::Invalid { what: format!("no era1 files in {folder}") });
        }
        for pair in files.windows(2) {
            check_pair(&pair[0], &pair[1])?;
        }
        let inner = Inner { settings, files, open: Mutex::default() };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Assigns the blocks of a range to files, up to the first block that no file has.
    fn plan(&self, range: Range<u64>) -> Vec<FileRange> {
        let mut pieces = Vec::new();
        let mut next = range.start;
        for (index, listed) in self.inner.files.iter().enumerate() {
            if listed.range.end <= next || listed.range.start > next || next >= range.end {
                continue;
            }
            let end = listed.range.end.min(range.end);
            pieces.push(FileRange::InFile(index, next..end));
            next = end;
        }
        if next < range.end {
            pieces.push(FileRange::Missing(next));
        }
        pieces
    }

    async fn open(self, piece: FileRange) -> Vec<Result<(Arc<CheckedFile>, Range<u64>)>> {
        let (index, range) = match piece {
            FileRange::InFile(index, range) => (index, range),
            FileRange::Missing(number) => return vec![Err(self.missing(number))],
        };
        match self.checked(index).await {
            Ok(file) => {
                let batches = file.batches(range, BATCH_BLOCKS_MAX, BATCH_BYTES_MAX);
                batches.into_iter().map(|batch| Ok((Arc::clone(&file), batch))).collect()
            }
            Err(error) => vec![Err(error)],
        }
    }

    fn missing(&self, number: u64) -> Error {
        let first = self.inner.files.first().map_or(0, |listed| listed.range.start);
        let end = self.inner.files.last().map_or(0, |listed| listed.range.end);
        if number < first {
            return Error::Pruned { number };
        }
        if number >= end {
            return Error::NotYet { number };
        }
        let why = format!("no file in {} has it", self.inner.settings.folder.display());
        Error::Unavailable { what: format!("block {number}"), why }
    }

    /// Returns a file; checks it when it is opened.
    async fn checked(&self, index: usize) -> Result<Arc<CheckedFile>> {
        if let Some(file) = self.inner.used(index) {
            return Ok(file);
        }
        let inner = Arc::clone(&self.inner);
        compute(move || inner.check(index)).await
    }
}

impl Inner {
    fn used(&self, index: usize) -> Option<Arc<CheckedFile>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let at = open.iter().position(|(known, _)| *known == index)?;
        let found = open.remove(at)?;
        let file = Arc::clone(&found.1);
        open.push_back(found);
        Some(file)
    }

    fn check(&self, index: usize) -> Result<Arc<CheckedFile>> {
        let Some(ListedFile { path, name, range }) = self.files.get(index) else {
            return Err(Error::Invalid { what: format!("there is no file {index}") });
        };
        let file = ReadFile::open(path)?;
        if file::range(&file)? != *range {
            return Err(entry::corrupt(
                path,
                file.bytes(),
                "the file has changed since it was listed",
            ));
        }
        let file = Arc::new(CheckedFile::open(file, Some(name))?);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.push_back((index, Arc::clone(&file)));
        if open.len() > OPEN_FILES_MAX {
            open.pop_front();
        }
        Ok(file)
    }
}

/// Passes blocks on as long as they link.
struct LinkCheck {
    before: Option<B256>,
    over: bool,
}

impl LinkCheck {
    fn next(&mut self, block: Result<Block>) -> Option<Result<Block>> {
        if self.over {
            return None;
        }
        let linked = block.and_then(|block| match self.before {
            Some(before) if before != block.at.parent_hash => Err(Error::Unlinked {
                number: block.at.number,
                parent: block.at.parent_hash,
                before,
            }),
            _ => Ok(block),
        });
        match &linked {
            Ok(block) => self.before = Some(block.at.hash),
            Err(_) => self.over = true,
        }
        Some(linked)
    }
}

fn check_pair(left: &ListedFile, right: &ListedFile) -> Result<()> {
    let name = |path: &Path| path.display().to_string();
    let both = format!("{} and {}", name(&left.path), name(&right.path));
    if left.name.network != right.name.network {
        let what = format!("{both} are of different networks: set the network to read");
        return Err(Error::Invalid { what });
    }
    if left.range.end > right.range.start {
        return Err(Error::Invalid { what: format!("{both} contain the same blocks") });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
