//! The disk below a folder: its free space, and whether it is writable.
//!
//! Guarantees: [`try_write`] leaves no file behind. Both block on the disk: call them inside [`crate::compute`]. Leaves
//! to others: how much is enough.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use crate::error::{Error, Result};

/// Bytes that [`try_write`] writes: too many for a file system to store inline with the file's metadata.
const TRY_BYTES: usize = 64 << 10;

/// Bytes that this process may still write below a folder.
pub fn free_bytes(folder: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(folder).map_err(|source| Error::File {
        doing: "get the free space of",
        path: folder.to_owned(),
        source: source.into(),
    })?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Creates the folder if it is missing; then creates, syncs and removes a file of this name in it.
pub fn try_write(folder: &Path, name: &str) -> Result<()> {
    let at = |doing, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { doing, path, source }
    };
    fs::create_dir_all(folder).map_err(at("create the folder", folder))?;
    let path = folder.join(name);
    let written = (|| {
        let mut file = File::create(&path).map_err(at("create", &path))?;
        file.write_all(&vec![0; TRY_BYTES]).map_err(at("write", &path))?;
        file.sync_all().map_err(at("sync", &path))
    })();
    let removed = fs::remove_file(&path).map_err(at("remove", &path));
    written.and(removed)
}
