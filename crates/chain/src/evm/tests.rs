//! A pool of made-up nodes on a paused clock: every way in which nodes fail, and that blocks are right all the same.

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

use super::{EvmSettings, EvmSource, NodeSettings, Reach};
use crate::block::Block;
use crate::error::Error;
use crate::source::{ChainSource, NodeStatus};
use crate::verify::{Mismatch, Verify};
use fake::{FakeChain, FakeNode, Quirks, Tamper};

/// A chain, its nodes, and their clock.
struct Stage {
    source: EvmSource,
    nodes: Vec<Arc<FakeNode>>,
    clock: Arc<dyn Clock>,
}

const LENGTH: u64 = 40;

fn stage(quirks: Vec<Quirks>) -> Stage {
    stage_of(quirks, |_| {}, |_, _| {})
}

fn stage_of(
    quirks: Vec<Quirks>,
    set: impl FnOnce(&mut EvmSettings),
    set_node: impl Fn(usize, &mut NodeSettings),
) -> Stage {
    let chains = quirks.into_iter().map(|quirks| (FakeChain::new(LENGTH, 0, 0), quirks));
    stage_with(chains.collect(), set, set_node)
}

fn stage_with(
    chains: Vec<(FakeChain, Quirks)>,
    set: impl FnOnce(&mut EvmSettings),
    set_node: impl Fn(usize, &mut NodeSettings),
) -> Stage {
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
        reached.push((node, Reach { wire, feed: None }));
        nodes.push(fake);
    }
    let entropy = SeededEntropy::shared(1);
    let source = EvmSource::reached_by(reached, settings, Arc::clone(&clock), &entropy);
    Stage { source: source.expect("fine settings"), nodes, clock }
}

impl Stage {
    async fn blocks(&self, range: std::ops::Range<u64>) -> Result<Vec<Block>, Error> {
        self.source.blocks(range).await
    }

    /// All blocks, which must be right.
    async fn all(&self) -> Vec<Block> {
        let blocks = self.blocks(0..LENGTH).await.expect("blocks");
        let numbers: Vec<u64> = blocks.iter().map(|block| block.at.number).collect();
        assert_eq!(numbers, (0..LENGTH).collect::<Vec<u64>>());
        blocks
    }

    fn status(&self, node: usize) -> NodeStatus {
        self.source.nodes().swap_remove(node)
    }

    fn passed(&self) -> Duration {
        self.clock.monotonic()
    }
}

fn tamper(with: impl Fn(&str, &mut Value) + Send + Sync + 'static) -> Option<Tamper> {
    Some(Arc::new(with))
}

/// Drops the last log of the blocks of a height.
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
    let stage = stage(vec![Quirks::default(), Quirks::default()]);
    let blocks = stage.all().await;
    assert!(blocks.iter().all(|block| block.verified == Verify::Full));
    assert!(blocks.windows(2).all(|two| two[1].at.parent_hash == two[0].at.hash));
    // Numbered by us, whatever the node says.
    let indexes: Vec<usize> = blocks[5].logs().map(|log| log.log_index).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4, 5]);
    for node in &stage.nodes {
        assert!(node.calls_of("eth_getBlockByNumber") >= 10);
        let blocks = node.calls_of("eth_getBlockByNumber");
        assert_eq!(
            blocks,
            node.calls_of("eth_getBlockReceipts"),
            "all calls for a block to one node"
        );
    }
    assert_eq!(stage.blocks(5..5).await.expect("nothing"), []);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_drops_a_log_is_named_and_another_is_asked() {
    let recorder = metrics_util::debugging::DebuggingRecorder::new();
    let snapshots = recorder.snapshotter();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let stage = stage(vec![drops_a_log(7), Quirks::default()]);
    let block = stage.blocks(7..8).await.expect("a block").remove(0);
    assert_eq!((block.log_count(), block.verified), (3, Verify::Full));
    let status = stage.status(0);
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
async fn where_every_node_lies_nothing_is_given() {
    let stage = stage(vec![drops_a_log(7), drops_a_log(7)]);
    let error = stage.blocks(7..8).await.expect_err("a lie");
    assert!(
        matches!(error, Error::Mismatch { number: 7, mismatch: Mismatch::LogsBloom { .. }, .. }),
        "{error}"
    );
    assert_eq!(
        stage.nodes.iter().map(|node| node.calls_of("eth_getBlockReceipts")).sum::<usize>(),
        2
    );
}

#[tokio::test(start_paused = true)]
async fn blocks_before_a_lie_are_given() {
    let stage = stage(vec![drops_a_log(7)]);
    let blocks = stage.blocks(3..12).await.expect("some blocks");
    let numbers: Vec<u64> = blocks.iter().map(|block| block.at.number).collect();
    assert_eq!(numbers, [3, 4, 5, 6]);
}

#[tokio::test(start_paused = true)]
async fn lies_of_all_sorts_are_refused() {
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
        let stage = stage(vec![Quirks { tamper, ..Quirks::default() }, Quirks::default()]);
        let block = stage.blocks(5..6).await.expect("a block").remove(0);
        assert_eq!((block.at.number, block.verified), (5, Verify::Full));
        assert_eq!(stage.status(0).lies, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_not_checked_is_not_called_checked() {
    let stage = stage_of(vec![drops_a_log(7)], |settings| settings.verify = Verify::Off, |_, _| {});
    let block = stage.blocks(7..8).await.expect("a block").remove(0);
    assert_eq!((block.log_count(), block.verified), (2, Verify::Off));
    let altered = tamper(|method, result| {
        if method == "eth_getBlockByNumber" {
            result["sendRoot"] = json!("0x1");
            result["mixHash"] = json!(null);
        }
    });
    let quirks = Quirks { tamper: altered, ..Quirks::default() };
    let stage = stage_of(vec![quirks], |settings| settings.verify = Verify::Bloom, |_, _| {});
    let block = stage.blocks(7..8).await.expect("a block").remove(0);
    assert!(matches!(block.header, crate::Header::Foreign(_)));
    assert_eq!(block.verified, Verify::Bloom);
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
        let stage = stage(vec![quirks, Quirks::default()]);
        stage.all().await;
        let status = stage.status(0);
        assert!(status.failures > 0 && !status.healthy && status.lies == 0, "{status:?}");
        assert!(stage.status(1).healthy);
    }
}

#[tokio::test(start_paused = true)]
async fn where_no_node_answers_the_error_says_what_each_said() {
    let stage = stage(vec![
        Quirks { unreachable: true, ..Quirks::default() },
        Quirks { statuses: vec![(503, None); 1000], ..Quirks::default() },
    ]);
    let error = stage.blocks(1..2).await.expect_err("nobody");
    let said = error.to_string();
    assert!(said.contains("node0: ") && said.contains("connection refused"), "{said}");
    assert!(said.contains("node1: http status 503"), "{said}");
    assert_eq!(error.kind(), logmill_io::ErrorKind::Transient);
    assert!(stage.passed() <= Duration::from_secs(31), "{:?}", stage.passed());
    assert!(stage.nodes.iter().all(|node| node.requests.lock().unwrap().len() <= 16));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_recovers_is_asked_again() {
    let stage = stage(vec![Quirks { statuses: vec![(503, None); 3], ..Quirks::default() }]);
    stage.blocks(1..2).await.expect("a block, in the end");
    assert!(stage.passed() >= Duration::from_millis(400 + 800 + 1600));
    assert!(stage.status(0).healthy);
}
