//! Damage that a reader or builder of this process has found and that no writer has stored yet.
//!
//! Each note has the location of the damage. It counts while that location still holds the bytes that were read: a
//! chunk while it is listed, a block of the tail until it is sealed or the tail is rewritten. So a process forgets
//! damage that another process has repaired as soon as it follows the store.
//!
//! Guarantees: repaired blocks are never stored as damaged. Leaves to others: when to check, and storing the notes
//! ([`crate::writer`]).

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::bodies;
use crate::chunk_list::ChunkList;
use crate::error::{Error, Result};
use crate::index::{IndexState, SharedIndex, Snapshot};
use crate::reader;
use crate::records::degraded::{ANYWHERE, Cause, DamagedBlocks, Degradation};
use crate::records::tail_state::TailState;
use crate::types::BlockRange;

/// Maximum number of notes.
const NOTES_MAX: usize = 64;

/// The notes of a process; `None` if there are none.
pub(crate) type SharedDamageNotes = ArcSwapOption<DamageNotes>;

/// Damage that was found but is not stored: of records, or of blocks at several locations.
#[derive(Clone, Debug)]
pub(crate) struct DamageNotes {
    cause: Cause,
    found: Vec<DamageNote>,
}

#[derive(Clone, Debug)]
struct DamageNote {
    degraded: Degradation,
    location: DamageLocation,
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
    fn of(
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

/// The state of the tail; `None` while it is not known.
fn tail_of(followed: &IndexState) -> Option<&TailState> {
    followed.tail.as_ref().filter(|_| followed.tail_known).map(|tail| &tail.state)
}

impl SharedIndex {
    /// Why the index is degraded: the stored reason, and damage that was only noted so far.
    pub(crate) fn known_degradation(&self, followed: &IndexState) -> Option<Degradation> {
        let noted = self.noted_damage(followed);
        match (followed.degraded.clone(), noted) {
            (Some(stored), Some(noted)) => Some(stored.with(&noted)),
            (stored, noted) => stored.or(noted),
        }
    }

    /// The noted damage that is still stored.
    fn noted_damage(&self, followed: &IndexState) -> Option<Degradation> {
        let noted = self.noted.load_full()?;
        let tail = tail_of(followed);
        let mut found =
            noted.found.iter().filter(|found| found.location.is_current(&followed.list, tail));
        let first = found.next()?.degraded.clone();
        Some(found.fold(first, |all, found| all.with(&found.degraded)))
    }

    /// Notes damage that a reader or builder of a snapshot found: in the chunk of an attempt, in the chunk that the
    /// error names, or at a block, as far as known. The writer stops at its next step and stores the reason. Damage
    /// that is no longer stored was repaired or replaced, and is not noted.
    pub(crate) fn note_corruption(
        &self,
        snapshot: &Snapshot,
        error: &Error,
        token: Option<u64>,
        at: Option<u64>,
    ) {
        let now = self.snapshot();
        let location =
            DamageLocation::of(error, token, at, &snapshot.list, snapshot.tail_state.as_ref());
        let location = location
            .filter(|(location, _)| location.is_current(&now.list, now.tail_state.as_ref()));
        if let Some((location, blocks)) = location {
            self.note(&Degradation::damaged_at(blocks, logmill_io::error_chain(error)), location);
        }
    }

    /// Whether an error comes from bytes that are still stored, not from bytes replaced after `snapshot` was taken.
    pub(crate) fn is_current(
        &self,
        error: &Error,
        at: Option<u64>,
        snapshot: &Snapshot,
        followed: &IndexState,
    ) -> bool {
        let location =
            DamageLocation::of(error, None, at, &snapshot.list, snapshot.tail_state.as_ref());
        location.is_some_and(|(location, _)| location.is_current(&followed.list, tail_of(followed)))
    }

    pub(crate) fn note(&self, found: &Degradation, location: DamageLocation) {
        tracing::error!(reason = found.reason, "the log index is damaged");
        let cause = found.cause;
        self.noted.rcu(|noted| {
            let same = noted.as_ref().filter(|noted| noted.cause == cause);
            let mut all = same.map(|noted| noted.found.clone()).unwrap_or_default();
            let new = DamageNote { degraded: found.clone(), location };
            let is_known = |one: &DamageNote| one.degraded.damaged == found.damaged;
            all.retain(|one| !is_known(one));
            all.truncate(NOTES_MAX - 1);
            all.insert(0, new);
            Some(Arc::new(DamageNotes { cause, found: all }))
        });
        self.snapshot.rcu(|snapshot| {
            let found = found.clone();
            Snapshot {
                list: Arc::clone(&snapshot.list),
                tail_state: snapshot.tail_state.clone(),
                tail: snapshot.tail.clone(),
                bodies: snapshot.bodies.clone(),
                coverage: snapshot.coverage.clone(),
                degraded: match snapshot.degraded.clone() {
                    Some(known) => Some(known.with(&found)),
                    None => Some(found),
                },
            }
        });
    }

    /// Forgets damage of records, which are about to be read again.
    pub(crate) fn forget_metadata(&self) {
        let noted = self.noted.load();
        if noted.as_ref().is_some_and(|noted| noted.cause == Cause::Metadata) {
            self.noted.store(None);
        }
    }

    /// Forgets noted damage of blocks that were rewritten.
    pub(crate) fn forget_noted_damage(&self, is_repaired: impl Fn(&BlockRange) -> bool) {
        self.retain_noted(|found| found.degraded.without(&is_repaired).is_some());
    }

    /// Forgets notes that were made under another writer and may be outdated: damage that is no longer stored, and
    /// damage at an unknown location. The new writer finds the latter again if it still exists.
    pub(crate) fn forget_stale_damage(&self, followed: &IndexState) {
        let tail = tail_of(followed);
        self.retain_noted(|found| {
            found.location != DamageLocation::Unknown
                && found.location.is_current(&followed.list, tail)
        });
    }

    /// Forgets all notes, after an operator has decided.
    pub(crate) fn forget_noted(&self) {
        self.noted.store(None);
    }

    /// Forgets what was noted at a location that proved to be intact.
    pub(crate) fn forget_location(&self, location: DamageLocation) {
        self.retain_noted(|found| found.location != location);
    }

    /// Noted damage at known places that hold what was read; one for each location.
    pub(crate) fn located_damage(&self) -> Vec<(DamageLocation, DamagedBlocks)> {
        let (noted, snapshot) = (self.noted.load_full(), self.snapshot());
        let tail = snapshot.tail_state.as_ref();
        let mut located: Vec<(DamageLocation, DamagedBlocks)> = Vec::new();
        for found in noted.iter().flat_map(|noted| &noted.found) {
            let location = found.location;
            let is_located =
                location != DamageLocation::Unknown && location.is_current(&snapshot.list, tail);
            let is_new = !located.iter().any(|(known, _)| *known == location);
            if let Some(damaged) = found.degraded.damaged.first().filter(|_| is_located && is_new) {
                located.push((location, damaged.clone()));
            }
        }
        located
    }

    fn retain_noted(&self, keep: impl Fn(&DamageNote) -> bool) {
        self.noted.rcu(|noted| {
            let mut left = DamageNotes::clone(noted.as_ref()?);
            left.found.retain(&keep);
            (!left.found.is_empty()).then(|| Arc::new(left))
        });
    }
}
