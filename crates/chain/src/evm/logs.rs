//! Logs of some contracts over a range of final blocks by `eth_getLogs`, for callers that need a few events and no
//! blocks.
//!
//! The request for logs also asks for a block known to be final, at or above the end of the range. It reveals a node
//! that lags or is on another branch; the list of logs alone would merely be too short. Then the header of every
//! block with logs is requested.
//!
//! Guarantees: logs are of the requested blocks, contracts and topics, once each and in order. Their headers match
//! the block hash, the transaction and, depending on the verification level, the bloom and the header's hash. A range
//! that is too large for a node is split; a single block that is too large is read by its receipts. Leaves to others:
//! a node that omits a log, which only whole blocks would reveal.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bloom, BloomInput, Bytes, U64, keccak256};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::heads::header_by;
use super::json::{self, block_ref};
use super::node::Node;
use super::node_error::NodeError;
use super::pool::Pool;
use super::rpc::{Call, CallResult};
use crate::block::{BlockRef, Log, Topics};
use crate::error::{Error, Result};
use crate::mismatch::Mismatch;
use crate::source::{FoundLog, LogFilter};
use crate::verify::foreign;
use crate::verify_level::VerifyLevel;

/// Maximum headers per request: each holds the hashes of all its transactions.
const HEADERS_MAX: usize = 100;

impl Pool {
    /// The logs of a range, each part from one node that has `anchor`.
    pub(super) async fn logs(
        &self,
        filter: &LogFilter,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>> {
        check_request(filter, &range, anchor)?;
        let filter = Arc::new(filter.clone());
        let mut found = Vec::new();
        let mut from = range.start;
        let mut request =
            self.start_request(format!("the logs of block {from}"), Some(anchor.number));
        while from < range.end {
            let Ok((index, node)) = self.next(&mut request).await else {
                return Err(about(from, request.into_error(&self.nodes)));
            };
            let asked = node.found_at_once().min(range.end - from);
            let part = from..from + asked;
            let last_resort = asked == 1;
            match self.ask(&node, &filter, part, anchor).await {
                Ok(mut logs) => {
                    node.found_went_well(asked);
                    found.append(&mut logs);
                }
                Err(NodeError::TooMuch { .. }) if last_resort => {
                    found.append(&mut self.of_whole_block(&filter, from).await?);
                }
                Err(error) => {
                    resize(&node, asked, &error);
                    request.record(index, error, last_resort);
                    continue;
                }
            }
            from += asked;
            request = self.start_request(format!("the logs of block {from}"), Some(anchor.number));
        }
        Ok(found)
    }

    async fn ask(
        &self,
        node: &Node,
        filter: &Arc<LogFilter>,
        range: Range<u64>,
        anchor: BlockRef,
    ) -> Result<Vec<FoundLog>, NodeError> {
        let calls = vec![
            header_by(&format!("{:#x}", anchor.number)),
            Call::new("eth_getLogs", params(filter, &range)),
        ];
        let filter = Arc::clone(filter);
        let read = move |outcomes: &[CallResult<'_>]| {
            check_anchor(outcomes.first(), anchor)?;
            let json = outcomes.get(1).cloned().transpose()?.flatten();
            let json = json.ok_or_else(|| NodeError::failed("it returned null instead of logs"))?;
            read_logs(json, &filter, &range)
        };
        let logs = node.call(calls, read).await?;
        let have_times = logs.iter().all(|log| log.block_timestamp.is_some());
        let headers = match self.settings.verify {
            VerifyLevel::Off if have_times => BTreeMap::new(),
            level => headers(node, &logs, level).await?,
        };
        let checked = logs.into_iter().map(|log| check_log(log, &headers));
        checked.collect::<Result<_, _>>().map_err(|error| node.note(error))
    }

    /// The logs of a block that has too many for `eth_getLogs`.
    async fn of_whole_block(&self, filter: &LogFilter, number: u64) -> Result<Vec<FoundLog>> {
        let blocks = self.blocks(number..number + 1).await?;
        let block = blocks.first().ok_or(Error::NotYet { number })?;
        let wanted = block.logs().filter(|placed| filter.matches(placed.log));
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

fn check_request(filter: &LogFilter, range: &Range<u64>, anchor: BlockRef) -> Result<()> {
    let what = if filter.addresses.is_empty() || filter.topics.is_empty() {
        "a request for logs needs at least one contract and one topic"
    } else if range.end > anchor.number.saturating_add(1) {
        "a request for logs must not end above its anchor block"
    } else {
        return Ok(());
    };
    Err(Error::Invalid { what: what.to_owned() })
}

/// Rewrites an error about the anchor to name the block whose logs were requested.
fn about(number: u64, error: Error) -> Error {
    match error {
        Error::Pruned { .. } => Error::Pruned { number },
        other => other,
    }
}

fn resize(node: &Node, asked: u64, error: &NodeError) {
    match error {
        NodeError::TooMuch { better, .. } => node.found_was_too_much(asked, *better),
        NodeError::Slow { .. } => node.found_was_too_much(asked, None),
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

fn check_anchor(outcome: Option<&CallResult<'_>>, anchor: BlockRef) -> Result<(), NodeError> {
    let json = outcome.cloned().transpose()?.flatten().ok_or(NodeError::Missing)?;
    let at = block_ref(json).map_err(NodeError::failed)?;
    if at.number == anchor.number && at.hash == anchor.hash {
        return Ok(());
    }
    let BlockRef { number, hash, .. } = anchor;
    let what = format!(
        "block {number} is final with the hash {hash}, but the node returned block {} with the hash {}",
        at.number, at.hash
    );
    Err(lie(anchor.number, at.hash, Mismatch::Malformed { what }))
}

/// A log as the node reported it.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ReportedLog {
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

impl ReportedLog {
    fn block(&self) -> u64 {
        self.block_number.to()
    }
}

/// Parses the logs of an answer, which must match the request and be in order.
fn read_logs(
    json: &RawValue,
    filter: &LogFilter,
    range: &Range<u64>,
) -> Result<Vec<ReportedLog>, NodeError> {
    let logs: Result<Vec<ReportedLog>, _> = serde_json::from_str(json.get());
    let mut logs =
        logs.map_err(|error| NodeError::failed(format!("cannot parse the logs: {error}")))?;
    logs.sort_by_key(|log| (log.block_number, log.log_index));
    let mut before: Option<&ReportedLog> = None;
    for log in &logs {
        if log.removed {
            return Err(NodeError::Moved);
        }
        let asked_for = range.contains(&log.block())
            && filter.addresses.contains(&log.address)
            && log.topics.first().is_some_and(|topic| filter.topics.contains(topic));
        let wrong = match before {
            _ if !asked_for => Some("the node returned a log that the filter excludes"),
            Some(before) if before.block() != log.block() => None,
            Some(before) if before.log_index == log.log_index => {
                Some("two logs have the same index")
            }
            Some(before) if before.block_hash != log.block_hash => {
                Some("its logs have two different block hashes")
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

/// The fields of a checked header that logs are compared with.
#[derive(Clone, Debug)]
struct CheckedHeader {
    hash: B256,
    timestamp: u64,
    /// `None` if blooms are not checked.
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

/// The headers of all blocks with logs, by number.
async fn headers(
    node: &Node,
    logs: &[ReportedLog],
    level: VerifyLevel,
) -> Result<BTreeMap<u64, CheckedHeader>, NodeError> {
    let mut numbers: Vec<u64> = logs.iter().map(ReportedLog::block).collect();
    numbers.dedup();
    let mut headers = BTreeMap::new();
    for part in numbers.chunks(HEADERS_MAX) {
        let part = part.to_vec();
        let calls = part.iter().map(|number| header_by(&format!("{number:#x}"))).collect();
        let read = move |outcomes: &[CallResult<'_>]| {
            let each = part.iter().zip(outcomes).map(|(number, outcome)| {
                let json = outcome.clone()?.ok_or(NodeError::Missing)?;
                Ok((*number, check_header(json, *number, level)?))
            });
            each.collect::<Result<Vec<(u64, CheckedHeader)>, NodeError>>()
        };
        headers.extend(node.call(calls, read).await?);
    }
    Ok(headers)
}

fn check_header(
    json: &RawValue,
    number: u64,
    level: VerifyLevel,
) -> Result<CheckedHeader, NodeError> {
    let fields: HeaderFields = serde_json::from_str(json.get())
        .map_err(|error| NodeError::failed(format!("cannot parse a header: {error}")))?;
    let hash = fields.hash;
    if fields.number.to::<u64>() != number {
        let what =
            format!("the node was asked for block {number} and returned block {}", fields.number);
        return Err(lie(number, hash, Mismatch::Malformed { what }));
    }
    if level == VerifyLevel::Full {
        let computed = json::header_bytes(json).map(keccak256);
        if computed != Some(hash) {
            return Err(lie(number, hash, foreign::header(json.get().as_bytes(), hash)));
        }
    }
    let bloom = match (level, fields.logs_bloom) {
        (VerifyLevel::Off, _) => None,
        (_, Some(bloom)) => Some(bloom),
        (_, None) => return Err(lie(number, hash, Mismatch::NoBloom)),
    };
    let timestamp = fields.timestamp.to();
    Ok(CheckedHeader { hash, timestamp, bloom, transactions: fields.transactions })
}

/// Checks a log against its header, and returns it with its place.
fn check_log(
    reported: ReportedLog,
    headers: &BTreeMap<u64, CheckedHeader>,
) -> Result<FoundLog, NodeError> {
    let (block, block_hash) = (reported.block(), reported.block_hash);
    let index = |index: U64| usize::try_from(index.to::<u64>()).unwrap_or(usize::MAX);
    let transaction_index = index(reported.transaction_index);
    let log = Log { address: reported.address, topics: reported.topics, data: reported.data };
    let mut timestamp = reported.block_timestamp.map_or(0, |time| time.to());
    if let Some(header) = headers.get(&block) {
        if header.hash != block_hash {
            return Err(NodeError::Moved);
        }
        if header.transactions.get(transaction_index) != Some(&reported.transaction_hash) {
            let of = reported.transaction_hash;
            let what = format!(
                "a log belongs to transaction {of}, which is not at position {transaction_index} of the block"
            );
            return Err(lie(block, block_hash, Mismatch::Malformed { what }));
        }
        if header.bloom.as_ref().is_some_and(|bloom| !holds(bloom, &log)) {
            let log_index = reported.log_index.to();
            return Err(lie(block, block_hash, Mismatch::LogNotInBloom { log_index }));
        }
        timestamp = header.timestamp;
    }
    Ok(FoundLog {
        block,
        block_hash,
        timestamp,
        transaction_index,
        transaction_hash: reported.transaction_hash,
        log_index: index(reported.log_index),
        log,
    })
}

fn holds(bloom: &Bloom, log: &Log) -> bool {
    let topics = log.topics.iter().map(|topic| topic.as_slice());
    let mut inputs = std::iter::once(log.address.as_slice()).chain(topics);
    inputs.all(|input| bloom.contains_input(BloomInput::Raw(input)))
}

fn lie(number: u64, hash: B256, mismatch: Mismatch) -> NodeError {
    NodeError::mismatch(number, hash, mismatch)
}
