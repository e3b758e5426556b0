//! The records of the index in its [`logmill_io::MetaStore`], one file each.
//!
//! | key below the prefix | record | written by |
//! |---|---|---|
//! | `bounds` | [`bounds`]: where sections end | the process that opens the index first |
//! | `identity` | [`identity`]: a random number | the first writer, once |
//! | `tail` | [`tail_state`]: head, and where the tail starts | the writer, fenced |
//! | `tail/GENERATION-FIRST` | [`tail_batch`]: the blocks of one commit | the writer, fenced, once |
//! | `body/GENERATION-NUMBER` | [`body`]: the body of a block of the tail | the same commit, once |
//! | `chunks` | [`chunks`]: the number of the last change | every publication, by version |
//! | `chg/SEQ`, `ckp/SEQ` | [`chunks`]: a change; all entries as of a change | the same commit, once |
//! | `build/TOKEN` | [`attempt`]: allows its publication while it exists | the building process, once |
//! | `degraded` | [`degraded`]: why the index refuses to continue | the writer, fenced |
//! | `repl/SEQ` | [`replacement`]: stored final blocks that were removed or replaced | the same commit, fenced, once |
//!
//! Numbers in keys have sixteen hexadecimal digits, so keys sort like their numbers. Each value is a version byte,
//! the fields, and a CRC-32C.
//!
//! Guarantees: a record decodes to what was encoded, and nothing else decodes. Leaves to others: the protocols
//! ([`crate::writer`], [`crate::publish`]).

pub(crate) mod attempt;
pub(crate) mod body;
pub(crate) mod bounds;
pub(crate) mod chunks;
pub(crate) mod degraded;
pub(crate) mod identity;
pub(crate) mod replacement;
pub(crate) mod tail_batch;
pub(crate) mod tail_state;

use std::ops::RangeInclusive;

use alloy_primitives::B256;
use bytes::Bytes;
use logmill_io::{Key, KeyRange};

use crate::codec::{Reader, seal, unseal};
use crate::error::{Error, Result};

/// The keys of one index.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    prefix: String,
}

impl Keys {
    pub(crate) fn new(prefix: &str) -> Self {
        Self { prefix: prefix.to_owned() }
    }

    fn key(&self, rest: &str) -> Key {
        Key::from(format!("{}/{rest}", self.prefix))
    }

    pub(crate) fn bounds(&self) -> Key {
        self.key("bounds")
    }

    pub(crate) fn identity(&self) -> Key {
        self.key("identity")
    }

    pub(crate) fn tail_state(&self) -> Key {
        self.key("tail")
    }

    pub(crate) fn tail_batch(&self, generation: u64, first_block: u64) -> Key {
        self.key(&format!("tail/{generation:016x}-{first_block:016x}"))
    }

    /// Batches of one generation of the tail.
    pub(crate) fn tail_batches(&self, generation: u64) -> KeyRange {
        KeyRange::prefix(self.key(&format!("tail/{generation:016x}-")))
    }

    /// Batches of all generations.
    pub(crate) fn all_tail_batches(&self) -> KeyRange {
        KeyRange::prefix(self.key("tail/"))
    }

    pub(crate) fn body(&self, generation: u64, number: u64) -> Key {
        self.key(&format!("body/{generation:016x}-{number:016x}"))
    }

    /// Bodies of one generation of the tail.
    pub(crate) fn bodies_of(&self, generation: u64) -> KeyRange {
        KeyRange::prefix(self.key(&format!("body/{generation:016x}-")))
    }

    /// Bodies of all generations.
    pub(crate) fn all_bodies(&self) -> KeyRange {
        KeyRange::prefix(self.key("body/"))
    }

    pub(crate) fn chunks(&self) -> Key {
        self.key("chunks")
    }

    pub(crate) fn change(&self, seq: u64) -> Key {
        self.key(&format!("chg/{seq:016x}"))
    }

    pub(crate) fn changes(&self) -> KeyRange {
        KeyRange::prefix(self.key("chg/"))
    }

    pub(crate) fn checkpoint(&self, seq: u64) -> Key {
        self.key(&format!("ckp/{seq:016x}"))
    }

    pub(crate) fn checkpoints(&self) -> KeyRange {
        KeyRange::prefix(self.key("ckp/"))
    }

    pub(crate) fn attempt(&self, token: u64) -> Key {
        self.key(&format!("build/{token:016x}"))
    }

    pub(crate) fn attempts(&self) -> KeyRange {
        KeyRange::prefix(self.key("build/"))
    }

    pub(crate) fn degraded(&self) -> Key {
        self.key("degraded")
    }

    pub(crate) fn replacement(&self, seq: u64) -> Key {
        self.key(&format!("repl/{seq:016x}"))
    }

    pub(crate) fn replacements(&self) -> KeyRange {
        KeyRange::prefix(self.key("repl/"))
    }

    /// Name of the writer lease.
    pub(crate) fn lease(&self) -> String {
        format!("{}/writer", self.prefix)
    }

    /// Prefix of all blob names.
    pub(crate) fn blobs(&self) -> String {
        format!("{}/chunks/", self.prefix)
    }
}

/// Parses the number at the end of a key.
pub(crate) fn number_of(key: &Key) -> Result<u64> {
    let digits = key.as_bytes().rsplit(|byte| b"/-".contains(byte)).next().unwrap_or_default();
    let number = std::str::from_utf8(digits).ok().filter(|digits| digits.len() == 16);
    let number = number.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    number.ok_or_else(|| Error::corrupt(format!("the key {key} does not end in a number")))
}

fn begin(version: u8) -> Vec<u8> {
    vec![version]
}

fn end(mut out: Vec<u8>) -> Bytes {
    seal(&mut out, 0);
    Bytes::from(out)
}

/// Checks seal and version, and returns a reader of the fields.
fn open<'b>(bytes: &'b [u8], version: u8, what: &str) -> Result<Reader<'b>> {
    Ok(open_versions(bytes, version..=version, what)?.1)
}

/// Like [`open`] for several versions; also returns the version.
fn open_versions<'b>(
    bytes: &'b [u8],
    known: RangeInclusive<u8>,
    what: &str,
) -> Result<(u8, Reader<'b>)> {
    let body = unseal(bytes).map_err(|error| error.within(what))?;
    let mut reader = Reader::new(body);
    let found = reader.u8()?;
    if !known.contains(&found) {
        let newest = known.end();
        return Err(Error::corrupt(format!(
            "{what} has version {found}, but the newest known is {newest}"
        )));
    }
    Ok((found, reader))
}

fn hash(reader: &mut Reader<'_>) -> Result<B256> {
    reader.array().map(B256::new)
}

#[cfg(test)]
mod tests;
