//! One holder at a time, on every kind of store, and no write by the old holder after a take-over.

use std::sync::Arc;
use std::time::Duration;

use logmill_io::meta::{MemoryMeta, SqlMeta};
use logmill_io::sql::Execute;
use logmill_io::{
    Batch, Clock, Condition, ErrorKind, Key, MetaStore, SeededEntropy, SimClock, SystemClock,
    params,
};
use logmill_sim::{Database, START};
use logmill_work::{Lease, LeaseKeeper, LeaseSettings};

use super::{in_real_time, on_both, simulate};

fn lease(store: &Arc<dyn MetaStore>, clock: &Arc<dyn Clock>, owner: &str) -> Lease {
    Lease::new(Arc::clone(store), Arc::clone(clock), "writer", owner, LeaseSettings::default())
}

/// Checks two competing holders; `pass` advances the store's clock.
async fn two_holders(store: Arc<dyn MetaStore>, clock: Arc<dyn Clock>, pass: impl Fn(Duration)) {
    let (first, second) = (lease(&store, &clock, "first"), lease(&store, &clock, "second"));
    let held = first.acquire().await.expect("works").expect("it is free");
    assert_eq!(held.epoch(), 1);
    assert!(second.acquire().await.expect("works").is_none(), "it is held");
    pass(Duration::from_secs(29));
    assert!(second.acquire().await.expect("works").is_none(), "it is still held");
    let held = first.renew(&held).await.expect("held");
    pass(Duration::from_secs(29));
    assert!(second.acquire().await.expect("works").is_none(), "it was renewed");
    pass(Duration::from_secs(2));
    let taken = second.acquire().await.expect("works").expect("it has ended");
    assert_eq!(taken.epoch(), 2);

    let write = |fence| Batch::new().put("written", "x", Condition::Any).fenced(fence);
    let late = store.commit(write(held.fence())).await.expect_err("taken over");
    assert_eq!(late.kind(), ErrorKind::Fenced);
    let late = first.renew(&held).await.expect_err("taken over");
    assert_eq!(late.kind(), ErrorKind::Fenced);
    let late = first.release(&held).await.expect_err("taken over");
    assert_eq!(late.kind(), ErrorKind::Fenced);
    assert_eq!(store.get(&Key::from("written")).await.expect("works"), None);
    store.commit(write(taken.fence())).await.expect("held");

    second.release(&taken).await.expect("held");
    let again = first.acquire().await.expect("works").expect("it was given back");
    assert_eq!(again.epoch(), 3, "the epoch only grows");
}

#[test]
fn a_lease_passes_on_and_fences_its_old_holder_in_memory() {
    simulate(async {
        let clock = SimClock::at(START);
        let store = MemoryMeta::shared(clock.clone(), SeededEntropy::shared(1));
        let as_clock: Arc<dyn Clock> = clock.clone();
        two_holders(store, as_clock, |by| clock.jump(logmill_io::millis(by))).await;
    });
}

#[test]
fn a_lease_passes_on_and_fences_its_old_holder_in_sql() {
    on_both(|database| async move {
        let sql = database.open().await;
        let store = SqlMeta::shared(sql.clone());
        two_holders(store, SystemClock::shared(), |by| database.advance(by, &[&sql])).await;
    });
}

#[test]
fn a_keeper_renews_its_lease_until_another_owner_has_it() {
    simulate(async {
        let clock = SimClock::at(START);
        let store = MemoryMeta::shared(clock.clone(), SeededEntropy::shared(1));
        let as_clock: Arc<dyn Clock> = clock.clone();
        let other = lease(&store, &as_clock, "other");
        let keeper = LeaseKeeper::acquire(lease(&store, &as_clock, "me")).await;
        let keeper = keeper.expect("works").expect("it is free");
        assert!(LeaseKeeper::acquire(other.clone()).await.expect("works").is_none(), "it is held");
        let note = |error: logmill_work::Error| panic!("the store works: {error}");
        tokio::select! {
            biased;
            lost = keeper.keep(note) => panic!("no other owner took it: {lost}"),
            () = clock.sleep(Duration::from_secs(600)) => {}
        }
        assert!(other.acquire().await.expect("works").is_none(), "it was renewed");
        clock.sleep(Duration::from_secs(31)).await;
        let taken = other.acquire().await.expect("works").expect("it has ended");
        assert_eq!((keeper.epoch(), taken.epoch()), (1, 2));
        for lost in [keeper.keep(note).await, keeper.renew_if_due().await.expect_err("taken over")]
        {
            assert_eq!(lost.kind(), ErrorKind::Fenced);
        }
    });
}

#[test]
fn a_holder_stops_trusting_its_lease_before_it_expires() {
    simulate(async {
        let clock = SimClock::at(START);
        let store = MemoryMeta::shared(clock.clone(), SeededEntropy::shared(1));
        let as_clock: Arc<dyn Clock> = clock.clone();
        let lease = lease(&store, &as_clock, "me");
        let held = lease.acquire().await.expect("works").expect("free");
        tokio::time::advance(Duration::from_millis(24_999)).await;
        assert!(lease.is_trusted(&held));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!lease.is_trusted(&held), "ttl 30 s less margin 5 s");
        // A wall clock that jumps back does not make the lease trusted again.
        clock.jump(-3_600_000);
        assert!(!lease.is_trusted(&held));
    });
}

#[test]
fn a_lost_answer_to_an_acquire_does_not_lock_its_owner_out() {
    simulate(async {
        let clock: Arc<dyn Clock> = SimClock::at(START);
        let store = MemoryMeta::shared(Arc::clone(&clock), SeededEntropy::shared(1));
        // Operations of an acquire: now, get, commit.
        let faults = logmill_io::Faults::at(2, logmill_io::Fault::After);
        let faulty: Arc<dyn MetaStore> =
            Arc::new(logmill_io::FaultyStore::new(Arc::clone(&store), faults));
        let mine = lease(&faulty, &clock, "me");
        mine.acquire().await.expect_err("the answer is lost");
        let held = mine.acquire().await.expect("works").expect("taken over from ourselves");
        assert_eq!(held.epoch(), 2);
        assert!(lease(&store, &clock, "other").acquire().await.expect("works").is_none());
    });
}

#[test]
fn concurrent_acquires_get_a_lease_one_at_a_time() {
    let server = logmill_sim::postgres::PostgresServer::start();
    in_real_time(async {
        let database = Database::postgres(&server);
        let sql = database.open().await;
        let store = SqlMeta::shared(sql.clone());
        for round in 1..=10_i64 {
            let clock = SystemClock::shared();
            let wanting = (0..8).map(|number| {
                let lease = lease(&store, &clock, &format!("owner-{round}-{number}"));
                async move { lease.acquire().await.expect("works") }
            });
            let held: Vec<_> =
                futures::future::join_all(wanting).await.into_iter().flatten().collect();
            assert_eq!(
                held.iter().map(logmill_work::HeldLease::epoch).collect::<Vec<_>>(),
                [round]
            );
            database.advance(Duration::from_secs(31), &[&sql]);
        }
    });
}

#[test]
fn a_stale_holder_cannot_commit_inside_another_transaction() {
    on_both(|database| async move {
        let sql = database.open().await;
        let store = SqlMeta::shared(sql.clone());
        sql.execute("CREATE TABLE published (head BIGINT)", params![]).await.expect("a table");
        let clock = SystemClock::shared();
        let old = lease(&store, &clock, "old");
        let held = old.acquire().await.expect("works").expect("free");
        let publish = async |fence: &logmill_io::Fence| {
            sql.write(|tx| async move {
                tx.hold(fence).await?;
                tx.execute("INSERT INTO published (head) VALUES (1)", params![]).await
            })
            .await
        };
        publish(&held.fence()).await.expect("held");
        database.advance(Duration::from_secs(31), &[&sql]);
        let new = lease(&store, &clock, "new");
        new.acquire().await.expect("works").expect("it has ended");
        let late = publish(&held.fence()).await.expect_err("taken over");
        assert_eq!(late.kind(), ErrorKind::Fenced);
        let count = sql.query("SELECT count(*) FROM published", params![]).await.expect("works");
        assert_eq!(count.row().and_then(|row| row.count(0)).expect("a count"), 1);
    });
}
