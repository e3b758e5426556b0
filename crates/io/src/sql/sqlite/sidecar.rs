//! The sidecar of a SQLite file: the identity of the database and its number of commits, kept in a separate
//! file.
//!
//! SQLite ignores everything in a write-ahead log from the first damaged frame on, and creates a new database
//! if a file is missing. Both look like a healthy database that is empty or old. The file `NAME-state` next to
//! the database remembers the minimum that the database must hold:
//!
//! ```text
//!   slot of even sequences, at 0       slot of odd sequences, at 4096
//!   magic (8) │ identity (16) │ sequence (8, little-endian) │ CRC-32C of the 32 bytes before (4)
//! ```
//!
//! | sidecar | database | start |
//! |---|---|---|
//! | missing | anything | goes on, and writes the sidecar |
//! | unreadable | has an identity | goes on with a warning, and writes the sidecar |
//! | unreadable, or readable | missing, empty, or without an identity | refused |
//! | readable | another identity, or a lower sequence | refused |
//! | readable | same identity, same or higher sequence | goes on |
//!
//! Guarantees: the sequence of a sidecar is never ahead of its database on disk, so that no crash leads to a
//! refusal: a slot is written only after the commit that it names has been synced, each write goes to the slot
//! that does not hold the newest sequence, and the sidecar is created only after the database has its identity.
//! Every acknowledged commit has been written to the sidecar, but the slots are synced only on close and every
//! [`COMMITS_PER_SYNC`] commits. With [`Durability::Relaxed`], where commits are not synced, it is written only
//! on open and close. Leaves to others: damage inside pages, which row checksums detect.

use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::super::Durability;
use super::BUSY_TIMEOUT;
use crate::error::{Error, Result};

/// Suffix of a sidecar's name, after the name of its database.
pub(super) const SUFFIX: &str = "-state";
const MAGIC: &[u8; 8] = b"LMSTATE1";
/// In separate pages, so that a torn write damages only one slot.
const SLOTS: [u64; 2] = [0, 4_096];
const SLOT_BYTES: usize = 36;
/// Maximum commits between two syncs of a sidecar.
const COMMITS_PER_SYNC: u32 = 4_096;

const CREATE: &str = "
    CREATE TABLE IF NOT EXISTS store_identity (
        id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
        identity BLOB NOT NULL,
        sequence INTEGER NOT NULL
    );
    INSERT OR IGNORE INTO store_identity (id, identity, sequence) VALUES (1, randomblob(16), 1);";
const COUNT: &str =
    "UPDATE store_identity SET sequence = sequence + 1 WHERE id = 1 RETURNING sequence";

/// Identity of a database, and its newest commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mark {
    identity: [u8; 16],
    sequence: u64,
}

/// What the sidecar records about a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    Missing,
    /// No slot is readable.
    Unreadable,
    /// The newest readable slot.
    Found(Mark),
}

/// Refuses a database that holds less than its sidecar records. Changes neither.
pub(super) fn check(database: &Path) -> Result<()> {
    let evidence = Evidence::read(database)?;
    if evidence == Evidence::Missing {
        return Ok(());
    }
    let found = look_into(database)?;
    match why_refused(database, evidence, found) {
        Some(what) => Err(Error::SteppedBack { path: database.to_owned(), what }),
        None => Ok(()),
    }
}

/// A sidecar that follows the commits of its database.
#[derive(Debug)]
pub(super) struct Sidecar {
    path: PathBuf,
    file: File,
    durability: Durability,
    mark: Mark,
    unsynced: u32,
    /// Whether the last write failed; only the first failure is logged.
    failed: bool,
}

impl Sidecar {
    /// Gives the database an identity if it has none, and brings its sidecar up to date. The caller has checked
    /// the database, or accepts the loss.
    pub(super) fn open(
        connection: &mut Connection,
        database: &Path,
        durability: Durability,
    ) -> Result<Self> {
        let mark = identify(connection).map_err(|source| Error::Sqlite {
            doing: format!("identify the database {}", database.display()),
            source,
        })?;
        let (path, evidence) = (path_of(database), Evidence::read(database)?);
        let existed = evidence != Evidence::Missing;
        if !existed && durability == Durability::Full {
            // The database must not vanish in a power failure that its sidecar survives.
            sync_folder(database)?;
        }
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .mode(0o600)
            .open(&path)
            .map_err(at("open", &path))?;
        let mut sidecar = Self { path, file, durability, mark, unsynced: 0, failed: false };
        match evidence {
            Evidence::Found(found) if found == mark => return Ok(sidecar),
            Evidence::Unreadable => tracing::warn!(
                file = %sidecar.path.display(),
                "the record of the database's last commit cannot be read, and is written again"
            ),
            _ => {}
        }
        // Both slots: a slot of another database, or of lost commits, must not count any longer.
        let reset = sidecar.write_both();
        reset.map_err(at("write", &sidecar.path))?;
        if durability == Durability::Full {
            sidecar.file.sync_all().map_err(at("sync", &sidecar.path))?;
            if !existed {
                sync_folder(database)?;
            }
        }
        Ok(sidecar)
    }

    /// Counts a commit, as part of its transaction.
    pub(super) fn count(connection: &Connection) -> rusqlite::Result<u64> {
        let sequence: i64 = connection.prepare_cached(COUNT)?.query_row([], |row| row.get(0))?;
        Ok(sequence.unsigned_abs())
    }

    /// Records a commit that is on disk. A failed write of the sidecar does not fail the commit: the sidecar
    /// only knows less.
    pub(super) fn committed(&mut self, sequence: u64) {
        self.mark.sequence = sequence;
        if self.durability == Durability::Relaxed {
            return;
        }
        let written = self.write(sequence);
        self.unsynced += 1;
        let written = match written {
            Ok(()) if self.unsynced >= COMMITS_PER_SYNC => self.sync(),
            written => written,
        };
        self.report(written);
    }

    /// Syncs the sidecar. The caller has synced all commits of the database.
    pub(super) fn close(mut self) {
        let written = self.write(self.mark.sequence).and_then(|()| self.sync());
        self.report(written);
    }

    fn report(&mut self, written: std::io::Result<()>) {
        match written {
            Ok(()) => self.failed = false,
            Err(_) if self.failed => {}
            Err(error) => {
                self.failed = true;
                tracing::warn!(
                    file = %self.path.display(),
                    %error,
                    "cannot record the database's last commit: its loss might not be noticed"
                );
            }
        }
    }

    fn write(&self, sequence: u64) -> std::io::Result<()> {
        let slot = SLOTS[usize::from(sequence % 2 == 1)];
        self.file.write_all_at(&Mark { sequence, ..self.mark }.bytes(), slot)
    }

    fn write_both(&mut self) -> std::io::Result<()> {
        self.write(self.mark.sequence)?;
        self.write(self.mark.sequence.saturating_sub(1))
    }

    fn sync(&mut self) -> std::io::Result<()> {
        self.unsynced = 0;
        self.file.sync_data()
    }
}

impl Mark {
    fn bytes(&self) -> [u8; SLOT_BYTES] {
        let mut bytes = [0; SLOT_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.identity);
        bytes[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        let checksum = crc32c::crc32c(&bytes[..32]);
        bytes[32..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn parse(bytes: &[u8; SLOT_BYTES]) -> Option<Self> {
        let identity = bytes[8..24].try_into().ok()?;
        let sequence = u64::from_le_bytes(bytes[24..32].try_into().ok()?);
        let mark = Self { identity, sequence };
        (mark.bytes() == *bytes).then_some(mark)
    }
}

impl Evidence {
    fn read(database: &Path) -> Result<Self> {
        let path = path_of(database);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Self::Missing),
            Err(error) => return Err(at("open", &path)(error)),
        };
        let mut newest: Option<Mark> = None;
        for slot in SLOTS {
            let mut bytes = [0; SLOT_BYTES];
            match file.read_exact_at(&mut bytes, slot) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => continue,
                Err(error) => return Err(at("read", &path)(error)),
            }
            let mark = Mark::parse(&bytes);
            newest = newest.into_iter().chain(mark).max_by_key(|mark| mark.sequence);
        }
        Ok(newest.map_or(Self::Unreadable, Self::Found))
    }
}

/// Reads the mark of the database; `None` if it is missing, empty, or has no identity.
fn look_into(database: &Path) -> Result<Option<Mark>> {
    // SQLite would discard the log of an empty file.
    if std::fs::metadata(database).map_or(true, |file| file.len() == 0) {
        return Ok(None);
    }
    let look = || -> rusqlite::Result<Option<Mark>> {
        let connection = open_to_look(database)?;
        let exists = "SELECT count(*) > 0 FROM sqlite_master WHERE name = 'store_identity'";
        match connection.query_row(exists, [], |row| row.get(0))? {
            true => read_mark(&connection),
            false => Ok(None),
        }
    };
    look().map_err(|source| Error::Sqlite {
        doing: format!("look into the database {}", database.display()),
        source,
    })
}

/// Opens a database without changing anything.
fn open_to_look(database: &Path) -> rusqlite::Result<Connection> {
    let access = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, access)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // The rest of a damaged log may still be useful.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

/// Reads a whole file, and refuses one that is not a database or is inconsistent. A missing or empty file is
/// accepted: it would be created. Changes nothing.
pub(super) fn check_pages(database: &Path) -> Result<()> {
    if std::fs::metadata(database).map_or(true, |file| file.len() == 0) {
        return Ok(());
    }
    let check = || -> rusqlite::Result<String> {
        open_to_look(database)?.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
    };
    let found = check().map_err(|source| Error::Sqlite {
        doing: format!("read the database {}", database.display()),
        source,
    })?;
    match found.as_str() {
        "ok" => Ok(()),
        what => {
            let what = what.lines().collect::<Vec<_>>().join(" ");
            Err(Error::Malformed { path: database.to_owned(), what })
        }
    }
}

fn read_mark(connection: &Connection) -> rusqlite::Result<Option<Mark>> {
    let text = "SELECT identity, sequence FROM store_identity WHERE id = 1";
    let mark = connection.query_row(text, [], |row| {
        Ok(Mark { identity: row.get(0)?, sequence: row.get::<_, i64>(1)?.unsigned_abs() })
    });
    mark.optional()
}

fn identify(connection: &mut Connection) -> rusqlite::Result<Mark> {
    let exists = "SELECT count(*) > 0 FROM sqlite_master WHERE name = 'store_identity'";
    let exists: bool = connection.query_row(exists, [], |row| row.get(0))?;
    if let Some(mark) = if exists { read_mark(connection)? } else { None } {
        return Ok(mark);
    }
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(CREATE)?;
    let mark = read_mark(&transaction)?.ok_or(rusqlite::Error::QueryReturnedNoRows)?;
    transaction.commit()?;
    Ok(mark)
}

/// Why opening is refused, as text for the operator; `None` if it is allowed.
fn why_refused(database: &Path, evidence: Evidence, found: Option<Mark>) -> Option<String> {
    let sidecar = path_of(database);
    let sidecar = sidecar.file_name().map(|name| name.to_string_lossy().into_owned());
    let sidecar = sidecar.unwrap_or_default();
    let is_there = std::fs::metadata(database).is_ok_and(|file| file.len() > 0);
    let remembered = match evidence {
        Evidence::Found(mark) => format!("{sidecar} remembers {} commits of it", mark.sequence),
        _ => format!("{sidecar}, which cannot be read, remembers it"),
    };
    match (evidence, found) {
        (Evidence::Missing, _) | (Evidence::Unreadable, Some(_)) => None,
        (_, None) if is_there => {
            Some(format!("nothing that was written is in it, but {remembered}"))
        }
        (_, None) => Some(format!("it is missing or empty, but {remembered}")),
        (Evidence::Found(was), Some(is)) if was.identity != is.identity => {
            Some(format!("it is another database, with {} commits: {remembered}", is.sequence))
        }
        (Evidence::Found(was), Some(is)) if was.sequence > is.sequence => Some(format!(
            "it ends at commit {}, but {remembered}: the last {} are gone",
            is.sequence,
            was.sequence - is.sequence
        )),
        (Evidence::Found(_), Some(_)) => None,
    }
}

fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

fn sync_folder(database: &Path) -> Result<()> {
    let folder = database.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|opened| opened.sync_all());
    synced.map_err(at("sync the folder", folder))
}

fn at(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { doing, path, source }
}

#[cfg(test)]
mod tests;
