//! Audit and repair: damage is found, named, and mended from the source.

use std::sync::Arc;

use bytes::Bytes;
use logmill_io::{BlobName, Condition, KeyRange, MetaStoreExt};
use logmill_pipeline::audit::{AuditReport, audit};
use logmill_pipeline::repair::RepairHandler;
use logmill_pipeline::{Chain, Error};

use crate::listener::Listener;
use crate::world::{Process, World};

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

#[tokio::test(start_paused = true)]
async fn a_body_of_the_tail_that_was_damaged_is_fetched_again_with_all_that_follows() {
    let (world, process) = world(3).await;
    let mut listener = Listener::of(&process.chain).await;
    // Some of what it has heard of is final by then, and comes again.
    world.sim.grow(8);
    process.catch_up().await.expect("nothing is in the way");
    listener.hear(&process.chain).await;
    let start = process.chain.index().health().tail_start.expect("there is one");
    let bodies = world.stores.meta.scan(&KeyRange::prefix("logindex/body/"), 1_000).await;
    let bodies = bodies.expect("it scans");
    let (key, record) = &bodies[bodies.len() / 2];
    let mut damaged = record.value.to_vec();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    world.stores.meta.put(key.clone(), damaged, Condition::Any).await.expect("it works");
    let report = report(&process.chain).await;
    assert_eq!(report.damaged, 1, "{key}: {report:?}");
    let number = report.findings[0].number;
    assert!(number >= start);
    repairs(&process).repair(number..number + 1).await.expect("it is thrown away");
    let view = process.chain.view().await.expect("read");
    match view.logs(&finalized_log_index::Filter::range(number..=number)).await {
        Err(Error::NotCovered { .. }) => {}
        other => panic!("readers are told that it is missing: {other:?}"),
    }
    process.catch_up().await.expect("it is fetched again");
    listener.hear(&process.chain).await;
    let after = audit(&process.chain, 0..u64::MAX, |_| {}).await.expect("it looks");
    assert!(after.is_clean(), "{after:?}");
    world.check(&process.chain, 1).await;
    world.sim.grow(25);
    process.catch_up().await.expect("it goes on");
    listener.hear(&process.chain).await;
    world.check(&process.chain, 1).await;
}

#[tokio::test(start_paused = true)]
async fn all_that_is_stored_can_be_thrown_away_and_comes_back() {
    // Before it comes back, the finalized head may have moved on to another cell.
    for (history, grown) in [(false, 2), (false, 20), (true, 2), (true, 20)] {
        for range in [0..u64::MAX, 0..1_000, 20..60, 64..70] {
            let world = World::new(4, Some(10)).await;
            world.sim.grow(75);
            let process = world.write().await;
            process.catch_up().await.expect("nothing is in the way");
            if history {
                process.writer.maintain().await.expect("it seals");
                assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
            }
            let mut listener = Listener::of(&process.chain).await;
            repairs(&process).repair(range.clone()).await.expect("it is thrown away");
            world.sim.grow(grown);
            process.catch_up().await.expect("it is fetched again");
            listener.hear(&process.chain).await;
            world.sim.grow(17);
            process.catch_up().await.expect("it goes on");
            listener.hear(&process.chain).await;
            assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
            assert!(process.chain.view().await.expect("read").is_complete(), "{range:?}");
            world.check(&process.chain, 1).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_repair_of_blocks_that_are_not_final_throws_nothing_away() {
    let (world, process) = world(5).await;
    let before = process.chain.covered();
    repairs(&process).repair(70..80).await.expect("there is nothing to do");
    assert_eq!(process.chain.covered(), before);
    world.check(&process.chain, 1).await;
}
