//! The data folder: one process writes, others may read.
//!
//! The writer holds an exclusive lock on `logmill.lock` for as long as it lives; the operating system lets go of it
//! when the process dies, however it dies, so there is nothing to clean up.
//!
//! Guarantees: two writers never have the same folder; nobody but its owner can look into it. Leaves to others: what
//! is in it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::private;

const LOCK_FILE: &str = "logmill.lock";

/// A folder that this process alone may write, until it is dropped.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if need be and takes it, or says who has it.
    pub fn take(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        private::create_folder(&path).map_err(|source| Error::File {
            doing: "create the data folder",
            path: path.clone(),
            source,
        })?;
        private::narrow_folder(&path)?;
        let file = path.join(LOCK_FILE);
        let mut lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&file)
            .map_err(|source| Error::File {
                doing: "open for writing",
                path: file.clone(),
                source,
            })?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::FolderInUse { folder: path, pid: holder(&mut lock) });
            }
            Err(TryLockError::Error(source)) => {
                return Err(Error::File { doing: "lock", path: file, source });
            }
        }
        narrow_files(&path)?;
        let written = write_holder(&mut lock);
        written.map_err(|source| Error::File { doing: "write", path: file, source })?;
        Ok(Self { path, _lock: lock })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Narrows the modes of our files: an earlier version made them as the user's mask said.
fn narrow_files(folder: &Path) -> Result<()> {
    let failed = |source| Error::File { doing: "list", path: folder.to_owned(), source };
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name();
        let text = name.to_string_lossy();
        if text == LOCK_FILE || text.ends_with(".db") || text.contains(".db-") {
            private::narrow_file(&folder.join(&name))?;
        }
    }
    Ok(())
}

fn write_holder(lock: &mut File) -> std::io::Result<()> {
    lock.set_len(0)?;
    lock.seek(SeekFrom::Start(0))?;
    writeln!(lock, "{}", std::process::id())
}

fn holder(lock: &mut File) -> Option<u32> {
    let mut text = String::new();
    // Only a hint for the message: a file that can not be read or parsed gives none.
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writer_is_refused_by_name_and_may_come_later() {
        let root = std::env::temp_dir().join(format!("logmill-folder-{}", std::process::id()));
        let first = DataFolder::take(&root).expect("free");
        let refused = DataFolder::take(&root).expect_err("taken");
        let told = format!("(process {})", std::process::id());
        assert!(refused.to_string().contains(&told), "{refused}");
        drop(first);
        DataFolder::take(&root).expect("free again");
        std::fs::remove_dir_all(&root).expect("cleaned up");
    }
}
