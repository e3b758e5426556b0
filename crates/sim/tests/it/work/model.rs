//! The queue does in SQL exactly what the state machine defines, step by step.

use std::collections::BTreeMap;
use std::time::Duration;

use logmill_io::{ErrorKind, Timestamp, millis};
use logmill_sim::postgres::PostgresServer;
use logmill_sim::{Database, START};
use logmill_work::job::{Event, EventRefusal, Job, next};
use logmill_work::queue::{Claimer, FailedClaim, JobView};
use logmill_work::{Claim, EnqueueResult, NewJob, Queue, State};
use proptest::prelude::*;

use super::{in_real_time, open, simulate};

const KIND: &str = "model";
const ATTEMPTS_MAX: u32 = 3;
const LEASE: Duration = Duration::from_secs(20);

#[derive(Clone, Debug)]
enum Step {
    Enqueue { key: u8, delay_s: u64 },
    Claim { most: usize },
    Heartbeat { which: usize },
    Complete { which: usize },
    CompleteMany,
    ClaimOutcome { most: usize },
    Fail { which: usize, wait_s: Option<u64> },
    Release { which: usize },
    Reap,
    Reclaim,
    Cancel { key: u8 },
    Redrive { key: u8 },
    Advance { seconds: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..4_u8;
    let which = 0..64_usize;
    let step = prop_oneof![
        4 => (key.clone(), prop_oneof![Just(0), Just(9_u64)])
            .prop_map(|(key, delay_s)| Step::Enqueue { key, delay_s }),
        5 => (1..5_usize).prop_map(|most| Step::Claim { most }),
        1 => which.clone().prop_map(|which| Step::Heartbeat { which }),
        2 => which.clone().prop_map(|which| Step::Complete { which }),
        1 => Just(Step::CompleteMany),
        3 => (0..4_usize).prop_map(|most| Step::ClaimOutcome { most }),
        3 => (which.clone(), prop_oneof![Just(None), Just(Some(0)), Just(Some(9_u64))])
            .prop_map(|(which, wait_s)| Step::Fail { which, wait_s }),
        1 => which.prop_map(|which| Step::Release { which }),
        2 => Just(Step::Reap),
        1 => Just(Step::Reclaim),
        1 => key.clone().prop_map(|key| Step::Cancel { key }),
        1 => key.prop_map(|key| Step::Redrive { key }),
        3 => (1..4_u64).prop_map(|times| Step::Advance { seconds: 7 * times }),
    ];
    prop::collection::vec(step, 1..60)
}

/// The queue according to the pure state machine. On PostgreSQL time also passes by itself, so milliseconds are not
/// compared there.
struct Model {
    exact: bool,
    now: Timestamp,
    jobs: BTreeMap<String, (usize, Job)>,
    claims: Vec<Claim>,
}

impl Model {
    fn apply(&mut self, key: &str, event: Event) -> Result<(), EventRefusal> {
        let (_, job) = self.jobs.get_mut(key).ok_or(EventRefusal::Unchanged)?;
        *job = next(job, event, self.now)?;
        Ok(())
    }

    fn enqueue(&mut self, key: &str, due_at: Timestamp) -> EnqueueResult {
        let attempts_max = i64::from(ATTEMPTS_MAX);
        if let Some((_, job)) = self.jobs.get(key) {
            let state = job.state;
            return match self.apply(key, Event::Enqueue { due_at, attempts_max }) {
                Ok(()) => EnqueueResult::Revived,
                Err(_) => EnqueueResult::Exists(state),
            };
        }
        let job = Job {
            state: State::Pending,
            token: 0,
            attempts: 0,
            attempts_max,
            due_at,
            lease_until: Timestamp(0),
            revived: 0,
        };
        self.jobs.insert(key.to_owned(), (self.jobs.len(), job));
        EnqueueResult::Created
    }

    fn due(&self, most: usize) -> Vec<String> {
        let pending = |job: &Job| job.state == State::Pending && job.due_at <= self.now;
        let mut due: Vec<(Timestamp, usize, &String)> = self
            .jobs
            .iter()
            .filter(|(_, (_, job))| pending(job))
            .map(|(key, (order, job))| (job.due_at, *order, key))
            .collect();
        due.sort();
        due.into_iter().take(most).map(|(_, _, key)| key.clone()).collect()
    }

    /// The queue returned these claims when asked for `most`.
    fn claimed(&mut self, claims: Vec<Claim>, most: usize) {
        let mut found: Vec<String> = claims.iter().map(|claim| claim.key.clone()).collect();
        let mut wanted = self.due(most);
        if !self.exact {
            found.sort();
            wanted.sort();
        }
        assert_eq!(found, wanted, "of at most {most}");
        for claim in claims {
            let lease_until = self.now.after(LEASE);
            self.apply(&claim.key, Event::Claim { lease_until }).expect("it was due");
            self.claims.push(claim);
        }
    }

    /// The queue completed these claims, except the fenced ones.
    fn completed(&mut self, claims: &[Claim], fenced: &[Claim]) {
        for claim in claims {
            let refused = self.apply(&claim.key, Event::Complete { token: claim.token }).is_err();
            assert_eq!(fenced.contains(claim), refused, "{claim:?}");
        }
    }

    fn same(&self, key: &str, view: &JobView) {
        let (_, job) = &self.jobs[key];
        let found = (view.state, view.token, view.attempts, view.attempts_max, view.revived);
        let wanted = (job.state, job.token, job.attempts, job.attempts_max, job.revived);
        assert_eq!(found, wanted, "{key}");
        if self.exact {
            assert_eq!(view.due_at, job.due_at, "when {key} is due");
            let lease_until = view.lease_until.unwrap_or(Timestamp(0));
            assert_eq!(lease_until, job.lease_until, "when the lease of {key} ends");
        }
    }
}

fn fenced<T: std::fmt::Debug>(outcome: Result<T, logmill_work::Error>) -> Result<(), EventRefusal> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == ErrorKind::Fenced => Err(EventRefusal::Fenced),
        Err(error) => panic!("{}", error.chain()),
    }
}

fn many_fenced(outcome: Result<Vec<Claim>, logmill_work::Error>) -> Result<(), EventRefusal> {
    let fenced = outcome.expect("the database works");
    if fenced.is_empty() { Ok(()) } else { Err(EventRefusal::Fenced) }
}

async fn check(database: Database, steps: &[Step], exact: bool) {
    let queue = open(&database).await;
    let mut model = Model { exact, now: START, jobs: BTreeMap::new(), claims: Vec::new() };
    for step in steps {
        run(&queue, &database, &mut model, step).await;
        for key in model.jobs.keys() {
            let view = queue.get(KIND, key).await.expect("the database works").expect("it exists");
            model.same(key, &view);
        }
    }
}

async fn run(queue: &Queue, database: &Database, model: &mut Model, step: &Step) {
    match step {
        Step::Enqueue { key, delay_s } => {
            let delay = Duration::from_secs(*delay_s);
            let mut job = NewJob::new(KIND, format!("job-{key}"), "{}");
            (job.attempts_max, job.delay) = (ATTEMPTS_MAX, delay);
            let found = queue.enqueue(&job).await.expect("the database works");
            assert_eq!(found, model.enqueue(&job.key, model.now.after(delay)), "{step:?}");
        }
        Step::Claim { most } => {
            let most = if model.exact { *most } else { 100 };
            let claims =
                queue.claim(KIND, most, LEASE, "tester").await.expect("the database works");
            model.claimed(claims, most);
        }
        Step::Reap => {
            queue.reap(KIND).await.expect("the database works");
            let keys: Vec<String> = model.jobs.keys().cloned().collect();
            for key in keys {
                // Unchanged if there is nothing to reap.
                let _ = model.apply(&key, Event::Expire);
            }
        }
        Step::Reclaim => {
            // No job here has more attempts than may be reclaimed immediately.
            queue.reclaim_all().await.expect("the database works");
            let keys: Vec<String> = model.jobs.keys().cloned().collect();
            for key in keys {
                // Unchanged if the job is not running.
                let _ = model.apply(&key, Event::Reclaim);
            }
        }
        Step::Cancel { key } | Step::Redrive { key } => {
            let key = format!("job-{key}");
            let cancel = matches!(step, Step::Cancel { .. });
            let event = if cancel { Event::Cancel } else { Event::Redrive };
            let outcome = match cancel {
                true => queue.cancel(KIND, &key).await,
                false => queue.redrive(KIND, &key).await,
            };
            match outcome {
                Ok(changed) => assert_eq!(changed, model.apply(&key, event).is_ok(), "{step:?}"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NotFound);
                    assert!(!model.jobs.contains_key(&key));
                }
            }
        }
        Step::Advance { seconds } => {
            let by = Duration::from_secs(*seconds);
            database.advance(by, &[queue.sql()]);
            model.now = model.now.after(by);
        }
        Step::CompleteMany => complete_many(queue, model).await,
        Step::ClaimOutcome { most } => turn(queue, model, *most).await,
        Step::Heartbeat { which }
        | Step::Complete { which }
        | Step::Fail { which, .. }
        | Step::Release { which } => run_held(queue, model, step, *which).await,
    }
}

/// Completes every claim that was ever returned, with current and old tokens.
async fn complete_many(queue: &Queue, model: &mut Model) {
    let claims = model.claims.clone();
    let fenced = queue.complete_many(&claims).await.expect("the database works");
    model.completed(&claims, &fenced);
}

/// Completes and claims in one transaction; the new claims must not depend on which completions are fenced.
async fn turn(queue: &Queue, model: &mut Model, most: usize) {
    let most = if model.exact { most } else { 100 * most };
    let claims = model.claims.clone();
    let mut claimer = Claimer::new(queue.clone(), KIND, "tester", LEASE);
    let turn = claimer.complete_and_claim(&claims, most).await.expect("the database works");
    model.completed(&claims, &turn.fenced);
    model.claimed(turn.claims, most);
}

/// A step with any claim that was ever returned, including stale ones.
async fn run_held(queue: &Queue, model: &mut Model, step: &Step, which: usize) {
    if model.claims.is_empty() {
        return;
    }
    let claim = model.claims[which % model.claims.len()].clone();
    let one = std::slice::from_ref(&claim);
    let token = claim.token;
    let (found, event) = match step {
        Step::Heartbeat { .. } => {
            let lease_until = model.now.after(LEASE);
            let event = Event::Heartbeat { token, lease_until };
            (many_fenced(queue.heartbeat(one, LEASE).await), event)
        }
        Step::Complete { .. } => (fenced(queue.complete(&claim).await), Event::Complete { token }),
        Step::Fail { wait_s, .. } => {
            let retry_after = wait_s.map(Duration::from_secs);
            let retry_at = retry_after.map(|wait| Timestamp(model.now.millis() + millis(wait)));
            let failed = FailedClaim { claim: claim.clone(), error: "no".into(), retry_after };
            (fenced(queue.fail(&failed).await), Event::Fail { token, retry_at })
        }
        _ => (many_fenced(queue.release_many(one).await), Event::Release { token }),
    };
    assert_eq!(found, model.apply(&claim.key, event), "{step:?} under {claim:?}");
}

proptest! {
    #[test]
    fn sqlite_follows_the_state_machine(steps in steps()) {
        simulate(async { check(Database::memory().await, &steps, true).await });
    }
}

#[test]
fn postgresql_follows_the_state_machine() {
    let server = PostgresServer::start();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(
        logmill_io::proof_cases(24),
    ));
    let outcome = runner.run(&steps(), |steps| {
        in_real_time(async { check(Database::postgres(&server), &steps, false).await });
        Ok(())
    });
    outcome.expect("every sequence agrees");
}
