//! Presence: how processes that share a PostgreSQL database prove that they are alive, and detect that others
//! are not.
//!
//! A process draws a number and takes a shared advisory lock with that number, in the session that also listens
//! for wake-ups. It appends the number to the owner name under which it holds leases and jobs. PostgreSQL
//! releases the lock when the session ends, however the process died. A process that wants a lease checks for
//! the lock:
//!
//! ```text
//!   owner "logmill-17-5f…~0a1b2c3d" ──▶ advisory lock (CLASS, 0x0a1b2c3d) in pg_locks? ──▶ alive
//!                                                   └── missing for GRACE ──▶ gone
//! ```
//!
//! Guarantees: an owner whose name has no number, or whose session is alive, is never considered gone. An owner
//! whose session ended is gone after [`GRACE`]; a process that only lost its connection reconnects within that
//! time. A wrong verdict costs availability, never correctness: a take-over goes through fences and tokens,
//! which refuse the old owner's writes.
//!
//! Leaves to others: keeping the session ([`super::Wakes`]), and taking over (`work`). On SQLite no owner is
//! ever gone: there the lock of the folder proves it ([`super::DataFolder`]).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::Client;

use super::{Engine, Sql};
use crate::error::{Error, Result};
use crate::params;

/// The first half of the key of all presence locks: "LGML".
const CLASS: i32 = 0x4c47_4d4c;
/// Separates the name of an owner from the number of its lock.
const MARK: char = '~';
/// How long the lock of a process must be missing before the process counts as gone. A broken connection is
/// reopened after [`super::wake::RECONNECT_WAIT`].
const GRACE: Duration = Duration::from_secs(3);
/// How often a process that waits for an owner's lease should check its lock.
pub const PRESENCE_LOOK: Duration = Duration::from_secs(2);
/// Two checks further apart say nothing about the time between them.
const LOOK_GAP_MAX: Duration = Duration::from_secs(30);
/// Maximum number of remembered owners whose locks are missing.
const ABSENT_MAX: usize = 1_024;

/// Number of a process's presence lock; positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PresenceId(i32);

impl PresenceId {
    pub(super) fn from_random(random: u64) -> Self {
        Self(i32::try_from(random >> 33).unwrap_or(1).max(1))
    }

    /// Returns the owner name with this number.
    pub(super) fn owner(self, name: &str) -> String {
        format!("{name}{MARK}{:08x}", self.0)
    }

    fn of_owner(owner: &str) -> Option<Self> {
        let (_, number) = owner.rsplit_once(MARK)?;
        i32::from_str_radix(number, 16).ok().filter(|number| *number > 0).map(Self)
    }

    /// Takes the lock in this session. It is shared, because an earlier session of the same process may not
    /// have ended yet.
    pub(super) async fn lock(self, client: &Client) -> Result<()> {
        let text = "SELECT pg_advisory_lock_shared($1, $2)";
        client.query(text, &[&CLASS, &self.0]).await.map_err(failed)?;
        Ok(())
    }

    /// Whether this session has the lock. It does not if an intermediary, such as a pooler in transaction mode,
    /// assigns every statement to another session.
    pub(super) async fn is_held(self, client: &Client) -> Result<bool> {
        let text = "
            SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted
                AND pid = pg_backend_pid() AND objsubid = 2
                AND CAST(classid AS BIGINT) = $1 AND CAST(objid AS BIGINT) = $2";
        let (class, id) = (i64::from(CLASS), i64::from(self.0));
        let row = client.query_one(text, &[&class, &id]).await.map_err(failed)?;
        Ok(row.try_get::<_, i64>(0).map_err(failed)? > 0)
    }
}

fn failed(source: tokio_postgres::Error) -> Error {
    Error::Postgres { doing: "prove that this process is alive".to_owned(), source }
}

/// Since when each owner's lock is missing, and when that was last checked; on the monotonic clock.
#[derive(Debug, Default)]
pub(super) struct Absences(Mutex<BTreeMap<PresenceId, (Duration, Duration)>>);

impl Absences {
    /// Records a check of an owner's lock; returns whether the owner is gone.
    fn note(&self, id: PresenceId, is_present: bool, now: Duration) -> bool {
        let mut absent = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if is_present {
            absent.remove(&id);
            return false;
        }
        if absent.len() >= ABSENT_MAX && !absent.contains_key(&id) {
            absent.clear();
        }
        let (since, seen) = absent.entry(id).or_insert((now, now));
        if now.saturating_sub(*seen) > LOOK_GAP_MAX {
            *since = now;
        }
        *seen = now;
        now.saturating_sub(*since) >= GRACE
    }
}

impl Sql {
    /// Whether the processes that share this database prove to each other that they are alive.
    pub fn has_presence(&self) -> bool {
        matches!(&*self.engine, Engine::Postgres(_))
    }

    /// Whether the process with this owner name is known to have ended. The first call always returns false:
    /// callers must call again within seconds.
    pub async fn is_gone(&self, owner: &str) -> Result<bool> {
        let Engine::Postgres(postgres) = &*self.engine else { return Ok(false) };
        let Some(id) = PresenceId::of_owner(owner) else { return Ok(false) };
        let text = "
            SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2
                AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND CAST(classid AS BIGINT) = $1 AND CAST(objid AS BIGINT) = $2";
        let found = self.query(text, params![i64::from(CLASS), i64::from(id.0)]).await?;
        let is_present = found.row()?.count(0)? > 0;
        Ok(postgres.absences().note(id, is_present, self.clock.monotonic()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn an_owner_name_contains_its_number_and_other_names_none() {
        let id = PresenceId::from_random(u64::MAX);
        assert_eq!(PresenceId::of_owner(&id.owner("logmill-1-2")), Some(id));
        assert_eq!(PresenceId::from_random(0), PresenceId(1));
        for none in ["logmill-1-2", "", "~", "a~0", "a~-1", "a~ffffffff", "a~12~x"] {
            assert_eq!(PresenceId::of_owner(none), None, "{none}");
        }
    }

    #[test]
    fn an_owner_is_gone_once_its_lock_was_missing_for_the_grace() {
        let (absences, id) = (Absences::default(), PresenceId(7));
        assert!(!absences.note(id, false, SECOND), "the first look");
        assert!(!absences.note(id, false, 3 * SECOND));
        assert!(absences.note(id, false, 4 * SECOND));
        assert!(absences.note(id, false, 5 * SECOND), "and stays so");
        assert!(!absences.note(id, true, 6 * SECOND), "it is back");
        assert!(!absences.note(id, false, 7 * SECOND), "and counts anew");
        assert!(!absences.note(PresenceId(8), false, 10 * SECOND), "each for itself");
    }

    #[test]
    fn two_checks_far_apart_do_not_prove_an_absence() {
        let (absences, id) = (Absences::default(), PresenceId(7));
        assert!(!absences.note(id, false, SECOND));
        assert!(!absences.note(id, false, 100 * SECOND), "it may have been there in between");
        assert!(absences.note(id, false, 103 * SECOND));
    }
}
