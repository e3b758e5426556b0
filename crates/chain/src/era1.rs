//! History from era1 files: headers, bodies and receipts of a chain, 8 192 blocks a file, read without a node.
//!
//! The files of a folder are taken together. Before a file's first block is given, its headers and total difficulties
//! are read and make the accumulator that the file and its name say; then batches of blocks are read, decompressed and
//! verified side by side, and come out in order.
//!
//! Guarantees: every block has passed [`crate::Verify::Full`], links to the one before it, and is in the accumulator
//! of its file. A damaged or hostile file is [`Error::Corrupt`], which names the file and the place. No more than
//! [`Era1Settings::read_ahead`] batches of [`BATCH_BYTES_MAX`] compressed bytes are in memory, unless single blocks are
//! larger. Leaves to others: where files come from. The accumulator is the file's own: who wants to know that it is the
//! chain's compares the names of the files with a list that they trust.

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
use file::{CheckedFile, Name};

pub use source::Era1Source;
pub use writer::{Writer, Written};

/// What the names of the files end with.
const ENDING: &str = ".era1";
/// The most files of a chain: four times of what mainnet has.
const FILES_MAX: usize = 8_192;
/// How many files are kept open, with where their blocks are.
const OPEN_FILES_MAX: usize = 8;
/// How many files are checked before they are needed.
const FILES_AHEAD: usize = 2;
/// The most blocks of a batch.
const BATCH_BLOCKS_MAX: u64 = 128;
/// The most bytes of a batch of more than one block.
pub const BATCH_BYTES_MAX: u64 = 1 << 20;

/// Which files, and how they are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Era1Settings {
    /// Where the files are.
    pub folder: PathBuf,
    /// Of which network, as their names begin; needed if there are files of several.
    pub network: Option<String>,
    /// The id of the chain, which the files do not say.
    pub chain_id: u64,
    /// How many batches are read and verified side by side.
    pub read_ahead: usize,
}

impl Era1Settings {
    /// All files of a folder.
    pub fn new(folder: impl Into<PathBuf>, chain_id: u64) -> Self {
        Self { folder: folder.into(), network: None, chain_id, read_ahead: 4 }
    }
}

/// The files of a chain. Clones share what is open.
#[derive(Clone, Debug)]
pub struct Era1 {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    settings: Era1Settings,
    files: Vec<Listed>,
    /// Those used last, the latest at the back.
    open: Mutex<VecDeque<(usize, Arc<CheckedFile>)>>,
}

#[derive(Debug)]
struct Listed {
    path: PathBuf,
    name: Name,
    range: Range<u64>,
}

/// A part of a range: blocks of a file, or a block that no file has.
#[derive(Debug)]
enum Piece {
    Of(usize, Range<u64>),
    Missing(u64),
}

impl Era1 {
    /// Looks at the files of a folder: which blocks each has. Their contents are checked when they are read.
    pub async fn open_folder(settings: Era1Settings) -> Result<Self> {
        compute(move || Self::look(settings)).await
    }

    /// The blocks that there are, in ranges without gaps.
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

    /// How they are read.
    pub fn settings(&self) -> &Era1Settings {
        &self.inner.settings
    }

    /// The newest block of all files.
    pub async fn last(&self) -> Result<BlockRef> {
        let newest = self.inner.files.len().saturating_sub(1);
        Ok(self.checked(newest).await?.last())
    }

    /// The blocks of a range in order, until the first that can not be had, which is an error and the end.
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
        let state = Link { before: None, over: false };
        blocks.scan(state, |link, block| std::future::ready(link.next(block))).boxed()
    }

    /// A block by its hash. Looks through all files, the newest first, and so may take long.
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

    fn look(settings: Era1Settings) -> Result<Self> {
        let folder = settings.folder.display();
        let mut files = Vec::new();
        for path in files_of(&settings.folder, ENDING)? {
            let Some(name) = Name::parse(&path) else {
                let what = format!("{} is not named as era1 files are", path.display());
                return Err(Error::Invalid { what });
            };
            if settings.network.as_ref().is_some_and(|network| *network != name.network) {
                continue;
            }
            if files.len() >= FILES_MAX {
                let what = format!("more than {FILES_MAX} files in {folder}");
                return Err(Error::Invalid { what });
            }
            let range = file::range(&ReadFile::open(&path)?)?;
            files.push(Listed { path, name, range });
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

    /// Which files have the blocks of a range, up to the first that none has.
    fn plan(&self, range: Range<u64>) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut next = range.start;
        for (index, listed) in self.inner.files.iter().enumerate() {
            if listed.range.end <= next || listed.range.start > next || next >= range.end {
                continue;
            }
            let end = listed.range.end.min(range.end);
            pieces.push(Piece::Of(index, next..end));
            next = end;
        }
        if next < range.end {
            pieces.push(Piece::Missing(next));
        }
        pieces
    }

    async fn open(self, piece: Piece) -> Vec<Result<(Arc<CheckedFile>, Range<u64>)>> {
        let (index, range) = match piece {
            Piece::Of(index, range) => (index, range),
            Piece::Missing(number) => return vec![Err(self.missing(number))],
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

    /// A file, checked when it is opened.
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
        let Some(Listed { path, name, range }) = self.files.get(index) else {
            return Err(Error::Invalid { what: format!("there is no file {index}") });
        };
        let file = ReadFile::open(path)?;
        if file::range(&file)? != *range {
            return Err(entry::corrupt(path, file.bytes(), "the file has changed"));
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

/// Lets blocks through as long as they link.
struct Link {
    before: Option<B256>,
    over: bool,
}

impl Link {
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

fn check_pair(left: &Listed, right: &Listed) -> Result<()> {
    let name = |path: &Path| path.display().to_string();
    let both = format!("{} and {}", name(&left.path), name(&right.path));
    if left.name.network != right.name.network {
        let what = format!("{both} are of different networks: name one of them");
        return Err(Error::Invalid { what });
    }
    if left.range.end > right.range.start {
        return Err(Error::Invalid { what: format!("{both} have the same blocks") });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
