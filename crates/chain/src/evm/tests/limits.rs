//! Rates, sizes and weights.

use std::time::Duration;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_node_is_left_alone_for_as_long_as_it_asks() {
    let pool = pool(vec![Quirks { statuses: vec![(429, Some(20))], ..Quirks::default() }]);
    pool.blocks(1..2).await.expect("a block");
    assert!(pool.elapsed() >= Duration::from_secs(20));
    assert!(pool.elapsed() < Duration::from_secs(22));
}

#[tokio::test(start_paused = true)]
async fn calls_keep_to_the_rate_of_a_node() {
    let rate = |_, node: &mut NodeSettings| node.requests_per_second = Some(10);
    let pool = pool_with(vec![Quirks::default()], |_| {}, rate);
    pool.all().await;
    // 81 calls at 10 per second, of which a second's worth goes at once.
    let passed = pool.elapsed().as_secs();
    assert!((6..=9).contains(&passed), "{passed}");
}

#[tokio::test(start_paused = true)]
async fn concurrent_requests_stay_within_the_limit_of_a_node() {
    let one = |_, node: &mut NodeSettings| node.concurrent_max = 1;
    let pool = pool_with(vec![Quirks::default()], |_| {}, one);
    pool.all().await;
    let requests = u32::try_from(pool.nodes[0].requests.lock().unwrap().len()).expect("few");
    assert!(pool.elapsed() >= Duration::from_millis(10) * requests);
}

#[tokio::test(start_paused = true)]
async fn work_is_shared_by_weight() {
    let weights = |index: usize, node: &mut NodeSettings| {
        node.weight = if index == 0 { 3 } else { 1 };
        node.batch_blocks_max = 1;
    };
    let pool = pool_with(vec![Quirks::default(), Quirks::default()], |_| {}, weights);
    pool.all().await;
    let [first, second] = [0, 1].map(|node| pool.nodes[node].calls_of("eth_getBlockByNumber"));
    assert!(first > 2 * second && second >= 4, "{first} and {second}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_is_made_smaller_without_a_rest() {
    let pool = pool(vec![Quirks { batch_max: Some(4), ..Quirks::default() }]);
    pool.all().await;
    let sizes = pool.nodes[0].requests.lock().unwrap().clone();
    assert!(sizes.iter().filter(|size| **size > 4).count() <= 12, "{sizes:?}");
    assert!(sizes.contains(&4), "{sizes:?}");
    assert_eq!(pool.status(0).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn batches_adapt_to_what_a_node_accepts_however_it_refuses_larger_ones() {
    for (batch_max, batch_status) in [
        (3, None),
        (3, Some(0)),
        (3, Some(403)),
        (3, Some(400)),
        (3, Some(413)),
        (1, None),
        (1, Some(0)),
        (1, Some(403)),
        (1, Some(405)),
    ] {
        let what = format!("{batch_max} by {batch_status:?}");
        let quirks = Quirks { batch_max: Some(batch_max), batch_status, ..Quirks::default() };
        let pool = pool(vec![quirks]);
        let info = pool.source.info().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(info.chain_id, 1337, "{what}");
        pool.source.heads().await.unwrap_or_else(|error| panic!("{what}: {error}"));
        pool.all().await;
        let status = pool.status(0);
        assert_eq!((status.failures, status.healthy), (0, true), "{what}");
        if batch_status == Some(413) {
            // That may have been about the size of the response, which varies.
            continue;
        }
        let asked = pool.nodes[0].requests.lock().unwrap().len();
        pool.all().await;
        let sizes = pool.nodes[0].requests.lock().unwrap().split_off(asked);
        assert!(sizes.iter().all(|size| *size <= batch_max), "{what} is remembered: {sizes:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_refuses_everything_does_not_shrink_its_batches() {
    let pool = pool(vec![Quirks { statuses: vec![(403, None); 8], ..Quirks::default() }]);
    let error = pool.source.info().await.expect_err("it refuses").to_string();
    assert!(error.contains("it does not accept our key"), "{error}");
    pool.nodes[0].quirks.lock().unwrap().statuses.clear();
    pool.nodes[0].requests.lock().unwrap().clear();
    pool.source.info().await.expect("it answers now");
    assert_eq!(pool.nodes[0].requests.lock().unwrap()[0], 4, "in one batch, as before");
}

#[tokio::test(start_paused = true)]
async fn a_node_without_batches_is_asked_one_by_one() {
    let pool = pool(vec![Quirks { no_batches: true, ..Quirks::default() }]);
    pool.all().await;
    let sizes = pool.nodes[0].requests.lock().unwrap().clone();
    let batches = sizes.iter().filter(|size| **size > 1).count();
    assert!(batches <= 5, "one for each part that was on its way: {sizes:?}");
    assert_eq!(pool.status(0).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn answers_beyond_the_limit_are_asked_for_in_smaller_parts() {
    let limit = |settings: &mut EvmSettings| settings.response_bytes_max = 16_000;
    let pool = pool_with(vec![Quirks::default()], limit, |_, _| {});
    pool.all().await;
    let tiny = |settings: &mut EvmSettings| settings.response_bytes_max = 1_000;
    let pool = pool_with(vec![Quirks::default()], tiny, |_, _| {});
    let error = pool.blocks(5..6).await.expect_err("it never fits").to_string();
    assert!(error.contains("more than 1000 bytes"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_is_asked_for_less() {
    let pool = pool(vec![Quirks { statuses: vec![(504, None)], ..Quirks::default() }]);
    pool.source.heads().await.expect("heads, after a while");
    pool.nodes[0].quirks.lock().unwrap().statuses = vec![(504, None)];
    pool.blocks(0..8).await.expect("blocks");
    let sizes = pool.nodes[0].requests.lock().unwrap().clone();
    assert!(sizes.ends_with(&[16, 8, 8]), "{sizes:?}");
}
