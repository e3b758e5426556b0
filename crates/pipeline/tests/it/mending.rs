//! Audit and repair: damage is found, named, and mended from the source.

use std::sync::Arc;

use bytes::Bytes;
use finalized_log_index::{Cause, ReplacementKind, Resolution};
use logmill_chain::sim::{Lie, SimFaults};
use logmill_chain::{Block, Verify};
use logmill_io::{BlobName, Condition, ErrorKind, KeyRange, MetaStoreExt};
use logmill_pipeline::audit::{AuditReport, Auditor, audit};
use logmill_pipeline::block::finalized;
use logmill_pipeline::repair::RepairHandler;
use logmill_pipeline::{Chain, Error};

use crate::listener::Listener;
use crate::world::{Process, World, same};

async fn world(seed: u64) -> (World, Process) {
    let world = World::new(seed, Some(10)).await;
    world.sim.grow(75);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    process.writer.maintain().await.expect("it seals");
    assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
    assert!(process.chain.view().await.expect("read").is_complete());
    (world, process)
}

async fn report(chain: &Chain) -> AuditReport {
    let mut seen = Vec::new();
    let report = audit(chain, 0..u64::MAX, |number| seen.push(number)).await.expect("it looks");
    assert!(seen.is_sorted() && !seen.is_empty());
    report
}

/// Flips a bit of every byte of a blob: whatever is read of it is damaged.
async fn damage(world: &World, name: &BlobName) {
    let bytes = world.stores.blobs.get(name).await.expect("read").expect("it is there");
    let damaged: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    world.stores.blobs.delete(name).await.expect("it works");
    world.stores.blobs.put(name, Bytes::from(damaged)).await.expect("it works");
}

fn repairs(process: &Process) -> RepairHandler {
    RepairHandler::new(Arc::clone(&process.writer), Arc::clone(&process.backward))
}

#[tokio::test(start_paused = true)]
async fn an_audit_of_what_was_not_damaged_is_clean() {
    let (world, process) = world(1).await;
    for chain in [&process.chain, &world.open().await] {
        let report = report(chain).await;
        assert!(report.is_clean(), "{report:?}");
        assert_eq!((report.verified, report.less_verified, report.logs_only), (66, 0, 0));
    }
    let part = audit(&process.chain, 10..20, |_| {}).await.expect("it looks");
    assert_eq!(part.verified, 10);
}

#[tokio::test(start_paused = true)]
async fn every_damaged_blob_is_found_named_by_its_blocks_and_mended() {
    let blobs = {
        let (world, _) = world(2).await;
        world.stores.blobs.list("", None, 1_000).await.expect("it lists").len()
    };
    assert!(blobs > 6, "{blobs}");
    for at in 0..blobs {
        let (world, process) = world(2).await;
        let blob = world.stores.blobs.list("", None, 1_000).await.expect("it lists")[at].clone();
        damage(&world, &blob.name).await;
        let name = blob.name.as_str();
        process.die();
        let process = world.write().await;
        let chunks = process.chain.index().chunks();
        let named = |token: u64| name.ends_with(&format!("{token:016x}"));
        let chunk = chunks
            .iter()
            .find(|chunk| named(chunk.token) || chunk.bodies.iter().any(|body| named(body.token)))
            .expect("it is of a chunk");
        let report = report(&process.chain).await;
        let found: Vec<u64> = report.findings.iter().map(|finding| finding.number).collect();
        let blocks: Vec<u64> = chunk.blocks.clone().collect();
        assert!(
            !found.is_empty() && found.iter().all(|n| blocks.contains(n)),
            "{name}: {report:?}"
        );
        repairs(&process).repair(found[0]..found[0] + 1).await.expect("it is fetched again");
        process.catch_up().await.expect("it goes on");
        world.sim.grow(20);
        process.catch_up().await.expect("it goes on");
        process.writer.maintain().await.expect("it seals");
        assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
        let after = audit(&process.chain, 0..u64::MAX, |_| {}).await.expect("it looks");
        assert!(after.is_clean(), "{name}: {after:?}");
        assert_eq!(process.chain.index().health().degraded, None);
        assert!(process.chain.view().await.expect("read").is_complete());
        world.check(&process.chain, 1).await;
        world.check(&world.open().await, 1).await;
    }
}

/// Damages the body of a block of the tail; gives its number.
async fn damage_tail(world: &World) -> u64 {
    let bodies = world.stores.meta.scan(&KeyRange::prefix("logindex/body/"), 1_000).await;
    let bodies = bodies.expect("it scans");
    let (key, record) = &bodies[bodies.len() / 2];
    let mut damaged = record.value.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    world.stores.meta.put(key.clone(), damaged, Condition::Any).await.expect("it works");
    let digits = String::from_utf8_lossy(key.as_bytes()).into_owned();
    u64::from_str_radix(digits.rsplit('-').next().expect("a number"), 16).expect("a number")
}

#[tokio::test(start_paused = true)]
async fn a_damaged_body_of_the_tail_is_fetched_again_and_nothing_else_is_touched() {
    let (world, process) = world(3).await;
    let mut listener = Listener::of(&process.chain).await;
    world.sim.grow(8);
    process.catch_up().await.expect("nothing is in the way");
    listener.hear(&process.chain).await;
    let health = process.chain.index().health();
    let number = damage_tail(&world).await;
    assert!(number >= health.tail_start.expect("there is one"));
    let report = report(&process.chain).await;
    assert_eq!((report.damaged, report.findings[0].number), (1, number), "{report:?}");
    repairs(&process).repair(number..number + 1).await.expect("it is fetched again");
    let after = audit(&process.chain, 0..u64::MAX, |_| {}).await.expect("it looks");
    assert!(after.is_clean(), "{after:?}");
    let now = process.chain.index().health();
    assert_eq!(
        (now.head, now.tail_start, now.tail_blocks),
        (health.head, health.tail_start, health.tail_blocks)
    );
    listener.hear(&process.chain).await;
    world.check(&process.chain, 1).await;
    world.check(&world.open().await, 1).await;
    // What was stored could not be read, so that what was computed from it may have been wrong.
    let replacements = process.chain.index().replacements_after(0).await.expect("read");
    assert_eq!(replacements.len(), 1);
    assert_eq!(replacements[0].blocks, number..number + 1);
    assert_eq!(replacements[0].kind, ReplacementKind::Content);
    world.sim.grow(25);
    process.catch_up().await.expect("it goes on");
    listener.hear(&process.chain).await;
    world.check(&process.chain, 1).await;
}

/// A world whose stored blocks from 12 to 19 were told with false logs, at a level that does not check them.
async fn deceived(sealed: bool) -> (World, Process) {
    let mut world = World::new(6, Some(10)).await;
    world.settings.history_stop = 0;
    world.sim.grow(60);
    let process = world.write().await;
    for number in 0..50 {
        let mut block = Block::clone(&world.sim.block(number).expect("it exists"));
        block.verified = Verify::Full;
        if (12..20).contains(&number) {
            block.verified = Verify::Off;
            Lie::ChangeLog.tell(&mut block);
        }
        let stored = process.writer.ingest_finalized_block(finalized(block)).await;
        stored.expect("the index does not look into bodies");
    }
    if sealed {
        process.writer.maintain().await.expect("it seals");
    }
    (world, process)
}

#[tokio::test(start_paused = true)]
async fn false_content_is_replaced_under_the_same_hash_and_recorded_once() {
    for sealed in [false, true] {
        let (world, process) = deceived(sealed).await;
        let index = process.chain.index();
        let before = index.health();
        let other = world.open().await;
        let untouched = process.chain.view().await.expect("read").block(30).await.expect("read");
        repairs(&process).repair(12..20).await.expect("it is fetched again");
        process.catch_up().await.expect("it goes on");
        world.check(&process.chain, 1).await;
        let after = index.health();
        assert_eq!(after.coverage[0].start, before.coverage[0].start);
        assert!(index.last_replacement() > 0, "sealed {sealed}");
        let replaced = index.replacements_after(0).await.expect("read");
        let touched = |number| replaced.iter().any(|one| one.blocks.contains(&number));
        assert!((12..20).any(touched) && !(0..12).any(touched) && !(20..50).any(touched));
        let now = process.chain.view().await.expect("read").block(30).await.expect("read");
        assert_eq!(now, untouched);
        // A process that had read the false ones sees the right ones.
        other.follow().await.expect("it follows");
        assert_eq!(other.index().last_replacement(), index.last_replacement());
        for number in 12..20 {
            let block = other.view().await.expect("read").block(number).await.expect("read");
            same(&block.expect("stored"), &world.sim.block(number).expect("made"));
        }
        // Once more changes nothing, and so it is none.
        let last = index.last_replacement();
        repairs(&process).repair(0..50).await.expect("it is fetched again");
        assert_eq!(index.last_replacement(), last);
        world.check(&process.chain, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_from_another_chain_is_refused_and_changes_nothing() {
    for sealed in [false, true] {
        let (world, process) = deceived(sealed).await;
        process.die();
        world.pause();
        let other = World::new(77, Some(10)).await;
        other.sim.grow(60);
        let process = world.write_as("one", &world.stores, &other.source()).await.expect("opens");
        let image = stored_image(&world).await;
        for range in [12..13, 0..1, 0..50, 49..50] {
            let refused = repairs(&process).repair(range.clone()).await;
            let said = refused.expect_err("another chain").to_string();
            let number = range.start;
            let stored = world.sim.block(number).expect("made").at.hash;
            let foreign = other.sim.block(number).expect("made").at.hash;
            let both = said.contains(&stored.to_string()) && said.contains(&foreign.to_string());
            assert!(both && said.contains("rebuild-from"), "{said}");
        }
        assert_eq!(stored_image(&world).await, image);
        assert_eq!(process.chain.index().last_replacement(), 0);
        let ended = process.catch_up().await.expect_err("it is not our chain");
        assert!(
            matches!(ended, Error::FinalityReverted { .. } | Error::ReorgTooDeep { .. }),
            "{ended}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_without_a_node_changes_nothing_and_is_tried_again() {
    for sealed in [false, true] {
        let (world, process) = deceived(sealed).await;
        world.source.set_faults(SimFaults { fail_every: 1, ..SimFaults::default() });
        let image = stored_image(&world).await;
        let failed = repairs(&process).repair(12..20).await.expect_err("nobody answers");
        assert_eq!(failed.kind(), ErrorKind::Transient, "{failed}");
        assert_eq!(stored_image(&world).await, image);
        world.source.set_faults(SimFaults::default());
        repairs(&process).repair(12..20).await.expect("it is fetched again");
        process.catch_up().await.expect("it goes on");
        world.check(&process.chain, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ranges_that_are_empty_or_above_the_final_head_are_refused() {
    let (world, process) = world(5).await;
    let image = stored_image(&world).await;
    for range in [70..80, 0..u64::MAX, 66..67, 5..5] {
        let refused = repairs(&process).repair(range.clone()).await.expect_err("no such blocks");
        assert_eq!(refused.kind(), ErrorKind::Invalid, "{range:?}: {refused}");
    }
    repairs(&process).repair(65..66).await.expect("the newest final block");
    assert_eq!(stored_image(&world).await, image, "it was as the node has it");
    world.check(&process.chain, 1).await;
}

/// All records of the index but leases, attempts and those of the queue.
async fn stored_image(world: &World) -> String {
    let records = world.stores.meta.scan(&KeyRange::prefix("logindex/"), 100_000).await;
    let records = records.expect("it scans").into_iter();
    let kept = records.filter(|(key, _)| !key.as_bytes().starts_with(b"logindex/build/"));
    let mut image = String::new();
    for (key, record) in kept {
        let value = alloy_primitives::keccak256(&record.value);
        image.push_str(&format!("{key} {value}\n"));
    }
    image
}

#[tokio::test(start_paused = true)]
async fn the_auditor_refills_what_is_damaged_and_leaves_to_people_what_is_false() {
    let auditor = |world: &World, process: &Process| {
        Auditor::new(process.chain.clone(), world.clock.clone(), 1_000_000)
    };
    // Damaged bytes: a blob of bodies, a chunk, a body of the tail.
    for at in 0..3 {
        let (world, process) = world(2).await;
        let number = if at == 2 {
            damage_tail(&world).await
        } else {
            let chunk = process.chain.index().chunks()[1].clone();
            let token = if at == 0 { chunk.token } else { chunk.bodies[0].token };
            let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
            let is_it = |name: &str| {
                name.ends_with(&format!("{token:016x}")) && name.contains("bodies") == (at == 1)
            };
            let blob = blobs.iter().find(|blob| is_it(blob.name.as_str())).expect("it is there");
            damage(&world, &blob.name).await;
            chunk.blocks.start
        };
        process.die();
        let process = world.write().await;
        let auditor = auditor(&world, &process);
        let refused = repairs(&process);
        auditor.round(None).await;
        assert!(auditor.report().damaged > 0, "{at}");
        auditor.round(Some(&refused)).await;
        let report = auditor.report();
        assert!(report.is_clean() && report.refilled > 0, "{at}: {report:?}");
        assert_eq!(process.chain.index().health().degraded, None);
        let changed = process.chain.index().last_replacement();
        assert_eq!(changed, u64::from(at == 2), "bytes that were published are no replacement");
        process.catch_up().await.expect("it goes on");
        world.check(&process.chain, 1).await;
        assert!(audit(&process.chain, number..number + 1, |_| {}).await.expect("looks").is_clean());
    }
    // False logs that claim to be verified: what was published is not what the node has.
    let (world, process) = deceived(true).await;
    let lied = Block::clone(&world.sim.block(50).expect("made"));
    let mut lied = Block { verified: Verify::Full, ..lied };
    assert!(Lie::ChangeLog.tell(&mut lied));
    process.writer.ingest_finalized_block(finalized(lied)).await.expect("it follows");
    let auditor = auditor(&world, &process);
    auditor.round(Some(&repairs(&process))).await;
    let report = auditor.report();
    assert_eq!((report.damaged, report.refilled), (1, 0), "{report:?}");
    assert_eq!(report.findings[0].number, 50);
    assert!(report.findings[0].what.contains("not refilled"), "{report:?}");
    let degraded = world.open().await.index().health().degraded.expect("all processes see it");
    assert_eq!(degraded.cause, Cause::Corruption);
    repairs(&process).repair(50..51).await.expect("a person has decided");
    assert_eq!(process.chain.index().health().degraded, None);
    process.catch_up().await.expect("it goes on");
    auditor.round(Some(&repairs(&process))).await;
    assert!(auditor.report().is_clean(), "{:?}", auditor.report());
}

#[tokio::test(start_paused = true)]
async fn listeners_hear_that_blocks_were_replaced() {
    let (world, process) = world(9).await;
    let follower = world.open().await;
    let mut listeners = [Listener::of(&process.chain).await, Listener::of(&follower).await];
    // Who has just come may be told that something goes that it has not heard of.
    let view = process.chain.view().await.expect("read");
    for number in 0..=view.finalized().expect("there is one").number {
        let block = view.block(number).await.expect("read").expect("stored");
        for listener in &mut listeners {
            listener.blocks.insert(number, Arc::clone(&block));
        }
    }
    world.sim.grow(12);
    process.catch_up().await.expect("nothing is in the way");
    follower.follow().await.expect("it follows");
    listeners[0].hear(&process.chain).await;
    listeners[1].hear(&follower).await;
    let final_head = process.chain.index().health().head.expect("there is one");
    let mut changes = follower.changes();
    process.writer.resolve(Resolution::RebuildFrom(final_head - 2)).await.expect("it is stored");
    follower.follow().await.expect("it follows");
    assert!(changes.try_recv().is_err(), "not before the blocks on top of them");
    let missing = (0..=100).map(|number| (number, u64::MAX)).collect();
    world.source.set_faults(SimFaults { missing, ..SimFaults::default() });
    process.forward.step().await.expect_err("the node has lost its blocks");
    follower.follow().await.expect("it follows");
    world.source.set_faults(SimFaults::default());
    let mut removed = Vec::new();
    while let Ok(change) = changes.try_recv() {
        removed.extend(change.removed.iter().map(|block| block.at.number));
    }
    assert!(removed.is_sorted_by(|one, next| one > next), "highest first: {removed:?}");
    assert!(removed.contains(&final_head) && removed.contains(&(final_head + 1)), "{removed:?}");
    process.catch_up().await.expect("it is fetched again");
    follower.follow().await.expect("it follows");
    listeners[0].hear(&process.chain).await;
    listeners[1].hear(&follower).await;
    world.sim.grow(3);
    process.catch_up().await.expect("it goes on");
    follower.follow().await.expect("it follows");
    listeners[0].hear(&process.chain).await;
    listeners[1].hear(&follower).await;
}

#[tokio::test(start_paused = true)]
async fn listeners_hear_of_other_content_under_the_same_hash() {
    let (world, process) = deceived(false).await;
    let follower = world.open().await;
    let block = Block::clone(&world.sim.block(50).expect("made"));
    let mut lied = Block { verified: Verify::Off, ..block };
    assert!(Lie::ChangeLog.tell(&mut lied));
    process.writer.ingest_finalized_block(finalized(lied.clone())).await.expect("it follows");
    let mut changes = follower.changes();
    follower.follow().await.expect("it follows");
    let told = changes.try_recv().expect("it is told");
    same(told.added.last().expect("the newest"), &lied);
    repairs(&process).repair(50..51).await.expect("it is fetched again");
    follower.follow().await.expect("it follows");
    let change = changes.try_recv().expect("it is told");
    assert_eq!((change.removed.len(), change.added.len()), (1, 1));
    same(&change.removed[0], &lied);
    same(&change.added[0], &world.sim.block(50).expect("made"));
    assert!(changes.try_recv().is_err(), "once");
}

#[tokio::test(start_paused = true)]
async fn all_that_is_stored_can_be_thrown_away_and_comes_back() {
    // Before it comes back, the finalized head may have moved on to another cell.
    for (history, grown) in [(false, 2), (false, 20), (true, 2), (true, 20)] {
        for from in [0, 20, 64] {
            let world = World::new(4, Some(10)).await;
            world.sim.grow(75);
            let process = world.write().await;
            process.catch_up().await.expect("nothing is in the way");
            if history {
                process.writer.maintain().await.expect("it seals");
                assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
            }
            let mut listener = Listener::of(&process.chain).await;
            let rebuilt = process.writer.resolve(Resolution::RebuildFrom(from)).await;
            rebuilt.expect("it is thrown away");
            world.sim.grow(grown);
            process.catch_up().await.expect("it is fetched again");
            listener.hear(&process.chain).await;
            world.sim.grow(17);
            process.catch_up().await.expect("it goes on");
            listener.hear(&process.chain).await;
            assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
            assert!(process.chain.view().await.expect("read").is_complete(), "{from}");
            world.check(&process.chain, 1).await;
        }
    }
}
