//! Damage that a reader or builder of this process has found and that no writer has stored yet.
//!
//! Each note has the location of the damage. It counts while that location still holds the bytes that were read: a
//! chunk while it is listed, a block of the tail until it is sealed or the tail is rewritten. So a process forgets
//! damage that another process has repaired as soon as it follows the store.
//!
//! Guarantees: the location of a note says whether the damage is still stored. Leaves to others: making and dropping
//! notes ([`crate::damage`]).

use std::fmt;
use std::str::FromStr;

use arc_swap::ArcSwapOption;

use crate::bodies;
use crate::chunk_list::ChunkList;
use crate::error::{Error, Result};
use crate::reader;
use crate::records::degraded::{ANYWHERE, Cause, Degradation};
use crate::records::tail_state::TailState;
use crate::types::BlockRange;

/// The notes of a process; `None` if there are none.
pub(crate) type SharedDamageNotes = ArcSwapOption<DamageNotes>;

/// Damage that was found but is not stored: of records, or of blocks at several locations.
#[derive(Clone, Debug)]
pub(crate) struct DamageNotes {
    pub(crate) cause: Cause,
    pub(crate) found: Vec<DamageNote>,
}

#[derive(Clone, Debug)]
pub(crate) struct DamageNote {
    pub(crate) degraded: Degradation,
    pub(crate) location: DamageLocation,
}

impl DamageNotes {
    /// The noted damage that is still stored.
    pub(crate) fn still_stored(
        &self,
        list: &ChunkList,
        tail: Option<&TailState>,
    ) -> Option<Degradation> {
        let mut found = self.found.iter().filter(|found| found.location.is_current(list, tail));
        let first = found.next()?.degraded.clone();
        Some(found.fold(first, |all, found| all.with(&found.degraded)))
    }
}

/// Where damage was found. Its text form is the same in every process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DamageLocation {
    /// In the logs of the chunk of this attempt.
    Chunk(u64),
    /// In the bodies that this attempt has written. A merge of chunks keeps them unchanged.
    Bodies {
        /// Token of the attempt.
        token: u64,
        /// The first of their blocks.
        start: u64,
    },
    /// At a block of the tail, before any later replacement of stored blocks.
    Tail {
        /// Generation of the tail.
        generation: u64,
        /// Number of the last replacement of stored blocks.
        replacements: u64,
        /// The block.
        number: u64,
    },
    /// The location is not known.
    Unknown,
}

impl DamageLocation {
    /// The location of an error and the blocks it affects: the chunk of an attempt, the chunk that the error names, or
    /// a block, as far as known. `None` if the chunk is no longer listed.
    pub(crate) fn of(
        error: &Error,
        token: Option<u64>,
        at: Option<u64>,
        list: &ChunkList,
        tail: Option<&TailState>,
    ) -> Option<(Self, BlockRange)> {
        if let Some(token) = token {
            let entry = list.by_token(token)?;
            return Some((Self::Chunk(token), entry.blocks.clone()));
        }
        if let Some(named) = error.damaged_chunk() {
            return list.iter().find_map(|entry| {
                let blocks = entry.blocks.clone();
                if reader::name_of(entry) == named {
                    return Some((Self::Chunk(entry.token), blocks));
                }
                let bodies = entry.bodies.iter().find(|one| bodies::name_of(one) == named)?;
                let (token, start) = (bodies.token, bodies.blocks.start);
                Some((Self::Bodies { token, start }, blocks))
            });
        }
        let Some(number) = at.or(error.damaged_block()) else {
            return Some((Self::Unknown, ANYWHERE));
        };
        let blocks = number..number.saturating_add(1);
        let is_in_tail = tail.is_none_or(|tail| tail.start <= number);
        let location = match list.containing(number) {
            _ if is_in_tail => Self::Tail {
                generation: tail.map_or(0, |tail| tail.generation),
                replacements: list.replacements.seq,
                number,
            },
            Some(entry) => Self::Chunk(entry.token),
            None => Self::Unknown,
        };
        Some((location, blocks))
    }

    /// Whether the bytes that were read there are still stored.
    pub(crate) fn is_current(&self, list: &ChunkList, tail: Option<&TailState>) -> bool {
        match self {
            Self::Chunk(token) => list.by_token(*token).is_some(),
            Self::Bodies { token, start } => list
                .containing(*start)
                .is_some_and(|entry| entry.bodies.iter().any(|bodies| bodies.token == *token)),
            Self::Tail { generation, replacements, number } => {
                list.replacements.seq == *replacements
                    && tail
                        .is_none_or(|tail| tail.generation == *generation && tail.start <= *number)
            }
            Self::Unknown => true,
        }
    }
}

impl fmt::Display for DamageLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Chunk(token) => write!(f, "chunk-{token:x}"),
            Self::Bodies { token, start } => write!(f, "bodies-{token:x}-{start:x}"),
            Self::Tail { generation, replacements, number } => {
                write!(f, "tail-{generation:x}-{replacements:x}-{number:x}")
            }
            Self::Unknown => write!(f, "unknown"),
        }
    }
}

impl FromStr for DamageLocation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut parts = text.split('-');
        let kind = parts.next().unwrap_or_default();
        let numbers =
            parts.map(|part| u64::from_str_radix(part, 16)).collect::<Result<Vec<_>, _>>();
        match (kind, numbers.as_deref()) {
            ("chunk", Ok(&[token])) => Ok(Self::Chunk(token)),
            ("bodies", Ok(&[token, start])) => Ok(Self::Bodies { token, start }),
            ("tail", Ok(&[generation, replacements, number])) => {
                Ok(Self::Tail { generation, replacements, number })
            }
            ("unknown", Ok(&[])) => Ok(Self::Unknown),
            _ => Err(Error::Invalid { what: format!("{text:?} is not a location in the index") }),
        }
    }
}
