//! Keeps recently read files open, and reads them directly if their bytes are in the page cache.
//!
//! Most reads of blobs are small and cached. Opening the file and passing the read to another thread then costs
//! ten times as much as the read itself. So a few files stay open, and a read that the system can answer
//! without waiting for the disk (`RWF_NOWAIT`) happens in place.
//!
//! Guarantees: a read returns what a fresh open would return: blobs never change, and a file that any process
//! has deleted is not read. Leaves to others: reads that must wait for the disk.

use std::collections::HashMap;
use std::fs::File;
use std::io::IoSliceMut;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::{ReadWriteFlags, preadv2};

use super::super::BlobName;

const FILES_MAX: usize = 256;
/// Longer reads run on another thread even if they need not wait.
const READ_NOW_BYTES_MAX: u64 = 1 << 20;

#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    files: Mutex<FileCache>,
}

#[derive(Debug, Default)]
struct FileCache {
    files: HashMap<BlobName, (Arc<File>, u64)>,
    uses: u64,
}

impl OpenFiles {
    pub(super) fn get(&self, name: &BlobName) -> Option<Arc<File>> {
        let mut kept = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let now = kept.uses;
        let (file, used) = kept.files.get_mut(name)?;
        *used = now;
        Some(Arc::clone(file))
    }

    /// Keeps a file open; closes the least recently used one if there are too many.
    pub(super) fn keep(&self, name: &BlobName, file: &Arc<File>) {
        let mut kept = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        kept.uses += 1;
        let now = kept.uses;
        kept.files.insert(name.clone(), (Arc::clone(file), now));
        if kept.files.len() > FILES_MAX {
            let oldest = kept.files.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(name) = oldest.map(|(name, _)| name.clone()) {
                kept.files.remove(&name);
            }
        }
    }

    pub(super) fn forget(&self, name: &BlobName) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).files.remove(name);
    }

    /// The bytes of a range, if the file is open and not deleted, and the page cache has all of them.
    pub(super) fn read_now(&self, name: &BlobName, range: &Range<u64>) -> Option<Vec<u8>> {
        let length = range.end - range.start;
        if length > READ_NOW_BYTES_MAX {
            return None;
        }
        let file = self.get(name)?;
        if file.metadata().ok()?.nlink() == 0 {
            self.forget(name);
            return None;
        }
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        let mut into = [IoSliceMut::new(&mut bytes)];
        let read = preadv2(&*file, &mut into, range.start, ReadWriteFlags::NOWAIT).ok()?;
        (read == bytes.len()).then_some(bytes)
    }
}
