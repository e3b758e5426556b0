//! Blobs as files under one folder.
//!
//! The blob `a/b` is the file `a+/b`: folder names carry a mark that no blob name may contain, so that `a` and
//! `a/b` can both exist, as in an object store. A blob is first written to a temporary file (its name starts
//! with `.put-`, which no blob's can) and synced. Then a hard link creates the final name and fails if it is
//! taken. Then the folders on the path are synced. The link is the visibility barrier, the last sync the
//! durability barrier.
//!
//! Guarantees: those of the trait, also between processes that share the folder. After a failed sync the
//! content of the disk is unknown, and a second sync may wrongly succeed, so the handle answers everything with
//! [`Error::Poisoned`] from then on. Leftovers of a crashed writer are never listed, and a later
//! [`FileBlobs::open`] removes them. Only the owner can read the files.
//!
//! Leaves to others: the choice of a case-sensitive file system with hard links. Empty folders stay: removing
//! one could race with a put that has just found it, and names share few folders.

mod open_files;

use std::fmt;
use std::fs::{self, DirEntry, File};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use self::open_files::OpenFiles;
use super::{
    BlobMeta, BlobName, BlobStore, LIST_LIMIT_MAX, beyond_the_end, segment_is_fine, taken,
    validate_put, validate_range,
};
use crate::entropy::{Entropy, OsEntropy};
use crate::error::{Error, Result};
use crate::private;
use crate::sql::Durability;

/// Suffix of every folder name.
const FOLDER_MARK: char = '+';
/// Prefix of every temporary file's name.
const TEMPORARY: &str = ".put-";
/// The writer of a temporary file that is older is gone.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);
/// How often a put restarts because the existing blob was deleted before it could be compared.
const PUT_ATTEMPTS_MAX: usize = 8;

pub struct FileBlobs {
    folder: Arc<Folder>,
}

impl FileBlobs {
    /// Opens the store under `root`; creates the folder if it does not exist. Blocks on the disk.
    pub fn open(root: impl Into<PathBuf>) -> Result<Arc<dyn BlobStore>> {
        Self::open_with(root, Durability::Full)
    }

    pub fn open_with(
        root: impl Into<PathBuf>,
        durability: Durability,
    ) -> Result<Arc<dyn BlobStore>> {
        let folder = Folder {
            root: root.into(),
            durability,
            poisoned: Mutex::new(false),
            open_files: OpenFiles::default(),
        };
        folder.create_root()?;
        folder.remove_leftovers()?;
        Ok(Arc::new(Self { folder: Arc::new(folder) }))
    }

    /// Runs blocking work where it delays no other task; refuses if a sync has failed.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Folder) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let folder = Arc::clone(&self.folder);
        let checked = move || {
            folder.usable()?;
            work(&folder)
        };
        match tokio::task::spawn_blocking(checked).await {
            Ok(outcome) => outcome,
            Err(join) if join.is_panic() => std::panic::resume_unwind(join.into_panic()),
            Err(join) => Err(Error::File {
                doing: "finish an operation during shutdown in",
                path: self.folder.root.clone(),
                source: std::io::Error::other(join),
            }),
        }
    }
}

impl fmt::Debug for FileBlobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileBlobs({}, {:?})", self.folder.root.display(), self.folder.durability)
    }
}

#[async_trait]
impl BlobStore for FileBlobs {
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()> {
        validate_put(name, &bytes)?;
        let name = name.clone();
        self.run(move |folder| folder.put(&name, &bytes)).await
    }

    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>> {
        let name = name.clone();
        self.run(move |folder| folder.get(&name)).await
    }

    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>> {
        validate_range(name, &range)?;
        self.folder.usable()?;
        if let Some(bytes) = self.folder.open_files.read_now(name, &range) {
            return Ok(Some(Bytes::from(bytes)));
        }
        let name = name.clone();
        self.run(move |folder| folder.get_range(&name, &range)).await
    }

    async fn delete(&self, name: &BlobName) -> Result<()> {
        let name = name.clone();
        self.run(move |folder| folder.delete(&name)).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>> {
        let wanted = ListQuery { prefix: prefix.to_owned(), after: after.cloned() };
        self.run(move |folder| folder.list(&wanted, limit.min(LIST_LIMIT_MAX))).await
    }
}

/// The blocking implementation.
struct Folder {
    root: PathBuf,
    durability: Durability,
    /// Whether a sync failed. Folders are synced under this lock: the system reports a failed write-back only
    /// once, to one caller of sync, and no put may be acknowledged between that report and the poisoning.
    poisoned: Mutex<bool>,
    open_files: OpenFiles,
}

impl Folder {
    fn create_root(&self) -> Result<()> {
        let missing = self.root.ancestors().take_while(|folder| !folder.exists()).count();
        private::create_folder(&self.root).map_err(at("create the folder", &self.root))?;
        private::narrow_tree(&self.root)?;
        // At least one: the process that created the root may have crashed before the sync.
        let parents = self.root.ancestors().skip(1).take(missing.max(1));
        // The last parent of a relative path is empty and means the current folder.
        let is_current = |folder: &Path| folder.as_os_str().is_empty();
        self.sync_folders(parents.map(|f| if is_current(f) { Path::new(".") } else { f }))
    }

    fn remove_leftovers(&self) -> Result<()> {
        for entry in entries(&self.root)? {
            if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                continue;
            }
            let path = entry.path();
            // If the clock was set back, the age is unknown; a later open removes the file.
            let modified = entry.metadata().and_then(|meta| meta.modified());
            let age = modified.ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
            if age > TEMPORARY_AGE_MAX {
                unless_missing(fs::remove_file(&path))
                    .map_err(at("remove the left-over file", &path))?;
            }
        }
        Ok(())
    }

    fn usable(&self) -> Result<()> {
        if *self.poisoned.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(self.refusal());
        }
        Ok(())
    }

    fn refusal(&self) -> Error {
        Error::Poisoned { what: format!("the blob folder {}", self.root.display()) }
    }

    fn path(&self, name: &BlobName) -> PathBuf {
        self.root.join(name.as_str().replace('/', &format!("{FOLDER_MARK}/")))
    }

    /// The folders from the parent of `path` up to the root.
    fn folders_of<'p>(&self, path: &'p Path) -> impl Iterator<Item = &'p Path> {
        path.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.root))
    }

    fn put(&self, name: &BlobName, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.root);
        for _ in 0..PUT_ATTEMPTS_MAX {
            // Checking first avoids the write when a put is repeated.
            let there = match self.holds(&path, bytes)? {
                Some(same) => same,
                None => {
                    private::create_folder(parent).map_err(at("create the folder", parent))?;
                    if !publish(&self.write_temporary(bytes)?, &path)? {
                        continue;
                    }
                    true
                }
            };
            if !there {
                return Err(taken(name));
            }
            // Also if the blob existed before: its writer, or the process that created the folders, may not
            // have synced them yet.
            return self.sync_folders(self.folders_of(&path));
        }
        Err(Error::Conflict { what: format!("the blob {name}") })
    }

    /// Whether the file has exactly these bytes; `None` if it does not exist.
    fn holds(&self, path: &Path, bytes: &[u8]) -> Result<Option<bool>> {
        let found = unless_missing(fs::metadata(path))
            .map_err(at("read the metadata of the blob", path))?;
        match found {
            None => Ok(None),
            Some(metadata) if metadata.len() != bytes.len() as u64 => Ok(Some(false)),
            Some(_) => Ok(read(path)?.map(|stored| stored == bytes)),
        }
    }

    fn write_temporary(&self, bytes: &[u8]) -> Result<TemporaryFile> {
        let path = self.root.join(format!("{TEMPORARY}{:016x}", OsEntropy.next_u64()));
        let mut file =
            private::create_file(&path).map_err(at("create the temporary file", &path))?;
        let temporary = TemporaryFile { path };
        file.write_all(bytes).map_err(at("write the temporary file", &temporary.path))?;
        if self.durability == Durability::Full {
            file.sync_all().map_err(|error| self.poison("sync", &temporary.path, error))?;
        }
        Ok(temporary)
    }

    fn sync_folders<'p>(&self, folders: impl Iterator<Item = &'p Path>) -> Result<()> {
        if self.durability == Durability::Relaxed {
            return Ok(());
        }
        folders.into_iter().try_for_each(|folder| self.sync_folder(folder))
    }

    fn sync_folder(&self, folder: &Path) -> Result<()> {
        let opened = File::open(folder).map_err(at("open the folder", folder))?;
        let mut poisoned = self.poisoned.lock().unwrap_or_else(PoisonError::into_inner);
        if *poisoned {
            return Err(self.refusal());
        }
        let synced = opened.sync_all();
        *poisoned = synced.is_err();
        synced.map_err(at("sync the folder", folder))
    }

    fn poison(&self, doing: &'static str, path: &Path, error: std::io::Error) -> Error {
        *self.poisoned.lock().unwrap_or_else(PoisonError::into_inner) = true;
        at(doing, path)(error)
    }

    fn get(&self, name: &BlobName) -> Result<Option<Bytes>> {
        Ok(read(&self.path(name))?.map(Bytes::from))
    }

    fn get_range(&self, name: &BlobName, range: &Range<u64>) -> Result<Option<Bytes>> {
        let path = self.path(name);
        let opened = unless_missing(File::open(&path)).map_err(at("open the blob", &path))?;
        let Some(file) = opened else {
            return Ok(None);
        };
        let length = file.metadata().map_err(at("read the metadata of the blob", &path))?.len();
        if range.end > length {
            return Err(beyond_the_end(name, range, length));
        }
        let wanted = usize::try_from(range.end - range.start)
            .map_err(|_| beyond_the_end(name, range, length))?;
        let mut bytes = vec![0; wanted];
        file.read_exact_at(&mut bytes, range.start).map_err(at("read the blob", &path))?;
        self.open_files.keep(name, &Arc::new(file));
        Ok(Some(Bytes::from(bytes)))
    }

    fn delete(&self, name: &BlobName) -> Result<()> {
        self.open_files.forget(name);
        let path = self.path(name);
        let removed =
            unless_missing(fs::remove_file(&path)).map_err(at("delete the blob", &path))?;
        if removed.is_none() {
            return Ok(());
        }
        self.sync_folders(self.folders_of(&path).take(1))
    }

    /// Walks the tree in the order of full names. That is not the order of a folder's entries: a folder `a`
    /// stands for names that start with `a/`, and `a-b` and `a.b` sort before those, `a0` after.
    fn list(&self, wanted: &ListQuery, limit: usize) -> Result<Vec<BlobMeta>> {
        let mut found = Vec::new();
        // Entries still to visit, the next one last.
        let mut ahead = self.matching_entries("", wanted)?;
        while found.len() < limit {
            match ahead.pop() {
                None => break,
                Some(FolderEntry { name, .. }) if name.ends_with('/') => {
                    ahead.append(&mut self.matching_entries(&name, wanted)?);
                }
                Some(FolderEntry { name, path }) => found.extend(blob_meta(name, &path)?),
            }
        }
        Ok(found)
    }

    /// The matching entries of one folder (its name is empty or ends in a slash), in descending order.
    fn matching_entries(&self, folder: &str, wanted: &ListQuery) -> Result<Vec<FolderEntry>> {
        let path = self.root.join(folder.replace('/', &format!("{FOLDER_MARK}/")));
        let mut matching = Vec::new();
        for entry in entries(&path)? {
            matching
                .extend(read_entry(folder, &entry)?.filter(|found| wanted.reaches(&found.name)));
        }
        matching.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        Ok(matching)
    }
}

/// The names that a list asks for.
struct ListQuery {
    prefix: String,
    after: Option<BlobName>,
}

impl ListQuery {
    /// Whether `name` matches or, if it ends in a slash, may contain names that do.
    fn reaches(&self, name: &str) -> bool {
        let is_folder = name.ends_with('/');
        let matches = name.starts_with(&self.prefix) || is_folder && self.prefix.starts_with(name);
        let later = self.after.as_ref().is_none_or(|after| {
            name > after.as_str() || is_folder && after.as_str().starts_with(name)
        });
        matches && later
    }
}

/// An entry of a folder: a blob, or a folder if its name ends in a slash.
struct FolderEntry {
    name: String,
    path: PathBuf,
}

/// Classifies an entry of `folder`; `None` if it is not ours.
fn read_entry(folder: &str, entry: &DirEntry) -> Result<Option<FolderEntry>> {
    let path = entry.path();
    let kind = entry.file_type().map_err(at("read the metadata of", &path))?;
    let file_name = entry.file_name();
    let Some(file_name) = file_name.to_str() else {
        return Ok(None);
    };
    let name = match file_name.strip_suffix(FOLDER_MARK) {
        Some(segment) if kind.is_dir() && segment_is_fine(segment) => format!("{folder}{segment}/"),
        None if kind.is_file() && segment_is_fine(file_name) => format!("{folder}{file_name}"),
        _ => return Ok(None),
    };
    Ok(Some(FolderEntry { name, path }))
}

/// `None` if the blob was deleted meanwhile.
fn blob_meta(name: String, path: &Path) -> Result<Option<BlobMeta>> {
    let name = BlobName::new(name)?;
    let metadata =
        unless_missing(fs::metadata(path)).map_err(at("read the metadata of the blob", path))?;
    Ok(metadata.map(|metadata| BlobMeta { name, bytes: metadata.len() }))
}

/// A temporary file, removed on drop.
struct TemporaryFile {
    path: PathBuf,
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        // If this fails, a later open removes the file as a leftover.
        let _ = fs::remove_file(&self.path);
    }
}

/// Links the temporary file to its final name; returns whether that name was free.
fn publish(temporary: &TemporaryFile, path: &Path) -> Result<bool> {
    match fs::hard_link(&temporary.path, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        linked => linked.map(|()| true).map_err(at("link the blob", path)),
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    unless_missing(fs::read(path)).map_err(at("read the blob", path))
}

fn entries(folder: &Path) -> Result<Vec<DirEntry>> {
    let read = fs::read_dir(folder).and_then(Iterator::collect);
    read.map_err(at("list the folder", folder))
}

fn unless_missing<T>(outcome: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match outcome {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some),
    }
}

fn at(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { doing, path, source }
}
