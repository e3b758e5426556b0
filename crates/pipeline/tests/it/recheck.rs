//! Damage that only a process that does not write came upon: the process that writes checks and refills it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use finalized_log_index::{ChunkEntry, Filter, Stores};
use futures::future::join3;
use logmill_io::blob::MemoryBlobs;
use logmill_io::{BlobName, Clock, Fault, Faults};
use logmill_pipeline::Chain;
use logmill_pipeline::audit::{Auditor, audit};
use logmill_pipeline::recheck::{self, DamageReports, RecheckHandler};
use logmill_sim::chain_world::{PAUSE, Process, World, open};
use logmill_work::queue::FailedClaim;
use logmill_work::{Handler as _, Retry, RunningJob, State};
use tokio::sync::watch;

use crate::mending::{damage, repairs, stored_image, world};
use crate::process::{complete, ingest, stopping};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

async fn blob_of(world: &World, chunk: &ChunkEntry) -> BlobName {
    let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
    let token = format!("{:016x}", chunk.token);
    let is_it = |name: &str| name.ends_with(&token) && !name.contains("bodies");
    blobs.into_iter().find(|blob| is_it(blob.name.as_str())).expect("it is there").name
}

/// Queries a chunk; returns whether that worked.
async fn can_read(chain: &Chain, chunk: &ChunkEntry) -> bool {
    let first = Filter::range(chunk.blocks.start..=chunk.blocks.start);
    chain.index().query_finalized(&first).await.is_ok()
}

fn reports(world: &World, chain: &Chain, owner: &str) -> DamageReports {
    DamageReports::new(chain.clone(), world.queue.clone(), world.clock.clone(), owner)
}

/// Runs the reported jobs as a runner does; returns how the last ended.
async fn run_jobs(world: &World, process: &Process) -> Option<State> {
    let kind = recheck::kind(1_337);
    world.queue.reap(&kind).await.expect("it works");
    let mut ended = None;
    for claim in world.queue.claim(&kind, 10, PAUSE, "writer").await.expect("it works") {
        let handler = RecheckHandler::new(Arc::clone(&process.writer));
        let running = RunningJob { claim: claim.clone(), queue: world.queue.clone() };
        match handler.run(running).await {
            Ok(_) => world.queue.complete(&claim).await.expect("it works"),
            Err(failure) => {
                let retry_after = (failure.retry != Retry::Never).then_some(Duration::ZERO);
                let failed =
                    FailedClaim { claim: claim.clone(), error: failure.error, retry_after };
                world.queue.fail(&failed).await.expect("it works");
            }
        }
        let job = world.queue.get(&kind, &claim.key).await.expect("it works").expect("it exists");
        ended = Some(job.state);
    }
    ended
}

#[tokio::test(start_paused = true)]
async fn damage_that_only_a_follower_met_is_refilled_by_the_writer() {
    let world = World::new(2, Some(12)).await;
    world.sim.grow(100);
    // At this rate the audit needs a minute and a half for a round.
    let (one, two) = (ingest(&world, "one", 1).await, ingest(&world, "two", 1).await);
    let (stop, start_two) = (watch::Sender::new(false), watch::Sender::new(false));
    let driver = async {
        complete(&world, &one.chain, 60 * SECOND).await;
        let chunks = one.chain.index().chunks();
        let chunk = chunks.iter().rev().find(|one| !one.is_piece()).expect("some").clone();
        assert!(can_read(&one.chain, &chunk).await, "the writer has it cached");
        damage(&world, &blob_of(&world, &chunk).await).await;
        assert_eq!(one.chain.index().health().degraded, None);
        // The follower starts now, so that it has not read the chunk before.
        start_two.send_replace(true);
        complete(&world, &two.chain, 10 * SECOND).await;
        let until = world.clock.monotonic() + 60 * SECOND;
        while one.auditor.report().refilled == 0 || !can_read(&two.chain, &chunk).await {
            assert!(world.clock.monotonic() < until, "nobody refills it");
            world.clock.sleep(SECOND).await;
        }
        assert!(one.auditor.report().verified < 66, "{:?}", one.auditor.report());
        world.sim.grow(5);
        complete(&world, &one.chain, 60 * SECOND).await;
        complete(&world, &two.chain, 10 * SECOND).await;
        for chain in [&one.chain, &two.chain] {
            assert_eq!(chain.index().health().degraded, None);
        }
        stop.send_replace(true);
    };
    let follower = async {
        stopping(&start_two)().await;
        two.run(stopping(&stop)).await
    };
    let ((), ran_one, ran_two) = join3(driver, one.run(stopping(&stop)), follower).await;
    ran_one.and(ran_two).expect("they ran");
    let chain = world.open().await;
    assert!(audit(&chain, 0..u64::MAX, |_| {}).await.expect("it looks").is_clean());
    world.check(&chain, 1).await;
}

/// A copy of the blobs, as a broken disk of one machine would return them.
async fn broken_copy(world: &World, damaged: &BlobName) -> Stores {
    let blobs = MemoryBlobs::shared();
    for blob in world.stores.blobs.list("", None, 1_000).await.expect("it lists") {
        let bytes = world.stores.blobs.get(&blob.name).await.expect("read").expect("there");
        let bytes: Vec<u8> = match blob.name == *damaged {
            true => bytes.iter().map(|byte| byte ^ 1).collect(),
            false => bytes.to_vec(),
        };
        blobs.put(&blob.name, Bytes::from(bytes)).await.expect("it works");
    }
    Stores { blobs, ..world.stores.clone() }
}

#[tokio::test(start_paused = true)]
async fn a_follower_with_a_broken_disk_changes_nothing_and_is_named() {
    let (world, process) = world(2).await;
    let chunk = process.chain.index().chunks()[1].clone();
    let name = blob_of(&world, &chunk).await;
    let stores = broken_copy(&world, &name).await;
    let follower = open(&stores, &world.index_settings).await.expect("it opens");
    let image = stored_image(&world).await;
    let reports = reports(&world, &follower, "broken");
    assert_eq!(reports.report().await.expect("it works"), 0, "nothing was met yet");
    assert!(!can_read(&follower, &chunk).await);
    assert_eq!(reports.report().await.expect("it works"), 1);
    assert_eq!(run_jobs(&world, &process).await, Some(State::Dead));
    let jobs = world.queue.list(&recheck::kind(1_337), State::Dead, None, 10).await;
    let said = jobs.expect("it lists")[0].error.clone().expect("it says why");
    assert!(said.contains("check the disk and the network of broken"), "{said}");
    assert_eq!(process.chain.index().health().degraded, None);
    assert_eq!(stored_image(&world).await, image);
    process.catch_up().await.expect("writes go on");
    // It is not reported again at once, but after an hour.
    assert_eq!(reports.report().await.expect("it works"), 0);
    world.clock.sleep(HOUR).await;
    assert_eq!(reports.report().await.expect("it works"), 1);
    assert_eq!(run_jobs(&world, &process).await, Some(State::Dead));
    // Its disk is replaced: it forgets what it read.
    let bytes = world.stores.blobs.get(&name).await.expect("read").expect("there");
    stores.blobs.delete(&name).await.expect("it works");
    stores.blobs.put(&name, bytes).await.expect("it works");
    world.clock.sleep(HOUR).await;
    assert!(follower.index().health().degraded.is_some());
    assert_eq!(reports.report().await.expect("it works"), 0);
    assert_eq!(follower.index().health().degraded, None);
    assert!(can_read(&follower, &chunk).await);
}

/// Two processes report damage, and the writer that runs their job crashes at an operation, counted from the first of
/// the job. Returns the number of operations before the job and the number in it.
async fn crash_at(before: u64, operation: u64) -> (u64, u64) {
    let (world, process) = world(2).await;
    let chunk = process.chain.index().chunks()[1].clone();
    damage(&world, &blob_of(&world, &chunk).await).await;
    let followers = [world.open().await, world.open().await];
    for (owner, follower) in ["two", "three"].into_iter().zip(&followers) {
        assert!(!can_read(follower, &chunk).await);
        assert_eq!(reports(&world, follower, owner).report().await.expect("it works"), 1);
    }
    let kind = recheck::kind(1_337);
    let jobs = world.queue.list(&kind, State::Pending, None, 10).await.expect("it lists");
    assert_eq!(jobs.len(), 1, "{jobs:?}");
    process.die();
    world.pause();
    let faults = Faults::at(before + operation, Fault::CrashBefore);
    let stores = world.stores.with_faults(&faults);
    let crashing = world.write_as("crashing", &stores, &world.source()).await.expect("it opens");
    let before = faults.operations();
    run_jobs(&world, &crashing).await;
    let operations = faults.operations() - before;
    crashing.die();
    world.pause();
    let process = world.write().await;
    run_jobs(&world, &process).await;
    let degraded = process.chain.index().health().degraded.expect("the damage is stored");
    assert_eq!(degraded.damaged[0].blocks, chunk.blocks);
    let auditor = Auditor::new(process.chain.clone(), world.clock.clone(), 1_000_000);
    auditor.round(Some(&repairs(&process))).await;
    assert!(auditor.report().refilled > 0 && auditor.report().is_clean());
    assert_eq!(process.chain.index().health().degraded, None);
    // One that has not followed since reports it once more: there is nothing left to find.
    let again = reports(&world, &followers[0], "two").report().await.expect("it works");
    let ended = run_jobs(&world, &process).await;
    assert!(ended.is_none_or(|state| state == State::Done), "{again} {ended:?}");
    assert_eq!(process.chain.index().health().degraded, None);
    for follower in &followers {
        follower.follow().await.expect("it follows");
        assert_eq!(follower.index().health().degraded, None);
        assert!(can_read(follower, &chunk).await);
    }
    world.check(&process.chain, 1).await;
    (before, operations)
}

#[tokio::test(start_paused = true)]
async fn a_report_of_several_processes_is_one_job_that_may_crash_anywhere() {
    let (before, operations) = crash_at(0, u64::MAX).await;
    assert!(operations >= 4, "{operations}");
    for operation in 0..operations {
        crash_at(before, operation).await;
    }
}
