//! Plain files made by, or for, other programs, such as history files; not our own data.
//!
//! Guarantees: a [`ReadFile`] reads at any offset from any thread, from disk or from memory; a [`NewFile`]
//! never replaces a file. All functions block on the disk: call them inside [`crate::compute`]. Leaves to
//! others: the content of the files, and crash-safe storage ([`crate::BlobStore`]).

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Result};

/// Maximum length of one read.
pub const READ_BYTES_MAX: usize = 256 << 20;
/// Folders with more entries are not listed.
pub const FOLDER_ENTRIES_MAX: usize = 100_000;
const WRITE_BUFFER_BYTES: usize = 1 << 20;

/// A file for random access.
#[derive(Clone, Debug)]
pub struct ReadFile {
    path: Arc<Path>,
    bytes: u64,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    Disk(Arc<File>),
    Memory(Bytes),
}

impl ReadFile {
    pub fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(at("open", path))?;
        let bytes = file.metadata().map_err(at("read the metadata of", path))?.len();
        Ok(Self { path: path.into(), bytes, kind: Kind::Disk(Arc::new(file)) })
    }

    /// A file in memory; `name` takes the place of its path.
    pub fn memory(name: &str, bytes: Bytes) -> Self {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        Self { path: Path::new(name).into(), bytes: length, kind: Kind::Memory(bytes) }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Size when the file was opened.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Reads exactly `length` bytes at `offset`; fewer are an error.
    pub fn read_at(&self, offset: u64, length: usize) -> Result<Bytes> {
        if length > READ_BYTES_MAX {
            let what =
                format!("cannot read {length} bytes at once: at most {READ_BYTES_MAX} are allowed");
            return Err(Error::Invalid { what });
        }
        match &self.kind {
            Kind::Disk(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset).map_err(at("read", &self.path))?;
                Ok(bytes.into())
            }
            Kind::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let part = start.checked_add(length).filter(|end| *end <= bytes.len());
                let eof = std::io::Error::from(std::io::ErrorKind::UnexpectedEof);
                match part {
                    Some(end) => Ok(bytes.slice(start..end)),
                    None => Err(at("read", &self.path)(eof)),
                }
            }
        }
    }
}

/// A file that is being written.
#[derive(Debug)]
pub struct NewFile {
    path: PathBuf,
    file: BufWriter<File>,
}

impl NewFile {
    /// Creates a file that does not exist yet.
    pub fn create(path: &Path) -> Result<Self> {
        let file = File::create_new(path).map_err(at("create", path))?;
        let file = BufWriter::with_capacity(WRITE_BUFFER_BYTES, file);
        Ok(Self { path: path.to_owned(), file })
    }

    /// Writes buffered bytes, syncs, and renames the file within its folder; the new name must be free.
    pub fn finish(mut self, name: &str) -> Result<PathBuf> {
        self.file.flush().map_err(at("write", &self.path))?;
        self.file.get_ref().sync_all().map_err(at("sync", &self.path))?;
        let path = self.path.with_file_name(name);
        if path != self.path {
            // A hard link, because a rename would replace an existing file.
            fs::hard_link(&self.path, &path).map_err(at("link", &path))?;
            fs::remove_file(&self.path).map_err(at("remove", &self.path))?;
        }
        Ok(path)
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

/// Returns the files of a folder whose names have this suffix, sorted by name.
pub fn files_of(folder: &Path, ending: &str) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let entries = fs::read_dir(folder).map_err(at("list the folder", folder))?;
    for (count, entry) in entries.enumerate() {
        if count >= FOLDER_ENTRIES_MAX {
            let what = format!(
                "the folder {} has more than {FOLDER_ENTRIES_MAX} entries",
                folder.display()
            );
            return Err(Error::Invalid { what });
        }
        let entry = entry.map_err(at("list the folder", folder))?;
        let path = entry.path();
        let named = path.file_name().and_then(|name| name.to_str());
        if named.is_some_and(|name| name.ends_with(ending)) && path.is_file() {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn at(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_completely_or_not_at_all() {
        let file = ReadFile::memory("notes", Bytes::from_static(b"0123456789"));
        assert_eq!(file.bytes(), 10);
        assert_eq!(file.read_at(3, 4).expect("inside"), "3456");
        assert_eq!(file.read_at(10, 0).expect("nothing"), "");
        for (offset, length) in [(7, 4), (11, 0), (u64::MAX, 1)] {
            let error = file.read_at(offset, length).expect_err("beyond the end");
            assert!(error.to_string().contains("read notes"), "{error}");
        }
        file.read_at(0, READ_BYTES_MAX + 1).expect_err("too much");
    }
}
