//! The life cycle of a job: one record, one pure state machine.
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
//! Guarantees: [`next`] defines all transitions. [`crate::Queue`] implements the same transitions in SQL, for
//! many jobs at a time, and a property test compares the two.
//!
//! - Every claim has a new token, one higher than the last. Heartbeat, complete, fail and release carry the
//!   token and are refused if it is stale.
//! - The claim counts the attempt, once; failing or expiring does not count it again. Releasing uncounts it.
//! - Completing twice under the same token is allowed, because the answer to the first call may have been lost.

use logmill_io::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Waits to be claimed; claimable from its due time on.
    Pending,
    /// Held by a worker until its lease ends.
    Running,
    Done,
    /// Dead letter: out of attempts, or failed for good. Kept until an operator redrives or purges it.
    Dead,
    Cancelled,
}

impl State {
    /// All states, ordered by number.
    pub const ALL: [Self; 5] =
        [Self::Pending, Self::Running, Self::Done, Self::Dead, Self::Cancelled];

    /// The number stored in the database.
    pub fn number(self) -> i64 {
        match self {
            Self::Pending => 0,
            Self::Running => 1,
            Self::Done => 2,
            Self::Dead => 3,
            Self::Cancelled => 4,
        }
    }

    pub fn from_number(number: i64) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.number() == number)
    }

    /// The name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Done => "done",
            Self::Dead => "dead",
            Self::Cancelled => "cancelled",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// The fields of a job that transitions depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    pub state: State,
    /// Number of the last claim; zero before the first.
    pub token: i64,
    /// Counted claims.
    pub attempts: i64,
    /// Counted claims after which a failure makes it a dead letter.
    pub attempts_max: i64,
    /// The earliest time of a claim.
    pub due_at: Timestamp,
    /// End of the current or last lease.
    pub lease_until: Timestamp,
    /// How often enqueueing the key again revived the job.
    pub revived: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A caller enqueues the same key again.
    Enqueue {
        due_at: Timestamp,
        attempts_max: i64,
    },
    Claim {
        lease_until: Timestamp,
    },
    /// The worker prolongs its lease.
    Heartbeat {
        token: i64,
        lease_until: Timestamp,
    },
    /// The worker has done it.
    Complete {
        token: i64,
    },
    Fail {
        token: i64,
        /// When to retry; `None` to give up.
        retry_at: Option<Timestamp>,
    },
    /// The worker returns it untried.
    Release {
        token: i64,
    },
    /// The reaper checks whether the lease has ended.
    Expire,
    /// The worker's process is known to have ended.
    Reclaim,
    Cancel,
    /// An operator wants it retried with all its attempts.
    Redrive,
}

/// Why an event left the job unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventRefusal {
    Fenced,
    Unchanged,
}

/// Applies an event to a job.
pub fn next(job: &Job, event: Event, now: Timestamp) -> Result<Job, EventRefusal> {
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
        Event::Claim { .. } => Err(EventRefusal::Unchanged),
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
        | Event::Release { .. } => Err(EventRefusal::Fenced),
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
        Event::Expire | Event::Reclaim | Event::Cancel | Event::Redrive => {
            Err(EventRefusal::Unchanged)
        }
    }
}

/// A dead or cancelled job comes back with all its attempts. A failed job that waits for its retry becomes due
/// earlier but keeps its count; otherwise a caller that enqueues repeatedly would make it fail forever.
fn enqueue_again(job: &Job, due_at: Timestamp, attempts_max: i64) -> Result<Job, EventRefusal> {
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
        State::Pending | State::Running | State::Done => Err(EventRefusal::Unchanged),
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

    /// For every event, the resulting state from each state (`-` unchanged, `F` fenced).
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
                Err(EventRefusal::Unchanged) => "-",
                Err(EventRefusal::Fenced) => "F",
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
        assert_eq!(next(&early, claim, NOW), Err(EventRefusal::Unchanged));
        let held = Job { lease_until: LATER, ..job(State::Running) };
        assert_eq!(next(&held, Event::Expire, NOW), Err(EventRefusal::Unchanged));
    }

    #[test]
    fn enqueueing_again_makes_a_failed_job_due_and_keeps_its_count() {
        let waiting = Job { due_at: LATER, ..job(State::Pending) };
        let again = Event::Enqueue { due_at: NOW, attempts_max: 3 };
        let forward = next(&waiting, again, NOW).expect("it had failed before");
        assert_eq!((forward.due_at, forward.attempts), (NOW, 2));
        let fresh = Job { attempts: 0, ..waiting };
        assert_eq!(next(&fresh, again, NOW), Err(EventRefusal::Unchanged));
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
