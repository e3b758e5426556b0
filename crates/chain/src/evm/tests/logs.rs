//! Logs without their blocks: nodes that omit, add or refuse them.

use std::fmt;
use std::sync::Mutex;

use alloy_primitives::{Address, B256};
use async_trait::async_trait;
use bytes::Bytes;
use logmill_io::wire::{Limits, WireResponse};

use super::*;
use crate::block::BlockRef;
use crate::sim::action::{FEES_COLLECTED, TRANSFER};
use crate::sim::rpc::{NodeFaults, SimNode};
use crate::sim::{FEE_COLLECTOR, Shape, SimChain, SimSettings, WETH};
use crate::source::{FoundLog, LogFilter};

const HEAD: u64 = 60;
const FINAL: u64 = 50;

/// A node whose answers are changed.
struct TamperingNode {
    node: SimNode,
    tamper: Option<Tamper>,
    asked: Mutex<Vec<u64>>,
}

impl fmt::Debug for TamperingNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TamperingNode")
    }
}

#[async_trait]
impl Wire for TamperingNode {
    async fn exchange(&self, body: Bytes, limits: Limits) -> logmill_io::Result<WireResponse> {
        let request: Value = serde_json::from_slice(&body).expect("we send JSON");
        let calls = request.as_array().cloned().unwrap_or_else(|| vec![request]);
        for call in calls.iter().filter(|call| call["method"] == "eth_getLogs") {
            let end = |name: &str| {
                let text = call["params"][0][name].as_str().expect("a number");
                u64::from_str_radix(text.trim_start_matches("0x"), 16).expect("hex")
            };
            self.asked.lock().unwrap().push(end("toBlock") - end("fromBlock") + 1);
        }
        let mut answer = self.node.exchange(body, limits).await?;
        if let Some(tamper) = &self.tamper
            && let Ok(Value::Array(mut answers)) = serde_json::from_slice(&answer.body)
        {
            for (call, answer) in calls.iter().zip(&mut answers) {
                tamper(call["method"].as_str().expect("a method"), &mut answer["result"]);
            }
            answer.body = Value::from(answers).to_string().into();
        }
        Ok(answer)
    }
}

struct LogFixture {
    source: EvmSource,
    nodes: Vec<Arc<TamperingNode>>,
    chain: SimChain,
}

fn chain() -> SimChain {
    let shape = Shape { transactions: 3, logs: 12, ..Shape::sparse() };
    let chain = SimChain::with(SimSettings {
        seed: 3,
        shape,
        finality_lag: Some(HEAD - FINAL),
        ..SimSettings::default()
    });
    chain.grow(HEAD);
    chain
}

fn fixture(nodes: Vec<(NodeFaults, Option<Tamper>)>) -> LogFixture {
    let clock: Arc<dyn Clock> = SimClock::at(Timestamp(0));
    let chain = chain();
    let (mut reached, mut kept) = (Vec::new(), Vec::new());
    for (index, (faults, tamper)) in nodes.into_iter().enumerate() {
        let node = SimNode::new(chain.clone());
        node.set_faults(faults);
        let wire = Arc::new(TamperingNode { node, tamper, asked: Mutex::default() });
        let address = Endpoint::parse(&format!("http://node{index}.example")).expect("fine");
        let name = Some(format!("node{index}"));
        let settings = NodeSettings { name, ..NodeSettings::new(address) };
        reached.push((settings, NodeConnections { wire: wire.clone(), feed: None }));
        kept.push(wire);
    }
    let (settings, entropy) = (EvmSettings::new("test"), SeededEntropy::shared(1));
    let source = EvmSource::with_connections(reached, settings, clock, &entropy).expect("fine");
    LogFixture { source, nodes: kept, chain }
}

fn wanted() -> LogFilter {
    LogFilter { addresses: vec![FEE_COLLECTOR, WETH], topics: vec![FEES_COLLECTED, TRANSFER] }
}

impl LogFixture {
    fn anchor(&self) -> BlockRef {
        self.chain.heads().finalized.expect("some are final")
    }

    async fn ask(&self, range: std::ops::Range<u64>) -> Result<Vec<FoundLog>, Error> {
        self.source.logs(&wanted(), range, self.anchor()).await
    }

    /// The result of a scan over all blocks.
    fn expected(&self, range: std::ops::Range<u64>) -> Vec<(u64, B256, u64, usize, usize)> {
        let mut expected = Vec::new();
        for number in range {
            let block = self.chain.block(number).expect("a block");
            let logs = block.logs().filter(|placed| wanted().matches(placed.log));
            expected.extend(logs.map(|placed| {
                let at = block.at;
                (number, at.hash, at.timestamp, placed.transaction_index, placed.log_index)
            }));
        }
        assert!(expected.len() > 20, "only {} logs", expected.len());
        expected
    }

    async fn check(&self, range: std::ops::Range<u64>) {
        let found = self.ask(range.clone()).await.expect("logs");
        let found = found.iter().map(|log| {
            (log.block, log.block_hash, log.timestamp, log.transaction_index, log.log_index)
        });
        assert_eq!(found.collect::<Vec<_>>(), self.expected(range));
    }
}

fn honest() -> (NodeFaults, Option<Tamper>) {
    (NodeFaults::default(), None)
}

#[tokio::test(start_paused = true)]
async fn logs_are_those_of_a_scan_over_all_blocks() {
    let fixture = fixture(vec![honest()]);
    fixture.check(0..FINAL + 1).await;
    assert_eq!(fixture.ask(7..7).await.expect("nothing"), []);
    let error = fixture.ask(0..FINAL + 2).await.expect_err("above what is final");
    assert!(error.to_string().contains("must not end above its anchor block"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_range_that_is_too_large_is_split_until_it_fits() {
    for faults in [
        NodeFaults { logs_blocks_max: 7, ..NodeFaults::default() },
        NodeFaults { logs_max: 9, ..NodeFaults::default() },
    ] {
        let fixture = fixture(vec![(faults.clone(), None)]);
        fixture.check(0..FINAL + 1).await;
        let asked = fixture.nodes[0].asked.lock().unwrap().clone();
        assert!(asked.len() > 5 && asked.contains(&51), "{asked:?}");
        assert_eq!(fixture.source.nodes()[0].failures, 0, "{faults:?} is no failure");
    }
}

#[tokio::test(start_paused = true)]
async fn a_reduced_range_grows_again() {
    let limited = NodeFaults { logs_blocks_max: 4, ..NodeFaults::default() };
    let fixture = fixture(vec![(limited, None)]);
    fixture.check(0..FINAL + 1).await;
    fixture.nodes[0].node.set_faults(NodeFaults::default());
    for _ in 0..8 {
        fixture.check(0..FINAL + 1).await;
    }
    let asked = fixture.nodes[0].asked.lock().unwrap().clone();
    let last = asked.last().expect("some");
    assert!(*last > 10, "{asked:?}");
}

#[tokio::test(start_paused = true)]
async fn a_single_block_that_is_too_large_is_read_by_its_receipts() {
    let fixture = fixture(vec![(NodeFaults { logs_max: 1, ..NodeFaults::default() }, None)]);
    fixture.check(0..FINAL + 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_lags_silently_is_not_trusted() {
    let lags = NodeFaults { behind: 30, silent_above_head: true, ..NodeFaults::default() };
    let alone = fixture(vec![(lags.clone(), None)]);
    let error = alone.ask(0..FINAL + 1).await.expect_err("it has not got them");
    assert!(matches!(error, Error::NotYet { .. }), "{error}");
    fixture(vec![(lags, None), honest()]).check(0..FINAL + 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_on_another_branch_is_not_trusted() {
    let fixture = fixture(vec![honest()]);
    let anchor = BlockRef { hash: B256::repeat_byte(1), ..fixture.anchor() };
    let error = fixture.source.logs(&wanted(), 0..FINAL + 1, anchor).await;
    assert!(matches!(error, Err(Error::Mismatch { .. })), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn failed_and_broken_answers_are_retried() {
    let faults =
        NodeFaults { fail_every: 5, cut_every: 7, too_many_every: 11, ..NodeFaults::default() };
    let fixture = fixture(vec![(faults, None)]);
    for _ in 0..9 {
        fixture.check(0..FINAL + 1).await;
    }
}

/// Checks that a node with this change is rejected with `said`, and that beside an honest node it does no harm.
async fn refused(method: &'static str, change: fn(&mut Value), said: &str) {
    let liar = || {
        let change = tamper(move |called, result| {
            if called == method && !result.is_null() {
                change(result);
            }
        });
        (NodeFaults::default(), change)
    };
    let error = fixture(vec![liar()]).ask(0..FINAL + 1).await.expect_err(said);
    let error = logmill_io::error_chain(&error);
    assert!(error.contains(said), "{said:?} is not in {error:?}");
    fixture(vec![liar(), honest()]).check(0..FINAL + 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_returns_logs_outside_the_filter_is_rejected() {
    refused("eth_getLogs", |logs| logs[0]["address"] = json!(Address::ZERO), "the filter excludes")
        .await;
    refused("eth_getLogs", |logs| logs[0]["topics"][0] = json!(B256::ZERO), "the filter excludes")
        .await;
    refused("eth_getLogs", |logs| logs[0]["topics"] = json!([]), "the filter excludes").await;
    refused("eth_getLogs", |logs| logs[0]["blockNumber"] = json!("0x33"), "the filter excludes")
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_contradicts_itself_is_refused() {
    let twice = |logs: &mut Value| logs[1] = logs[0].clone();
    refused("eth_getLogs", twice, "two logs have the same index").await;
    let other_hash = |logs: &mut Value| {
        logs.as_array_mut()
            .expect("logs")
            .iter_mut()
            .for_each(|log| log["blockHash"] = json!(B256::ZERO));
    };
    refused("eth_getLogs", other_hash, "different branches").await;
    let removed = |logs: &mut Value| logs[0]["removed"] = json!(true);
    refused("eth_getLogs", removed, "different branches").await;
    let transaction = |logs: &mut Value| logs[0]["transactionHash"] = json!(B256::ZERO);
    refused("eth_getLogs", transaction, "which is not at").await;
    let topic = |logs: &mut Value| {
        logs[0]["topics"].as_array_mut().expect("topics").push(json!(B256::repeat_byte(7)));
    };
    refused("eth_getLogs", topic, "not in the logsBloom of its header").await;
    let time = |block: &mut Value| block["timestamp"] = json!("0x1");
    refused("eth_getBlockByNumber", time, "the fields of its header hash to").await;
}

#[tokio::test(start_paused = true)]
async fn answers_that_are_no_logs_are_refused() {
    for answer in [json!(null), json!({}), json!([1]), json!([{"address": "0x"}]), json!("0x")] {
        let replaced = answer.clone();
        let garbled = tamper(move |method, result| {
            if method == "eth_getLogs" {
                *result = replaced.clone();
            }
        });
        let error = fixture(vec![(NodeFaults::default(), garbled)]).ask(0..9).await;
        assert!(matches!(error, Err(Error::Unavailable { .. })), "{answer}: {error:?}");
    }
}
