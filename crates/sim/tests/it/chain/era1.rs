//! Real era1 files: published history, which must verify to the last byte.

use std::collections::BTreeSet;

use futures::StreamExt;
use logmill_chain::era1::{Era1, Era1Settings};
use logmill_chain::{B256, VerifyLevel};
use logmill_sim::{skip, test_data};

/// Totals of a file.
#[derive(Debug, Default, PartialEq, Eq)]
struct FileTotals {
    blocks: u64,
    transactions: usize,
    uncles: usize,
    first: B256,
    types: BTreeSet<u8>,
}

async fn read(network: &str, first: u64) -> Option<FileTotals> {
    let folder = test_data()?.join("era1");
    let settings =
        Era1Settings { network: Some(network.to_owned()), ..Era1Settings::new(folder, 1) };
    let era1 = Era1::open_folder(settings).await.expect("the files are listed");
    let range = first..first + 8192;
    assert_eq!(era1.ranges(), std::slice::from_ref(&range));
    let mut blocks = era1.blocks(range.clone());
    let mut totals = FileTotals::default();
    while let Some(block) = blocks.next().await {
        let block = block.expect("published history verifies");
        assert_eq!((block.at.number, block.verified), (first + totals.blocks, VerifyLevel::Full));
        if totals.blocks == 0 {
            totals.first = block.at.hash;
        }
        totals.types.extend(block.receipts.iter().map(|receipt| receipt.tx_type));
        totals.blocks += 1;
        totals.transactions += block.transactions.len();
        totals.uncles += block.uncles.len();
        let rlp = block.size;
        assert!((508..100_000).contains(&rlp), "{rlp} bytes");
    }
    let last = era1.last().await.expect("the last block");
    assert_eq!(last.number + 1, range.end);
    Some(totals)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_file_of_mainnet_verifies_whole_with_its_uncles() {
    let Some(totals) = read("mainnet", 0).await else {
        return skip("no recorded chain data");
    };
    assert_eq!((totals.blocks, totals.transactions, totals.uncles), (8192, 0, 1410));
    let genesis = "0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3";
    assert_eq!(totals.first.to_string(), genesis);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_of_sepolia_verifies_whole() {
    let Some(totals) = read("sepolia", 21 * 8192).await else {
        return skip("no recorded chain data");
    };
    assert_eq!((totals.blocks, totals.transactions, totals.uncles), (8192, 93, 1273));
    assert_eq!(totals.types, BTreeSet::from([0, 2]));
}
