//! Transaction senders: stored if configured, correct, and checked against signatures.

use std::sync::Arc;

use alloy_primitives::Address;
use logmill_chain::{Block, Sender, Transaction};
use logmill_pipeline::Chain;
use logmill_pipeline::audit::audit;
use logmill_pipeline::block::to_finalized;
use logmill_pipeline::repair::RepairHandler;
use logmill_sim::chain_world::{Process, World};

/// A chain with history, a tail and a tip, after a reorganization.
async fn world(store: bool) -> (World, Process) {
    let mut world = World::new(5, Some(10)).await;
    world.settings.store_senders = store;
    world.sim.grow(60);
    let process = world.write().await;
    process.catch_up().await.expect("nothing is in the way");
    world.sim.reorg(5, 8).expect("nothing of it is final");
    process.catch_up().await.expect("nothing is in the way");
    process.writer.maintain().await.expect("it seals");
    assert_eq!(process.fill().await.expect("nothing is in the way"), 0);
    (world, process)
}

async fn stored(chain: &Chain) -> Vec<Arc<Block>> {
    let view = chain.view().await.expect("read");
    let mut blocks = Vec::new();
    for number in view.covered().into_iter().flatten() {
        blocks.push(view.block(number).await.expect("read").expect("covered"));
    }
    assert!(view.is_complete() && blocks.len() > 60);
    blocks
}

fn transactions(blocks: &[Arc<Block>]) -> impl Iterator<Item = &Transaction> {
    blocks.iter().flat_map(|block| &block.transactions)
}

#[tokio::test(start_paused = true)]
async fn senders_are_stored_only_if_the_setting_asks_for_them() {
    for store in [false, true] {
        let (world, process) = world(store).await;
        for chain in [&process.chain, &world.open().await] {
            let blocks = stored(chain).await;
            assert!(transactions(&blocks).count() > 50);
            for transaction in transactions(&blocks) {
                let signer = transaction.recover_sender();
                assert!(signer.address().is_some());
                assert_eq!(transaction.sender, if store { signer } else { Sender::Unknown });
            }
            let report = audit(chain, 0..u64::MAX, |_| {}).await.expect("it looks");
            assert!(report.is_clean(), "{report:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_with_and_without_stored_senders_are_read_alike() {
    let (mut world, process) = world(false).await;
    let before = stored(&process.chain).await.len();
    process.die();
    world.pause();
    world.settings.store_senders = true;
    let process = world.write().await;
    let mut changes = process.chain.changes();
    world.sim.grow(30);
    process.catch_up().await.expect("nothing is in the way");
    let blocks = stored(&process.chain).await;
    let (old, new) = blocks.split_at(before);
    assert!(transactions(old).all(|transaction| transaction.sender == Sender::Unknown));
    assert!(transactions(new).all(|transaction| transaction.sender.address().is_some()));
    assert!(transactions(new).count() > 10);
    // Listeners need not recover them either.
    let mut announced = Vec::new();
    while let Ok(change) = changes.try_recv() {
        announced.extend(change.added.iter().cloned());
    }
    assert!(announced.len() >= 30);
    assert!(transactions(&announced).all(|transaction| transaction.sender.address().is_some()));
}

/// A world whose stored blocks have senders changed by `tamper`.
async fn tampered(tamper: impl Fn(&mut Block)) -> (World, Process) {
    let mut world = World::new(6, Some(10)).await;
    world.settings.store_senders = true;
    world.sim.grow(40);
    let process = world.write().await;
    for number in 0..20 {
        let mut block = Block::clone(&world.sim.block(number).expect("it exists"));
        block.recover_senders();
        tamper(&mut block);
        let stored = process.writer.ingest_finalized_block(to_finalized(block)).await;
        stored.expect("the index does not look into bodies");
    }
    (world, process)
}

#[tokio::test(start_paused = true)]
async fn a_wrong_stored_sender_is_found_and_repaired() {
    for wrong in [Sender::Nobody, Sender::Signer(Address::repeat_byte(7))] {
        let has_some = |block: &Block| !block.transactions.is_empty();
        let (world, process) = tampered(|block| {
            if block.at.number >= 12 && has_some(block) {
                block.transactions.last_mut().expect("it has some").sender = wrong;
            }
        })
        .await;
        let report = audit(&process.chain, 0..u64::MAX, |_| {}).await.expect("it looks");
        let numbers = (12..20).filter(|number| has_some(&world.sim.block(*number).expect("made")));
        let numbers: Vec<u64> = numbers.collect();
        let found: Vec<u64> = report.findings.iter().map(|finding| finding.number).collect();
        assert!(!numbers.is_empty());
        assert_eq!(found, numbers, "{report:?}");
        let what = &report.findings[0].what;
        let name = wrong.address().map_or("no account".to_owned(), |address| address.to_string());
        assert!(what.contains(&format!("is stored as sent by {name}, but")), "{what}");
        let repairs =
            RepairHandler::new(Arc::clone(&process.writer), Arc::clone(&process.backward));
        repairs.repair(found[0]..20).await.expect("it is fetched again");
        process.catch_up().await.expect("it is fetched again");
        let after = audit(&process.chain, 0..u64::MAX, |_| {}).await.expect("it looks");
        assert!(after.is_clean(), "{after:?}");
    }
}
