//! The life of a job: one record, one pure state machine.
//!
//! ```text
//!              enqueue               claim                  complete
//!     (none) ──────────▶ pending ───────────────▶ running ────────────▶ done
//!                         ▲  ▲ ▲                   │ │ │
//!                         │  │ └──── release ──────┘ │ └─ heartbeat: a new lease
//!                         │  └── fail, expire, ──────┤
//!                         │      reclaim             │
//!                         │      (attempts left)     └─ fail, expire, reclaim ──▶ dead
//!                         │                             (none left, or final)
//!                         └──── redrive, enqueue again ──────── dead, cancelled
//!
//!     cancel: pending, running ──▶ cancelled
//! ```
//!
//! Guarantees: [`next`] is the whole truth about transitions. [`crate::Queue`] does the same in SQL, many jobs at
//! a time, and a property test holds the two together.
//!
//! - Every claim has a new token, one higher than the last. Heartbeat, complete, fail and release carry it and are
//!   refused when it is stale.
//! - An attempt is counted by its claim, once; whether it then fails or expires does not count it again. A
//!   released attempt is not counted.
//! - Completing twice under the same token is fine, because the answer to the first may have been lost.

use logmill_io::Timestamp;

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// It waits to be claimed, from its due time on.
    Pending,
    /// Somebody holds it until its lease ends.
    Running,
    /// It was completed.
    Done,
    /// It failed as often as it may: a dead letter, kept to be looked at and redriven.
    Dead,
    /// Somebody decided that it should not run.
    Cancelled,
}

impl State {
    /// All states, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// The number that is stored.
    pub fn number(self) -> i64 {
        match self {
            Self::Pending => 0,
            Self::Running => 1,
            Self::Done => 2,
            Self::Dead => 3,
            Self::Cancelled => 4,
        }
    }

    /// The state of a stored number.
    pub fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name that people see.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    /// The state with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// What the state machine knows of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Where it is.
    pub state: State,
    /// The number of its last claim; zero before the first.
    pub token: i64,
    /// How many claims counted.
    pub attempts: i64,
    /// How many may count.
    pub attempts_max: i64,
    /// When it may be, or could be, claimed.
    pub due_at: Timestamp,
    /// When its last lease ends or ended.
    pub lease_until: Timestamp,
    /// How often enqueueing it again brought it back.
    pub revived: i64,
}

/// What happens to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody enqueues the same key again.
    Enqueue {
        /// From when on it is due.
        due_at: Timestamp,
        /// How many attempts may count.
        attempts_max: i64,
    },
    /// A worker asks for it.
    Claim {
        /// Until when it may hold it.
        lease_until: Timestamp,
    },
    /// Its worker is alive.
    Heartbeat {
        /// The claim's token.
        token: i64,
        /// Until when it may hold it now.
        lease_until: Timestamp,
    },
    /// Its worker did it.
    Complete {
        /// The claim's token.
        token: i64,
    },
    /// Its worker could not do it.
    Fail {
        /// The claim's token.
        token: i64,
        /// When to try again; none to give up.
        retry_at: Option<Timestamp>,
    },
    /// Its worker gives it back unharmed.
    Release {
        /// The claim's token.
        token: i64,
    },
    /// The reaper comes by.
    Expire,
    /// Its worker is known to have ended.
    Reclaim,
    /// An operator does not want it.
    Cancel,
    /// An operator wants it tried anew.
    Redrive,
}

/// Why nothing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The token is stale.
    Fenced,
    /// The event does not apply to this state.
    Unchanged,
}

/// What becomes of a job.
pub fn next(job: &Job, event: Event, now: Timestamp) -> Result<Job, Refused> {
    let held = |token| job.state == State::Running && job.token == token;
    match event {
        Event::Enqueue { due_at, attempts_max } => enqueue_again(job, due_at, attempts_max),
        Event::Claim { lease_until } if job.state == State::Pending && job.due_at <= now => {
            Ok(Job {
                state: State::Running,
                token: job.token + 1,
                attempts: job.attempts + 1,
                lease_until,
                ..job.clone()
            })
        }
        Event::Claim { .. } => Err(Refused::Unchanged),
        Event::Heartbeat { token, lease_until } if held(token) => {
            Ok(Job { lease_until, ..job.clone() })
        }
        Event::Complete { token }
            if held(token) || (job.state == State::Done && job.token == token) =>
        {
            Ok(Job { state: State::Done, ..job.clone() })
        }
        Event::Fail { token, retry_at } if held(token) => Ok(after_failure(job, retry_at)),
        Event::Release { token } if held(token) => Ok(Job {
            state: State::Pending,
            attempts: job.attempts - 1,
            due_at: now,
            ..job.clone()
        }),
        Event::Heartbeat { .. }
        | Event::Complete { .. }
        | Event::Fail { .. }
        | Event::Release { .. } => Err(Refused::Fenced),
        Event::Expire if job.state == State::Running && job.lease_until <= now => {
            Ok(after_failure(job, Some(now)))
        }
        Event::Reclaim if job.state == State::Running => Ok(after_failure(job, Some(now))),
        Event::Cancel if matches!(job.state, State::Pending | State::Running) => {
            Ok(Job { state: State::Cancelled, ..job.clone() })
        }
        Event::Redrive if matches!(job.state, State::Dead | State::Cancelled) => {
            Ok(Job { state: State::Pending, attempts: 0, due_at: now, ..job.clone() })
        }
        Event::Expire | Event::Reclaim | Event::Cancel | Event::Redrive => Err(Refused::Unchanged),
    }
}

/// A dead or cancelled job comes back with all its attempts. A failed one that waits is brought forward, but keeps
/// count, or a caller who asks again and again would keep it failing for ever.
fn enqueue_again(job: &Job, due_at: Timestamp, attempts_max: i64) -> Result<Job, Refused> {
    let revived = job.revived + 1;
    match job.state {
        State::Dead | State::Cancelled => Ok(Job {
            state: State::Pending,
            attempts: 0,
            attempts_max,
            due_at,
            revived,
            ..job.clone()
        }),
        State::Pending if job.attempts > 0 && job.due_at > due_at => {
            Ok(Job { attempts_max, due_at, revived, ..job.clone() })
        }
        State::Pending | State::Running | State::Done => Err(Refused::Unchanged),
    }
}

fn after_failure(job: &Job, retry_at: Option<Timestamp>) -> Job {
    let again = retry_at.is_some() && job.attempts < job.attempts_max;
    let state = if again { State::Pending } else { State::Dead };
    Job { state, due_at: retry_at.unwrap_or(job.due_at), ..job.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp(1_000);
    const LATER: Timestamp = Timestamp(2_000);

    fn job(state: State) -> Job {
        Job {
            state,
            token: 3,
            attempts: 2,
            attempts_max: 3,
            due_at: NOW,
            lease_until: NOW,
            revived: 0,
        }
    }

    /// For every event, the state it leads to from each state (`-` unchanged, `F` fenced).
    #[test]
    fn every_event_from_every_state() {
        let fail = Event::Fail { token: 3, retry_at: Some(LATER) };
        let table = [
            (Event::Enqueue { due_at: NOW, attempts_max: 3 }, "- - - pending pending"),
            (Event::Claim { lease_until: LATER }, "running - - - -"),
            (Event::Heartbeat { token: 3, lease_until: LATER }, "F running F F F"),
            (Event::Heartbeat { token: 2, lease_until: LATER }, "F F F F F"),
            (Event::Complete { token: 3 }, "F done done F F"),
            (Event::Complete { token: 2 }, "F F F F F"),
            (fail, "F pending F F F"),
            (Event::Fail { token: 3, retry_at: None }, "F dead F F F"),
            (Event::Fail { token: 2, retry_at: None }, "F F F F F"),
            (Event::Release { token: 3 }, "F pending F F F"),
            (Event::Expire, "- pending - - -"),
            (Event::Reclaim, "- pending - - -"),
            (Event::Cancel, "cancelled cancelled - - -"),
            (Event::Redrive, "- - - pending pending"),
        ];
        for (event, wanted) in table {
            let found = State::ALL.map(|state| match next(&job(state), event, NOW) {
                Ok(job) => job.state.name(),
                Err(Refused::Unchanged) => "-",
                Err(Refused::Fenced) => "F",
            });
            assert_eq!(found.join(" "), wanted, "{event:?}");
        }
    }

    #[test]
    fn the_last_attempt_that_fails_or_expires_makes_a_dead_letter() {
        let last = Job { attempts: 3, ..job(State::Running) };
        let fail = Event::Fail { token: 3, retry_at: Some(LATER) };
        for event in [fail, Event::Expire, Event::Reclaim] {
            assert_eq!(next(&last, event, NOW).map(|job| job.state), Ok(State::Dead), "{event:?}");
        }
    }

    #[test]
    fn an_attempt_is_counted_by_its_claim_alone() {
        let pending = Job { attempts: 0, ..job(State::Pending) };
        let running = next(&pending, Event::Claim { lease_until: LATER }, NOW).expect("due");
        assert_eq!((running.attempts, running.token), (1, 4));
        let expired = next(&running, Event::Expire, LATER).expect("its lease is over");
        assert_eq!(expired.attempts, 1);
        let released = next(&running, Event::Release { token: 4 }, NOW).expect("held");
        assert_eq!(released.attempts, 0);
    }

    #[test]
    fn a_job_is_not_claimed_before_it_is_due_nor_expired_before_its_lease_ends() {
        let early = Job { due_at: LATER, ..job(State::Pending) };
        let claim = Event::Claim { lease_until: LATER };
        assert_eq!(next(&early, claim, NOW), Err(Refused::Unchanged));
        let held = Job { lease_until: LATER, ..job(State::Running) };
        assert_eq!(next(&held, Event::Expire, NOW), Err(Refused::Unchanged));
    }

    #[test]
    fn asking_again_brings_a_failed_job_forward_and_keeps_its_count() {
        let waiting = Job { due_at: LATER, ..job(State::Pending) };
        let again = Event::Enqueue { due_at: NOW, attempts_max: 3 };
        let forward = next(&waiting, again, NOW).expect("it had failed before");
        assert_eq!((forward.due_at, forward.attempts), (NOW, 2));
        let fresh = Job { attempts: 0, ..waiting };
        assert_eq!(next(&fresh, again, NOW), Err(Refused::Unchanged));
    }

    #[test]
    fn numbers_and_names_of_states_round_trip() {
        for state in State::ALL {
            assert_eq!(State::from_number(state.number()), Some(state));
            assert_eq!(State::from_name(state.name()), Some(state));
        }
        assert_eq!(State::from_number(5), None);
    }
}
