//! Nodes that are late with parts of blocks they announced, and nodes that ask to rest though there is no other.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::fake::INSTEAD;
use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Replaces the first `times` answers to a method with `instead`.
fn late(method: &'static str, times: usize, instead: &Value) -> Quirks {
    let (left, instead) = (AtomicUsize::new(times), instead.clone());
    let tamper = tamper(move |called, result| {
        let is_left = |left: usize| left.checked_sub(1);
        if called == method
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_left).is_ok()
        {
            *result = instead.clone();
        }
    });
    Quirks { tamper, ..Quirks::default() }
}

#[tokio::test(start_paused = true)]
async fn receipts_that_come_late_are_waited_for_and_are_no_lie() {
    let cases = [
        (vec![], "eth_getBlockReceipts", json!(null), VerifyLevel::Full),
        (vec![], "eth_getBlockReceipts", json!([]), VerifyLevel::Full),
        (vec![], "eth_getBlockReceipts", json!({INSTEAD: "header not found"}), VerifyLevel::Full),
        (vec!["eth_getBlockReceipts"], "eth_getTransactionReceipt", json!(null), VerifyLevel::Full),
        (
            vec!["eth_getBlockReceipts"],
            "eth_getTransactionReceipt",
            json!({INSTEAD: "transaction indexing is in progress"}),
            VerifyLevel::Full,
        ),
        (
            vec!["eth_getBlockReceipts", "eth_getTransactionReceipt"],
            "eth_getLogs",
            json!({INSTEAD: "block range extends beyond current head block"}),
            VerifyLevel::Bloom,
        ),
        (
            vec!["eth_getBlockReceipts", "eth_getTransactionReceipt"],
            "eth_getLogs",
            json!([]),
            VerifyLevel::Bloom,
        ),
    ];
    for (missing, method, instead, level) in cases {
        let quirks = Quirks { missing: missing.into_iter().collect(), ..late(method, 4, &instead) };
        let pool = pool_with(vec![quirks], |settings| settings.verify = level, |_, _| {});
        let blocks = pool.blocks(LENGTH - 1..LENGTH).await;
        let block = blocks.unwrap_or_else(|error| panic!("{method}: {error}")).remove(0);
        assert_eq!(block.verified, level);
        let status = pool.status(0);
        assert_eq!((status.lies, status.failures, status.healthy), (0, 0, true), "{method}");
        let said = status.last_error.expect("it is shown");
        assert!(said.contains("block 39: the node has the block, but not yet its"), "{said}");
        // Waits of 20, 40, 80 and 160 ms; fewer for single receipts.
        assert!(pool.elapsed() < Duration::from_millis(450), "{method}: {:?}", pool.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn missing_receipts_of_a_new_block_are_waited_for_and_then_make_it_false() {
    let short = |times: usize| {
        let left = AtomicUsize::new(times);
        let tamper = tamper(move |method, result| {
            let is_left = |left: usize| left.checked_sub(1);
            if method == "eth_getBlockReceipts"
                && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_left).is_ok()
            {
                result.as_array_mut().expect("receipts").truncate(1);
            }
        });
        Quirks { tamper, ..Quirks::default() }
    };
    for level in [VerifyLevel::Full, VerifyLevel::Bloom] {
        for times in [3, usize::MAX] {
            let set = |settings: &mut EvmSettings| settings.verify = level;
            let pool = pool_with(vec![short(times)], set, |_, _| {});
            pool.source.heads().await.expect("the node's head");
            let blocks = pool.blocks(38..39).await;
            let status = pool.status(0);
            if times == 3 {
                assert_eq!(blocks.expect("they come").remove(0).receipts.len(), 3);
                assert_eq!((status.lies, status.failures, status.healthy), (0, 0, true));
            } else {
                let error = blocks.expect_err("they never come");
                assert!(matches!(error, Error::Mismatch { number: 38, .. }), "{error}");
                assert_eq!(status.lies, 1);
                assert!(pool.elapsed() < Duration::from_secs(3), "{:?}", pool.elapsed());
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn missing_receipts_of_transactions_without_gas_are_waited_for() {
    for level in [VerifyLevel::Full, VerifyLevel::Bloom] {
        let set = |settings: &mut EvmSettings| settings.verify = level;
        let quirks = late("eth_getBlockReceipts", 4, &json!([]));
        let pool = pool_of_chains(vec![(FakeChain::with_idle(LENGTH), quirks)], set, |_, _| {});
        pool.source.heads().await.expect("the node's head");
        let blocks = pool.blocks(LENGTH - 1..LENGTH).await.expect("they come");
        assert_eq!((blocks[0].receipts.len(), blocks[0].verified), (1, level));
        assert_eq!(pool.status(0).lies, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_without_transactions_needs_no_receipts() {
    for level in [VerifyLevel::Full, VerifyLevel::Bloom, VerifyLevel::Off] {
        let tamper = tamper(|method, result| {
            if method == "eth_getBlockReceipts" && result == &json!([]) {
                *result = json!(null);
            }
        });
        let set = |settings: &mut EvmSettings| settings.verify = level;
        let pool = pool_with(vec![Quirks { tamper, ..Quirks::default() }], set, |_, _| {});
        pool.all().await;
        assert!(pool.elapsed() < Duration::from_secs(1), "{level}: {:?}", pool.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_whose_transactions_come_late_is_waited_for_and_is_no_lie() {
    let left = Arc::new(AtomicUsize::new(3));
    let tamper = tamper(move |method, result| {
        let is_left = |left: usize| left.checked_sub(1);
        if method == "eth_getBlockByNumber"
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_left).is_ok()
        {
            result["transactions"] = json!([]);
        }
    });
    let receipts = late("eth_getBlockReceipts", 3, &json!([])).tamper.expect("one");
    let block = tamper.expect("one");
    let both: Tamper = Arc::new(move |method, result| {
        block(method, result);
        receipts(method, result);
    });
    let pool = pool(vec![Quirks { tamper: Some(both), ..Quirks::default() }]);
    let blocks = pool.blocks(LENGTH - 1..LENGTH).await.expect("it comes");
    assert_eq!(blocks[0].transactions.len(), 1);
    let status = pool.status(0);
    assert_eq!((status.lies, status.failures, status.healthy), (0, 0, true));
    assert!(pool.elapsed() < Duration::from_millis(400), "{:?}", pool.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_reported_block_that_is_missing_is_waited_for_briefly_and_then_does_not_exist() {
    // An address may have several nodes behind it.
    let quirks = late("eth_getBlockByNumber", 0, &json!(null));
    let pool = pool(vec![quirks]);
    pool.source.heads().await.expect("heads");
    let tamper = late("eth_getBlockByNumber", 3, &json!(null)).tamper;
    pool.nodes[0].quirks.lock().unwrap().tamper = tamper;
    let before = pool.elapsed();
    pool.blocks(LENGTH - 1..LENGTH).await.expect("it comes");
    assert!(pool.elapsed() - before < Duration::from_millis(250), "{:?}", pool.elapsed());
    pool.nodes[0].quirks.lock().unwrap().tamper =
        late("eth_getBlockByNumber", usize::MAX, &json!(null)).tamper;
    let before = pool.elapsed();
    let error = pool.blocks(LENGTH - 1..LENGTH).await.expect_err("it does not come");
    assert!(matches!(error, Error::NotYet { number: 39 }), "{error}");
    assert!(pool.elapsed() - before < Duration::from_millis(1_500), "{:?}", pool.elapsed());
    assert_eq!(pool.status(0).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn blocks_before_one_with_late_receipts_are_returned() {
    for missing in [vec![], vec!["eth_getBlockReceipts"]] {
        let chain = FakeChain::new(LENGTH, 0, 0);
        let last = chain.blocks[39]["transactions"][0]["hash"].clone();
        let tamper = tamper(move |_, result| {
            let is_receipt = result["transactionHash"] == last;
            if is_receipt || result[0]["transactionHash"] == last {
                *result = json!(null);
            }
        });
        let missing = missing.into_iter().collect();
        let pool = pool(vec![Quirks { missing, tamper, ..Quirks::default() }]);
        let blocks = pool.blocks(36..40).await.expect("those that are there");
        assert_eq!(blocks.last().expect("some").at.number, 38);
        let error = pool.blocks(39..40).await.expect_err("it never comes");
        assert!(error.to_string().contains("not yet its receipts"), "{error}");
        assert_eq!(error.kind(), logmill_io::ErrorKind::Transient);
        assert_eq!(pool.status(0).lies, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn if_one_node_is_late_another_is_asked_at_once() {
    let quirks = vec![late("eth_getBlockReceipts", 100, &json!(null)), Quirks::default()];
    let pool = pool(quirks);
    pool.blocks(LENGTH - 1..LENGTH).await.expect("of the other");
    assert!(pool.elapsed() < Duration::from_millis(200), "{:?}", pool.elapsed());
}

#[tokio::test(start_paused = true)]
async fn receipts_of_old_blocks_that_are_missing_are_pruned() {
    let chain = FakeChain::new(200, 0, 0);
    let quirks = late("eth_getBlockReceipts", usize::MAX, &json!(null));
    let pool = pool_of_chains(vec![(chain, quirks)], |_| {}, |_, _| {});
    pool.source.heads().await.expect("heads");
    let error = pool.blocks(5..6).await.expect_err("pruned");
    assert!(matches!(error, Error::Pruned { number: 5 }), "{error}");
    assert!(pool.elapsed() < Duration::from_secs(1), "it is not waited for");
}

#[tokio::test(start_paused = true)]
async fn the_only_node_is_asked_again_after_a_minute_whatever_it_asks_for() {
    let pool = pool(vec![Quirks { statuses: vec![(429, Some(86_400))], ..Quirks::default() }]);
    let error = pool.blocks(1..2).await.expect_err("it wants to be left alone");
    assert!(
        error
            .to_string()
            .contains("http status 429, Retry-After 86400 s, of which at most 3600 s are waited"),
        "{error}"
    );
    assert!(!pool.status(0).healthy);
    pool.clock.sleep(MINUTE.saturating_sub(pool.elapsed())).await;
    pool.blocks(1..2).await.expect("a block");
    assert!(pool.elapsed() < MINUTE + Duration::from_secs(1), "{:?}", pool.elapsed());
    assert!(pool.status(0).healthy);
}

#[tokio::test(start_paused = true)]
async fn the_only_node_is_asked_again_after_a_minute_however_often_it_lied() {
    let pool = pool(vec![drops_a_log(7)]);
    for _ in 0..12 {
        pool.blocks(7..8).await.expect_err("a lie");
        pool.clock.sleep(MINUTE + Duration::from_secs(1)).await;
    }
    assert_eq!(pool.status(0).lies, 12, "it was asked each time");
    pool.blocks(8..9).await.expect("the next block is right");
}

#[tokio::test(start_paused = true)]
async fn a_node_rests_as_long_as_it_asks_while_another_is_available() {
    let throttled = Quirks { statuses: vec![(429, Some(3600))], ..Quirks::default() };
    let pool = pool(vec![throttled, Quirks::default()]);
    pool.all().await;
    let asked = pool.nodes[0].requests.lock().unwrap().len();
    for _ in 0..10 {
        pool.clock.sleep(MINUTE).await;
        pool.all().await;
    }
    assert_eq!(pool.nodes[0].requests.lock().unwrap().len(), asked, "it was left alone");
    // The other node is lost: a resting one is better than none.
    pool.nodes[1].quirks.lock().unwrap().unreachable = true;
    pool.all().await;
    assert!(pool.nodes[0].requests.lock().unwrap().len() > asked);
}

#[tokio::test(start_paused = true)]
async fn at_level_off_a_missing_receipt_is_waited_for_and_then_counts_as_none() {
    for (times, is_there) in [(3, true), (usize::MAX, false)] {
        let left = Arc::new(AtomicUsize::new(times));
        let tamper = tamper(move |method, result| {
            let is_left = |left: usize| left.checked_sub(1);
            if method == "eth_getBlockReceipts"
                && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_left).is_ok()
                && let Some(receipts) = result.as_array_mut()
            {
                receipts.pop();
            }
        });
        let quirks = Quirks { tamper, finalized: Some(LENGTH - 5), ..Quirks::default() };
        let pool =
            pool_with(vec![quirks], |settings| settings.verify = VerifyLevel::Off, |_, _| {});
        pool.source.heads().await.expect("the node's head");
        // One with several transactions: an empty list of receipts is a different case.
        let has_several = |number: &u64| {
            let chain = pool.nodes[0].chain.lock().unwrap();
            let block = &chain.blocks[usize::try_from(*number).expect("small")];
            block["transactions"].as_array().is_some_and(|all| all.len() > 1)
        };
        let number = (LENGTH - 15..LENGTH).rev().find(has_several).expect("there is one");
        let blocks = pool.blocks(number..number + 1).await;
        let block = blocks.expect("it does not stall").remove(0);
        let last = block.transactions.len() - 1;
        assert_eq!(block.gas_used(last).is_some(), is_there);
        // Old blocks are not waited for.
        let before = pool.elapsed();
        pool.blocks(2..3).await.expect("a block");
        assert!(pool.elapsed() - before < Duration::from_millis(100));
    }
}
