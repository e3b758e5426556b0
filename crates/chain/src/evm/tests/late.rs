//! Nodes that come late with what they have announced, and nodes that want to be left alone though there is no other.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// Puts `instead` in the place of a method's first `times` answers for blocks above `from`.
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
        (vec![], "eth_getBlockReceipts", json!(null), Verify::Full),
        (vec![], "eth_getBlockReceipts", json!([]), Verify::Full),
        (vec!["eth_getBlockReceipts"], "eth_getTransactionReceipt", json!(null), Verify::Full),
        (
            vec!["eth_getBlockReceipts", "eth_getTransactionReceipt"],
            "eth_getLogs",
            json!([]),
            Verify::Bloom,
        ),
    ];
    for (missing, method, instead, level) in cases {
        let quirks = Quirks { missing: missing.into_iter().collect(), ..late(method, 4, &instead) };
        let stage = stage_of(vec![quirks], |settings| settings.verify = level, |_, _| {});
        let blocks = stage.blocks(LENGTH - 1..LENGTH).await;
        let block = blocks.unwrap_or_else(|error| panic!("{method}: {error}")).remove(0);
        assert_eq!(block.verified, level);
        let status = stage.status(0);
        assert_eq!((status.lies, status.failures, status.healthy), (0, 0, true), "{method}");
        let said = status.last_error.expect("it is shown");
        assert!(said.contains("block 39: the node has the block and not yet its"), "{said}");
        // Waits of 250, 500, 1000 and 2000 ms, of which those for receipts one by one may be fewer.
        assert!(stage.passed() < Duration::from_secs(6), "{method}: {:?}", stage.passed());
    }
}

#[tokio::test(start_paused = true)]
async fn blocks_before_one_whose_receipts_are_late_are_given() {
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
        let stage = stage(vec![Quirks { missing, tamper, ..Quirks::default() }]);
        let blocks = stage.blocks(36..40).await.expect("those that are there");
        assert_eq!(blocks.last().expect("some").at.number, 38);
        let error = stage.blocks(39..40).await.expect_err("it never comes");
        assert!(error.to_string().contains("not yet its receipts"), "{error}");
        assert_eq!(error.kind(), logmill_io::ErrorKind::Transient);
        assert_eq!(stage.status(0).lies, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn another_node_is_asked_at_once_where_one_is_late() {
    let quirks = vec![late("eth_getBlockReceipts", 100, &json!(null)), Quirks::default()];
    let stage = stage(quirks);
    stage.blocks(LENGTH - 1..LENGTH).await.expect("of the other");
    assert!(stage.passed() < Duration::from_millis(200), "{:?}", stage.passed());
}

#[tokio::test(start_paused = true)]
async fn receipts_of_old_blocks_that_are_missing_are_pruned() {
    let chain = FakeChain::new(200, 0, 0);
    let quirks = late("eth_getBlockReceipts", usize::MAX, &json!(null));
    let stage = stage_with(vec![(chain, quirks)], |_| {}, |_, _| {});
    stage.source.heads().await.expect("heads");
    let error = stage.blocks(5..6).await.expect_err("pruned");
    assert!(matches!(error, Error::Pruned { number: 5 }), "{error}");
    assert!(stage.passed() < Duration::from_secs(1), "it is not waited for");
}

#[tokio::test(start_paused = true)]
async fn the_only_node_is_asked_again_after_a_minute_whatever_it_asks_for() {
    let stage = stage(vec![Quirks { statuses: vec![(429, Some(86_400))], ..Quirks::default() }]);
    let error = stage.blocks(1..2).await.expect_err("it wants to be left alone");
    assert!(error.to_string().contains("http status 429, Retry-After 86400 s"), "{error}");
    assert!(!stage.status(0).healthy);
    stage.clock.sleep(MINUTE.saturating_sub(stage.passed())).await;
    stage.blocks(1..2).await.expect("a block");
    assert!(stage.passed() < MINUTE + Duration::from_secs(1), "{:?}", stage.passed());
    assert!(stage.status(0).healthy);
}

#[tokio::test(start_paused = true)]
async fn the_only_node_is_asked_again_after_a_minute_however_often_it_lied() {
    let stage = stage(vec![drops_a_log(7)]);
    for _ in 0..12 {
        stage.blocks(7..8).await.expect_err("a lie");
        stage.clock.sleep(MINUTE + Duration::from_secs(1)).await;
    }
    assert_eq!(stage.status(0).lies, 12, "it was asked each time");
    stage.blocks(8..9).await.expect("the next block is right");
}

#[tokio::test(start_paused = true)]
async fn beside_another_node_one_rests_as_long_as_it_asks_for() {
    let throttled = Quirks { statuses: vec![(429, Some(3600))], ..Quirks::default() };
    let stage = stage(vec![throttled, Quirks::default()]);
    stage.all().await;
    let asked = stage.nodes[0].requests.lock().unwrap().len();
    for _ in 0..10 {
        stage.clock.sleep(MINUTE).await;
        stage.all().await;
    }
    assert_eq!(stage.nodes[0].requests.lock().unwrap().len(), asked, "it was left alone");
    // The other is lost: the one that rests is better than none.
    stage.nodes[1].quirks.lock().unwrap().unreachable = true;
    stage.all().await;
    assert!(stage.nodes[0].requests.lock().unwrap().len() > asked);
}
