//! The chain of the execution API's own tests, with every type of transaction, as a node would serve it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use alloy_consensus::{Block as EvmBlock, EthereumTxEnvelope, Header as EvmHeader, TxEip4844};
use alloy_rlp::Decodable;
use async_trait::async_trait;
use bytes::Bytes;
use logmill_chain::evm::{EvmSettings, EvmSource, NodeConnections, NodeSettings};
use logmill_chain::{BlockSource, Header, TransactionForm, VerifyLevel};
use logmill_io::wire::{Endpoint, Limits, Wire, WireResponse};
use logmill_io::{OsEntropy, Result, SystemClock};
use logmill_sim::{skip, test_data};
use serde_json::{Value, json};

type RecordedBlock = EvmBlock<EthereumTxEnvelope<TxEip4844>, EvmHeader>;

/// A node that serves recorded answers.
#[derive(Debug)]
pub(crate) struct RecordedNode {
    pub(super) blocks: BTreeMap<u64, Value>,
    pub(super) receipts: BTreeMap<u64, Value>,
    /// By block hash.
    uncles: BTreeMap<String, Vec<EvmHeader>>,
}

impl RecordedNode {
    /// Reads the recorded chain, if the data exists.
    pub(crate) fn read() -> Option<Self> {
        let folder = test_data()?.join("execution_apis");
        let (blocks, receipts, uncles) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut node = Self { blocks, receipts, uncles };
        let rlp = fs::read(folder.join("chain.rlp")).expect("the chain");
        let mut rest = &rlp[..];
        while !rest.is_empty() {
            let block = RecordedBlock::decode(&mut rest).expect("a block");
            node.blocks.insert(block.header.number, block_json(&block));
            node.uncles.insert(block.header.hash_slow().to_string(), block.body.ommers);
        }
        let packed =
            fs::File::open(folder.join("blocks_and_receipts.json.gz")).expect("the receipts");
        let mut text = String::new();
        flate2::read::GzDecoder::new(packed).read_to_string(&mut text).expect("gzip");
        let all: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        for (number, entry) in (0..).zip(all) {
            node.receipts.insert(number, entry["receipts"].clone());
        }
        Some(node)
    }

    /// Replaces our receipts with those that a real node returned.
    fn with_case(&mut self, case: &Path) -> Option<u64> {
        let text = fs::read_to_string(case).expect("a case");
        let answer = text.lines().find_map(|line| line.strip_prefix("<< ")).expect("an answer");
        let answer: Value = serde_json::from_str(answer).expect("JSON");
        let number = quantity(answer["result"][0]["blockNumber"].as_str()?)?;
        self.receipts.insert(number, answer["result"].clone());
        Some(number)
    }

    pub(crate) fn answer(&self, body: &[u8]) -> String {
        match serde_json::from_slice(body).expect("we send JSON") {
            Value::Array(calls) => {
                json!(calls.iter().map(|call| self.one(call)).collect::<Vec<_>>()).to_string()
            }
            call => self.one(&call).to_string(),
        }
    }

    fn one(&self, call: &Value) -> Value {
        let number = call["params"][0].as_str().and_then(quantity);
        let newest = || self.blocks.last_key_value().expect("a block");
        let result = match call["method"].as_str().expect("a method") {
            "eth_chainId" => json!("0xc72dd9d5e883e"),
            "eth_blockNumber" => json!(format!("{:#x}", newest().0)),
            "eth_getBlockByNumber" if call["params"][0] == "latest" => newest().1.clone(),
            "eth_getBlockByNumber" => number.and_then(|at| self.blocks.get(&at).cloned()).into(),
            "eth_getBlockReceipts" => number.and_then(|at| self.receipts.get(&at).cloned()).into(),
            "eth_getUncleByBlockHashAndIndex" => {
                let of = call["params"][0].as_str().and_then(|hash| self.uncles.get(hash));
                let index = call["params"][1].as_str().and_then(quantity).expect("an index");
                let uncle = of.and_then(|of| of.get(usize::try_from(index).expect("small")));
                serde_json::to_value(uncle).expect("JSON")
            }
            _ => Value::Null,
        };
        json!({"jsonrpc": "2.0", "id": call["id"], "result": result})
    }
}

fn quantity(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

fn block_json(block: &RecordedBlock) -> Value {
    let mut json = serde_json::to_value(&block.header).expect("JSON");
    json["hash"] = json!(block.header.hash_slow());
    json["size"] = json!("0x1000");
    json["uncles"] = json!(block.body.ommers.iter().map(EvmHeader::hash_slow).collect::<Vec<_>>());
    json["transactions"] = serde_json::to_value(&block.body.transactions).expect("JSON");
    if let Some(withdrawals) = &block.body.withdrawals {
        json["withdrawals"] = serde_json::to_value(withdrawals).expect("JSON");
    }
    json
}

#[async_trait]
impl Wire for RecordedNode {
    async fn exchange(&self, body: Bytes, _limits: Limits) -> Result<WireResponse> {
        Ok(WireResponse { status: 200, retry_after: None, body: self.answer(&body).into() })
    }
}

pub(super) fn source(node: &Arc<RecordedNode>, verify: VerifyLevel) -> EvmSource {
    let address = NodeSettings::new(Endpoint::parse("http://recorded.example").expect("fine"));
    let reach = NodeConnections { wire: Arc::clone(node) as Arc<dyn Wire>, feed: None };
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let settings = EvmSettings { verify, ..EvmSettings::new("recorded") };
    EvmSource::with_connections(vec![(address, reach)], settings, clock, &entropy)
        .expect("fine settings")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_block_of_the_recorded_chain_is_verified_in_full() {
    let Some(node) = RecordedNode::read() else {
        return skip("no recorded chain data");
    };
    let source = source(&Arc::new(node), VerifyLevel::Full);
    let blocks = source.blocks(1..55).await.expect("blocks");
    assert_eq!(blocks.len(), 54, "{:?}", source.nodes());
    assert!(blocks.iter().any(|block| !block.uncles.is_empty()));
    let mut types = BTreeSet::new();
    for block in &blocks {
        assert_eq!(block.verified, VerifyLevel::Full);
        assert!(matches!(block.header, Header::Canonical(_)));
        for (transaction, receipt) in block.transactions.iter().zip(&block.receipts) {
            assert!(matches!(transaction.form, TransactionForm::Canonical(_)));
            types.insert(receipt.tx_type);
            // Blob gas does not follow from the block.
            assert_eq!(receipt.extra.is_some(), receipt.tx_type == 3);
        }
    }
    assert_eq!(types.into_iter().collect::<Vec<u8>>(), [0, 1, 2, 3, 4]);
    let largest = blocks.iter().flat_map(|block| block.logs()).map(|log| log.log.data.len()).max();
    assert!(largest.is_some_and(|bytes| bytes > 1 << 16), "{largest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_returned_by_real_nodes_are_verified_in_full() {
    let Some(mut node) = RecordedNode::read() else {
        return skip("no recorded chain data");
    };
    let folder = test_data().expect("it is there").join("execution_apis/eth_getBlockReceipts");
    let cases = fs::read_dir(folder).expect("cases").map(|case| case.expect("a case").path());
    let taken: BTreeSet<u64> = cases.filter_map(|case| node.with_case(&case)).collect();
    assert_eq!(taken.iter().copied().collect::<Vec<u64>>(), [1, 54]);
    let source = source(&Arc::new(node), VerifyLevel::Full);
    for number in taken {
        let blocks = source.blocks(number..number + 1).await.expect("a block");
        assert_eq!(blocks[0].verified, VerifyLevel::Full);
    }
}
