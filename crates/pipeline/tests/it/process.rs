//! Whole processes: one leads, others follow; a process that stops releases the lease; damage is repaired at run time.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use finalized_log_index::{B256, Error as Refused, LogIndex, Resolution};
use futures::future::{BoxFuture, join, join3};
use logmill_chain::sim::{SimChain, SimFaults, SimSettings};
use logmill_io::{Clock, Fault, Faults, FaultyStore};
use logmill_pipeline::audit::Auditor;
use logmill_pipeline::block::to_finalized;
use logmill_pipeline::ingest::{Progress, Role};
use logmill_pipeline::process::{Ingest, Roles};
use logmill_pipeline::tip::Tip;
use logmill_pipeline::{Chain, repair, resolve};
use logmill_sim::chain_world::{PREFIX, World, open, shape};
use logmill_work::{RunnerSettings, State};
use tokio::sync::watch;

use crate::listener::Listener;

const SECOND: Duration = Duration::from_secs(1);

pub(crate) async fn ingest(world: &World, owner: &str, audited: u64) -> Ingest {
    ingest_of(world, world.open().await, owner, audited)
}

fn ingest_of(world: &World, chain: Chain, owner: &str, audited: u64) -> Ingest {
    let clock: Arc<dyn Clock> = world.clock.clone();
    Ingest {
        auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(&clock), audited)),
        progress: Arc::new(Progress::new(Arc::clone(&clock), chain.chain_id())),
        chain,
        source: world.source(),
        historic: world.source(),
        queue: world.queue.clone(),
        settings: world.settings.clone(),
        runner: RunnerSettings::new("any", owner, 1),
        roles: Roles { forward: true, history: true },
        owner: owner.to_owned(),
        clock,
    }
}

pub(crate) fn stopping(stop: &watch::Sender<bool>) -> impl Fn() -> BoxFuture<'static, ()> {
    let stopped = stop.subscribe();
    move || {
        let mut stopped = stopped.clone();
        Box::pin(async move { drop(stopped.wait_for(|stop| *stop).await) })
    }
}

/// Waits until everything is stored, at most for a time.
pub(crate) async fn complete(world: &World, chain: &Chain, at_most: Duration) {
    let until = world.clock.monotonic() + at_most;
    loop {
        let view = chain.view().await.expect("read");
        if view.is_complete() && view.head() == Some(world.sim.latest()) {
            return;
        }
        let now = world.clock.monotonic();
        assert!(now < until, "{:?} of {:?}", view.covered(), world.sim.latest());
        world.clock.sleep(SECOND / 4).await;
    }
}

#[tokio::test(start_paused = true)]
async fn one_leads_another_follows_and_takes_over_at_once_when_it_stops() {
    let world = World::new(1, Some(12)).await;
    world.sim.grow(100);
    let (one, two) = (ingest(&world, "one", 100).await, ingest(&world, "two", 0).await);
    let (stop_one, stop_two) = (watch::Sender::new(false), watch::Sender::new(false));
    let driver = async {
        let mut listener = Listener::of(&two.chain).await;
        complete(&world, &one.chain, 60 * SECOND).await;
        complete(&world, &two.chain, 10 * SECOND).await;
        for round in 0..10 {
            if round % 3 == 2 {
                world.sim.reorg(4, 5).expect("not final");
            } else {
                world.sim.grow(2);
            }
            world.clock.sleep(3 * SECOND).await;
            listener.receive(&two.chain).await;
        }
        complete(&world, &one.chain, 10 * SECOND).await;
        world.check(&two.chain, 1).await;
        let leads = [&one, &two].map(|ingest| ingest.progress.report().forward_blocks > 0);
        assert_eq!(leads, [true, false], "one process writes");
        stop_one.send_replace(true);
        world.sim.grow(5);
        // The lease lasts ten minutes, so it must have been released.
        complete(&world, &two.chain, 10 * SECOND).await;
        listener.receive(&two.chain).await;
        assert!(two.progress.report().forward_blocks > 0);
        world.sim.reorg(3, 4).expect("not final");
        complete(&world, &two.chain, 10 * SECOND).await;
        listener.receive(&two.chain).await;
        stop_two.send_replace(true);
    };
    let ((), ran_one, ran_two) =
        join3(driver, one.run(stopping(&stop_one)), two.run(stopping(&stop_two))).await;
    ran_one.expect("it ran");
    ran_two.expect("it ran");
    let process = world.write_as("three", &world.stores, &world.source()).await;
    let process = process.expect("the lease was released");
    world.check(&process.chain, 1).await;
    assert!(one.auditor.report().is_clean());
}

#[tokio::test(start_paused = true)]
async fn damage_is_found_and_refilled_by_the_audit_while_the_chain_grows() {
    for bodies in [false, true] {
        let world = World::new(2, Some(12)).await;
        world.sim.grow(100);
        let one = ingest(&world, "one", 200).await;
        let stop = watch::Sender::new(false);
        let driver = async {
            complete(&world, &one.chain, 60 * SECOND).await;
            let chunks = one.chain.index().chunks();
            let chunk = chunks.iter().find(|chunk| chunk.blocks.start >= 32).expect("some");
            let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
            let token = if bodies { chunk.bodies[0].token } else { chunk.token };
            let blob = blobs.iter().find(|blob| {
                blob.name.as_str().ends_with(&format!("{token:016x}"))
                    && blob.name.as_str().contains("bodies") == bodies
            });
            let name = &blob.expect("it is there").name;
            let bytes = world.stores.blobs.get(name).await.expect("read").expect("there");
            let damaged: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
            world.stores.blobs.delete(name).await.expect("it works");
            world.stores.blobs.put(name, Bytes::from(damaged)).await.expect("it works");
            // A process without cached blocks.
            let two = ingest(&world, "two", 200).await;
            stop.send_replace(true);
            two
        };
        let (two, ran) = join(driver, one.run(stopping(&stop))).await;
        ran.expect("it ran");
        let stop = watch::Sender::new(false);
        let driver = async {
            let mut refilled = 0;
            for _ in 0..300 {
                world.clock.sleep(SECOND).await;
                world.sim.grow(1);
                refilled = two.auditor.report().refilled;
                if refilled > 0 {
                    break;
                }
            }
            assert!(refilled > 0, "the audit finds it, and has it refilled");
            for _ in 0..200 {
                world.clock.sleep(SECOND).await;
                world.sim.grow(1);
            }
            complete(&world, &two.chain, 300 * SECOND).await;
            let after = logmill_pipeline::audit::audit(&two.chain, 0..u64::MAX, |_| {}).await;
            let after = after.expect("it looks");
            assert!(after.is_clean(), "{after:?}");
            assert_eq!(two.chain.index().health().degraded, None);
            assert_eq!(two.progress.report().stalled, None);
            stop.send_replace(true);
        };
        let ((), ran) = join(driver, two.run(stopping(&stop))).await;
        ran.expect("it ran");
        world.check(&world.open().await, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_lease_is_released_while_a_repair_is_under_way() {
    let world = World::new(3, Some(12)).await;
    world.sim.grow(100);
    let one = ingest(&world, "one", 0).await;
    let stop = watch::Sender::new(false);
    let driver = async {
        complete(&world, &one.chain, 60 * SECOND).await;
        let delay = 60 * SECOND;
        world.source.set_faults(SimFaults { delay, ..SimFaults::default() });
        let asked = repair::jobs(&one.chain, 20..21, "a").expect("a job").remove(0);
        world.queue.enqueue(&asked).await.expect("it is asked for");
        world.clock.sleep(20 * SECOND).await;
        let asked = world.queue.get(&asked.kind, &asked.key).await.expect("read").expect("there");
        assert_eq!(asked.state, State::Running, "it is under way");
        assert!(one.chain.view().await.expect("read").is_complete(), "and removes nothing");
        stop.send_replace(true);
    };
    let ((), ran) = join(driver, one.run(stopping(&stop))).await;
    ran.expect("it ran");
    world.source.set_faults(SimFaults::default());
    let two = world.write_as("two", &world.stores, &world.source()).await;
    let two = two.expect("the lease was released");
    assert_eq!(two.fill().await.expect("nothing is in the way"), 0);
    two.catch_up().await.expect("nothing is in the way");
    world.check(&two.chain, 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_follower_learns_from_the_store_which_head_was_seen_and_when() {
    let world = World::new(4, Some(12)).await;
    world.sim.grow(60);
    let (one, two) = (ingest(&world, "one", 0).await, ingest(&world, "two", 0).await);
    let stop = watch::Sender::new(false);
    let driver = async {
        complete(&world, &one.chain, 60 * SECOND).await;
        complete(&world, &two.chain, 10 * SECOND).await;
        world.clock.sleep(5 * SECOND).await;
        let reports = [&one, &two].map(|ingest| ingest.progress.report());
        assert_eq!(reports[0].role, Role::Writer);
        assert_eq!(reports[1].role, Role::Follower);
        for report in &reports {
            assert_eq!(report.target, Some(world.sim.latest().number), "{report:?}");
            assert_eq!(report.behind, Some(0), "{report:?}");
            assert!(report.seen_ms_ago.is_some_and(|ago| ago <= 5_000), "{report:?}");
        }
        assert_eq!(reports[1].writer_head, reports[0].head, "what the writer had stored then");
        // The clock is set back: the last sighting must not look current until the clock has caught up.
        let before = two.chain.sightings().read().await.expect("read").expect("seen");
        assert!(before.age <= 5 * SECOND, "{before:?}");
        world.clock.jump(-3_600_000);
        let after = two.chain.sightings().read().await.expect("read").expect("seen");
        assert!(after.age > 3_000 * SECOND, "{after:?}");
        world.clock.jump(3_600_000);
        // No node reports the head any more: the sighting ages for both.
        let delay = 3_600 * SECOND;
        world.source.set_faults(SimFaults { delay, ..SimFaults::default() });
        world.clock.sleep(60 * SECOND).await;
        for ingest in [&one, &two] {
            let report = ingest.progress.report();
            assert!(report.seen_ms_ago.is_some_and(|ago| ago >= 50_000), "{report:?}");
        }
        world.source.set_faults(SimFaults::default());
        stop.send_replace(true);
    };
    let ((), ran_one, ran_two) =
        join3(driver, one.run(stopping(&stop)), two.run(stopping(&stop))).await;
    ran_one.expect("it ran");
    ran_two.expect("it ran");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_fails_permanently_ends_ingest() {
    let mut ended = 0;
    for operation in (0..400).step_by(13) {
        let world = World::new(5, Some(12)).await;
        world.sim.grow(60);
        let mut stores = world.stores.clone();
        let plan = Faults::at(operation, Fault::CrashBefore);
        stores.meta = Arc::new(FaultyStore::new(Arc::clone(&world.stores.meta), plan));
        // It may fail before it begins.
        let Ok(chain) = open(&stores, &world.index_settings).await else { continue };
        let one = ingest_of(&world, chain, "one", 0);
        let stop = watch::Sender::new(false);
        let late = async {
            for _ in 0..600 {
                world.clock.sleep(SECOND).await;
                world.sim.grow(1);
            }
        };
        let error = tokio::select! {
            biased;
            ran = one.run(stopping(&stop)) => ran.expect_err("it was not asked to stop"),
            () = late => panic!("it lingers after operation {operation}"),
        };
        assert!(error.is_fatal(), "{operation}: {}", logmill_io::error_chain(&error));
        ended += 1;
    }
    assert!(ended > 20, "{ended} of them had begun");
}

#[tokio::test(start_paused = true)]
async fn a_decision_of_an_operator_is_applied_by_the_process_that_writes() {
    for resolution in [Resolution::Keep, Resolution::RebuildFrom(30)] {
        let world = World::new(6, Some(12)).await;
        world.sim.grow(60);
        let before = world.write().await;
        before.catch_up().await.expect("nothing is in the way");
        assert_eq!(before.fill().await.expect("nothing is in the way"), 0);
        let mut wrong = to_finalized((*world.sim.block(40).expect("made")).clone());
        wrong.hash = B256::repeat_byte(9);
        let refused = before.writer.ingest_finalized_block(wrong).await;
        assert!(matches!(refused, Err(Refused::FinalityViolation { .. })), "{refused:?}");
        before.writer.release().await.expect("it stops well");
        drop(before);
        let one = ingest(&world, "one", 0).await;
        let stop = watch::Sender::new(false);
        let driver = async {
            world.clock.sleep(30 * SECOND).await;
            assert!(one.chain.view().await.is_err(), "reads are stopped");
            assert!(one.progress.report().stalled.is_some());
            let decided = resolve::job(1_337, resolution, 0, "a").expect("a job");
            world.queue.enqueue(&decided).await.expect("it is asked for");
            let until = world.clock.monotonic() + 60 * SECOND;
            let job = || world.queue.get(&decided.kind, &decided.key);
            while job().await.expect("read").expect("there").state != State::Done {
                assert!(world.clock.monotonic() < until, "the job is not run");
                world.clock.sleep(SECOND).await;
            }
            world.sim.grow(5);
            complete(&world, &one.chain, 60 * SECOND).await;
            stop.send_replace(true);
        };
        let ((), ran) = join(driver, one.run(stopping(&stop))).await;
        ran.expect("it ran");
        world.check(&world.open().await, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_process_reports_the_blocks_to_fetch_again() {
    // A chain outside the Ethereum family.
    const OTHER: u64 = 25;
    let settings =
        SimSettings { chain_id: OTHER, seed: 4, shape: shape(), ..SimSettings::default() };
    let sim = SimChain::with(SimSettings { finality_lag: Some(12), ..settings });
    let world = &World::of(4, sim).await;
    world.sim.grow(100);
    let start = |owner: &'static str| async move {
        let index = LogIndex::open(world.stores.clone(), world.index_settings.clone()).await;
        let tip = Tip::open(Arc::clone(&world.stores.meta), PREFIX).await.expect("a tip");
        let chain = Chain::new(OTHER, index.expect("an index"), tip);
        ingest_of(world, chain, owner, 0)
    };
    let one = start("one").await;
    let stop = watch::Sender::new(false);
    let driver = async {
        complete(world, &one.chain, 60 * SECOND).await;
        assert_eq!(
            one.progress.report().uncompared,
            None,
            "what it stores itself is as it should be"
        );
        stop.send_replace(true);
    };
    let ((), ran) = join(driver, one.run(stopping(&stop))).await;
    ran.expect("it stops");
    // To the next process the same blocks look like those of an earlier version, and its source has no node fields.
    let (two, three) = (start("two").await, start("three").await);
    let stop = watch::Sender::new(false);
    let driver = async {
        let shown = |ingest: &Ingest| ingest.progress.report().uncompared;
        for _ in 0..600 {
            let has_why = shown(&three).is_some_and(|shown| shown.why.is_some());
            if has_why && shown(&two) == shown(&three) {
                break;
            }
            world.clock.sleep(SECOND / 4).await;
        }
        let shown = shown(&three).expect("it is shown");
        assert_eq!((shown.from, two.progress.report().uncompared), (0, Some(shown.clone())));
        assert!(shown.why.is_some_and(|why| why.contains("the source has only the block itself")));
        let roles = [&two, &three].map(|ingest| ingest.progress.report().role);
        assert!(roles.contains(&Role::Writer) && roles.contains(&Role::Follower), "{roles:?}");
        stop.send_replace(true);
    };
    let ((), ran_two, ran_three) =
        join3(driver, two.run(stopping(&stop)), three.run(stopping(&stop))).await;
    ran_two.and(ran_three).expect("they stop");
}
