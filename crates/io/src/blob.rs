//! `BlobStore`: large immutable things under names that are written once.
//!
//! Kinds: [`MemoryBlobs`], [`FileBlobs`], [`S3Blobs`].
//!
//! Guarantees, kept by every kind and checked by [`conformance`]:
//! - A blob appears whole or not at all, and once it has appeared it never changes.
//! - [`BlobStore::put`] is idempotent: the same bytes again are fine; other bytes under the same name are a
//!   conflict, and of several writers with different bytes exactly one wins, whose bytes are what is read.
//! - A put that has returned survives a crash (files are synced, and so is their folder).
//! - [`BlobStore::list`] gives names in the order of their bytes.
//!
//! Leaves to others: checksums of the contents, knowing which blobs are still wanted, and fencing; a blob store
//! has no mutable state.

use std::fmt;
use std::ops::Range;

use async_trait::async_trait;
use bytes::Bytes;

use crate::error::{Error, Result};

pub mod conformance;
mod files;
mod memory;
mod s3;

pub use files::FileBlobs;
pub use memory::MemoryBlobs;
pub use s3::{S3Blobs, S3Settings};

/// The longest name.
pub const NAME_BYTES_MAX: usize = 512;
/// The longest segment of a name: file systems allow 255 bytes, and stores may add a mark.
pub const SEGMENT_BYTES_MAX: usize = 200;
/// The largest blob.
pub const BLOB_BYTES_MAX: usize = 1 << 30;
/// The most names of one list.
pub const LIST_LIMIT_MAX: usize = 1_000;

/// The name of a blob: segments of `a-z A-Z 0-9 . _ -` between slashes. It is a safe path on every kind.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(String);

impl BlobName {
    /// Checks and takes a name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let segments_fine = name.split('/').all(segment_is_fine);
        if name.len() > NAME_BYTES_MAX || !segments_fine {
            return Err(Error::invalid(format!(
                "the blob name {name:?}: segments of letters, digits, dots, dashes and underscores \
                 between slashes, none starting with a dot, at most {SEGMENT_BYTES_MAX} bytes each \
                 and {NAME_BYTES_MAX} in all"
            )));
        }
        Ok(Self(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A leading dot is kept free for the temporary names of stores, and it excludes `.` and `..`.
fn segment_is_fine(segment: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let length_fine = (1..=SEGMENT_BYTES_MAX).contains(&segment.len());
    length_fine && !segment.starts_with('.') && segment.bytes().all(allowed)
}

impl fmt::Debug for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for BlobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a list says of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobMeta {
    /// Its name.
    pub name: BlobName,
    /// Its length.
    pub bytes: u64,
}

/// Large immutable things; see the module.
#[async_trait]
pub trait BlobStore: Send + Sync + fmt::Debug {
    /// Writes a blob that did not exist, or finds the very same bytes there.
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()>;

    /// The whole blob, if it exists.
    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>>;

    /// Exactly the bytes of `range`, if the blob exists; a range beyond its end is an error.
    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>>;

    /// Removes a blob; fine if it is not there.
    async fn delete(&self, name: &BlobName) -> Result<()>;

    /// The blobs whose names begin with `prefix` and come after `after`, in order, at most `limit` (and
    /// [`LIST_LIMIT_MAX`]).
    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>>;
}

/// What follows from the few methods of a store.
#[async_trait]
pub trait BlobStoreExt: BlobStore {
    /// The whole blob, which must exist.
    async fn read(&self, name: &BlobName) -> Result<Bytes> {
        let found = self.get(name).await?;
        found.ok_or_else(|| Error::NotFound { what: format!("the blob {name}") })
    }
}

impl<S: BlobStore + ?Sized> BlobStoreExt for S {}

/// The error of a put whose name is taken by other bytes.
fn taken(name: &BlobName) -> Error {
    Error::Conflict { what: format!("the blob {name} holds other bytes and") }
}

/// Refuses what no store should be asked to hold.
fn validate_put(name: &BlobName, bytes: &Bytes) -> Result<()> {
    if bytes.len() <= BLOB_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the blob {name} of {} bytes: at most {BLOB_BYTES_MAX} are allowed",
        bytes.len()
    )))
}

/// Refuses a range that no store could answer; gives its length.
fn validate_range(name: &BlobName, range: &Range<u64>) -> Result<u64> {
    range.end.checked_sub(range.start).ok_or_else(|| {
        Error::invalid(format!("the range {}..{} of {name} is reversed", range.start, range.end))
    })
}

/// The error of a range that ends after the blob does.
fn beyond_the_end(name: &BlobName, range: &Range<u64>, length: u64) -> Error {
    Error::invalid(format!(
        "the range {}..{} of {name} ends beyond its {length} bytes",
        range.start, range.end
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_could_leave_the_folder_are_refused() {
        for name in
            ["", "/a", "a/", "a//b", ".", "..", "a/../b", ".hidden", "a\\b", "a b", "ä", "a\0"]
        {
            assert!(BlobName::new(name).is_err(), "{name:?}");
        }
        for name in ["a", "chunks/1/00-ff_x.bin", "A.b-c_d/9"] {
            assert_eq!(BlobName::new(name).expect("a fine name").as_str(), name);
        }
    }

    #[test]
    fn names_and_segments_have_their_limits() {
        let longest = format!("{0}/{0}/{1}", "a".repeat(SEGMENT_BYTES_MAX), "b".repeat(110));
        assert_eq!(longest.len(), NAME_BYTES_MAX);
        BlobName::new(longest.clone()).expect("just not too long");
        assert!(BlobName::new(longest + "b").is_err());
        assert!(BlobName::new("a".repeat(SEGMENT_BYTES_MAX + 1)).is_err());
    }
}
