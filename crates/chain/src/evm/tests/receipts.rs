//! Nodes that lack methods, and uncles.

use super::*;

fn lacking(methods: &[&'static str]) -> Quirks {
    Quirks { missing: methods.iter().copied().collect(), ..Quirks::default() }
}

const OF_BLOCK: &str = "eth_getBlockReceipts";
const OF_TRANSACTION: &str = "eth_getTransactionReceipt";

#[tokio::test(start_paused = true)]
async fn receipts_are_requested_one_by_one_if_a_node_has_no_other_method() {
    let whole = pool(vec![Quirks::default()]).all().await;
    let pool = pool(vec![lacking(&[OF_BLOCK])]);
    assert_eq!(pool.all().await, whole);
    assert!(pool.nodes[0].calls_of(OF_TRANSACTION) >= 70);
    let tried = pool.nodes[0].calls_of(OF_BLOCK);
    pool.all().await;
    assert_eq!(pool.nodes[0].calls_of(OF_BLOCK), tried, "it is not tried again at once");
    assert_eq!(pool.status(0).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn blocks_with_logs_only_are_marked_as_verified_by_bloom() {
    let whole = pool(vec![Quirks::default()]).all().await;
    let quirks = Quirks { logs_range_max: Some(3), ..lacking(&[OF_BLOCK, OF_TRANSACTION]) };
    let pool = pool_with(vec![quirks], |settings| settings.verify = VerifyLevel::Bloom, |_, _| {});
    let blocks = pool.all().await;
    for (block, whole) in blocks.iter().zip(&whole) {
        assert_eq!(block.verified, VerifyLevel::Bloom);
        let logs = |block: &Block| {
            block.receipts.iter().map(|receipt| receipt.logs.clone()).collect::<Vec<_>>()
        };
        assert_eq!(logs(block), logs(whole));
        let types = |block: &Block| {
            block.receipts.iter().map(|receipt| receipt.tx_type).collect::<Vec<_>>()
        };
        assert_eq!(types(block), types(whole));
    }
    let by_hash = pool.source.block_by_hash(whole[9].at.hash).await.expect("an answer");
    assert_eq!(by_hash.expect("a block").log_count(), whole[9].log_count());
}

#[tokio::test(start_paused = true)]
async fn at_level_off_logs_without_receipts_may_be_of_any_transaction_and_keep_their_indexes() {
    let strange = alloy_primitives::B256::repeat_byte(0x77);
    let tamper = tamper(move |method, result| {
        if method != "eth_getLogs" {
            return;
        }
        let logs = result.as_array_mut().expect("logs");
        logs.last_mut().expect("one")["transactionHash"] = json!(strange);
        logs.first_mut().expect("one").as_object_mut().expect("a log").remove("transactionHash");
    });
    let quirks = || {
        let chain_id = Some(4_242);
        Quirks { tamper: tamper.clone(), chain_id, ..lacking(&[OF_BLOCK, OF_TRANSACTION]) }
    };
    let pool = pool_with(vec![quirks()], |settings| settings.verify = VerifyLevel::Off, |_, _| {});
    let block = pool.blocks(8..9).await.expect("it does not stop").remove(0);
    assert_eq!((block.listed_transactions(), block.transactions.len()), (3, 5));
    assert_eq!(block.transactions[4].hash, strange);
    let counts: Vec<usize> = block.receipts.iter().map(|receipt| receipt.logs.len()).collect();
    assert_eq!(counts, [0, 2, 2, 1, 1]);
    let set = |settings: &mut EvmSettings| settings.verify = VerifyLevel::Bloom;
    let checked = pool_with(vec![quirks()], set, |_, _| {});
    let error = checked.blocks(8..9).await.expect_err("not in the block");
    assert!(logmill_io::error_chain(&error).contains("which is not in the block"), "{error}");
    // The indexes increase from transaction to transaction, and differ from the positions.
    let lacking = Quirks { chain_id: Some(4_242), ..lacking(&[OF_BLOCK, OF_TRANSACTION]) };
    let pool = pool_with(vec![lacking], |settings| settings.verify = VerifyLevel::Off, |_, _| {});
    let block = pool.blocks(8..9).await.expect("a block").remove(0);
    let indexes: Vec<u32> = (0..6).map(|position| block.log_index(position)).collect();
    assert_eq!(indexes, [0, 100, 101, 200, 201, 202]);
}

#[tokio::test(start_paused = true)]
async fn logs_without_receipts_do_not_pass_full_verification() {
    let pool = pool(vec![lacking(&[OF_BLOCK, OF_TRANSACTION])]);
    let error = pool.blocks(3..4).await.expect_err("not verifiable").to_string();
    assert!(error.contains("use a node that supports eth_getBlockReceipts"), "{error}");
    assert!(!error.contains("\"bloom\""), "{error}");
    assert_eq!(pool.status(0).lies, 0);
}

#[tokio::test(start_paused = true)]
async fn uncles_are_checked_against_the_header() {
    let chain = || FakeChain::with_uncle(LENGTH);
    let honest = pool_of_chains(vec![(chain(), Quirks::default())], |_| {}, |_, _| {});
    assert_eq!(honest.all().await.pop().expect("a block").uncles.len(), 1);
    let tamper = tamper(|method, result| {
        if method == "eth_getUncleByBlockHashAndIndex" {
            result["gasLimit"] = json!("0x8");
        }
    });
    let quirks = Quirks { tamper, ..Quirks::default() };
    let liar =
        pool_of_chains(vec![(chain(), quirks), (chain(), Quirks::default())], |_| {}, |_, _| {});
    liar.blocks(LENGTH - 1..LENGTH).await.expect("of the other node");
    assert_eq!(liar.status(0).lies, 1);
}

#[tokio::test(start_paused = true)]
async fn blocks_of_a_node_without_the_uncle_method_are_verified_without_uncles() {
    const UNCLES: &str = "eth_getUncleByBlockHashAndIndex";
    let chain = || FakeChain::with_uncle(LENGTH);
    let pool = pool_of_chains(vec![(chain(), lacking(&[UNCLES]))], |_| {}, |_, _| {});
    pool.source.info().await.expect("it introduces itself");
    assert_eq!(pool.status(0).lacks, [UNCLES], "it is known from the start");
    let last = pool.all().await.pop().expect("a block");
    assert_eq!((last.uncles.len(), last.verified), (1, VerifyLevel::Full));
    assert_eq!(pool.status(0).failures, 0);
    assert_eq!(pool.nodes[0].calls_of(UNCLES), 1, "it is not asked again");
    // Also if it was not asked at startup.
    let pool = pool_of_chains(vec![(chain(), lacking(&[UNCLES]))], |_| {}, |_, _| {});
    assert_eq!(pool.all().await.len(), 40);
    assert_eq!(pool.status(0).lacks, [UNCLES]);
    // Also if it keeps only the hashes of uncles, as a Logmill without nodes does.
    let hashes_alone = tamper(|method, result| {
        if method == UNCLES && result["hash"].is_string() {
            *result = json!({fake::INSTEAD: "pruned history unavailable"});
        }
    });
    let quirks = Quirks { tamper: hashes_alone, ..Quirks::default() };
    let pool = pool_of_chains(vec![(chain(), quirks)], |_| {}, |_, _| {});
    let last = pool.all().await.pop().expect("a block");
    assert_eq!((last.uncles.len(), last.verified), (1, VerifyLevel::Full));
    assert_eq!((pool.status(0).failures, pool.status(0).lies), (0, 0));
    assert_eq!(pool.status(0).lacks, [UNCLES]);
    let honest = pool_of_chains(vec![(chain(), Quirks::default())], |_| {}, |_, _| {});
    honest.source.info().await.expect("it introduces itself");
    assert!(honest.status(0).lacks.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_block_is_found_by_its_hash_or_not() {
    let pool = pool(vec![Quirks::default()]);
    let hash = pool.nodes[0].chain.lock().unwrap().hash(11);
    let block = pool.source.block_by_hash(hash).await.expect("an answer").expect("a block");
    assert_eq!((block.at.number, block.verified), (11, VerifyLevel::Full));
    let unknown = alloy_primitives::B256::repeat_byte(9);
    assert_eq!(pool.source.block_by_hash(unknown).await.expect("an answer"), None);
}
