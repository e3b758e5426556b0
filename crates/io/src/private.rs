//! Files and folders that only their owner may read: folders 0700, files 0600.
//!
//! Guarantees: files and folders created here are private from the start. Older ones with wider modes are
//! narrowed if they belong to this user; a folder of another user, or one shared on purpose (sticky bit, as
//! `/tmp`), is left unchanged with a warning. Leaves to others: their content.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::{Error, Result};

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Permission bits of group and others.
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;
/// Maximum bytes read from a text file; the rest is ignored.
const TEXT_BYTES_MAX: u64 = 64 << 10;
/// Name suffix of files that are being written.
const UNFINISHED: &str = ".unfinished";

/// Creates a folder and its missing parents.
pub(crate) fn create_folder(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Creates a file that does not exist yet.
pub(crate) fn create_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Creates an empty file if it does not exist.
pub(crate) fn touch(path: &Path) -> Result<()> {
    match create_file(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(at("create", path)(error)),
        _ => Ok(()),
    }
}

/// Writes a small text file that does not exist yet, and syncs it; returns false if it exists. After a crash
/// the file has all of its text or does not exist.
pub fn write_new(path: &Path, text: &str) -> Result<bool> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = Path::new(&unfinished);
    match fs::remove_file(unfinished) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            return Err(at("remove", unfinished)(error));
        }
        _ => {}
    }
    let mut file = create_file(unfinished).map_err(at("create", unfinished))?;
    file.write_all(text.as_bytes()).map_err(at("write", unfinished))?;
    file.sync_all().map_err(at("sync", unfinished))?;
    // A rename would replace a file that another process created meanwhile.
    let linked = match fs::hard_link(unfinished, path) {
        // Not every file system has hard links.
        Err(error) if error.kind() != ErrorKind::AlreadyExists && !path.exists() => {
            fs::rename(unfinished, path)
        }
        linked => linked.and_then(|()| fs::remove_file(unfinished)),
    };
    match linked {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            fs::remove_file(unfinished).map_err(at("remove", unfinished))?;
            return Ok(false);
        }
        linked => linked.map_err(at("create", path))?,
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|opened| opened.sync_all());
    synced.map_err(at("sync the folder", folder))?;
    Ok(true)
}

/// Removes a file that contains nothing but white space.
pub fn remove_empty(path: &Path) -> Result<()> {
    match read_text(path)? {
        Some(text) if text.trim().is_empty() => fs::remove_file(path).map_err(at("remove", path)),
        _ => Ok(()),
    }
}

/// Reads a small text file; returns `None` if it does not exist.
pub fn read_text(path: &Path) -> Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(at("open", path)(error)),
    };
    let mut text = String::new();
    file.take(TEXT_BYTES_MAX).read_to_string(&mut text).map_err(at("read", path))?;
    Ok(Some(text))
}

/// Narrows the mode of an existing folder. Returns whether other users could read it before.
pub(crate) fn narrow_folder(path: &Path) -> Result<bool> {
    let found = fs::metadata(path).map_err(at("read the metadata of the folder", path))?;
    if found.mode() & OTHERS == 0 {
        return Ok(false);
    }
    if found.mode() & STICKY != 0 || !is_ours(&found) {
        tracing::warn!(
            folder = %path.display(),
            mode = format!("{:04o}", found.mode() & 0o7777),
            "other users can read the data folder: it belongs to another user or is shared, so its mode stays"
        );
        return Ok(false);
    }
    set_mode(path, FOLDER_MODE)?;
    tracing::info!(folder = %path.display(), "restricted a folder to its owner: other users could read it");
    Ok(true)
}

/// Narrows the mode of an existing file.
pub fn narrow_file(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.mode() & OTHERS != 0 && is_ours(&found) => {
            set_mode(path, FILE_MODE)
        }
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(at("read the metadata of", path)(error))
        }
        _ => Ok(()),
    }
}

/// Narrows a folder and its contents, the folder last, so that an interrupted run starts again.
pub(crate) fn narrow_tree(root: &Path) -> Result<()> {
    let found = fs::metadata(root).map_err(at("read the metadata of the folder", root))?;
    if found.mode() & OTHERS == 0 || !is_ours(&found) {
        return Ok(());
    }
    let mut folders = vec![root.to_owned()];
    let mut visited = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(at("list the folder", &folder))? {
            let path = entry.map_err(at("list the folder", &folder))?.path();
            // Does not follow links: their targets are not ours to change.
            match fs::symlink_metadata(&path) {
                Ok(found) if found.is_dir() => folders.push(path),
                Ok(_) => narrow_file(&path)?,
                // It was removed meanwhile.
                Err(_) => {}
            }
        }
        visited.push(folder);
    }
    visited.iter().rev().try_for_each(|folder| set_mode(folder, FOLDER_MODE))
}

fn is_ours(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

fn set_mode(path: &Path, mode: u32) -> Result<()> {
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(at("change the mode of", path))
}

fn at(doing: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { doing, path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it is there").mode() & 0o7777
    }

    fn widen(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("widened");
    }

    #[test]
    fn created_files_and_folders_are_private() {
        let root = tempfile::tempdir().expect("a folder");
        let folder = root.path().join("a/b");
        create_folder(&folder).expect("made");
        create_folder(&folder).expect("it may be there");
        let file = folder.join("key");
        assert!(write_new(&file, "one").expect("written"));
        assert!(!write_new(&file, "two").expect("it is there"));
        assert_eq!(read_text(&file).expect("read").as_deref(), Some("one"));
        assert_eq!(read_text(&folder.join("other")).expect("read"), None);
        assert_eq!((mode(&folder), mode(&file)), (0o700, 0o600));
    }

    #[test]
    fn a_file_has_all_of_its_text_or_does_not_exist() {
        let root = tempfile::tempdir().expect("a folder");
        let file = root.path().join("key");
        let unfinished = root.path().join("key.unfinished");
        // A process crashed while writing: its leftover is not the file and does not block it.
        fs::write(&unfinished, "ha").expect("written");
        assert_eq!(read_text(&file).expect("read"), None);
        assert!(write_new(&file, "whole").expect("written"));
        assert_eq!(read_text(&file).expect("read").as_deref(), Some("whole"));
        assert!(!unfinished.exists());
        // If writing fails, no empty file remains.
        let other = root.path().join("other");
        fs::create_dir(root.path().join("other.unfinished")).expect("a folder");
        write_new(&other, "whole").expect_err("it cannot be written");
        assert!(!other.exists());
    }

    #[test]
    fn wide_modes_are_narrowed_unless_shared_on_purpose() {
        let root = tempfile::tempdir().expect("a folder");
        let (inner, file) = (root.path().join("inner"), root.path().join("inner/file"));
        fs::create_dir(&inner).expect("a folder");
        fs::write(&file, "x").expect("a file");
        for path in [root.path(), &inner] {
            widen(path, 0o755);
        }
        widen(&file, 0o644);
        narrow_tree(root.path()).expect("narrowed");
        assert_eq!((mode(root.path()), mode(&inner), mode(&file)), (0o700, 0o700, 0o600));
        widen(&inner, 0o1777);
        assert!(!narrow_folder(&inner).expect("left alone"));
        assert_eq!(mode(&inner), 0o1777);
        widen(&inner, 0o750);
        assert!(narrow_folder(&inner).expect("narrowed"));
        assert_eq!(mode(&inner), 0o700);
    }
}
