//! Whole processes: one leads, others follow; who stops gives the lease back; damage is mended while it runs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::{BoxFuture, join, join3};
use logmill_chain::sim::SimFaults;
use logmill_io::Clock;
use logmill_pipeline::audit::Auditor;
use logmill_pipeline::ingest::{Ingest, Progress, Roles};
use logmill_pipeline::{Chain, repair};
use logmill_work::{RunnerSettings, State};
use tokio::sync::watch;

use crate::listener::Listener;
use crate::world::World;

const SECOND: Duration = Duration::from_secs(1);

async fn ingest(world: &World, owner: &str, audited: u64) -> Ingest {
    let clock: Arc<dyn Clock> = world.clock.clone();
    let chain = world.open().await;
    Ingest {
        auditor: Arc::new(Auditor::new(chain.clone(), Arc::clone(&clock), audited)),
        chain,
        source: world.source(),
        historic: world.source(),
        queue: world.queue.clone(),
        settings: world.settings.clone(),
        runner: RunnerSettings::new("any", owner, 1),
        roles: Roles { forward: true, history: true },
        owner: owner.to_owned(),
        progress: Arc::new(Progress::new(Arc::clone(&clock))),
        clock,
    }
}

fn stopping(stop: &watch::Sender<bool>) -> impl Fn() -> BoxFuture<'static, ()> {
    let stopped = stop.subscribe();
    move || {
        let mut stopped = stopped.clone();
        Box::pin(async move { drop(stopped.wait_for(|stop| *stop).await) })
    }
}

/// Waits until all is stored, for a time.
async fn complete(world: &World, chain: &Chain, at_most: Duration) {
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
            listener.hear(&two.chain).await;
        }
        complete(&world, &one.chain, 10 * SECOND).await;
        world.check(&two.chain, 1).await;
        let leads = [&one, &two].map(|ingest| ingest.progress.report().forward_blocks > 0);
        assert_eq!(leads, [true, false], "one process writes");
        stop_one.send_replace(true);
        world.sim.grow(5);
        // The lease lasts ten minutes: it was given back.
        complete(&world, &two.chain, 10 * SECOND).await;
        listener.hear(&two.chain).await;
        assert!(two.progress.report().forward_blocks > 0);
        world.sim.reorg(3, 4).expect("not final");
        complete(&world, &two.chain, 10 * SECOND).await;
        listener.hear(&two.chain).await;
        stop_two.send_replace(true);
    };
    let ((), ran_one, ran_two) =
        join3(driver, one.run(stopping(&stop_one)), two.run(stopping(&stop_two))).await;
    ran_one.expect("it ran");
    ran_two.expect("it ran");
    let process = world.write_as("three", &world.stores, &world.source()).await;
    let process = process.expect("the lease was given back");
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
            // A process that has nothing of it in memory.
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
async fn the_lease_is_given_back_though_a_repair_is_under_way() {
    let world = World::new(3, Some(12)).await;
    world.sim.grow(100);
    let one = ingest(&world, "one", 0).await;
    let stop = watch::Sender::new(false);
    let driver = async {
        complete(&world, &one.chain, 60 * SECOND).await;
        let delay = 60 * SECOND;
        world.source.set_faults(SimFaults { delay, ..SimFaults::default() });
        let asked = repair::job(1_337, 20..21, "a").expect("a job");
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
    let two = two.expect("the lease was given back");
    assert_eq!(two.fill().await.expect("nothing is in the way"), 0);
    two.catch_up().await.expect("nothing is in the way");
    world.check(&two.chain, 1).await;
}
