//! The workload is deterministic and has mainnet's shape.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::types::TOPICS_MAX;

fn chain(seed: u64) -> Workload {
    Workload::new(WorkloadSettings { seed, ..WorkloadSettings::default() })
}

#[test]
fn the_same_seed_generates_the_same_chain() {
    let of = |seed| chain(seed).take(20).collect::<Vec<_>>();
    assert_eq!(of(1), of(1));
    assert_ne!(of(1)[0].hash, of(2)[0].hash);
    assert_ne!(of(1)[0].logs, of(2)[0].logs);
}

#[test]
fn blocks_are_valid_and_link() {
    let blocks: Vec<_> = chain(3).take(600).collect();
    for block in &blocks {
        block.validate().unwrap();
    }
    for pair in blocks.windows(2) {
        assert_eq!(pair[0].hash, pair[1].parent_hash);
        assert_eq!(
            (pair[0].number + 1, pair[0].timestamp + 12),
            (pair[1].number, pair[1].timestamp)
        );
    }
    assert!(blocks.iter().any(|block| block.logs.is_empty()));
    let counts = || blocks.iter().map(|block| block.logs.len()).filter(|count| *count > 0);
    assert!(counts().min().unwrap() >= 167 && counts().max().unwrap() <= 838);
    assert_share("logs per block", counts().sum(), blocks.len(), 300_000..370_000);
}

#[test]
fn the_shape_is_that_of_mainnet() {
    let blocks: Vec<_> = chain(1).take(51).collect();
    let logs: Vec<_> = blocks.iter().flat_map(|block| &block.logs).collect();
    let count = |is: fn(&BlockLog) -> bool| logs.iter().filter(|log| is(log)).count();
    let all = logs.len();
    assert_share("Transfer", count(|log| log.topics[0] == shape::TRANSFER), all, 430..480);
    assert_share("WETH", count(|log| log.address == shape::WETH), all, 170..205);
    let bytes: Vec<_> = logs.iter().map(|log| log.data.len()).collect();
    assert_share("bytes of data", bytes.iter().sum(), all, 62_000..76_000);
    assert!(bytes.iter().all(|bytes| bytes % 32 == 0 && *bytes <= 3_328));
    let transactions: BTreeSet<_> = logs.iter().map(|log| log.transaction_hash).collect();
    assert_share("logs per transaction", all, transactions.len(), 2_800..3_200);
    let addresses: BTreeSet<_> = logs.iter().map(|log| log.address).collect();
    assert!((1_500..2_400).contains(&addresses.len()), "{} addresses", addresses.len());
    let topics: BTreeSet<_> = logs.iter().map(|log| log.topics[0]).collect();
    assert!((450..800).contains(&topics.len()), "{} of topic0", topics.len());
}

#[test]
fn wallets_and_hashes_are_hot_rare_or_once() {
    let blocks: Vec<_> = chain(1).take(300).collect();
    let mut counts = BTreeMap::new();
    for log in blocks.iter().flat_map(|block| &block.logs) {
        for topic in &log.topics[1..] {
            *counts.entry(*topic).or_insert(0) += 1;
        }
    }
    let once = counts.values().filter(|count| **count == 1).count();
    assert_share("once", once, counts.len(), 500..900);
    let all = counts.values().sum();
    assert_share("hottest", *counts.values().max().unwrap(), all, 5..80);
}

#[test]
fn terms_occur_as_often_as_documented() {
    let mut chain = chain(5);
    assert_eq!(chain.terms().rare_wallet(0), None);
    let blocks: Vec<_> = chain.by_ref().take(300).collect();
    let logs: Vec<_> = blocks.iter().flat_map(|block| &block.logs).collect();
    let at = |position: usize, topic: B256| {
        logs.iter().filter(|log| log.topics.get(position) == Some(&topic)).count()
    };
    let terms = chain.terms();
    for n in 0..20 {
        let wallet = terms.rare_wallet(n).unwrap();
        assert!((1..200).contains(&at(2, wallet)), "{}", at(2, wallet));
        assert_eq!(at(1, terms.one_off_topic(n).unwrap()), 1);
        assert!((0..TOPICS_MAX).all(|position| at(position, terms.absent_topic(n)) == 0));
        let mid = logs.iter().filter(|log| log.address == terms.mid_address(n)).count();
        assert!((3..600).contains(&mid), "{mid}");
    }
}

/// Fails unless `part / all`, in thousandths, is in the range.
#[track_caller]
fn assert_share(what: &str, part: usize, all: usize, thousandths: std::ops::Range<usize>) {
    let share = part * 1_000 / all;
    assert!(thousandths.contains(&share), "{what}: {share} thousandths, expected {thousandths:?}");
}
