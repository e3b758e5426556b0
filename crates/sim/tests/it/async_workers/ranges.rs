//! The ranges of a worker: gates, look-ahead, attempts, dead letters, checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, RangeWork};
use logmill_pipeline::{Error, Result};
use logmill_sim::Database;
use logmill_work::{Backoff, Coverage, Heights, State};

use super::fixture::{CHAIN, LEASE, WorkerFixture, run_one};
use crate::work::{on_both, simulate};

/// Work that fails at scripted ranges, and counts the attempts at each.
#[derive(Debug, Default)]
struct ScriptedWork {
    fails: Mutex<BTreeSet<u64>>,
    done: Mutex<BTreeMap<u64, u32>>,
}

impl ScriptedWork {
    fn fail_at(&self, starts: &[u64]) {
        *self.fails.lock().expect("sound") = starts.iter().copied().collect();
    }

    fn tries(&self, start: u64) -> u32 {
        self.done.lock().expect("sound").get(&start).copied().unwrap_or(0)
    }
}

#[async_trait]
impl RangeWork for ScriptedWork {
    fn name(&self) -> &'static str {
        "scripted_worker"
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
            return Err(Error::Invalid { what: "scripted to fail".to_owned() });
        }
        Ok(())
    }
}

fn worker(fixture: &WorkerFixture, scripted: &Arc<ScriptedWork>) -> AsyncWorker {
    let work = Arc::clone(scripted) as Arc<dyn RangeWork>;
    AsyncWorker::new(work, fixture.tables.clone(), CHAIN, AsyncSettings::default())
}

/// Plans and runs until nothing is due.
async fn settle(fixture: &WorkerFixture, worker: &AsyncWorker) {
    loop {
        fixture.work(&worker.kind(), worker).await;
        if worker.plan().await.expect("a plan") == 0 {
            return;
        }
    }
}

#[test]
fn a_range_has_twenty_attempts_however_they_end_and_does_not_delay_others() {
    on_both(async |database| {
        let fixture = WorkerFixture::new(database).await;
        fixture.derive(0..9_000, &[]).await;
        let scripted = Arc::new(ScriptedWork::default());
        scripted.fail_at(&[1_000]);
        let worker = worker(&fixture, &scripted);
        settle(&fixture, &worker).await;
        let progress = worker.progress().await.expect("a database");
        assert_eq!(progress.ranges, [(0, 1_000), (2_000, 9_000)], "the others are done");
        // The first attempt is over. From now on every other attempt ends because its process dies.
        let mut claimed = 1;
        while worker.progress().await.expect("a database").jobs.dead == 0 {
            fixture.pass_time();
            let kind = worker.kind();
            fixture.queue().reap(&kind).await.expect("a queue");
            let claims = fixture.queue().claim(&kind, 1, LEASE, "test").await.expect("a queue");
            let Some(claim) = claims.into_iter().next() else { continue };
            claimed += 1;
            if claimed % 2 == 0 {
                run_one(fixture.queue(), claim, &worker).await;
            }
        }
        // Upstream counted a failure up to three times, so that there were about ten.
        assert_eq!(claimed, 20);
        let progress = worker.progress().await.expect("a database");
        assert_eq!((progress.checkpoint, progress.jobs.dead), (Some(1_000), 1));
        // The cause is fixed.
        scripted.fail_at(&[]);
        fixture.queue().redrive_dead(&worker.kind()).await.expect("a queue");
        settle(&fixture, &worker).await;
        let progress = worker.progress().await.expect("a database");
        assert_eq!(
            (progress.checkpoint, progress.jobs.dead, progress.missing),
            (Some(9_000), 0, 0)
        );
        assert_eq!(scripted.tries(0), 1, "what is done is not done again");
    });
}

#[test]
fn no_checkpoint_passes_a_range_without_a_row() {
    on_both(async |database| {
        let fixture = WorkerFixture::new(database).await;
        fixture.derive(0..5_000, &[]).await;
        let scripted = Arc::new(ScriptedWork::default());
        let worker = worker(&fixture, &scripted);
        // Done, missing, done: as if the row of the middle range had been lost.
        let scope = &worker.scope().await.expect("read");
        for range in [0..1_000, 2_000..3_000] {
            let range = &range;
            let covered =
                fixture.sql().write(|tx| async move { Coverage::cover(&tx, scope, range).await });
            covered.await.expect("a database");
        }
        let progress = worker.progress().await.expect("a database");
        assert_eq!((progress.checkpoint, progress.gaps), (Some(1_000), vec![(1_000, 2_000)]));
        settle(&fixture, &worker).await;
        let progress = worker.progress().await.expect("a database");
        assert_eq!((progress.checkpoint, progress.gaps_total), (Some(5_000), 0));
        assert_eq!((scripted.tries(1_000), scripted.tries(0), scripted.tries(2_000)), (1, 0, 0));
    });
}

#[test]
fn a_worker_waits_for_its_gates_and_not_for_full_ranges() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let scripted = Arc::new(ScriptedWork::default());
        let worker = worker(&fixture, &scripted);
        assert_eq!(worker.plan().await.expect("a plan"), 0, "nothing is derived");
        assert_eq!(worker.progress().await.expect("a database").checkpoint, None);
        for (from, to) in [(0, 1_500), (1_500, 1_510), (1_510, 2_000)] {
            fixture.derive(from..to, &[]).await;
            settle(&fixture, &worker).await;
            let progress = worker.progress().await.expect("a database");
            assert_eq!((progress.checkpoint, progress.missing), (Some(to), 0));
        }
        // History that is added below later sets the checkpoint back until it is done too.
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let scripted = Arc::new(ScriptedWork::default());
        let worker = self::worker(&fixture, &scripted);
        fixture.derive(5_000..6_000, &[]).await;
        settle(&fixture, &worker).await;
        fixture.derive(4_000..5_000, &[]).await;
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(4_000));
        settle(&fixture, &worker).await;
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(6_000));
    });
}

#[test]
fn no_more_than_the_look_ahead_waits_and_two_planners_share_it() {
    on_both(async |database| {
        let fixture = WorkerFixture::new(database).await;
        fixture.derive(0..20_000, &[]).await;
        let scripted = Arc::new(ScriptedWork::default());
        let (one, other) = (worker(&fixture, &scripted), worker(&fixture, &scripted));
        let planned = tokio::join!(one.plan(), other.plan());
        let planned = planned.0.expect("a plan") + planned.1.expect("a plan");
        assert!((5..=10).contains(&planned), "{planned}");
        assert_eq!(one.plan().await.expect("a plan"), 0);
        let pending = fixture.queue().list(&one.kind(), State::Pending, None, 100).await;
        let keys: Vec<String> = pending.expect("a queue").into_iter().map(|job| job.key).collect();
        assert_eq!(keys.len(), planned);
        let starts: BTreeSet<&str> = keys.iter().filter_map(|key| key.split('-').next()).collect();
        assert_eq!(starts.len(), planned, "no range twice");
        settle(&fixture, &one).await;
        assert_eq!(one.progress().await.expect("a database").checkpoint, Some(20_000));
        assert!((0..20).all(|range| scripted.tries(range * 1_000) == 1));
    });
}

#[test]
fn a_worker_runs_by_itself_until_it_is_stopped() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        fixture.derive(0..30_000, &[]).await;
        let scripted = Arc::new(ScriptedWork::default());
        scripted.fail_at(&[3_000]);
        let minute = Duration::from_secs(60);
        let settings = AsyncSettings {
            poll: minute / 2,
            backoff: Backoff::Table { waits: vec![minute], jitter_percent: 0 },
            ..AsyncSettings::default()
        };
        let work = Arc::clone(&scripted) as Arc<dyn RangeWork>;
        let worker = AsyncWorker::new(work, fixture.tables.clone(), CHAIN, settings);
        let clock = Arc::clone(fixture.sql().clock());
        // Enough for thirty ranges, and for twenty attempts of the one that fails.
        worker.run("me", clock.sleep(30 * minute)).await.expect("no trouble");
        let progress = worker.progress().await.expect("a database");
        assert_eq!(progress.ranges, [(0, 3_000), (4_000, 30_000)]);
        assert_eq!((progress.jobs.dead, progress.jobs.running, scripted.tries(3_000)), (1, 0, 20));
    });
}
