//! The data folder: one process writes, others may read.
//!
//! The writer holds an exclusive lock on `logmill.lock` as long as it runs. The operating system releases the
//! lock when the process ends, even after a crash, so there is nothing to clean up.
//!
//! Guarantees: a folder never has two writers, and only its owner can read it. Leaves to others: its content.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::private;

const LOCK_FILE: &str = "logmill.lock";

/// A folder that only this process may write, until it is dropped.
#[derive(Debug)]
pub struct DataFolder {
    path: PathBuf,
    _lock: File,
}

impl DataFolder {
    /// Creates the folder if it does not exist and locks it; the error names the process that holds the lock.
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

    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Narrows the modes of our files: an earlier version created them with the user's umask.
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
    // Only a hint for the message: if the file cannot be read or parsed, there is none.
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_writer_is_refused_until_the_first_has_ended() {
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
