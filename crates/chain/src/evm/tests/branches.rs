//! Nodes that are behind, on another branch, or without the past.

use super::*;

fn branch(fork: u64) -> FakeChain {
    FakeChain::new(LENGTH, fork, 1)
}

fn check_linked(blocks: &[Block]) {
    assert!(blocks.windows(2).all(|two| two[1].at.parent_hash == two[0].at.hash));
}

#[tokio::test(start_paused = true)]
async fn blocks_of_two_branches_are_never_mixed() {
    let chains = vec![
        (FakeChain::new(LENGTH, 0, 0), Quirks::default()),
        (branch(20), Quirks::default()),
        (FakeChain::new(LENGTH, 0, 0), Quirks::default()),
    ];
    let stage = stage_with(chains, |_| {}, |_, node| node.batch_blocks_max = 5);
    for _ in 0..4 {
        let blocks = stage.all().await;
        check_linked(&blocks);
    }
}

#[tokio::test(start_paused = true)]
async fn below_the_final_block_another_branch_is_a_lie() {
    let quirks = || Quirks { finalized: Some(30), ..Quirks::default() };
    let chains = vec![(FakeChain::new(LENGTH, 0, 0), quirks()), (branch(20), quirks())];
    let stage = stage_with(chains, |_| {}, |_, node| node.batch_blocks_max = 5);
    stage.source.heads().await.expect("heads");
    check_linked(&stage.all().await);
    assert!(stage.status(0).lies + stage.status(1).lies >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lags_is_not_asked_for_what_it_can_not_have() {
    let chains = vec![
        (FakeChain::new(20, 0, 0), Quirks::default()),
        (FakeChain::new(LENGTH, 0, 0), Quirks::default()),
    ];
    let stage = stage_with(chains, |_| {}, |_, _| {});
    stage.source.info().await.expect("one chain");
    let before = stage.nodes[0].calls_of("eth_getBlockByNumber");
    stage.blocks(30..40).await.expect("blocks");
    assert_eq!(stage.nodes[0].calls_of("eth_getBlockByNumber"), before);
    // Unless it has caught up since.
    *stage.nodes[0].chain.lock().unwrap() = FakeChain::new(LENGTH, 0, 0);
    stage.nodes[1].quirks.lock().unwrap().unreachable = true;
    stage.blocks(30..40).await.expect("blocks");
    assert!(stage.nodes[0].calls_of("eth_getBlockByNumber") > before);
}

#[tokio::test(start_paused = true)]
async fn a_block_above_all_heads_does_not_exist_yet() {
    let stage = stage(vec![Quirks::default(), Quirks { unreachable: true, ..Quirks::default() }]);
    let error = stage.blocks(LENGTH..LENGTH + 1).await.expect_err("not yet");
    assert!(matches!(error, Error::NotYet { number: LENGTH }), "{error}");
    stage.source.heads().await.expect("heads");
    let error = stage.blocks(LENGTH + 5..LENGTH + 6).await.expect_err("not yet");
    assert!(matches!(error, Error::NotYet { .. }), "{error}");
    let blocks = stage.blocks(LENGTH - 3..LENGTH + 3).await.expect("those that there are");
    assert_eq!(blocks.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_one_node_does_not_know_is_asked_of_others() {
    let forgets = tamper(|method, result| {
        if method == "eth_getBlockByNumber" {
            *result = Value::Null;
        }
    });
    let stage = stage(vec![Quirks { tamper: forgets, ..Quirks::default() }, Quirks::default()]);
    stage.all().await;
    let status = stage.status(0);
    assert_eq!((status.lies, status.failures), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn history_that_no_node_keeps_is_said_to_be_gone() {
    let pruned = || Quirks {
        error: Some((4444, "pruned history unavailable".to_owned())),
        ..Quirks::default()
    };
    let stage = stage(vec![Quirks::default(), Quirks::default()]);
    stage.source.info().await.expect("one chain");
    for node in &stage.nodes {
        *node.quirks.lock().unwrap() = pruned();
    }
    let error = stage.blocks(3..4).await.expect_err("gone");
    assert!(matches!(error, Error::Pruned { number: 3 }), "{error}");
    // One that keeps it is enough.
    *stage.nodes[1].quirks.lock().unwrap() = Quirks::default();
    stage.all().await;
}

#[tokio::test(start_paused = true)]
async fn receipts_of_another_branch_are_asked_for_again() {
    let asked = std::sync::atomic::AtomicU64::new(0);
    let moved = tamper(move |method, result| {
        let first = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        if method == "eth_getBlockReceipts" && first() {
            result[0]["blockHash"] = json!(alloy_primitives::B256::repeat_byte(1));
        }
    });
    let stage = stage(vec![Quirks { tamper: moved, ..Quirks::default() }]);
    stage.blocks(5..6).await.expect("the second time");
    assert_eq!(stage.status(0).lies, 0);
}
