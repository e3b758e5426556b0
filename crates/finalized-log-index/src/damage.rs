//! Notes damage that a reader or builder found, and forgets what was repaired.
//!
//! Guarantees: repaired blocks are never stored as damaged. Leaves to others: when to check, and storing the notes
//! ([`crate::writer`]).

use std::sync::Arc;

use crate::damage_notes::{DamageLocation, DamageNote, DamageNotes};
use crate::error::Error;
use crate::records::degraded::{Cause, DamagedBlocks, Degradation};
use crate::state::{IndexState, SharedIndex, Snapshot};
use crate::types::BlockRange;

/// Maximum number of notes.
const NOTES_MAX: usize = 64;

impl SharedIndex {
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
        location
            .is_some_and(|(location, _)| location.is_current(&followed.list, followed.known_tail()))
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
        let tail = followed.known_tail();
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
