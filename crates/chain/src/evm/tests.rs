//! A pool of fake nodes on a paused clock: every way in which nodes fail, and correct blocks in spite of it.

mod blame;
mod branches;
mod fake;
mod heads;
mod late;
mod limits;
mod logs;
mod receipts;
mod secrets;

use std::sync::Arc;
use std::time::Duration;

use logmill_io::wire::{Endpoint, Wire};
use logmill_io::{Clock, SeededEntropy, SimClock, Timestamp};
use serde_json::{Value, json};

use super::{EvmSettings, EvmSource, NodeConnections, NodeSettings};
use crate::block::Block;
use crate::error::Error;
use crate::mismatch::Mismatch;
use crate::source::{BlockSource, ChainSource, NodeSource, NodeStatus};
use crate::verify_level::VerifyLevel;
use fake::{FakeChain, FakeNode, Quirks, Tamper};

struct PoolFixture {
    source: EvmSource,
    nodes: Vec<Arc<FakeNode>>,
    clock: Arc<dyn Clock>,
}

const LENGTH: u64 = 40;

fn pool(quirks: Vec<Quirks>) -> PoolFixture {
    pool_with(quirks, |_| {}, |_, _| {})
}

fn pool_with(
    quirks: Vec<Quirks>,
    set: impl FnOnce(&mut EvmSettings),
    set_node: impl Fn(usize, &mut NodeSettings),
) -> PoolFixture {
    let chains = quirks.into_iter().map(|quirks| (FakeChain::new(LENGTH, 0, 0), quirks));
    pool_of_chains(chains.collect(), set, set_node)
}

fn pool_of_chains(
    chains: Vec<(FakeChain, Quirks)>,
    set: impl FnOnce(&mut EvmSettings),
    set_node: impl Fn(usize, &mut NodeSettings),
) -> PoolFixture {
    let clock: Arc<dyn Clock> = SimClock::at(Timestamp(0));
    let mut settings = EvmSettings::new("test");
    set(&mut settings);
    let mut reached = Vec::new();
    let mut nodes = Vec::new();
    for (index, (chain, quirks)) in chains.into_iter().enumerate() {
        let fake = FakeNode::new(chain, quirks, Arc::clone(&clock));
        let address = Endpoint::parse(&format!("http://node{index}.example")).expect("fine");
        let mut node = NodeSettings::new(address);
        node.name = Some(format!("node{index}"));
        set_node(index, &mut node);
        let wire: Arc<dyn Wire> = fake.clone();
        reached.push((node, NodeConnections { wire, feed: None }));
        nodes.push(fake);
    }
    let entropy = SeededEntropy::shared(1);
    let source = EvmSource::with_connections(reached, settings, Arc::clone(&clock), &entropy);
    PoolFixture { source: source.expect("fine settings"), nodes, clock }
}

impl PoolFixture {
    async fn blocks(&self, range: std::ops::Range<u64>) -> Result<Vec<Block>, Error> {
        self.source.blocks(range).await
    }

    /// Fetches all blocks, and checks that none is missing.
    async fn all(&self) -> Vec<Block> {
        let blocks = self.blocks(0..LENGTH).await.expect("blocks");
        let numbers: Vec<u64> = blocks.iter().map(|block| block.at.number).collect();
        assert_eq!(numbers, (0..LENGTH).collect::<Vec<u64>>());
        blocks
    }

    fn status(&self, node: usize) -> NodeStatus {
        self.source.nodes().swap_remove(node)
    }

    fn elapsed(&self) -> Duration {
        self.clock.monotonic()
    }
}

fn tamper(with: impl Fn(&str, &mut Value) + Send + Sync + 'static) -> Option<Tamper> {
    Some(Arc::new(with))
}

/// Drops the last log of the block at a height.
fn drops_a_log(number: u64) -> Quirks {
    let number = json!(format!("{number:#x}"));
    let tamper = tamper(move |method, result| {
        if method == "eth_getBlockReceipts" && result[0]["logs"][0]["blockNumber"] == number {
            let last = result.as_array_mut().expect("receipts").last_mut().expect("one");
            last["logs"].as_array_mut().expect("logs").pop();
        }
    });
    Quirks { tamper, ..Quirks::default() }
}

#[tokio::test(start_paused = true)]
async fn blocks_come_verified_and_in_order_from_all_nodes() {
    let pool = pool(vec![Quirks::default(), Quirks::default()]);
    let blocks = pool.all().await;
    assert!(blocks.iter().all(|block| block.verified == VerifyLevel::Full));
    assert!(blocks.windows(2).all(|two| two[1].at.parent_hash == two[0].at.hash));
    // Numbered by position, whatever the node reports.
    let indexes: Vec<usize> = blocks[5].logs().map(|log| log.log_index).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    for node in &pool.nodes {
        assert!(node.calls_of("eth_getBlockByNumber") >= 10);
        let blocks = node.calls_of("eth_getBlockByNumber");
        assert_eq!(
            blocks,
            node.calls_of("eth_getBlockReceipts"),
            "all calls for a block to one node"
        );
    }
    assert_eq!(pool.blocks(5..5).await.expect("nothing"), []);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_drops_a_log_is_named_and_another_is_asked() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let pool = pool(vec![drops_a_log(7), Quirks::default()]);
    let block = pool.blocks(7..8).await.expect("a block").remove(0);
    assert_eq!((block.log_count(), block.verified), (3, VerifyLevel::Full));
    let status = pool.status(0);
    assert_eq!((status.lies, status.healthy), (1, false));
    let said = status.last_error.expect("an error");
    assert!(said.contains("block 7") && said.contains("logsBloom"), "{said}");
    let counted = snapshots.snapshot().into_vec().into_iter().any(|(key, _, _, value)| {
        let labels: Vec<&str> = key.key().labels().map(|label| label.value()).collect();
        key.key().name() == "logmill_node_lies_total"
            && labels == ["test", "node0"]
            && value == metrics_util::debugging::DebugValue::Counter(1)
    });
    assert!(counted);
}

#[tokio::test(start_paused = true)]
async fn if_every_node_lies_no_block_is_returned() {
    let pool = pool(vec![drops_a_log(7), drops_a_log(7)]);
    let error = pool.blocks(7..8).await.expect_err("a lie");
    assert!(
        matches!(error, Error::Mismatch { number: 7, mismatch: Mismatch::LogsBloom { .. }, .. }),
        "{error}"
    );
    assert_eq!(
        pool.nodes.iter().map(|node| node.calls_of("eth_getBlockReceipts")).sum::<usize>(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn blocks_before_a_false_one_are_returned() {
    let pool = pool(vec![drops_a_log(7)]);
    let blocks = pool.blocks(3..12).await.expect("some blocks");
    let numbers: Vec<u64> = blocks.iter().map(|block| block.at.number).collect();
    assert_eq!(numbers, [3, 4, 5, 6]);
}

#[tokio::test(start_paused = true)]
async fn false_blocks_of_every_kind_are_rejected() {
    type Lie = (&'static str, fn(&mut Value));
    let lies: [Lie; 6] = [
        ("eth_getBlockReceipts", |receipts| receipts.as_array_mut().expect("a list").swap(0, 1)),
        ("eth_getBlockReceipts", |receipts| drop(receipts.as_array_mut().expect("a list").pop())),
        ("eth_getBlockReceipts", |receipts| receipts[0]["logs"][0]["data"] = json!("0x01")),
        ("eth_getBlockByNumber", |block| block["transactions"][0]["value"] = json!("0x6")),
        ("eth_getBlockByNumber", |block| block["stateRoot"] = block["hash"].clone()),
        ("eth_getBlockByNumber", |block| block["number"] = json!("0x6")),
    ];
    for (method, lie) in lies {
        let tamper = tamper(move |called, result| {
            if called == method {
                lie(result);
            }
        });
        let pool = pool(vec![Quirks { tamper, ..Quirks::default() }, Quirks::default()]);
        let block = pool.blocks(5..6).await.expect("a block").remove(0);
        assert_eq!((block.at.number, block.verified), (5, VerifyLevel::Full));
        assert_eq!(pool.status(0).lies, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_block_is_marked_with_the_level_of_its_checks() {
    let pool =
        pool_with(vec![drops_a_log(7)], |settings| settings.verify = VerifyLevel::Off, |_, _| {});
    let block = pool.blocks(7..8).await.expect("a block").remove(0);
    assert_eq!((block.log_count(), block.verified), (2, VerifyLevel::Off));
    let altered = tamper(|method, result| {
        if method == "eth_getBlockByNumber" {
            result["sendRoot"] = json!("0x1");
            result["mixHash"] = json!(null);
        }
    });
    let quirks = Quirks { tamper: altered, ..Quirks::default() };
    let pool = pool_with(vec![quirks], |settings| settings.verify = VerifyLevel::Bloom, |_, _| {});
    let block = pool.blocks(7..8).await.expect("a block").remove(0);
    assert!(matches!(block.header, crate::Header::Foreign(_)));
    assert_eq!(block.verified, VerifyLevel::Bloom);
}

#[tokio::test(start_paused = true)]
async fn a_node_may_fail_in_many_ways_and_the_other_is_asked() {
    let broken = |set: fn(&mut Quirks)| {
        let mut quirks = Quirks::default();
        set(&mut quirks);
        quirks
    };
    let cases = [
        broken(|quirks| quirks.statuses = vec![(500, None); 100]),
        broken(|quirks| quirks.statuses = vec![(302, None); 100]),
        broken(|quirks| quirks.statuses = vec![(401, None); 100]),
        broken(|quirks| quirks.unreachable = true),
        broken(|quirks| quirks.hangs = true),
        broken(|quirks| quirks.body = Some("<html>busy</html>".to_owned())),
        broken(|quirks| quirks.body = Some("[".repeat(200_000))),
        broken(|quirks| quirks.body = Some(String::new())),
        broken(|quirks| quirks.body = Some(r#"[{"id":99,"result":"0x1"}]"#.to_owned())),
        broken(|quirks| quirks.error = Some((-32_603, "internal error".to_owned()))),
        broken(|quirks| quirks.error = Some((-32_005, "rate limit exceeded".to_owned()))),
        broken(|quirks| quirks.tamper = tamper(|_, result| *result = json!({"hash": 5}))),
    ];
    for quirks in cases {
        let pool = pool(vec![quirks, Quirks::default()]);
        pool.all().await;
        let status = pool.status(0);
        assert!(status.failures > 0 && !status.healthy && status.lies == 0, "{status:?}");
        assert!(pool.status(1).healthy);
    }
}

#[tokio::test(start_paused = true)]
async fn if_no_node_answers_the_error_names_the_error_of_each() {
    let pool = pool(vec![
        Quirks { unreachable: true, ..Quirks::default() },
        Quirks { statuses: vec![(503, None); 1000], ..Quirks::default() },
    ]);
    let error = pool.blocks(1..2).await.expect_err("nobody");
    let said = error.to_string();
    assert!(said.contains("node0: ") && said.contains("connection refused"), "{said}");
    assert!(said.contains("node1: http status 503"), "{said}");
    assert_eq!(error.kind(), logmill_io::ErrorKind::Transient);
    assert!(pool.elapsed() <= Duration::from_secs(31), "{:?}", pool.elapsed());
    assert!(pool.nodes.iter().all(|node| node.requests.lock().unwrap().len() <= 16));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_recovers_is_asked_again() {
    let pool = pool(vec![Quirks { statuses: vec![(503, None); 3], ..Quirks::default() }]);
    pool.blocks(1..2).await.expect("a block, in the end");
    assert!(pool.elapsed() >= Duration::from_millis(400 + 800 + 1600));
    assert!(pool.status(0).healthy);
}
