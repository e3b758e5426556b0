//! The content of the chain, and the queries.
//!
//! Nine contracts emit as many logs with three topics as they are asked to. In every block four of the first eight
//! emit 100 each, the ninth emits three, and in every fifth block one of ten rare topics occurs once.

use anyhow::{Context, ensure};
use finalized_log_index::{Address, B256, Filter};
use serde_json::{Value, json};

use super::server::Client;
use crate::http;

/// Emits `word 0` logs, whose topics are word 3, word 1, and word 2 plus the number of logs that are left:
///
/// ```text
/// 00 PUSH1 0 CALLDATALOAD              left
/// 03 JUMPDEST DUP1 ISZERO PUSH1 36 JUMPI
/// 09 DUP1 PUSH1 0 MSTORE               data: left
/// 13 PUSH1 64 CALLDATALOAD DUP2 ADD    third topic
/// 18 PUSH1 32 CALLDATALOAD             second
/// 21 PUSH1 96 CALLDATALOAD             first
/// 24 PUSH1 32 PUSH1 0 LOG3
/// 29 PUSH1 1 SWAP1 SUB PUSH1 3 JUMP
/// 36 JUMPDEST STOP
/// ```
const WRITER: &str = "6000355b801560245780600052604035810160203560603560206000a3600190036003565b00";
/// Constructor: copies the code that follows it into the contract.
const DEPLOYER: &str = "602680600b6000396000f3";
/// `Transfer(address,address,uint256)`.
const TRANSFER: &str = "ddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef";
const CONTRACTS: usize = 9;
/// The contract that emits few logs.
const QUIET: usize = 8;
const QUIET_LOGS: u64 = 3;
const BUSY_AT_ONCE: u64 = 4;
const BUSY_LOGS: u64 = 100;
const RARE_TOPICS: u64 = 10;
/// A rare topic occurs every this many blocks.
const RARE_EVERY: u64 = 5;
/// The 1 000 logs of a contract span this many blocks.
const MEDIUM_BLOCKS: u64 = 20;
/// Blocks without logs at the end, so that those with logs are final.
const EMPTY_BLOCKS: u64 = 32;
/// Number of different questions of a class, so that consecutive ones differ.
const QUESTIONS: u64 = 64;

/// A filled chain.
#[derive(Clone, Debug)]
pub struct FilledChain {
    contracts: Vec<Address>,
    /// First block with logs.
    first: u64,
    blocks: u64,
    pub head: u64,
    pub logs: u64,
}

/// A class of questions.
#[derive(Clone, Debug)]
pub struct QuestionClass {
    pub name: &'static str,
    pub questions: Vec<Question>,
}

#[derive(Clone, Debug)]
pub struct Question {
    /// Parameters of `eth_getLogs`.
    pub params: Value,
    /// The same for the log index.
    pub filter: Filter,
    /// Expected number of logs.
    pub results: u64,
}

impl QuestionClass {
    /// The questions as HTTP requests.
    pub fn requests(&self, address: &str) -> Vec<Vec<u8>> {
        let request = |question: &Question| {
            let (head, params) =
                (r#"{"jsonrpc":"2.0","id":1,"method":"eth_getLogs","params":"#, &question.params);
            http::post(address, &format!("{head}{params}}}"))
        };
        self.questions.iter().map(request).collect()
    }
}

pub async fn fill(client: &mut Client, blocks: u64) -> anyhow::Result<FilledChain> {
    let accounts = client.call("eth_accounts", json!([])).await?;
    // Otherwise anvil would mine at some time after a transaction arrives.
    client.call("evm_setAutomine", json!([false])).await?;
    let mut contracts = Vec::new();
    for _ in 0..CONTRACTS {
        let code = format!("0x{DEPLOYER}{WRITER}");
        let transaction = json!([{"from": accounts[0], "data": code, "gas": "0x100000"}]);
        let hash = client.call("eth_sendTransaction", transaction).await?;
        client.call("evm_mine", json!([])).await?;
        let receipt = client.call("eth_getTransactionReceipt", json!([hash])).await?;
        let address = receipt["contractAddress"].as_str().context("no contract was created")?;
        contracts.push(address.parse()?);
    }
    let first = number(&client.call("eth_blockNumber", json!([])).await?)? + 1;
    let mut filled = FilledChain { contracts, first, blocks, head: 0, logs: 0 };
    for block in 0..blocks {
        let writes = filled.writes(block);
        filled.logs += writes.iter().map(|write| write.count).sum::<u64>();
        // One account per transaction: nonces of the same account would race.
        let calls = writes.iter().zip(accounts.as_array().into_iter().flatten());
        let calls = calls.map(|(write, from)| ("eth_sendTransaction", write.call(from)));
        client.batch(calls.collect()).await?;
        client.call("evm_mine", json!([])).await?;
    }
    client.call("anvil_mine", json!([format!("{EMPTY_BLOCKS:#x}")])).await?;
    filled.head = number(&client.call("eth_blockNumber", json!([])).await?)?;
    ensure!(filled.head == filled.last() + EMPTY_BLOCKS, "the head is {}", filled.head);
    Ok(filled)
}

/// A call of a contract.
struct ContractCall {
    to: Address,
    count: u64,
    topic: B256,
    base: B256,
}

impl ContractCall {
    fn call(&self, from: &Value) -> Value {
        let Self { to, count, topic, base } = self;
        let data = format!("0x{count:064x}{topic:x}{base:x}{TRANSFER}").replace("0x", "");
        json!([{"from": from, "to": to, "gas": "0x400000", "data": format!("0x{data}")}])
    }
}

impl FilledChain {
    /// Last block with logs.
    pub fn last(&self) -> u64 {
        self.first + self.blocks - 1
    }

    fn writes(&self, block: u64) -> Vec<ContractCall> {
        let half = block % 2 * BUSY_AT_ONCE;
        let busy = (half..half + BUSY_AT_ONCE).map(|contract| ContractCall {
            to: self.contract(contract),
            count: BUSY_LOGS,
            topic: word(1, block % 50),
            base: word(2, block * 1_000 + contract * 100),
        });
        let quiet = ContractCall {
            to: self.contracts[QUIET],
            count: QUIET_LOGS,
            topic: word(3, block),
            base: word(4, block * 10),
        };
        let rare = block.is_multiple_of(RARE_EVERY).then(|| ContractCall {
            to: self.contract(block % 8),
            count: 1,
            topic: rare(block / RARE_EVERY % RARE_TOPICS),
            base: word(5, block),
        });
        busy.chain([quiet]).chain(rare).collect()
    }

    fn contract(&self, number: u64) -> Address {
        self.contracts[usize::try_from(number).unwrap_or(0)]
    }

    pub fn classes(&self) -> Vec<QuestionClass> {
        let spread = |question: u64| question * self.blocks / QUESTIONS;
        let small = (0..QUESTIONS).map(|question| {
            let block = self.first + spread(question);
            self.question(block, block, Some(self.contracts[QUIET]), None, QUIET_LOGS)
        });
        let selective = (0..RARE_TOPICS).map(|topic| {
            let times = (0..self.blocks)
                .filter(|b| b.is_multiple_of(RARE_EVERY) && b / RARE_EVERY % RARE_TOPICS == topic);
            let times = times.count() as u64;
            self.question(self.first, self.last(), None, Some(rare(topic)), times)
        });
        let medium = (0..QUESTIONS).map(|question| {
            let contract = question % 8;
            let start = spread(question).min(self.blocks - MEDIUM_BLOCKS);
            let (from, to) = (self.first + start, self.first + start + MEDIUM_BLOCKS - 1);
            let logs = (start..start + MEDIUM_BLOCKS).flat_map(|block| self.writes(block));
            let own = logs.filter(|write| write.to == self.contract(contract));
            let results = own.map(|write| write.count).sum();
            self.question(from, to, Some(self.contract(contract)), None, results)
        });
        vec![
            QuestionClass { name: "small", questions: small.collect() },
            QuestionClass { name: "selective", questions: selective.collect() },
            QuestionClass { name: "medium", questions: medium.collect() },
        ]
    }

    fn question(
        &self,
        from: u64,
        to: u64,
        address: Option<Address>,
        topic: Option<B256>,
        results: u64,
    ) -> Question {
        let mut params = json!({"fromBlock": format!("{from:#x}"), "toBlock": format!("{to:#x}")});
        let mut filter = Filter::range(from..=to);
        if let Some(address) = address {
            params["address"] = json!(address);
            filter = filter.address(address);
        }
        if let Some(topic) = topic {
            params["topics"] = json!([null, topic]);
            filter = filter.topic(1, topic);
        }
        Question { params: json!([params]), filter, results }
    }
}

/// Sends every question to two servers, and compares the answers.
pub async fn compare(
    classes: &[QuestionClass],
    one: &mut Client,
    other: &mut Client,
) -> anyhow::Result<()> {
    for class in classes {
        for question in &class.questions {
            let ours = one.call("eth_getLogs", question.params.clone()).await?;
            let theirs = other.call("eth_getLogs", question.params.clone()).await?;
            let count = ours.as_array().map_or(0, Vec::len) as u64;
            let (class, params) = (class.name, &question.params);
            ensure!(plain(&ours) == plain(&theirs), "{class} {params}: the answers differ");
            ensure!(count == question.results, "{class} {params}: {count} logs");
        }
    }
    Ok(())
}

/// The fields of a log that every node reports.
fn plain(logs: &Value) -> Vec<Vec<&Value>> {
    const FIELDS: [&str; 9] = [
        "address",
        "topics",
        "data",
        "blockNumber",
        "blockHash",
        "transactionHash",
        "transactionIndex",
        "logIndex",
        "removed",
    ];
    let logs = logs.as_array().into_iter().flatten();
    logs.map(|log| FIELDS.iter().map(|field| &log[field]).collect()).collect()
}

/// A word that differs from those of other kinds.
fn word(kind: u8, number: u64) -> B256 {
    let mut word = B256::with_last_byte(0);
    word[0] = kind;
    word[24..].copy_from_slice(&number.to_be_bytes());
    word
}

fn rare(topic: u64) -> B256 {
    word(9, topic)
}

pub(crate) fn number(value: &Value) -> anyhow::Result<u64> {
    let text = value.as_str().and_then(|text| text.strip_prefix("0x"));
    Ok(u64::from_str_radix(text.context("no number")?, 16)?)
}
