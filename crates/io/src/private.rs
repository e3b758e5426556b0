//! Files and folders that nobody but their owner may read: folders 0700, files 0600.
//!
//! Guarantees: what is made here is private from its first moment. What was made with wider modes is narrowed when a
//! process takes it, if it belongs to this user; a folder of somebody else, or one that is shared on purpose (with a
//! sticky bit, as `/tmp`), is left alone with a warning. Leaves to others: what is in them.

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::error::{Error, Result};

const FOLDER_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// What others may do.
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;
/// The largest file that is read whole.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// Makes a folder, and those above it that are missing.
pub(crate) fn create_folder(path: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Makes a file that is not there yet.
pub(crate) fn create_file(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Makes an empty file if there is none.
pub(crate) fn touch(path: &Path) -> Result<()> {
    match create_file(path) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(at("create", path)(error)),
        _ => Ok(()),
    }
}

/// Writes a small file of text that is not there yet, and syncs it; false if it is there.
pub fn write_new(path: &Path, text: &str) -> Result<bool> {
    let mut file = match create_file(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(false),
        Err(error) => return Err(at("create", path)(error)),
    };
    file.write_all(text.as_bytes()).map_err(at("write", path))?;
    file.sync_all().map_err(at("sync", path))?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let synced = File::open(folder).and_then(|opened| opened.sync_all());
    synced.map_err(at("sync the folder", folder))?;
    Ok(true)
}

/// Reads a small file of text; none if it is not there.
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

/// Narrows the mode of a folder that was there before. True if others could look into it until now.
pub(crate) fn narrow_folder(path: &Path) -> Result<bool> {
    let found = fs::metadata(path).map_err(at("look at the folder", path))?;
    if found.mode() & OTHERS == 0 {
        return Ok(false);
    }
    if found.mode() & STICKY != 0 || !is_ours(&found) {
        tracing::warn!(
            folder = %path.display(),
            mode = format!("{:04o}", found.mode() & 0o7777),
            "other users can look into the data folder, and it is not ours to change that"
        );
        return Ok(false);
    }
    set_mode(path, FOLDER_MODE)?;
    tracing::info!(folder = %path.display(), "other users could look into this folder; no longer");
    Ok(true)
}

/// Narrows the mode of a file that was there before.
pub fn narrow_file(path: &Path) -> Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_file() && found.mode() & OTHERS != 0 && is_ours(&found) => {
            set_mode(path, FILE_MODE)
        }
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("look at", path)(error)),
        _ => Ok(()),
    }
}

/// Narrows a folder and all that is in it, the folder last: who dies half-way comes again.
pub(crate) fn narrow_tree(root: &Path) -> Result<()> {
    let found = fs::metadata(root).map_err(at("look at the folder", root))?;
    if found.mode() & OTHERS == 0 || !is_ours(&found) {
        return Ok(());
    }
    let mut folders = vec![root.to_owned()];
    let mut visited = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).map_err(at("list the folder", &folder))? {
            let path = entry.map_err(at("list the folder", &folder))?.path();
            // Through no link: what it leads to is not ours to change.
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
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(at("protect", path))
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
    fn what_is_made_is_private() {
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
    fn what_was_wide_is_narrowed_unless_it_is_shared_on_purpose() {
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
