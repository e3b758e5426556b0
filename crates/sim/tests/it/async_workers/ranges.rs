//! The ranges of a worker: gates, look-ahead, attempts, dead letters, checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, RangeWork};
use logmill_pipeline::{Error, Result};
use logmill_sim::Database;
use logmill_work::{Backoff, Coverage, Heights, State};

use super::ground::{CHAIN, Ground, LEASE, run_one};
use crate::work::{on_both, simulate};

/// Work that fails where it is told to, and remembers what it was asked.
#[derive(Debug, Default)]
struct Told {
    fails: Mutex<BTreeSet<u64>>,
    done: Mutex<BTreeMap<u64, u32>>,
}

impl Told {
    fn fail_at(&self, starts: &[u64]) {
        *self.fails.lock().expect("sound") = starts.iter().copied().collect();
    }

    fn tries(&self, start: u64) -> u32 {
        self.done.lock().expect("sound").get(&start).copied().unwrap_or(0)
    }
}

#[async_trait]
impl RangeWork for Told {
    fn name(&self) -> &'static str {
        "told_worker"
    }

    fn version(&self) -> u32 {
        1
    }

    fn gates(&self) -> &'static [&'static str] {
        &["nft_ownership_worker", "token_worker"]
    }

    async fn run(&self, range: &Heights) -> Result<()> {
        *self.done.lock().expect("sound").entry(range.start).or_default() += 1;
        if self.fails.lock().expect("sound").contains(&range.start) {
            return Err(Error::Invalid { what: "told to".to_owned() });
        }
        Ok(())
    }
}

fn worker(ground: &Ground, told: &Arc<Told>) -> AsyncWorker {
    let work = Arc::clone(told) as Arc<dyn RangeWork>;
    AsyncWorker::new(work, ground.tables.clone(), CHAIN, AsyncSettings::default())
}

/// Plans and runs until there is nothing left to do now.
async fn settle(ground: &Ground, worker: &AsyncWorker) {
    loop {
        ground.work(&worker.kind(), worker).await;
        if worker.plan().await.expect("a plan") == 0 {
            return;
        }
    }
}

#[test]
fn a_range_has_twenty_attempts_however_they_end_and_holds_up_no_other() {
    on_both(async |database| {
        let ground = Ground::new(database).await;
        ground.derive(0..9_000, &[]).await;
        let told = Arc::new(Told::default());
        told.fail_at(&[1_000]);
        let worker = worker(&ground, &told);
        settle(&ground, &worker).await;
        let standing = worker.standing().await.expect("a database");
        assert_eq!(standing.ranges, [(0, 1_000), (2_000, 9_000)], "the others are done");
        // The first attempt is behind us. Every other attempt from here on ends with its process.
        let mut claimed = 1;
        while worker.standing().await.expect("a database").jobs.dead == 0 {
            ground.pass_time();
            let kind = worker.kind();
            ground.queue().reap(&kind).await.expect("a queue");
            let claims = ground.queue().claim(&kind, 1, LEASE, "test").await.expect("a queue");
            let Some(claim) = claims.into_iter().next() else { continue };
            claimed += 1;
            if claimed % 2 == 0 {
                run_one(ground.queue(), claim, &worker).await;
            }
        }
        // Upstream counted a failure up to three times, so that there were about ten.
        assert_eq!(claimed, 20);
        let standing = worker.standing().await.expect("a database");
        assert_eq!((standing.checkpoint, standing.jobs.dead), (Some(1_000), 1));
        // Somebody mends what was wrong.
        told.fail_at(&[]);
        ground.queue().redrive_dead(&worker.kind()).await.expect("a queue");
        settle(&ground, &worker).await;
        let standing = worker.standing().await.expect("a database");
        assert_eq!(
            (standing.checkpoint, standing.jobs.dead, standing.missing),
            (Some(9_000), 0, 0)
        );
        assert_eq!(told.tries(0), 1, "what is done is not done again");
    });
}

#[test]
fn no_checkpoint_passes_a_range_without_a_row() {
    on_both(async |database| {
        let ground = Ground::new(database).await;
        ground.derive(0..5_000, &[]).await;
        let told = Arc::new(Told::default());
        let worker = worker(&ground, &told);
        // Done, nothing, done: as if the row of the middle had been lost.
        let scope = &worker.scope().await.expect("read");
        for range in [0..1_000, 2_000..3_000] {
            let range = &range;
            let covered = ground
                .sql()
                .write(|tx| async move { Ok(Coverage::cover(&tx, scope, range).await?) });
            covered.await.expect("a database");
        }
        let standing = worker.standing().await.expect("a database");
        assert_eq!((standing.checkpoint, standing.gaps), (Some(1_000), vec![(1_000, 2_000)]));
        settle(&ground, &worker).await;
        let standing = worker.standing().await.expect("a database");
        assert_eq!((standing.checkpoint, standing.gaps_total), (Some(5_000), 0));
        assert_eq!((told.tries(1_000), told.tries(0), told.tries(2_000)), (1, 0, 0));
    });
}

#[test]
fn a_worker_waits_for_its_gates_and_not_for_full_ranges() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let told = Arc::new(Told::default());
        let worker = worker(&ground, &told);
        assert_eq!(worker.plan().await.expect("a plan"), 0, "nothing is derived");
        assert_eq!(worker.standing().await.expect("a database").checkpoint, None);
        for (from, to) in [(0, 1_500), (1_500, 1_510), (1_510, 2_000)] {
            ground.derive(from..to, &[]).await;
            settle(&ground, &worker).await;
            let standing = worker.standing().await.expect("a database");
            assert_eq!((standing.checkpoint, standing.missing), (Some(to), 0));
        }
        // History that comes later from below takes the checkpoint with it, until it is done too.
        let ground = Ground::new(Database::memory().await).await;
        let told = Arc::new(Told::default());
        let worker = self::worker(&ground, &told);
        ground.derive(5_000..6_000, &[]).await;
        settle(&ground, &worker).await;
        ground.derive(4_000..5_000, &[]).await;
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(4_000));
        settle(&ground, &worker).await;
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(6_000));
    });
}

#[test]
fn no_more_than_the_look_ahead_waits_and_two_planners_share_it() {
    on_both(async |database| {
        let ground = Ground::new(database).await;
        ground.derive(0..20_000, &[]).await;
        let told = Arc::new(Told::default());
        let (one, other) = (worker(&ground, &told), worker(&ground, &told));
        let planned = tokio::join!(one.plan(), other.plan());
        let planned = planned.0.expect("a plan") + planned.1.expect("a plan");
        assert!((5..=10).contains(&planned), "{planned}");
        assert_eq!(one.plan().await.expect("a plan"), 0);
        let pending = ground.queue().list(&one.kind(), State::Pending, None, 100).await;
        let keys: Vec<String> = pending.expect("a queue").into_iter().map(|job| job.key).collect();
        assert_eq!(keys.len(), planned);
        let starts: BTreeSet<&str> = keys.iter().filter_map(|key| key.split('-').next()).collect();
        assert_eq!(starts.len(), planned, "no range twice");
        settle(&ground, &one).await;
        assert_eq!(one.standing().await.expect("a database").checkpoint, Some(20_000));
        assert!((0..20).all(|range| told.tries(range * 1_000) == 1));
    });
}

#[test]
fn a_worker_runs_by_itself_until_it_is_stopped() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        ground.derive(0..30_000, &[]).await;
        let told = Arc::new(Told::default());
        told.fail_at(&[3_000]);
        let minute = Duration::from_secs(60);
        let settings = AsyncSettings {
            poll: minute / 2,
            backoff: Backoff::Table { waits: vec![minute], jitter_percent: 0 },
            ..AsyncSettings::default()
        };
        let work = Arc::clone(&told) as Arc<dyn RangeWork>;
        let worker = AsyncWorker::new(work, ground.tables.clone(), CHAIN, settings);
        let clock = Arc::clone(ground.sql().clock());
        // Enough for thirty ranges, and for twenty attempts of the one that fails.
        worker.run("me", clock.sleep(30 * minute)).await.expect("no trouble");
        let standing = worker.standing().await.expect("a database");
        assert_eq!(standing.ranges, [(0, 3_000), (4_000, 30_000)]);
        assert_eq!((standing.jobs.dead, standing.jobs.running, told.tries(3_000)), (1, 0, 20));
    });
}
