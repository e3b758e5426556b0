//! Rates, sizes and weights.

use std::time::Duration;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_node_is_left_alone_for_as_long_as_it_asks() {
    let stage = stage(vec![Quirks { statuses: vec![(429, Some(20))], ..Quirks::default() }]);
    stage.blocks(1..2).await.expect("a block");
    assert!(stage.passed() >= Duration::from_secs(20));
    assert!(stage.passed() < Duration::from_secs(22));
}

#[tokio::test(start_paused = true)]
async fn calls_keep_to_the_rate_of_a_node() {
    let rate = |_, node: &mut NodeSettings| node.requests_per_second = Some(10);
    let stage = stage_of(vec![Quirks::default()], |_| {}, rate);
    stage.all().await;
    // 81 calls at 10 per second, of which a second's worth goes at once.
    let passed = stage.passed().as_secs();
    assert!((6..=9).contains(&passed), "{passed}");
}

#[tokio::test(start_paused = true)]
async fn a_node_has_no_more_requests_than_it_may() {
    let one = |_, node: &mut NodeSettings| node.concurrent_max = 1;
    let stage = stage_of(vec![Quirks::default()], |_| {}, one);
    stage.all().await;
    let requests = u32::try_from(stage.nodes[0].requests.lock().unwrap().len()).expect("few");
    assert!(stage.passed() >= Duration::from_millis(10) * requests);
}

#[tokio::test(start_paused = true)]
async fn work_is_shared_by_weight() {
    let weights = |index: usize, node: &mut NodeSettings| {
        node.weight = if index == 0 { 3 } else { 1 };
        node.batch_blocks_max = 1;
    };
    let stage = stage_of(vec![Quirks::default(), Quirks::default()], |_| {}, weights);
    stage.all().await;
    let [first, second] = [0, 1].map(|node| stage.nodes[node].calls_of("eth_getBlockByNumber"));
    assert!(first > 2 * second && second >= 4, "{first} and {second}");
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_is_too_large_is_made_smaller_without_a_rest() {
    let stage = stage(vec![Quirks { batch_max: Some(4), ..Quirks::default() }]);
    stage.all().await;
    let sizes = stage.nodes[0].requests.lock().unwrap().clone();
    assert!(sizes.iter().filter(|size| **size > 4).count() <= 12, "{sizes:?}");
    assert!(sizes.contains(&4), "{sizes:?}");
    assert_eq!(stage.status(0).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn a_node_without_batches_is_asked_one_by_one() {
    let stage = stage(vec![Quirks { no_batches: true, ..Quirks::default() }]);
    stage.all().await;
    let sizes = stage.nodes[0].requests.lock().unwrap().clone();
    let batches = sizes.iter().filter(|size| **size > 1).count();
    assert!(batches <= 5, "one for each part that was on its way: {sizes:?}");
    assert_eq!(stage.status(0).failures, 0);
}

#[tokio::test(start_paused = true)]
async fn answers_beyond_the_limit_are_asked_for_in_smaller_parts() {
    let limit = |settings: &mut EvmSettings| settings.response_bytes_max = 16_000;
    let stage = stage_of(vec![Quirks::default()], limit, |_, _| {});
    stage.all().await;
    let tiny = |settings: &mut EvmSettings| settings.response_bytes_max = 1_000;
    let stage = stage_of(vec![Quirks::default()], tiny, |_, _| {});
    let error = stage.blocks(5..6).await.expect_err("it never fits").to_string();
    assert!(error.contains("more than 1000 bytes"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_node_is_asked_for_less() {
    let stage = stage(vec![Quirks { statuses: vec![(504, None)], ..Quirks::default() }]);
    stage.source.heads().await.expect("heads, after a while");
    stage.nodes[0].quirks.lock().unwrap().statuses = vec![(504, None)];
    stage.blocks(0..8).await.expect("blocks");
    let sizes = stage.nodes[0].requests.lock().unwrap().clone();
    assert!(sizes.ends_with(&[16, 8, 8]), "{sizes:?}");
}
