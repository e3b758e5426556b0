//! Blobs as files under one folder.
//!
//! The blob `a/b` is the file `a+/b`: folders carry a mark that no name may hold, so that `a` and `a/b` can
//! both exist, as they can in an object store. A blob is first written to a temporary file (its name starts
//! with `.put-`, which no blob's can) and synced; then a hard link gives it its name, which fails if the name
//! is taken; then the folders on its way are synced. The link is the visibility barrier, the last sync the
//! durability barrier.
//!
//! Guarantees: those of the trait, also between processes that share the folder. After a failed sync nobody
//! knows what the disk holds, and a second sync may wrongly succeed, so the handle answers everything with
//! [`Error::Poisoned`] from then on. What a crashed writer left behind is never listed, and is removed by a
//! later [`FileBlobs::open`].
//!
//! Nobody but the owner can read any of it.
//!
//! Leaves to others: the choice of a file system that has hard links and tells upper from lower case, and
//! removing empty folders: removing one could race with a put that has just found it there, and names share
//! few folders.

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

/// Ends the name of every folder.
const FOLDER_MARK: char = '+';
/// Starts the name of every temporary file.
const TEMPORARY: &str = ".put-";
/// A temporary file older than this has no writer any more.
const TEMPORARY_AGE_MAX: Duration = Duration::from_secs(3600);
/// How often a put starts anew because the blob in its way was deleted before it could be compared.
const PUT_ATTEMPTS_MAX: usize = 8;

/// Blobs as files under one folder.
pub struct FileBlobs {
    folder: Arc<Folder>,
}

impl FileBlobs {
    /// Opens the store under `root`, making the folder if it is not there. Blocks on the disk.
    pub fn open(root: impl Into<PathBuf>) -> Result<Arc<dyn BlobStore>> {
        Self::open_with(root, Durability::Full)
    }

    /// [`FileBlobs::open`] with less durability.
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

    /// Runs blocking work where it holds up no other task; refuses if a sync has failed.
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
                doing: "finish what was begun, as the program is stopping, in",
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
        let wanted = Wanted { prefix: prefix.to_owned(), after: after.cloned() };
        self.run(move |folder| folder.list(&wanted, limit.min(LIST_LIMIT_MAX))).await
    }
}

/// The blocking half.
struct Folder {
    root: PathBuf,
    durability: Durability,
    /// Whether a sync failed. Folders are synced under this lock: the system reports a failed write-back
    /// once, to one of those who ask, and nobody may acknowledge between that report and the poisoning.
    poisoned: Mutex<bool>,
    open_files: OpenFiles,
}

impl Folder {
    fn create_root(&self) -> Result<()> {
        let missing = self.root.ancestors().take_while(|folder| !folder.exists()).count();
        private::create_folder(&self.root).map_err(at("create the folder", &self.root))?;
        private::narrow_tree(&self.root)?;
        // At least one: whoever made the root may have died before the sync.
        let parents = self.root.ancestors().skip(1).take(missing.max(1));
        // The last parent of a relative path is the empty one, which is the current folder.
        let is_current = |folder: &Path| folder.as_os_str().is_empty();
        self.sync_folders(parents.map(|f| if is_current(f) { Path::new(".") } else { f }))
    }

    fn remove_leftovers(&self) -> Result<()> {
        for entry in entries(&self.root)? {
            if !entry.file_name().to_string_lossy().starts_with(TEMPORARY) {
                continue;
            }
            let path = entry.path();
            // No age can be told from a clock that went back; a later open finds the file again.
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

    /// The folders from the one that holds `path` up to the root.
    fn folders_of<'p>(&self, path: &'p Path) -> impl Iterator<Item = &'p Path> {
        path.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.root))
    }

    fn put(&self, name: &BlobName, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let parent = path.parent().unwrap_or(&self.root);
        for _ in 0..PUT_ATTEMPTS_MAX {
            // Looking first spares the writing when a put is repeated.
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
            // Also when the blob was there before: its writer, or whoever made the folders, may not have
            // come to this point yet.
            return self.sync_folders(self.folders_of(&path));
        }
        Err(Error::Conflict { what: format!("the blob {name}") })
    }

    /// Whether the file holds just these bytes, if it exists.
    fn holds(&self, path: &Path, bytes: &[u8]) -> Result<Option<bool>> {
        let found = unless_missing(fs::metadata(path)).map_err(at("look at the blob", path))?;
        match found {
            None => Ok(None),
            Some(metadata) if metadata.len() != bytes.len() as u64 => Ok(Some(false)),
            Some(_) => Ok(read(path)?.map(|stored| stored == bytes)),
        }
    }

    fn write_temporary(&self, bytes: &[u8]) -> Result<Temporary> {
        let path = self.root.join(format!("{TEMPORARY}{:016x}", OsEntropy.next_u64()));
        let mut file =
            private::create_file(&path).map_err(at("create the temporary file", &path))?;
        let temporary = Temporary { path };
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
        let length = file.metadata().map_err(at("look at the blob", &path))?.len();
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

    /// A walk in the order of full names. Within a folder that is not the order of the entries: a folder `a`
    /// stands for names that begin with `a/`, and `a-b` and `a.b` come before those, `a0` after.
    fn list(&self, wanted: &Wanted, limit: usize) -> Result<Vec<BlobMeta>> {
        let mut found = Vec::new();
        // What is still to be visited, the next one last.
        let mut ahead = self.visits("", wanted)?;
        while found.len() < limit {
            match ahead.pop() {
                None => break,
                Some(Visit { name, .. }) if name.ends_with('/') => {
                    ahead.append(&mut self.visits(&name, wanted)?);
                }
                Some(Visit { name, path }) => found.extend(blob_meta(name, &path)?),
            }
        }
        Ok(found)
    }

    /// The wanted entries of one folder (its name empty or ending in a slash), in falling order.
    fn visits(&self, folder: &str, wanted: &Wanted) -> Result<Vec<Visit>> {
        let path = self.root.join(folder.replace('/', &format!("{FOLDER_MARK}/")));
        let mut visits = Vec::new();
        for entry in entries(&path)? {
            visits.extend(visit(folder, &entry)?.filter(|visit| wanted.reaches(&visit.name)));
        }
        visits.sort_unstable_by(|a, b| b.name.cmp(&a.name));
        Ok(visits)
    }
}

/// Which names a list asks for.
struct Wanted {
    prefix: String,
    after: Option<BlobName>,
}

impl Wanted {
    /// Whether `name` is asked for or, if it ends in a slash, could hold names that are.
    fn reaches(&self, name: &str) -> bool {
        let is_folder = name.ends_with('/');
        let matches = name.starts_with(&self.prefix) || is_folder && self.prefix.starts_with(name);
        let later = self.after.as_ref().is_none_or(|after| {
            name > after.as_str() || is_folder && after.as_str().starts_with(name)
        });
        matches && later
    }
}

/// An entry of a folder: a blob, or, its name ending in a slash, a folder.
struct Visit {
    name: String,
    path: PathBuf,
}

/// What an entry of `folder` is; nothing if it is not ours.
fn visit(folder: &str, entry: &DirEntry) -> Result<Option<Visit>> {
    let path = entry.path();
    let kind = entry.file_type().map_err(at("look at", &path))?;
    let file_name = entry.file_name();
    let Some(file_name) = file_name.to_str() else {
        return Ok(None);
    };
    let name = match file_name.strip_suffix(FOLDER_MARK) {
        Some(segment) if kind.is_dir() && segment_is_fine(segment) => format!("{folder}{segment}/"),
        None if kind.is_file() && segment_is_fine(file_name) => format!("{folder}{file_name}"),
        _ => return Ok(None),
    };
    Ok(Some(Visit { name, path }))
}

/// What a list says of one blob; nothing if it was deleted meanwhile.
fn blob_meta(name: String, path: &Path) -> Result<Option<BlobMeta>> {
    let name = BlobName::new(name)?;
    let metadata = unless_missing(fs::metadata(path)).map_err(at("look at the blob", path))?;
    Ok(metadata.map(|metadata| BlobMeta { name, bytes: metadata.len() }))
}

/// A file that is removed when its writer is done with it, one way or the other.
struct Temporary {
    path: PathBuf,
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // If this fails the file is a left-over like that of a crashed writer, and goes the same way.
        let _ = fs::remove_file(&self.path);
    }
}

/// Gives the temporary file its name; whether that name was free.
fn publish(temporary: &Temporary, path: &Path) -> Result<bool> {
    match fs::hard_link(&temporary.path, path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        linked => linked.map(|()| true).map_err(at("give its name to the blob", path)),
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
