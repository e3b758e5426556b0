//! Whether a SQLite handle may still be used.
//!
//! Guarantees: after a failed write or sync everything is refused, including commands that already wait for the
//! writer. A commit that failed this way is in doubt, because its record may be in the file. Leaves to others:
//! opening a new handle, which reads what the disk really holds.

use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::ffi;

use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct Health {
    name: String,
    poisoned: AtomicBool,
}

impl Health {
    pub(super) fn new(name: String) -> Self {
        Self { name, poisoned: AtomicBool::new(false) }
    }

    /// Name of the database, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn usable(&self) -> Result<()> {
        if self.poisoned.load(Ordering::SeqCst) {
            return Err(Error::Poisoned { what: format!("the database {}", self.name) });
        }
        Ok(())
    }

    /// Adds context to an error, and poisons the handle if the content of the disk is now unknown.
    pub(super) fn check<T>(&self, result: rusqlite::Result<T>, doing: &str) -> Result<T> {
        result.map_err(|source| {
            if leaves_the_disk_unknown(&source) {
                self.poisoned.store(true, Ordering::SeqCst);
            }
            Error::Sqlite { doing: format!("{doing} on {}", self.name), source }
        })
    }

    /// The same for commits.
    pub(super) fn check_commit<T>(&self, result: rusqlite::Result<T>, doing: &str) -> Result<T> {
        let doubtful = result.as_ref().err().is_some_and(leaves_the_disk_unknown);
        self.check(result, doing).map_err(|error| {
            if doubtful {
                Error::InDoubt { doing: doing.to_owned(), source: Box::new(error) }
            } else {
                error
            }
        })
    }
}

/// Whether the disk failed a write, truncate or sync. After a failed sync the kernel may have dropped the dirty
/// pages, and a second sync would report success without them.
fn leaves_the_disk_unknown(error: &rusqlite::Error) -> bool {
    let rusqlite::Error::SqliteFailure(code, _) = error else {
        return false;
    };
    matches!(
        code.extended_code,
        ffi::SQLITE_IOERR_FSYNC
            | ffi::SQLITE_IOERR_DIR_FSYNC
            | ffi::SQLITE_IOERR_WRITE
            | ffi::SQLITE_IOERR_TRUNCATE
    )
}
