//! Nodes that lack methods, and uncles.

use super::*;

fn lacking(methods: &[&'static str]) -> Quirks {
    Quirks { missing: methods.iter().copied().collect(), ..Quirks::default() }
}

const OF_BLOCK: &str = "eth_getBlockReceipts";
const OF_TRANSACTION: &str = "eth_getTransactionReceipt";

#[tokio::test(start_paused = true)]
async fn receipts_are_asked_for_one_by_one_where_a_node_has_no_others() {
    let whole = stage(vec![Quirks::default()]).all().await;
    let stage = stage(vec![lacking(&[OF_BLOCK])]);
    assert_eq!(stage.all().await, whole);
    assert!(stage.nodes[0].calls_of(OF_TRANSACTION) >= 70);
    let tried = stage.nodes[0].calls_of(OF_BLOCK);
    stage.all().await;
    assert_eq!(stage.nodes[0].calls_of(OF_BLOCK), tried, "it is not tried again at once");
    assert_eq!(stage.status(0).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn logs_alone_are_verified_by_their_bloom_and_not_called_more() {
    let whole = stage(vec![Quirks::default()]).all().await;
    let quirks = Quirks { logs_range_max: Some(3), ..lacking(&[OF_BLOCK, OF_TRANSACTION]) };
    let stage = stage_of(vec![quirks], |settings| settings.verify = Verify::Bloom, |_, _| {});
    let blocks = stage.all().await;
    for (block, whole) in blocks.iter().zip(&whole) {
        assert_eq!(block.verified, Verify::Bloom);
        let logs = |block: &Block| {
            block.receipts.iter().map(|receipt| receipt.logs.clone()).collect::<Vec<_>>()
        };
        assert_eq!(logs(block), logs(whole));
        let types = |block: &Block| {
            block.receipts.iter().map(|receipt| receipt.tx_type).collect::<Vec<_>>()
        };
        assert_eq!(types(block), types(whole));
    }
    let by_hash = stage.source.block_by_hash(whole[9].at.hash).await.expect("an answer");
    assert_eq!(by_hash.expect("a block").log_count(), whole[9].log_count());
}

#[tokio::test(start_paused = true)]
async fn logs_alone_do_not_do_where_all_must_be_verified() {
    let stage = stage(vec![lacking(&[OF_BLOCK, OF_TRANSACTION])]);
    let error = stage.blocks(3..4).await.expect_err("not verifiable").to_string();
    assert!(error.contains("use a node that answers eth_getBlockReceipts"), "{error}");
    assert!(!error.contains("\"bloom\""), "{error}");
    assert_eq!(stage.status(0).lies, 0);
}

#[tokio::test(start_paused = true)]
async fn uncles_are_checked_against_the_header() {
    let chain = || FakeChain::with_uncle(LENGTH);
    let honest = stage_with(vec![(chain(), Quirks::default())], |_| {}, |_, _| {});
    assert_eq!(honest.all().await.pop().expect("a block").uncles.len(), 1);
    let tamper = tamper(|method, result| {
        if method == "eth_getUncleByBlockHashAndIndex" {
            result["gasLimit"] = json!("0x8");
        }
    });
    let quirks = Quirks { tamper, ..Quirks::default() };
    let liar = stage_with(vec![(chain(), quirks), (chain(), Quirks::default())], |_| {}, |_, _| {});
    liar.blocks(LENGTH - 1..LENGTH).await.expect("of the other node");
    assert_eq!(liar.status(0).lies, 1);
}

#[tokio::test(start_paused = true)]
async fn a_block_is_found_by_its_hash_or_not() {
    let stage = stage(vec![Quirks::default()]);
    let hash = stage.nodes[0].chain.lock().unwrap().hash(11);
    let block = stage.source.block_by_hash(hash).await.expect("an answer").expect("a block");
    assert_eq!((block.at.number, block.verified), (11, Verify::Full));
    let unknown = alloy_primitives::B256::repeat_byte(9);
    assert_eq!(stage.source.block_by_hash(unknown).await.expect("an answer"), None);
}
