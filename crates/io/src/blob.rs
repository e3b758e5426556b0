//! `BlobStore`: large immutable objects under names that are written once.
//!
//! Implementations: [`MemoryBlobs`], [`FileBlobs`], [`S3Blobs`].
//!
//! Guarantees of every implementation, checked by [`conformance`]:
//! - A blob appears completely or not at all, and never changes afterwards.
//! - [`BlobStore::put`] is idempotent: putting the same bytes again succeeds; other bytes under the same name
//!   are a conflict. Of several writers with different bytes exactly one wins, and its bytes are read from then
//!   on.
//! - A put that has returned survives a crash (the file and its folder are synced).
//! - [`BlobStore::list`] returns names in byte order.
//!
//! Leaves to others: checksums of the contents, knowing which blobs are still needed, and fencing; a blob store
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

pub const NAME_BYTES_MAX: usize = 512;
/// Maximum length of a segment of a name: file systems allow 255 bytes, and stores may add a mark.
pub const SEGMENT_BYTES_MAX: usize = 200;
pub const BLOB_BYTES_MAX: usize = 1 << 30;
/// Maximum number of names that a list returns.
pub const LIST_LIMIT_MAX: usize = 1_000;

/// The name of a blob: segments of `a-z A-Z 0-9 . _ -` between slashes. It is a safe path in every store.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlobName(String);

impl BlobName {
    /// Validates a name.
    pub fn new(name: impl Into<String>) -> Result<Self> {
        let name = name.into();
        let segments_fine = name.split('/').all(segment_is_fine);
        if name.len() > NAME_BYTES_MAX || !segments_fine {
            return Err(Error::invalid(format!(
                "invalid blob name {name:?}: expected segments of letters, digits, dots, dashes and \
                 underscores between slashes, none starting with a dot, of at most \
                 {SEGMENT_BYTES_MAX} bytes each and {NAME_BYTES_MAX} in total"
            )));
        }
        Ok(Self(name))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A leading dot is reserved for the temporary names of stores; this also excludes `.` and `..`.
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

/// Entry of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlobMeta {
    pub name: BlobName,
    pub bytes: u64,
}

/// Large immutable objects; see the module.
#[async_trait]
pub trait BlobStore: Send + Sync + fmt::Debug {
    /// Writes a blob. Succeeds if the blob exists with the same bytes.
    async fn put(&self, name: &BlobName, bytes: Bytes) -> Result<()>;

    /// Returns the whole blob, if it exists.
    async fn get(&self, name: &BlobName) -> Result<Option<Bytes>>;

    /// Returns exactly the bytes of `range`, if the blob exists; a range beyond its end is an error.
    async fn get_range(&self, name: &BlobName, range: Range<u64>) -> Result<Option<Bytes>>;

    /// Removes a blob; succeeds if it does not exist.
    async fn delete(&self, name: &BlobName) -> Result<()>;

    /// Returns the blobs whose names start with `prefix` and come after `after`, in order, at most `limit` (and
    /// [`LIST_LIMIT_MAX`]).
    async fn list(
        &self,
        prefix: &str,
        after: Option<&BlobName>,
        limit: usize,
    ) -> Result<Vec<BlobMeta>>;
}

/// Methods derived from those of [`BlobStore`].
#[async_trait]
pub trait BlobStoreExt: BlobStore {
    /// Returns the whole blob, which must exist.
    async fn read(&self, name: &BlobName) -> Result<Bytes> {
        let found = self.get(name).await?;
        found.ok_or_else(|| Error::NotFound { what: format!("the blob {name}") })
    }
}

impl<S: BlobStore + ?Sized> BlobStoreExt for S {}

/// Error of a put if the name is taken by other bytes.
fn taken(name: &BlobName) -> Error {
    Error::Conflict { what: format!("the blob {name} exists with other bytes; it") }
}

/// Rejects blobs that are too large.
fn validate_put(name: &BlobName, bytes: &Bytes) -> Result<()> {
    if bytes.len() <= BLOB_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "the blob {name} has {} bytes: at most {BLOB_BYTES_MAX} are allowed",
        bytes.len()
    )))
}

/// Rejects a reversed range; returns the length of the range.
fn validate_range(name: &BlobName, range: &Range<u64>) -> Result<u64> {
    range.end.checked_sub(range.start).ok_or_else(|| {
        Error::invalid(format!("the range {}..{} of {name} is reversed", range.start, range.end))
    })
}

/// Error of a range that ends beyond the end of the blob.
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
            assert_eq!(BlobName::new(name).expect("a valid name").as_str(), name);
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
