//! The crash matrix: for every store operation of a protocol, fail there, lose the answer there, die just
//! before or just after it; then restart, finish, and compare with the run that nothing disturbed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use logmill_io::meta::SqlMeta;
use logmill_io::{
    Condition, CrashMatrix, Faults, Key, MetaStore, MetaStoreExt, SystemClock, params,
};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::intervals::SearchOrder;
use logmill_work::queue::{ClaimOutcome, Claimer, FailedClaim};
use logmill_work::{Coverage, Lease, LeaseSettings, NewJob, Queue, State};

use crate::work::coverage::{claim_range, create_table, do_range, finish_and_check, scope};
use crate::work::{create_effects, effect, in_real_time, open, simulate};

const LEASE: Duration = Duration::from_secs(60);

/// A protocol to test with faults.
trait Protocol {
    /// Creates the initial state.
    fn prepare(&self, queue: &Queue) -> impl Future<Output = ()>;
    /// Runs one process; it may end anywhere with an error.
    fn live(
        &self,
        queue: &Queue,
        database: &Database,
    ) -> impl Future<Output = Result<(), FaultHit>>;
    /// Finishes the remaining work as a new process.
    fn finish(&self, queue: &Queue, database: &Database) -> impl Future<Output = ()>;
    /// The final result, as text.
    fn image(&self, queue: &Queue) -> impl Future<Output = String>;
}

/// An injected fault ended the process.
#[derive(Debug)]
struct FaultHit;

impl<E: std::error::Error> std::convert::From<E> for FaultHit {
    fn from(_: E) -> Self {
        Self
    }
}

async fn run<P: Protocol>(protocol: &P, database: &Database, faults: Arc<Faults>) -> String {
    let plain = open(database).await;
    protocol.prepare(&plain).await;
    let disturbed = plain.through(plain.sql().with_faults(faults));
    let _ = protocol.live(&disturbed, database).await;
    drop(disturbed);
    let restarted = open(database).await;
    protocol.finish(&restarted, database).await;
    protocol.image(&restarted).await
}

async fn matrix<P: Protocol, F: Future<Output = Database>>(protocol: P, fresh: impl Fn() -> F) {
    let run = async |faults| run(&protocol, &fresh().await, faults).await;
    CrashMatrix::of_at_least(5).check(run).await;
}

fn on_both<P: Protocol + Copy>(protocol: P) {
    simulate(matrix(protocol, Database::memory));
    let server = PostgresServer::start();
    in_real_time(matrix(protocol, || async { Database::postgres(&server) }));
}

/// Enqueue, claim, heartbeat, fail, complete with an effect.
#[derive(Clone, Copy)]
struct JobProtocol;

const JOBS: [&str; 4] = ["a", "b", "c", "d"];

async fn submit(queue: &Queue) -> Result<(), logmill_work::Error> {
    let job = |key: &str| {
        let mut job = NewJob::new("k", key, "{}");
        job.attempts_max = 50;
        job
    };
    queue.enqueue(&job(JOBS[0])).await?;
    let rest: Vec<NewJob> = JOBS[1..].iter().map(|key| job(key)).collect();
    queue.enqueue_many(&rest).await?;
    Ok(())
}

impl Protocol for JobProtocol {
    async fn prepare(&self, queue: &Queue) {
        create_effects(queue).await;
    }

    async fn live(&self, queue: &Queue, _: &Database) -> Result<(), FaultHit> {
        submit(queue).await?;
        let claims = queue.claim("k", 3, LEASE, "first").await?;
        queue.heartbeat(&claims, LEASE).await?;
        effect(queue, &claims[0]).await?;
        let error = "no luck".to_owned();
        let failed = FailedClaim { claim: claims[1].clone(), error, retry_after: Some(LEASE) };
        queue.fail(&failed).await?;
        queue.release_many(&claims[2..]).await?;
        let rest = queue.claim("k", 10, LEASE, "first").await?;
        let fenced = queue.complete_many(&[]).await?;
        assert!(fenced.is_empty());
        for claim in rest {
            effect(queue, &claim).await?;
        }
        Ok(())
    }

    async fn finish(&self, queue: &Queue, database: &Database) {
        // A submitter retries until submitting succeeds.
        submit(queue).await.expect("works");
        for _ in 0..3 {
            database.advance(LEASE * 2, &[queue.sql()]);
            queue.reap("k").await.expect("works");
            for claim in queue.claim("k", 10, LEASE, "second").await.expect("works") {
                effect(queue, &claim).await.expect("held");
            }
        }
    }

    async fn image(&self, queue: &Queue) -> String {
        let text = "SELECT job.key, job.state, count(effect.key) FROM job
            LEFT JOIN effect ON effect.key = job.key GROUP BY job.key, job.state ORDER BY job.key";
        let rows = queue.sql().query(text, params![]).await.expect("works").rows;
        let image = format!("{rows:?}");
        assert_eq!(rows.len(), JOBS.len(), "{image}");
        image
    }
}

#[test]
fn jobs_survive_a_fault_at_every_operation() {
    on_both(JobProtocol);
}

/// A claimer that completes one job and claims the next in one transaction, until there is none.
#[derive(Clone, Copy)]
struct ClaimerProtocol;

impl Protocol for ClaimerProtocol {
    async fn prepare(&self, queue: &Queue) {
        submit(queue).await.expect("works");
        // Of another priority, so that one call claims with two statements.
        let mut urgent = NewJob::new("k", "urgent", "{}");
        urgent.priority = 1;
        queue.enqueue(&urgent).await.expect("works");
    }

    async fn live(&self, queue: &Queue, _: &Database) -> Result<(), FaultHit> {
        let mut claimer = Claimer::new(queue.clone(), "k", "first", LEASE);
        let mut held = claimer.claim(2).await?;
        while !held.is_empty() {
            let turn = claimer.complete_and_claim(&held, 2).await?;
            assert!(turn.fenced.is_empty(), "they were held: {:?}", turn.fenced);
            // A confirmed completion must have happened.
            for claim in held {
                let view = queue.get(&claim.kind, &claim.key).await?.expect("it exists");
                assert_eq!(view.state, State::Done, "{}", claim.key);
            }
            held = turn.claims;
        }
        Ok(())
    }

    async fn finish(&self, queue: &Queue, database: &Database) {
        database.advance(LEASE * 2, &[queue.sql()]);
        queue.reap("k").await.expect("works");
        let mut claimer = Claimer::new(queue.clone(), "k", "second", LEASE);
        let rest = claimer.claim(10).await.expect("works");
        let turn = claimer.complete_and_claim(&rest, 10).await.expect("works");
        assert_eq!(turn, ClaimOutcome::default(), "all of it was held, and there is no more");
    }

    async fn image(&self, queue: &Queue) -> String {
        let text = "SELECT key, state FROM job ORDER BY key";
        let rows = queue.sql().query(text, params![]).await.expect("works").rows;
        assert_eq!(rows.len(), JOBS.len() + 1);
        format!("{rows:?}")
    }
}

#[test]
fn claimers_survive_a_fault_at_every_operation() {
    on_both(ClaimerProtocol);
}

/// Range claims with their jobs, completed together with their rows.
#[derive(Clone, Copy)]
struct RangeProtocol;

impl Protocol for RangeProtocol {
    async fn prepare(&self, queue: &Queue) {
        create_table(queue).await;
    }

    async fn live(&self, queue: &Queue, _: &Database) -> Result<(), FaultHit> {
        for from in [SearchOrder::HighestFirst, SearchOrder::LowestFirst] {
            claim_range(queue, from, 40).await?;
            for claim in queue.claim("range", 1, LEASE, "first").await? {
                do_range(queue, &claim).await?;
            }
        }
        Ok(())
    }

    async fn finish(&self, queue: &Queue, database: &Database) {
        finish_and_check(queue, database).await;
    }

    async fn image(&self, queue: &Queue) -> String {
        let coverage = Coverage::read(queue.sql(), &scope()).await.expect("works");
        let rows = queue.sql().query("SELECT height FROM done ORDER BY height", params![]).await;
        format!("{coverage:?} {:?}", rows.expect("works").rows)
    }
}

#[test]
fn ranges_survive_a_fault_at_every_operation() {
    on_both(RangeProtocol);
}

/// A new writer takes a lease over from one that is gone but not dead, and publishes.
#[derive(Clone, Copy)]
struct TakeOverProtocol;

fn lease(store: &Arc<dyn MetaStore>, owner: &str) -> Lease {
    let clock = SystemClock::shared();
    Lease::new(Arc::clone(store), clock, "writer", owner, LeaseSettings::default())
}

async fn publish(queue: &Queue, owner: &str) -> Result<(), logmill_work::Error> {
    let store = SqlMeta::shared(queue.sql().clone());
    let lease = lease(&store, owner);
    // If the answer was lost, we hold the lease; acquiring again takes it from ourselves.
    let Some(held) = lease.acquire().await? else {
        return Ok(());
    };
    let held = lease.renew(&held).await?;
    store.put_fenced("head", owner.to_owned(), Condition::Any, Some(held.fence())).await?;
    lease.release(&held).await
}

impl Protocol for TakeOverProtocol {
    async fn prepare(&self, queue: &Queue) {
        let store = SqlMeta::shared(queue.sql().clone());
        let old = lease(&store, "old").acquire().await.expect("works").expect("free");
        let put = store.put_fenced("head", "old", Condition::Any, Some(old.fence())).await;
        put.expect("held");
    }

    async fn live(&self, queue: &Queue, database: &Database) -> Result<(), FaultHit> {
        database.advance(Duration::from_secs(31), &[queue.sql()]);
        publish(queue, "new").await?;
        Ok(())
    }

    async fn finish(&self, queue: &Queue, database: &Database) {
        database.advance(Duration::from_secs(31), &[queue.sql()]);
        publish(queue, "new").await.expect("works");
        // The old writer wakes up with its old fence.
        let store = SqlMeta::shared(queue.sql().clone());
        let fence = logmill_io::Fence { name: "writer".to_owned(), counter: 1 };
        let late = store.put_fenced("head", "old again", Condition::Any, Some(fence)).await;
        late.expect_err("it was taken over");
    }

    async fn image(&self, queue: &Queue) -> String {
        let store = SqlMeta::shared(queue.sql().clone());
        let head = store.read(&Key::from("head")).await.expect("published");
        format!("{:?}", head.value)
    }
}

#[test]
fn a_take_over_survives_a_fault_at_every_operation() {
    on_both(TakeOverProtocol);
}
