//! The audit over restarts: it continues its round, knows what was found, and is not confused by chunks that are gone.

use std::time::Duration;

use finalized_log_index::Resolution;
use logmill_chain::sim::SimFaults;
use logmill_io::{Clock, Condition, Key, MetaStoreExt};
use logmill_pipeline::audit::{AuditStatus, Auditor};
use logmill_sim::chain_world::{PREFIX, Process, World};

use crate::mending::{damage, repairs, world};

/// Final blocks of these worlds.
const BLOCKS: u64 = 66;

fn auditor(world: &World, process: &Process, rate: u64) -> Auditor {
    Auditor::new(process.chain.clone(), world.clock.clone(), rate)
}

/// Audits one block a second for some time, then crashes.
async fn audit_for(world: &World, process: Process, seconds: u64) -> (Process, AuditStatus) {
    let auditor = auditor(world, &process, 1);
    let repairs = repairs(&process);
    tokio::select! {
        biased;
        _ = auditor.run(Some(&repairs)) => unreachable!("it does not end"),
        () = world.clock.sleep(Duration::from_secs(seconds)) => {}
    }
    drop(repairs);
    let status = auditor.status();
    process.die();
    world.pause();
    (world.write().await, status)
}

#[tokio::test(start_paused = true)]
async fn a_restart_continues_the_audit_where_it_was() {
    let (world, mut process) = world(2).await;
    let mut next = 0;
    // No process lives long enough for a whole round.
    for life in 0..2 {
        let (after, status) = audit_for(&world, process, 20).await;
        process = after;
        assert!(status.next > next, "life {life}: {status:?}");
        assert_eq!((status.rounds, status.round_ended_ms), (0, None));
        assert_eq!(status.report.verified, status.next, "the figures are of the whole round");
        next = status.next;
    }
    assert!(next > 40, "{next}");
    let auditor = auditor(&world, &process, 1_000_000);
    auditor.resume(Some(&repairs(&process))).await;
    // The last slice may have been lost.
    let status = auditor.status();
    assert!((next - 16..=next).contains(&status.next), "{status:?}");
    auditor.round(Some(&repairs(&process))).await;
    let status = auditor.status();
    let ended = Some(world.clock.now().millis());
    assert_eq!((status.next, status.rounds, status.round_ended_ms), (0, 1, ended));
    assert_eq!(status.report.verified, BLOCKS, "each block once");
    // The next process knows of it, and starts the second round.
    let (process, status) = audit_for(&world, process, 1).await;
    assert_eq!((status.rounds, status.round_ended_ms, status.next), (1, ended, 1));
    process.die();
}

#[tokio::test(start_paused = true)]
async fn a_position_in_blocks_that_are_gone_is_no_obstacle() {
    for what in ["pruned", "discarded", "rebuilt", "cut off"] {
        let (world, process) = world(2).await;
        let (process, status) = audit_for(&world, process, 35).await;
        let (index, writer) = (process.chain.index(), &process.writer);
        let chunk = index.chunks().iter().find(|one| one.blocks.contains(&status.next)).cloned();
        let chunk = chunk.expect("it is in a chunk");
        match what {
            "pruned" => drop(writer.prune_below(chunk.blocks.end).await.expect("it works")),
            "discarded" => writer.resolve(Resolution::Discard(chunk.token)).await.expect("listed"),
            "rebuilt" => {
                let repaired = repairs(&process).repair(chunk.blocks.clone()).await;
                repaired.expect("it is fetched again");
                assert!(index.chunks().iter().all(|one| one.token != chunk.token));
            }
            _ => writer.resolve(Resolution::RebuildFrom(3)).await.expect("it works"),
        }
        let auditor = auditor(&world, &process, 1_000_000);
        auditor.resume(Some(&repairs(&process))).await;
        assert!(auditor.status().next > 0, "{what}");
        auditor.round(Some(&repairs(&process))).await;
        let status = auditor.status();
        assert_eq!((status.next, status.rounds), (0, 1), "{what}");
        assert!(status.report.is_clean(), "{what}: {status:?}");
        // The next round sees all that is stored now.
        auditor.round(Some(&repairs(&process))).await;
        let stored: u64 = index.coverage().iter().map(|range| range.end - range.start).sum();
        let status = auditor.status();
        assert_eq!((status.rounds, status.report.verified), (2, stored), "{what}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_was_found_is_known_after_a_restart_and_checked_again() {
    let (world, process) = world(2).await;
    let chunk = process.chain.index().chunks()[0].clone();
    let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
    let token = format!("{:016x}", chunk.bodies[0].token);
    let is_it = |name: &str| name.ends_with(&token) && name.contains("bodies");
    let blob = blobs.iter().find(|blob| is_it(blob.name.as_str())).expect("it is there");
    damage(&world, &blob.name).await;
    // No node answers, so nothing can be refilled.
    world.source.set_faults(SimFaults { fail_every: 1, ..SimFaults::default() });
    process.die();
    world.pause();
    let (process, before) = audit_for(&world, world.write().await, 35).await;
    assert!(before.report.damaged > 0 && before.next > chunk.blocks.end, "{before:?}");
    let auditor = auditor(&world, &process, 1_000_000);
    auditor.resume(Some(&repairs(&process))).await;
    let status = auditor.status();
    assert_eq!(status.report.damaged, before.report.damaged, "{status:?}");
    assert!(status.next > chunk.blocks.end, "{status:?}");
    // Nodes answer, and the next process refills it without waiting for the next round.
    world.source.set_faults(SimFaults::default());
    process.die();
    world.pause();
    let process = world.write().await;
    let auditor = self::auditor(&world, &process, 1_000_000);
    auditor.resume(Some(&repairs(&process))).await;
    let status = auditor.status();
    assert!(status.report.is_clean() && status.report.refilled > 0, "{status:?}");
    assert_eq!(process.chain.index().health().degraded, None);
    world.check(&process.chain, 1).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_found_is_checked_again_during_a_long_round() {
    let (world, process) = world(2).await;
    process.die();
    world.pause();
    let process = world.write().await;
    let chunk = process.chain.index().chunks()[0].clone();
    let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
    let token = format!("{:016x}", chunk.token);
    let is_it = |name: &str| name.ends_with(&token) && !name.contains("bodies");
    let name = &blobs.iter().find(|blob| is_it(blob.name.as_str())).expect("it is there").name;
    let bytes = world.stores.blobs.get(name).await.expect("read").expect("there");
    damage(&world, name).await;
    let auditor = auditor(&world, &process, 1);
    let driver = async {
        world.clock.sleep(Duration::from_secs(17)).await;
        assert!(auditor.damaged() > 0, "{:?}", auditor.status());
        // An operator puts the blob back.
        world.stores.blobs.delete(name).await.expect("it works");
        world.stores.blobs.put(name, bytes).await.expect("it works");
        while auditor.damaged() > 0 {
            world.clock.sleep(Duration::from_secs(1)).await;
        }
    };
    tokio::select! {
        biased;
        () = auditor.round(None) => panic!("the round is over"),
        () = driver => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read_starts_the_audit_over() {
    let (world, process) = world(2).await;
    let (process, status) = audit_for(&world, process, 35).await;
    assert!(status.next > 16, "{status:?}");
    let key = Key::from(format!("{PREFIX}/audit"));
    let mut record = world.stores.meta.read(&key).await.expect("it is there").value.to_vec();
    record[2] ^= 1;
    world.stores.meta.put(key, record, Condition::Any).await.expect("it works");
    let auditor = auditor(&world, &process, 1_000_000);
    auditor.resume(Some(&repairs(&process))).await;
    assert_eq!(auditor.status(), AuditStatus::default());
    auditor.round(Some(&repairs(&process))).await;
    assert_eq!((auditor.status().rounds, auditor.report().verified), (1, BLOCKS));
}

#[tokio::test(start_paused = true)]
async fn a_process_that_lost_the_lease_does_not_move_the_position() {
    let (world, old) = world(2).await;
    world.pause();
    let new = world.write_as("two", &world.stores, &world.source()).await.expect("it takes over");
    let (new_auditor, old_auditor) =
        (auditor(&world, &new, 1_000_000), auditor(&world, &old, 1_000_000));
    new_auditor.round(Some(&repairs(&new))).await;
    new_auditor.round(Some(&repairs(&new))).await;
    let key = Key::from(format!("{PREFIX}/audit"));
    let stored = || async { world.stores.meta.read(&key).await.expect("it is there").value };
    let before = stored().await;
    old_auditor.round(Some(&repairs(&old))).await;
    assert_eq!(stored().await, before);
    old_auditor.resume(None).await;
    assert_eq!(old_auditor.status().rounds, 2);
}
