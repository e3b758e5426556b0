//! Nodes that lag, are on another branch, or have pruned their history.

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
    let pool = pool_of_chains(chains, |_| {}, |_, node| node.batch_blocks_max = 5);
    for _ in 0..4 {
        let blocks = pool.all().await;
        check_linked(&blocks);
    }
}

#[tokio::test(start_paused = true)]
async fn below_the_final_block_another_branch_is_a_lie() {
    let quirks = || Quirks { finalized: Some(30), ..Quirks::default() };
    let chains = vec![(FakeChain::new(LENGTH, 0, 0), quirks()), (branch(20), quirks())];
    let pool = pool_of_chains(chains, |_| {}, |_, node| node.batch_blocks_max = 5);
    pool.source.heads().await.expect("heads");
    check_linked(&pool.all().await);
    assert!(pool.status(0).lies + pool.status(1).lies >= 1);
}

#[tokio::test(start_paused = true)]
async fn a_lagging_node_is_not_asked_for_blocks_above_its_head() {
    let chains = vec![
        (FakeChain::new(20, 0, 0), Quirks::default()),
        (FakeChain::new(LENGTH, 0, 0), Quirks::default()),
    ];
    let pool = pool_of_chains(chains, |_| {}, |_, _| {});
    pool.source.info().await.expect("one chain");
    let before = pool.nodes[0].calls_of("eth_getBlockByNumber");
    pool.blocks(30..40).await.expect("blocks");
    assert_eq!(pool.nodes[0].calls_of("eth_getBlockByNumber"), before);
    // Unless it has caught up since.
    *pool.nodes[0].chain.lock().unwrap() = FakeChain::new(LENGTH, 0, 0);
    pool.nodes[1].quirks.lock().unwrap().unreachable = true;
    pool.blocks(30..40).await.expect("blocks");
    assert!(pool.nodes[0].calls_of("eth_getBlockByNumber") > before);
}

#[tokio::test(start_paused = true)]
async fn a_block_above_all_heads_does_not_exist_yet() {
    let pool = pool(vec![Quirks::default(), Quirks { unreachable: true, ..Quirks::default() }]);
    let error = pool.blocks(LENGTH..LENGTH + 1).await.expect_err("not yet");
    assert!(matches!(error, Error::NotYet { number: LENGTH }), "{error}");
    pool.source.heads().await.expect("heads");
    let error = pool.blocks(LENGTH + 5..LENGTH + 6).await.expect_err("not yet");
    assert!(matches!(error, Error::NotYet { .. }), "{error}");
    let blocks = pool.blocks(LENGTH - 3..LENGTH + 3).await.expect("those that there are");
    assert_eq!(blocks.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_block_that_one_node_lacks_is_requested_from_another() {
    let forgets = tamper(|method, result| {
        if method == "eth_getBlockByNumber" {
            *result = Value::Null;
        }
    });
    let pool = pool(vec![Quirks { tamper: forgets, ..Quirks::default() }, Quirks::default()]);
    pool.all().await;
    let status = pool.status(0);
    assert_eq!((status.lies, status.failures), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn history_that_no_node_keeps_is_reported_as_pruned() {
    let pruned = || Quirks {
        error: Some((4444, "pruned history unavailable".to_owned())),
        ..Quirks::default()
    };
    let pool = pool(vec![Quirks::default(), Quirks::default()]);
    pool.source.info().await.expect("one chain");
    for node in &pool.nodes {
        *node.quirks.lock().unwrap() = pruned();
    }
    let error = pool.blocks(3..4).await.expect_err("gone");
    assert!(matches!(error, Error::Pruned { number: 3 }), "{error}");
    // One node that keeps it is enough.
    *pool.nodes[1].quirks.lock().unwrap() = Quirks::default();
    pool.all().await;
}

#[tokio::test(start_paused = true)]
async fn receipts_of_another_branch_are_requested_again() {
    let asked = std::sync::atomic::AtomicU64::new(0);
    let moved = tamper(move |method, result| {
        let first = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        if method == "eth_getBlockReceipts" && first() {
            result[0]["blockHash"] = json!(alloy_primitives::B256::repeat_byte(1));
        }
    });
    let pool = pool(vec![Quirks { tamper: moved, ..Quirks::default() }]);
    pool.blocks(5..6).await.expect("the second time");
    assert_eq!(pool.status(0).lies, 0);
}
