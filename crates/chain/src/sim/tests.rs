//! Tests of the simulated chain.

use std::collections::{BTreeMap, BTreeSet};

use alloy_consensus::TxEnvelope;
use alloy_eips::eip2718::Decodable2718;

use super::*;
use crate::block::{Outcome, TransactionForm};
use crate::mismatch::Mismatch;
use crate::sender::Sender;
use crate::stored;
use crate::verify::verify;
use crate::verify_level::VerifyLevel;

fn grown(seed: u64, shape: Shape, blocks: u64) -> SimChain {
    let chain = SimChain::new(seed, shape);
    chain.grow(blocks);
    chain
}

fn blocks(chain: &SimChain) -> Vec<Arc<Block>> {
    (0..=chain.latest().number).map(|number| chain.block(number).expect("grown")).collect()
}

#[test]
fn equal_seeds_produce_equal_bytes_and_others_differ() {
    let bytes = |seed| {
        let chain = grown(seed, Shape::sparse(), 40);
        chain.reorg(5, 8).expect("not final");
        blocks(&chain).iter().flat_map(|block| stored::encode(block)).collect::<Vec<u8>>()
    };
    assert_eq!(bytes(3), bytes(3));
    assert_ne!(bytes(3), bytes(4));
}

/// A reproducible chain: if this changes, every recorded answer changes.
#[test]
fn the_chain_of_seed_1_has_a_known_hash() {
    let chain = grown(1, Shape::sparse(), 100);
    assert_eq!(chain.latest().hash.to_string(), HASH_OF_BLOCK_100);
}

const HASH_OF_BLOCK_100: &str =
    "0x8139b02da6882a24db33f466e92175f7a63794bc37f36988b7a70ec6d8208b90";

#[test]
fn every_block_of_every_fork_verifies_in_full_and_links() {
    for fork in [Fork::Homestead, Fork::London, Fork::Prague] {
        let chain = grown(11, Shape::sparse().at(fork), 150);
        let mut parent = B256::ZERO;
        for block in blocks(&chain) {
            let mut block = Block::clone(&block);
            verify(&mut block, VerifyLevel::Full).unwrap_or_else(|error| {
                panic!("{fork:?}, block {}: {error}", block.at.number);
            });
            assert_eq!(block.at.parent_hash, parent);
            parent = block.at.hash;
        }
    }
    let block = grown(5, Shape::mainnet(), 2).block(2).expect("grown");
    verify(&mut Block::clone(&block), VerifyLevel::Full).expect("a block like mainnet's verifies");
}

#[test]
fn transactions_are_canonical_and_recover_to_accounts_of_the_chain() {
    let chain = grown(2, Shape::sparse(), 300);
    let accounts: BTreeSet<_> = (0..16).map(|rank| chain.actors().account(rank)).collect();
    let mut types = BTreeSet::new();
    for block in blocks(&chain) {
        for (transaction, receipt) in block.transactions.iter().zip(&block.receipts) {
            let TransactionForm::Canonical(bytes) = &transaction.form else { panic!("canonical") };
            let envelope = TxEnvelope::decode_2718_exact(bytes).expect("canonical");
            assert_eq!(*envelope.tx_hash(), transaction.hash);
            assert_eq!(u8::from(envelope.tx_type()), receipt.tx_type);
            assert!(accounts.contains(&Sender::of(&envelope).address().expect("signed")));
            types.insert(receipt.tx_type);
        }
    }
    assert_eq!(types, BTreeSet::from([0, 1, 2, 3, 4]));
}

#[test]
fn the_chain_has_every_kind_of_log_with_mainnets_skew() {
    let chain = grown(9, Shape::sparse(), 1_000);
    let (mut by_topic, mut by_address) = (BTreeMap::new(), BTreeMap::new());
    let (mut lengths, mut count, mut failed) = (BTreeSet::new(), 0usize, 0usize);
    for block in blocks(&chain) {
        failed += block
            .receipts
            .iter()
            .filter(|receipt| receipt.outcome == Outcome::Status(false))
            .count();
        for placed in block.logs() {
            count += 1;
            lengths.insert(placed.log.topics.len());
            *by_address.entry(placed.log.address).or_insert(0usize) += 1;
            *by_topic.entry(placed.log.topics.first().copied()).or_insert(0usize) += 1;
        }
    }
    assert!((8_000..12_000).contains(&count), "{count} logs of 1 000 blocks of 10");
    assert!(failed > 20, "{failed}");
    assert_eq!(lengths, BTreeSet::from([0, 1, 2, 3, 4]));
    for topic in [
        action::TRANSFER,
        action::APPROVAL,
        action::TRANSFER_SINGLE,
        action::TRANSFER_BATCH,
        action::SYNC,
        action::SWAP_V2,
        action::SWAP_V3,
        action::DEPOSIT,
        action::WITHDRAWAL,
        action::FEES_COLLECTED,
    ] {
        assert!(by_topic.get(&Some(topic)).is_some_and(|count| *count > 20), "{topic}");
    }
    let transfers = by_topic[&Some(action::TRANSFER)];
    assert!(transfers * 3 > count && transfers * 3 < count * 2, "{transfers} of {count}");
    assert!(by_address[&WETH] * 10 > count, "{}", by_address[&WETH]);
    assert!(by_address[&FEE_COLLECTOR] > 100);
}

#[test]
fn a_block_built_again_is_the_same_block() {
    let chain = grown(6, Shape::sparse(), 20);
    let kept = blocks(&chain);
    let other = SimChain::new(6, Shape::sparse());
    other.grow(20);
    for block in kept {
        let again = {
            other.state().forget();
            other.block(block.at.number).expect("grown")
        };
        assert_eq!(again, block);
    }
}

#[test]
fn a_reorg_replaces_the_top_and_links_to_what_stays() {
    let chain = grown(4, Shape::sparse(), 50);
    let old: Vec<BlockRef> = (0..=50).filter_map(|number| chain.at(number)).collect();
    let latest = chain.reorg(7, 9).expect("not final");
    assert_eq!(latest.number, 52);
    assert_eq!(chain.at(43), Some(old[43]));
    assert_eq!(chain.at(44).expect("new").parent_hash, old[43].hash);
    for number in 44..=50u64 {
        let dead = old[usize::try_from(number).expect("small")];
        assert_ne!(chain.at(number).expect("new").hash, dead.hash);
        assert_eq!(chain.block_by_hash(dead.hash).expect("remembered").at, dead);
        assert!(!chain.is_canonical(dead.hash));
    }
    let other = chain.reorg(9, 9).expect("not final");
    assert_ne!(other.hash, latest.hash, "a second reorg is another branch");
}

#[test]
fn final_blocks_are_not_replaced() {
    let chain = grown(4, Shape::sparse(), 100);
    assert_eq!(chain.heads().finalized.expect("final").number, 36);
    let error = chain.reorg(65, 65).expect_err("final");
    assert!(error.to_string().contains("final"), "{error}");
    chain.reorg(64, 64).expect("all that is not final");
    chain.set_finality_lag(None);
    chain.grow(100);
    assert_eq!(chain.heads().finalized.expect("final").number, 36);
    chain.set_finalized(200).expect("exists");
    chain.set_finalized(199).expect_err("goes down");
    chain.set_finalized(201).expect_err("is not there");
    let Heads { latest, safe, finalized } = chain.heads();
    assert_eq!(finalized, Some(latest));
    assert_eq!(safe, Some(latest));
}

#[test]
fn every_lie_is_detected_with_its_reason() {
    let chain = grown(8, Shape::sparse(), 60);
    for lie in Lie::ALL {
        let mut told = 0;
        for block in blocks(&chain) {
            let mut block = Block::clone(&block);
            if !lie.apply(&mut block) {
                continue;
            }
            told += 1;
            let mismatch = verify(&mut block, VerifyLevel::Full).expect_err("a lie");
            let expected = match lie {
                Lie::DropLog | Lie::AddLog => matches!(
                    mismatch,
                    Mismatch::LogsBloom { .. } | Mismatch::Root { what: "receipts", .. }
                ),
                Lie::ChangeLog => matches!(mismatch, Mismatch::Root { what: "receipts", .. }),
                Lie::SwapReceipts => matches!(
                    mismatch,
                    Mismatch::Root { what: "receipts", .. }
                        | Mismatch::Field { field: "gas used", .. }
                ),
                Lie::DropReceipt => matches!(mismatch, Mismatch::Receipts { .. }),
                Lie::DropTransaction => {
                    matches!(mismatch, Mismatch::Field { field: "gas used", .. })
                }
                Lie::WrongParent => {
                    matches!(mismatch, Mismatch::Field { field: "parent hash", .. })
                }
                Lie::WrongHash => matches!(mismatch, Mismatch::HeaderHash { .. }),
                Lie::WrongTime => matches!(mismatch, Mismatch::Field { field: "timestamp", .. }),
            };
            assert!(expected, "{lie:?}: {mismatch}");
            assert_eq!(block.verified, VerifyLevel::Off);
        }
        assert!(told > 10, "{lie:?} was told {told} times");
    }
}

#[tokio::test]
async fn waiters_are_notified_of_later_and_earlier_changes() {
    let chain = grown(4, Shape::sparse(), 1);
    let version = chain.version();
    chain.grow(1);
    chain.changed(version).await;
    let version = chain.version();
    let wait = chain.changed(version);
    let ((), _) = futures::join!(wait, async { chain.reorg(1, 1) });
}
