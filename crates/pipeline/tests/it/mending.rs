//! Audit and repair: damage is detected, reported, and repaired from the source.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use finalized_log_index::{Cause, Filter, ReplacementKind, Resolution, Settings};
use logmill_chain::sim::{Lie, SimFaults};
use logmill_chain::{Block, VerifyLevel};
use logmill_io::{BlobName, Clock, Condition, ErrorKind, Fault, Faults, KeyRange, MetaStoreExt};
use logmill_pipeline::audit::{AuditReport, Auditor, audit};
use logmill_pipeline::block::to_finalized;
use logmill_pipeline::repair::RepairHandler;
use logmill_pipeline::resolve::{self, ResolveHandler};
use logmill_pipeline::{Chain, Error};
use logmill_sim::chain_world::{Process, World, open, same};
use logmill_work::{Handler as _, RunningJob};

use crate::listener::Listener;

pub(crate) async fn world(seed: u64) -> (World, Process) {
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

/// Flips a bit of every byte of a blob, so that any read of it is damaged.
pub(crate) async fn damage(world: &World, name: &BlobName) {
    let bytes = world.stores.blobs.get(name).await.expect("read").expect("it is there");
    let damaged: Vec<u8> = bytes.iter().map(|byte| byte ^ 1).collect();
    world.stores.blobs.delete(name).await.expect("it works");
    world.stores.blobs.put(name, Bytes::from(damaged)).await.expect("it works");
}

pub(crate) fn repairs(process: &Process) -> RepairHandler {
    RepairHandler::new(Arc::clone(&process.writer), Arc::clone(&process.backward))
}

#[tokio::test(start_paused = true)]
async fn an_audit_of_undamaged_blocks_is_clean() {
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
async fn every_damaged_blob_is_found_named_by_its_blocks_and_repaired() {
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

/// Damages the body of a block of the tail; returns its number.
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
    listener.receive(&process.chain).await;
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
    listener.receive(&process.chain).await;
    world.check(&process.chain, 1).await;
    world.check(&world.open().await, 1).await;
    // The stored block could not be read, so anything derived from it may have been wrong.
    let replacements = process.chain.index().replacements_after(0).await.expect("read");
    assert_eq!(replacements.len(), 1);
    assert_eq!(replacements[0].blocks, number..number + 1);
    assert_eq!(replacements[0].kind, ReplacementKind::Content);
    world.sim.grow(25);
    process.catch_up().await.expect("it goes on");
    listener.receive(&process.chain).await;
    world.check(&process.chain, 1).await;
}

/// A world whose blocks 12 to 19 were stored with false logs, at a level that does not check them.
async fn deceived(sealed: bool) -> (World, Process) {
    let mut world = World::new(6, Some(10)).await;
    world.settings.history_stop = 0;
    world.sim.grow(60);
    let process = world.write().await;
    for number in 0..50 {
        let mut block = Block::clone(&world.sim.block(number).expect("it exists"));
        block.verified = VerifyLevel::Full;
        if (12..20).contains(&number) {
            block.verified = VerifyLevel::Off;
            Lie::ChangeLog.apply(&mut block);
        }
        let stored = process.writer.ingest_finalized_block(to_finalized(block)).await;
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
        // A process that had read the false blocks sees the right ones.
        other.follow().await.expect("it follows");
        assert_eq!(other.index().last_replacement(), index.last_replacement());
        for number in 12..20 {
            let block = other.view().await.expect("read").block(number).await.expect("read");
            same(&block.expect("stored"), &world.sim.block(number).expect("made"));
        }
        // Repairing again changes nothing, so no replacement is recorded.
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
            let text = refused.expect_err("another chain").to_string();
            let number = range.start;
            let stored = world.sim.block(number).expect("made").at.hash;
            let foreign = other.sim.block(number).expect("made").at.hash;
            let both = text.contains(&stored.to_string()) && text.contains(&foreign.to_string());
            assert!(both && text.contains("rebuild-from"), "{text}");
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
        let failed = repairs(&process).repair(12..20).await.expect_err("no node answers");
        assert_eq!(failed.kind(), ErrorKind::Transient, "{failed}");
        assert_eq!(stored_image(&world).await, image);
        world.source.set_faults(SimFaults::default());
        repairs(&process).repair(12..20).await.expect("it is fetched again");
        process.catch_up().await.expect("it goes on");
        world.check(&process.chain, 1).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_that_is_sealed_while_its_replacement_is_fetched_is_tried_again() {
    let mut interrupted = 0;
    for seconds in (5..=45).step_by(10) {
        let (world, process) = deceived(false).await;
        let delay = Duration::from_secs(10);
        world.source.set_faults(SimFaults { delay, ..SimFaults::default() });
        let handler = repairs(&process);
        let seal = async {
            world.clock.sleep(Duration::from_secs(seconds)).await;
            process.writer.maintain().await.expect("it seals");
        };
        let tail_start = || process.chain.index().health().tail_start.expect("there is one");
        let number = tail_start();
        let repair = handler.repair(number..number + 1);
        let (repaired, ()) = futures::future::join(repair, seal).await;
        assert!(tail_start() > number, "it is sealed");
        if let Err(error) = repaired {
            assert_eq!(error.kind(), ErrorKind::Transient, "{seconds}: {error}");
            assert!(error.to_string().contains("has left the tail"), "{error}");
            interrupted += 1;
        }
        handler.repair(12..number + 1).await.expect("it is in a chunk now");
        process.catch_up().await.expect("it goes on");
        world.check(&process.chain, 1).await;
    }
    assert!(interrupted > 0, "it was sealed during a fetch");
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

/// All records of the index except leases, attempts and the queue.
pub(crate) async fn stored_image(world: &World) -> String {
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
async fn the_auditor_refills_damage_and_leaves_false_blocks_to_operators() {
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
    // False logs that claim to be verified: the published logs are not those of the node.
    let (world, process) = deceived(true).await;
    let lied = Block::clone(&world.sim.block(50).expect("made"));
    let mut lied = Block { verified: VerifyLevel::Full, ..lied };
    assert!(Lie::ChangeLog.apply(&mut lied));
    process.writer.ingest_finalized_block(to_finalized(lied)).await.expect("it follows");
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
async fn listeners_are_notified_of_replaced_blocks() {
    let (world, process) = world(9).await;
    let follower = world.open().await;
    let mut listeners = [Listener::of(&process.chain).await, Listener::of(&follower).await];
    // A new listener may be notified of the removal of a block that it does not know.
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
    listeners[0].receive(&process.chain).await;
    listeners[1].receive(&follower).await;
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
    listeners[0].receive(&process.chain).await;
    listeners[1].receive(&follower).await;
    world.sim.grow(3);
    process.catch_up().await.expect("it goes on");
    follower.follow().await.expect("it follows");
    listeners[0].receive(&process.chain).await;
    listeners[1].receive(&follower).await;
}

#[tokio::test(start_paused = true)]
async fn listeners_are_notified_of_changed_content_under_the_same_hash() {
    let (world, process) = deceived(false).await;
    let follower = world.open().await;
    let block = Block::clone(&world.sim.block(50).expect("made"));
    let mut lied = Block { verified: VerifyLevel::Off, ..block };
    assert!(Lie::ChangeLog.apply(&mut lied));
    process.writer.ingest_finalized_block(to_finalized(lied.clone())).await.expect("it follows");
    let mut changes = follower.changes();
    follower.follow().await.expect("it follows");
    let change = changes.try_recv().expect("it is announced");
    same(change.added.last().expect("the newest"), &lied);
    repairs(&process).repair(50..51).await.expect("it is fetched again");
    follower.follow().await.expect("it follows");
    let change = changes.try_recv().expect("it is announced");
    assert_eq!((change.removed.len(), change.added.len()), (1, 1));
    same(&change.removed[0], &lied);
    same(&change.added[0], &world.sim.block(50).expect("made"));
    assert!(changes.try_recv().is_err(), "once");
}

#[tokio::test(start_paused = true)]
async fn a_discarded_index_is_filled_again() {
    // Meanwhile the finalized head may have moved to another cell.
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
            listener.receive(&process.chain).await;
            world.sim.grow(17);
            process.catch_up().await.expect("it goes on");
            listener.receive(&process.chain).await;
            assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
            assert!(process.chain.view().await.expect("read").is_complete(), "{from}");
            world.check(&process.chain, 1).await;
        }
    }
}

/// A false block that claims to be verified.
fn falsified(world: &World, number: u64) -> Block {
    let block = Block::clone(&world.sim.block(number).expect("made"));
    let mut lied = Block { verified: VerifyLevel::Full, ..block };
    assert!(Lie::ChangeLog.apply(&mut lied));
    lied
}

/// A block is replaced while a process follows over faulty stores, once or by two tasks concurrently, and then once
/// more. Returns the operations of the faulty part.
async fn announced(faults: &Arc<Faults>, at_once: bool) -> std::ops::Range<u64> {
    let (world, process) = deceived(false).await;
    let stores = world.stores.with_faults(faults);
    let follower = open(&stores, &world.index_settings).await.expect("it opens");
    let lied = to_finalized(falsified(&world, 50));
    process.writer.ingest_finalized_block(lied).await.expect("it follows");
    follower.follow().await.expect("it follows");
    let mut changes = follower.changes();
    repairs(&process).repair(50..51).await.expect("it is fetched again");
    let before = faults.operations();
    if at_once {
        let (one, other) = futures::future::join(follower.follow(), follower.follow()).await;
        one.and(other).expect("nothing is in the way");
    } else {
        let _ = follower.follow().await;
    }
    let after = faults.operations();
    follower.follow().await.expect("it follows");
    let (mut removed, mut added) = (Vec::new(), Vec::new());
    while let Ok(change) = changes.try_recv() {
        removed.extend(change.removed.iter().map(|block| block.at.number));
        added.extend(change.added.iter().map(|block| block.at.number));
    }
    assert_eq!((removed, added), (vec![50], vec![50]), "once, and not never");
    before..after
}

#[tokio::test(start_paused = true)]
async fn a_replacement_is_announced_once_whatever_fails_meanwhile() {
    let operations = announced(&Faults::none(), false).await;
    assert!(operations.end - operations.start > 3, "{operations:?}");
    for operation in operations {
        announced(&Faults::at(operation, Fault::Before), false).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_replacement_is_announced_once_though_two_tasks_look_at_once() {
    announced(&Faults::slow(std::time::Duration::from_millis(7)), true).await;
}

#[tokio::test(start_paused = true)]
async fn the_repairing_process_announces_a_replacement_without_following() {
    let (world, first) = deceived(false).await;
    let chain = world.open().await;
    let lied = falsified(&world, 50);
    first.writer.ingest_finalized_block(to_finalized(lied.clone())).await.expect("it is next");
    // Only announced blocks are taken back, so this process reads the false one before it takes over.
    chain.follow().await.expect("it follows");
    first.die();
    world.pause();
    let process = world.write_over(chain, "two", &world.source()).await.expect("it takes over");
    let mut changes = process.chain.changes();
    repairs(&process).repair(50..51).await.expect("it is fetched again");
    let change = changes.try_recv().expect("it is announced at once");
    assert_eq!((change.removed.len(), change.added.len()), (1, 1));
    same(&change.removed[0], &lied);
    same(&change.added[0], &world.sim.block(50).expect("made"));
    assert!(changes.try_recv().is_err(), "once");
}

#[tokio::test(start_paused = true)]
async fn the_auditor_does_not_replace_published_logs_of_a_chunk() {
    let (world, process) = deceived(true).await;
    let chunks = process.chain.index().chunks();
    assert!(chunks.iter().any(|chunk| chunk.blocks.contains(&15)), "{chunks:?}");
    let image = stored_image(&world).await;
    let refused = repairs(&process).refill(15).await.expect_err("its logs are published");
    assert!(logmill_io::error_chain(&refused).contains("logs"), "{refused}");
    assert_eq!(stored_image(&world).await, image);
    assert_eq!(process.chain.index().last_replacement(), 0);
    repairs(&process).repair(15..16).await.expect("an operator may replace them");
    assert_eq!(process.chain.index().last_replacement(), 1);
}

/// Two audit rounds over stores that may fail; returns both reports, and the number of operations after the first.
async fn rounds(faults: &Arc<Faults>) -> (AuditReport, AuditReport, u64) {
    let (world, process) = world(2).await;
    let chunk = process.chain.index().chunks().last().cloned().expect("there are chunks");
    let token = format!("{:016x}", chunk.bodies[0].token);
    let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
    let is_it = |name: &str| name.ends_with(&token) && name.contains("bodies");
    let blob = blobs.iter().find(|blob| is_it(blob.name.as_str())).expect("it is there");
    damage(&world, &blob.name).await;
    // No cache.
    let settings = Settings { cache_bytes: 0, ..world.index_settings.clone() };
    let chain = open(&world.stores.with_faults(faults), &settings).await.expect("it opens");
    let auditor = Auditor::new(chain, world.clock.clone(), 1_000_000);
    auditor.round(None).await;
    let (first, operations) = (auditor.report(), faults.operations());
    auditor.round(None).await;
    (first, auditor.report(), operations)
}

#[tokio::test(start_paused = true)]
async fn an_audit_round_that_ends_early_keeps_earlier_findings_of_later_blocks() {
    let counted = Faults::none();
    let (first, second, operations) = rounds(&counted).await;
    assert!(first.damaged > 0);
    assert_eq!(first.findings, second.findings);
    let faults = Faults::at(operations + 2, Fault::Before);
    let (first, cut_short, _) = rounds(&faults).await;
    assert!(faults.operations() < counted.operations(), "it ended early");
    assert_eq!(cut_short.damaged, first.damaged, "{cut_short:?}");
    assert_eq!(cut_short.findings, first.findings);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_does_not_answer_is_no_reason_to_degrade_the_index() {
    let (world, process) = deceived(true).await;
    let lied = to_finalized(falsified(&world, 50));
    process.writer.ingest_finalized_block(lied).await.expect("it follows");
    world.source.set_faults(SimFaults { fail_every: 1, ..SimFaults::default() });
    let auditor = Auditor::new(process.chain.clone(), world.clock.clone(), 1_000_000);
    auditor.round(Some(&repairs(&process))).await;
    let report = auditor.report();
    assert_eq!((report.damaged, report.refilled), (1, 0), "{report:?}");
    assert!(report.findings[0].what.contains("not refilled"), "{report:?}");
    assert_eq!(process.chain.index().health().degraded, None, "the next round tries again");
    assert_eq!(world.open().await.index().health().degraded, None);
}

#[tokio::test(start_paused = true)]
async fn repairing_one_false_block_leaves_the_index_degraded_by_another() {
    let (world, process) = deceived(true).await;
    world.sim.grow(10);
    for number in [50, 51] {
        let lied = to_finalized(falsified(&world, number));
        process.writer.ingest_finalized_block(lied).await.expect("it follows");
    }
    let auditor = Auditor::new(process.chain.clone(), world.clock.clone(), 1_000_000);
    auditor.round(Some(&repairs(&process))).await;
    assert_eq!(auditor.report().damaged, 2);
    let degraded = || process.chain.index().health().degraded;
    assert_eq!(degraded().expect("both are false").damaged.len(), 2);
    repairs(&process).repair(50..51).await.expect("a person has decided");
    let left = degraded().expect("the other is false");
    assert!(left.reason.contains("block 51"), "{left:?}");
    assert!(process.catch_up().await.is_err(), "nothing is written on top of it");
    repairs(&process).repair(51..52).await.expect("a person has decided");
    assert_eq!(degraded(), None);
    process.catch_up().await.expect("it goes on");
}

#[tokio::test(start_paused = true)]
async fn the_auditor_refills_known_damage_before_it_reaches_it() {
    // The damage is known before the round begins, or becomes known during it.
    for known_before in [true, false] {
        let (world, process) = world(2).await;
        process.die();
        let process = world.write().await;
        let index = process.chain.index().clone();
        let chunk = index.chunks().last().cloned().expect("there are chunks");
        let blobs = world.stores.blobs.list("", None, 1_000).await.expect("it lists");
        let name = format!("{:016x}", chunk.token);
        let is_it = |name_of: &str| name_of.ends_with(&name) && !name_of.contains("bodies");
        let blob = blobs.iter().find(|blob| is_it(blob.name.as_str())).expect("it is there");
        damage(&world, &blob.name).await;
        let first = Filter::range(chunk.blocks.start..=chunk.blocks.start);
        if known_before {
            index.query_finalized(&first).await.expect_err("it is damaged");
        }
        // At this rate the auditor reaches it after a minute.
        let auditor = Auditor::new(process.chain.clone(), world.clock.clone(), 1);
        assert!(chunk.blocks.start >= 32, "{chunk:?}");
        let repairs = repairs(&process);
        let refilled = async {
            while auditor.report().verified == 0 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            if !known_before {
                index.query_finalized(&first).await.expect_err("it is damaged");
            }
            while index.health().degraded.is_some() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::select! {
            biased;
            () = auditor.round(Some(&repairs)) => panic!("it has looked at everything"),
            () = refilled => {}
        }
        assert!(auditor.report().verified <= 17, "{:?}", auditor.report());
        index.query_finalized(&first).await.expect("it is refilled");
        process.catch_up().await.expect("writes go on");
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_of_blocks_that_are_not_stored_says_so() {
    let (_world, process) = world(2).await;
    let index = process.chain.index();
    let chunk = index.chunks()[1].clone();
    process.writer.resolve(Resolution::Discard(chunk.token)).await.expect("it is listed");
    let (first, end) = (chunk.blocks.start, chunk.blocks.end);
    let error = repairs(&process).repair(first..end + 1).await.expect_err("a gap");
    assert!(error.to_string().contains(&format!("block {first} is not stored")), "{error}");
    repairs(&process).repair(end..end + 1).await.expect("it is stored");
    process.fill().await.expect("nothing is in the way");
    process.writer.prune_below(chunk.blocks.end).await.expect("it works");
    assert!(index.pruned_below() > first);
    let error = repairs(&process).repair(first..first + 1).await.expect_err("it is gone");
    assert!(error.to_string().contains("was pruned"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_decision_that_runs_twice_discards_nothing_twice() {
    let (_world, process) = world(2).await;
    let index = process.chain.index();
    let chunk = index.chunks()[1].clone();
    for resolution in [Resolution::Discard(chunk.token), Resolution::RebuildFrom(30)] {
        let before = index.last_replacement();
        let job = resolve::job(1_337, resolution, before, &format!("{resolution:?}"));
        let job = job.expect("a decision");
        process.queue.enqueue(&job).await.expect("it is new");
        let lease = Duration::from_secs(3_600);
        let claims = process.queue.claim(&job.kind, 1, lease, "test").await.expect("a claim");
        let running = || RunningJob { claim: claims[0].clone(), queue: process.queue.clone() };
        let handler = ResolveHandler::new(Arc::clone(&process.writer));
        assert!(handler.run(running()).await.is_ok());
        assert_eq!(index.last_replacement(), before + 1);
        process.catch_up().await.expect("it comes back");
        process.fill().await.expect("it comes back");
        let covered = index.coverage();
        // The first answer was lost: the job runs again.
        assert!(handler.run(running()).await.is_ok());
        assert_eq!((index.last_replacement(), index.coverage()), (before + 1, covered));
        process.queue.complete(&claims[0]).await.expect("it is claimed");
    }
}
