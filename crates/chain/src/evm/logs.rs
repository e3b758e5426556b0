//! Logs of some contracts over a range of final blocks, by `eth_getLogs`: for who wants one event and no blocks.
//!
//! A node is asked for the logs and, in the same request, for a block that is known to be final, at or above the end
//! of the range: a node that lags or is on another branch shows it there, where its list of logs would merely be
//! short. Then it is asked for the header of every block that it found logs in.
//!
//! Guarantees: what is given is of the blocks, contracts and topics that were asked for, once each and in order, and of
//! headers that have the hash, the transaction and (by the level of checks) the bloom and the contents that go with
//! it. A range that is too much for a node is cut until it is not; a block that is, is read by its receipts. Leaves to
//! others: a node that keeps silent about a log; only whole blocks would show that.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bloom, BloomInput, Bytes, U64, keccak256};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::heads::header_by;
use super::json::{self, block_ref};
use super::node::Node;
use super::pool::Pool;
use super::rpc::{Call, Outcome};
use super::trouble::Trouble;
use crate::block::{BlockRef, Log, Topics};
use crate::error::{Error, Result};
use crate::source::{FoundLog, LogFilter};
use crate::verify::{Mismatch, Verify, foreign};

/// The most headers that are read at once: each holds the hashes of all its transactions.
const HEADERS_MAX: usize = 100;

impl Pool {
    /// The logs of a range, each part from one node that has `anchor`.
    pub(super) async fn logs(
        &self,
        filter: &LogFilter,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>> {
        check_question(filter, &range, anchor)?;
        let filter = Arc::new(filter.clone());
        let mut found = Vec::new();
        let mut from = range.start;
        let mut turn = self.turn(format!("the logs of block {from}"), Some(anchor.number));
        while from < range.end {
            let Ok((index, node)) = self.next(&mut turn).await else {
                return Err(about(from, turn.verdict(&self.nodes)));
            };
            let asked = node.found_at_once().min(range.end - from);
            let part = from..from + asked;
            let last_resort = asked == 1 && node.calls_at_once() == 1;
            match self.ask(&node, &filter, part, anchor).await {
                Ok(mut logs) => {
                    node.found_went_well(asked);
                    found.append(&mut logs);
                }
                Err(Trouble::TooMuch { .. }) if last_resort => {
                    found.append(&mut self.of_whole_block(&filter, from).await?);
                }
                Err(trouble) => {
                    resize(&node, asked, &trouble);
                    turn.take(index, trouble, last_resort);
                    continue;
                }
            }
            from += asked;
            turn = self.turn(format!("the logs of block {from}"), Some(anchor.number));
        }
        Ok(found)
    }

    async fn ask(
        &self,
        node: &Node,
        filter: &Arc<LogFilter>,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>, Trouble> {
        let calls = vec![
            header_by(&format!("{:#x}", anchor.number)),
            Call::new("eth_getLogs", params(filter, &range)),
        ];
        let filter = Arc::clone(filter);
        let read = move |outcomes: &[Outcome<'_>]| {
            check_anchor(outcomes.first(), anchor)?;
            let json = outcomes.get(1).cloned().transpose()?.flatten();
            let json = json.ok_or_else(|| Trouble::failed("null where logs should be"))?;
            read_logs(json, &filter, &range)
        };
        let logs = node.call(calls, read).await?;
        let told = logs.iter().all(|log| log.block_timestamp.is_some());
        let headers = match self.settings.verify {
            Verify::Off if told => BTreeMap::new(),
            level => headers(node, &logs, level).await?,
        };
        let placed = logs.into_iter().map(|log| placed(log, &headers));
        placed.collect::<Result<_, _>>().map_err(|trouble| node.note(trouble))
    }

    /// The logs of a block that has too many for `eth_getLogs`.
    async fn of_whole_block(&self, filter: &LogFilter, number: u64) -> Result<Vec<FoundLog>> {
        let blocks = self.blocks(number..number + 1).await?;
        let block = blocks.first().ok_or(Error::NotYet { number })?;
        let wanted = block.logs().filter(|placed| filter.wants(placed.log));
        let found = wanted.map(|placed| FoundLog {
            block: block.at.number,
            block_hash: block.at.hash,
            timestamp: block.at.timestamp,
            transaction_index: placed.transaction_index,
            transaction_hash: placed.transaction_hash,
            log_index: placed.log_index,
            log: placed.log.clone(),
        });
        Ok(found.collect())
    }
}

fn check_question(filter: &LogFilter, range: &Range<u64>, anchor: BlockRef) -> Result<()> {
    let what = if filter.addresses.is_empty() || filter.topics.is_empty() {
        "a question for logs names contracts and topics"
    } else if range.end > anchor.number.saturating_add(1) {
        "logs are asked for up to a block that is known"
    } else {
        return Ok(());
    };
    Err(Error::Invalid { what: what.to_owned() })
}

/// What the nodes say of the anchor is meant of the block whose logs were asked for.
fn about(number: u64, error: Error) -> Error {
    match error {
        Error::Pruned { .. } => Error::Pruned { number },
        other => other,
    }
}

fn resize(node: &Node, asked: u64, trouble: &Trouble) {
    match trouble {
        // One block can not be cut, but what it is asked together with can be asked for by itself.
        Trouble::TooMuch { .. } if asked == 1 => node.calls_were_too_many(node.calls_at_once()),
        Trouble::TooMuch { better, .. } => node.found_was_too_much(asked, *better),
        Trouble::Slow { .. } => node.found_was_too_much(asked, None),
        _ => {}
    }
}

fn params(filter: &LogFilter, range: &Range<u64>) -> String {
    let (from, to) = (range.start, range.end - 1);
    let filter = serde_json::json!([{
        "address": filter.addresses,
        "topics": [filter.topics],
        "fromBlock": format!("{from:#x}"),
        "toBlock": format!("{to:#x}"),
    }]);
    filter.to_string()
}

fn check_anchor(outcome: Option<&Outcome<'_>>, anchor: BlockRef) -> Result<(), Trouble> {
    let json = outcome.cloned().transpose()?.flatten().ok_or(Trouble::Missing)?;
    let at = block_ref(json).map_err(Trouble::failed)?;
    if at.number == anchor.number && at.hash == anchor.hash {
        return Ok(());
    }
    let BlockRef { number, hash, .. } = anchor;
    let what = format!(
        "block {number} is final as {hash}, but the node gave block {} as {}",
        at.number, at.hash
    );
    Err(lie(anchor.number, at.hash, Mismatch::Malformed { what }))
}

/// A log as a node tells it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToldLog {
    address: Address,
    topics: Topics,
    data: Bytes,
    block_hash: B256,
    block_number: U64,
    #[serde(default)]
    block_timestamp: Option<U64>,
    transaction_hash: B256,
    transaction_index: U64,
    log_index: U64,
    #[serde(default)]
    removed: bool,
}

impl ToldLog {
    fn block(&self) -> u64 {
        self.block_number.to()
    }
}

/// The logs of an answer, in order, if they are what was asked for.
fn read_logs(
    json: &RawValue,
    filter: &LogFilter,
    range: &Range<u64>,
) -> Result<Vec<ToldLog>, Trouble> {
    let logs: Result<Vec<ToldLog>, _> = serde_json::from_str(json.get());
    let mut logs = logs.map_err(|error| Trouble::failed(format!("no logs: {error}")))?;
    logs.sort_by_key(|log| (log.block_number, log.log_index));
    let mut before: Option<&ToldLog> = None;
    for log in &logs {
        if log.removed {
            return Err(Trouble::Moved);
        }
        let asked_for = range.contains(&log.block())
            && filter.addresses.contains(&log.address)
            && log.topics.first().is_some_and(|topic| filter.topics.contains(topic));
        let wrong = match before {
            _ if !asked_for => Some("the node gave a log that the filter excludes"),
            Some(before) if before.block() != log.block() => None,
            Some(before) if before.log_index == log.log_index => {
                Some("two logs have the same index")
            }
            Some(before) if before.block_hash != log.block_hash => {
                Some("its logs name two block hashes")
            }
            _ => None,
        };
        if let Some(what) = wrong {
            let mismatch = Mismatch::Malformed { what: what.to_owned() };
            return Err(lie(log.block(), log.block_hash, mismatch));
        }
        before = Some(log);
    }
    Ok(logs)
}

/// What is needed of a header.
#[derive(Clone, Debug)]
struct Seen {
    hash: B256,
    timestamp: u64,
    /// None if the header has none, or it is not to be looked at.
    bloom: Option<Bloom>,
    transactions: Vec<B256>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct HeaderFields {
    hash: B256,
    number: U64,
    timestamp: U64,
    #[serde(default)]
    logs_bloom: Option<Bloom>,
    transactions: Vec<B256>,
}

/// The headers of the blocks that logs are in, by number.
async fn headers(
    node: &Node,
    logs: &[ToldLog],
    level: Verify,
) -> Result<BTreeMap<u64, Seen>, Trouble> {
    let mut numbers: Vec<u64> = logs.iter().map(ToldLog::block).collect();
    numbers.dedup();
    let mut headers = BTreeMap::new();
    for part in numbers.chunks(HEADERS_MAX) {
        let part = part.to_vec();
        let calls = part.iter().map(|number| header_by(&format!("{number:#x}"))).collect();
        let read = move |outcomes: &[Outcome<'_>]| {
            let each = part.iter().zip(outcomes).map(|(number, outcome)| {
                let json = outcome.clone()?.ok_or(Trouble::Missing)?;
                Ok((*number, seen(json, *number, level)?))
            });
            each.collect::<Result<Vec<(u64, Seen)>, Trouble>>()
        };
        headers.extend(node.call(calls, read).await?);
    }
    Ok(headers)
}

fn seen(json: &RawValue, number: u64, level: Verify) -> Result<Seen, Trouble> {
    let fields: HeaderFields = serde_json::from_str(json.get())
        .map_err(|error| Trouble::failed(format!("no header: {error}")))?;
    let hash = fields.hash;
    if fields.number.to::<u64>() != number {
        let what =
            format!("the node was asked for block {number} and gave block {}", fields.number);
        return Err(lie(number, hash, Mismatch::Malformed { what }));
    }
    if level == Verify::Full {
        let computed = json::header_bytes(json).map(keccak256);
        if computed != Some(hash) {
            return Err(lie(number, hash, foreign::header(json.get().as_bytes(), hash)));
        }
    }
    let bloom = match (level, fields.logs_bloom) {
        (Verify::Off, _) => None,
        (_, Some(bloom)) => Some(bloom),
        (_, None) => return Err(lie(number, hash, Mismatch::NoBloom)),
    };
    let timestamp = fields.timestamp.to();
    Ok(Seen { hash, timestamp, bloom, transactions: fields.transactions })
}

/// A log with its place, if its header goes with it.
fn placed(told: ToldLog, headers: &BTreeMap<u64, Seen>) -> Result<FoundLog, Trouble> {
    let (block, block_hash) = (told.block(), told.block_hash);
    let index = |index: U64| usize::try_from(index.to::<u64>()).unwrap_or(usize::MAX);
    let transaction_index = index(told.transaction_index);
    let log = Log { address: told.address, topics: told.topics, data: told.data };
    let mut timestamp = told.block_timestamp.map_or(0, |time| time.to());
    if let Some(header) = headers.get(&block) {
        if header.hash != block_hash {
            return Err(Trouble::Moved);
        }
        if header.transactions.get(transaction_index) != Some(&told.transaction_hash) {
            let of = told.transaction_hash;
            let what = format!(
                "a log is of transaction {of}, which is not at {transaction_index} in the block"
            );
            return Err(lie(block, block_hash, Mismatch::Malformed { what }));
        }
        if header.bloom.as_ref().is_some_and(|bloom| !holds(bloom, &log)) {
            let log_index = told.log_index.to();
            return Err(lie(block, block_hash, Mismatch::LogNotInBloom { log_index }));
        }
        timestamp = header.timestamp;
    }
    Ok(FoundLog {
        block,
        block_hash,
        timestamp,
        transaction_index,
        transaction_hash: told.transaction_hash,
        log_index: index(told.log_index),
        log,
    })
}

fn holds(bloom: &Bloom, log: &Log) -> bool {
    let topics = log.topics.iter().map(|topic| topic.as_slice());
    let mut inputs = std::iter::once(log.address.as_slice()).chain(topics);
    inputs.all(|input| bloom.contains_input(BloomInput::Raw(input)))
}

fn lie(number: u64, hash: B256, mismatch: Mismatch) -> Trouble {
    Trouble::mismatch(number, hash, mismatch)
}
