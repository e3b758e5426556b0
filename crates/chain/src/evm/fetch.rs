//! Fetches blocks from one node: all calls for a block go to it, and its answers are combined and checked.
//!
//! Guarantees: returned blocks are the requested ones, linked, and verified at the requested level. Leaves to others:
//! what to do when the node fails, see [`super::pool`].

use std::ops::Range;
use std::sync::Arc;

use alloy_consensus::constants::EMPTY_ROOT_HASH;
use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Header as RlpHeader;
use logmill_io::compute;
use serde_json::value::RawValue;

use super::compare;
use super::json::{self, BlockDefect, ReadOptions};
use super::node::{Node, ReceiptMethod, UNCLES};
use super::node_error::NodeError;
use super::patience::Patience;
use super::receipt::{self, NodeLog, NodeReceipt};
use super::rpc::{Call, CallResult};
use crate::block::{Block, Header};
use crate::mismatch::Mismatch;
use crate::verify::verify_for;
use crate::verify_level::VerifyLevel;

/// Maximum retries of a range of logs with a smaller size; the maximum size can be halved ten times.
const LOGS_TRIES_MAX: u32 = 12;

/// The blocks to fetch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BlockQuery {
    Numbers(Range<u64>),
    Hash(B256),
}

/// The first of the requested blocks, and why the next one is missing.
#[derive(Debug, Default)]
pub(super) struct FetchedBlocks {
    pub(super) blocks: Vec<Block>,
    pub(super) error: Option<NodeError>,
}

type FetchResult = Result<FetchedBlocks, NodeError>;

#[derive(Clone, Copy, Debug)]
enum Key {
    Number(u64),
    Hash(B256),
}

/// Requests blocks from a node, and records its errors.
pub(super) async fn fetch(node: &Node, query: &BlockQuery, options: ReadOptions) -> FetchedBlocks {
    let mut fetched = loop {
        let how = node.receipts();
        let fetched = match how {
            ReceiptMethod::OfBlock => by_block(node, query, options).await,
            ReceiptMethod::OfTransaction => by_transaction(node, query, options).await,
            ReceiptMethod::Logs => by_logs(node, query, options).await,
        };
        match fetched {
            // There are three methods, so this loops at most three times.
            Err(NodeError::NoMethod { .. }) if node.fall_back_from(how) => {}
            Err(error) => return FetchedBlocks { blocks: Vec::new(), error: Some(error) },
            Ok(fetched) => break fetched,
        }
    };
    if fetched.blocks.iter().any(|block| matches!(block.header, Header::Canonical(_))) {
        node.note_hashed_headers();
    }
    if options.verify == VerifyLevel::Full
        && node.has_uncles()
        && let Err((good, error)) = check_uncles(node, &fetched.blocks).await
    {
        fetched.blocks.truncate(good);
        return FetchedBlocks { error: Some(error), ..fetched };
    }
    cut_unlinked(&mut fetched);
    fetched.error = fetched.error.map(|error| node.note(error));
    fetched
}

fn cut_unlinked(fetched: &mut FetchedBlocks) {
    let linked =
        fetched.blocks.windows(2).take_while(|two| two[1].at.parent_hash == two[0].at.hash);
    let good = linked.count() + 1;
    if let (Some(before), Some(next)) = (fetched.blocks.get(good - 1), fetched.blocks.get(good)) {
        fetched.error = Some(NodeError::Unlinked {
            number: next.at.number,
            parent: next.at.parent_hash,
            before: before.at.hash,
        });
        fetched.blocks.truncate(good);
    }
}

async fn by_block(node: &Node, query: &BlockQuery, options: ReadOptions) -> FetchResult {
    let keys = query.keys();
    let calls = keys.iter().flat_map(|key| [key.block(), key.receipts()]).collect();
    let missing = MissingReceipts::of(node, options);
    let read = move |outcomes: &[CallResult<'_>]| {
        FetchedBlocks::collect(keys.iter().zip(outcomes.chunks_exact(2)).map(|(key, pair)| {
            let mut block = draft(*key, &pair[0], options)?;
            let receipts = match part(&pair[1])? {
                Some(json) => {
                    receipt::read_all(json, options.compared).map_err(NodeError::failed)?
                }
                None if missing.has_none(&block) => Vec::new(),
                None => return Err(late(block.at.number)),
            };
            if receipts.len() < block.transactions.len() && missing.may_arrive(&block) {
                return Err(late(block.at.number));
            }
            let added = json::add_receipts(&mut block, receipts, options);
            finish(block, added, options)
        }))
    };
    node.call(calls, read).await
}

async fn by_transaction(node: &Node, query: &BlockQuery, options: ReadOptions) -> FetchResult {
    let FetchedBlocks { blocks, error } = drafts(node, query, options).await?;
    let hashes = blocks.iter().flat_map(|block| &block.transactions).map(|tx| tx.hash);
    let calls = hashes.map(|hash| Call::new("eth_getTransactionReceipt", format!(r#"["{hash}"]"#)));
    let read = move |outcomes: &[CallResult<'_>]| {
        let receipts = outcomes.iter().map(|outcome| {
            let json = part(outcome)?;
            json.map(|json| receipt::read(json, options.compared))
                .transpose()
                .map_err(NodeError::failed)
        });
        receipts.collect::<Result<Vec<Option<NodeReceipt>>, NodeError>>()
    };
    let calls: Vec<Call> = calls.collect();
    let receipts = if calls.is_empty() { Vec::new() } else { node.call(calls, read).await? };
    let missing = MissingReceipts::of(node, options);
    let joined = compute(move || {
        let mut receipts = receipts.into_iter();
        FetchedBlocks::collect(blocks.into_iter().map(|mut block| {
            let own: Vec<Option<NodeReceipt>> =
                receipts.by_ref().take(block.transactions.len()).collect();
            // If nothing is checked, a receipt that stays missing means that the node has none for the transaction.
            let is_late = options.verify != VerifyLevel::Off || missing.may_arrive(&block);
            if own.iter().any(Option::is_none) && is_late {
                return Err(late(block.at.number));
            }
            let own = own.into_iter().flatten().collect();
            let added = json::add_receipts(&mut block, own, options);
            finish(block, added, options)
        }))
    });
    note_joined(node, joined.await, error)
}

async fn by_logs(node: &Node, query: &BlockQuery, options: ReadOptions) -> FetchResult {
    if options.verify == VerifyLevel::Full {
        let why = Mismatch::NoReceipts.to_string();
        return Err(node.note(NodeError::NoMethod { why }));
    }
    let FetchedBlocks { blocks, error } = drafts(node, query, options).await?;
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
        return Ok(FetchedBlocks { blocks, error });
    };
    let logs = match query {
        BlockQuery::Hash(hash) => logs(node, format!(r#"[{{"blockHash":"{hash}"}}]"#)).await,
        BlockQuery::Numbers(_) => logs_of(node, first.at.number..last.at.number + 1).await,
    };
    let logs =
        logs.map_err(|error| late_if_missing(node, error, last.at.number, json::NO_LOGS_YET))?;
    let missing = MissingReceipts::of(node, options);
    let joined = compute(move || {
        let mut logs = logs.into_iter().peekable();
        FetchedBlocks::collect(blocks.into_iter().map(|mut block| {
            let number = block.at.number;
            let own =
                std::iter::from_fn(|| logs.next_if(|log| log.block_number.to::<u64>() <= number));
            let own: Vec<NodeLog> = own.collect();
            let is_late = own.is_empty()
                && has_logs(&block)
                && (options.verify != VerifyLevel::Off || missing.may_arrive(&block));
            let added = match is_late {
                true => Err(BlockDefect::Late(json::NO_LOGS_YET)),
                false => json::add_logs(&mut block, own, options),
            };
            finish(block, added, options)
        }))
    });
    note_joined(node, joined.await, error)
}

/// Decides whether missing parts of a block may still arrive.
struct MissingReceipts {
    patience: Arc<Patience>,
    head: Option<u64>,
    is_unchecked: bool,
}

impl MissingReceipts {
    fn of(node: &Node, options: ReadOptions) -> Self {
        let head = node.head().map(|(head, _)| head);
        let is_unchecked = options.verify == VerifyLevel::Off;
        Self { patience: Arc::clone(&node.patience), head, is_unchecked }
    }

    /// Whether receipts may still arrive. A checked block eventually has one for each transaction.
    fn may_arrive(&self, block: &Block) -> bool {
        (!self.is_unchecked || json::something_ran(block))
            && self.patience.may_arrive(&block.at, self.head)
    }

    /// Whether there are no receipts because there are no transactions.
    fn has_none(&self, block: &Block) -> bool {
        block.transactions.is_empty() && (!json::something_ran(block) || !self.may_arrive(block))
    }
}

/// Whether the header's bloom shows that there are logs.
fn has_logs(block: &Block) -> bool {
    block.header.bloom().ok().flatten().is_some_and(|bloom| !bloom.is_zero())
}

/// Records an error that was found only when answers, each fine by itself, were combined.
fn note_joined(node: &Node, joined: FetchResult, earlier: Option<NodeError>) -> FetchResult {
    let mut fetched = joined.map_err(|error| node.note(error))?;
    fetched.error = fetched.error.or(earlier);
    Ok(fetched)
}

async fn drafts(node: &Node, query: &BlockQuery, options: ReadOptions) -> FetchResult {
    let keys = query.keys();
    let calls = keys.iter().map(Key::block).collect();
    let read = move |outcomes: &[CallResult<'_>]| {
        FetchedBlocks::collect(
            keys.iter().zip(outcomes).map(|(key, outcome)| draft(*key, outcome, options)),
        )
    };
    node.call(calls, read).await
}

/// The logs of a range, in as many requests as the node needs.
async fn logs_of(node: &Node, range: Range<u64>) -> Result<Vec<NodeLog>, NodeError> {
    let mut all = Vec::new();
    let mut from = range.start;
    let mut tries = 0;
    while from < range.end {
        let end = range.end.min(from.saturating_add(node.logs_at_once()));
        let asked = end - from;
        let params = format!(r#"[{{"fromBlock":"{from:#x}","toBlock":"{:#x}"}}]"#, end - 1);
        match logs(node, params).await {
            Ok(logs) => {
                node.logs_went_well(asked);
                all.extend(logs);
                from = end;
            }
            Err(NodeError::TooMuch { better, .. }) if asked > 1 && tries < LOGS_TRIES_MAX => {
                tries += 1;
                node.logs_were_too_many(asked, better);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

async fn logs(node: &Node, params: String) -> Result<Vec<NodeLog>, NodeError> {
    let read = |outcomes: &[CallResult<'_>]| {
        let json = outcomes.first().cloned().transpose()?.flatten().ok_or(NodeError::Missing)?;
        receipt::read_logs(json).map_err(NodeError::failed)
    };
    node.call(vec![Call::new("eth_getLogs", params)], read).await
}

fn draft(key: Key, outcome: &CallResult<'_>, options: ReadOptions) -> Result<Block, NodeError> {
    let json = outcome.clone()?.ok_or(NodeError::Missing)?;
    let mut block = json::block(json).map_err(NodeError::failed)?;
    let is_it = match key {
        Key::Number(number) => block.at.number == number,
        Key::Hash(hash) => block.at.hash == hash,
    };
    if !is_it {
        let what = format!("the node was asked for {key} and returned block {}", block.at.number);
        return Err(lie(&block, Mismatch::Malformed { what }));
    }
    if options.compared {
        let kept = compare::keep_block_fields(&mut block, json, options.chain);
        kept.map_err(|error| NodeError::failed(error.to_string()))?;
    }
    Ok(block)
}

fn finish(
    mut block: Block,
    added: Result<(), BlockDefect>,
    options: ReadOptions,
) -> Result<Block, NodeError> {
    let ReadOptions { profile, verify: level, .. } = options;
    let checked =
        added.and_then(|()| verify_for(profile, &mut block, level).map_err(BlockDefect::Mismatch));
    let checked = match checked {
        Err(BlockDefect::Mismatch(_)) if is_hollow(&block) => {
            Err(BlockDefect::Late(json::NO_TRANSACTIONS_YET))
        }
        checked => checked,
    };
    match checked {
        Ok(()) => Ok(block),
        Err(BlockDefect::Moved) => Err(NodeError::Moved),
        Err(BlockDefect::Late(why)) => {
            Err(NodeError::Late { number: block.at.number, why: why.to_owned() })
        }
        // The node lacks data, but returned nothing wrong.
        Err(BlockDefect::Mismatch(Mismatch::NoReceipts)) => {
            Err(NodeError::NoMethod { why: Mismatch::NoReceipts.to_string() })
        }
        Err(BlockDefect::Mismatch(mismatch)) => Err(lie(&block, mismatch)),
    }
}

fn lie(block: &Block, mismatch: Mismatch) -> NodeError {
    NodeError::mismatch(block.at.number, block.at.hash, mismatch)
}

fn late(number: u64) -> NodeError {
    NodeError::Late { number, why: json::NO_RECEIPTS_YET.to_owned() }
}

/// A part of a block; `None` if the node does not have it yet, whether it answers `null` or an error.
fn part<'a>(outcome: &CallResult<'a>) -> Result<Option<&'a RawValue>, NodeError> {
    match outcome.clone().map_err(NodeError::from) {
        Err(NodeError::Missing) => Ok(None),
        other => other,
    }
}

/// Turns a missing part of a block that the node has into [`NodeError::Late`].
fn late_if_missing(node: &Node, error: NodeError, number: u64, why: &str) -> NodeError {
    match error {
        NodeError::Missing => node.note(NodeError::Late { number, why: why.to_owned() }),
        other => other,
    }
}

/// Whether a block has no transactions although its header's root is not empty.
fn is_hollow(block: &Block) -> bool {
    let header = block.header.decode().ok().flatten();
    block.transactions.is_empty()
        && header.is_some_and(|header| header.transactions_root != EMPTY_ROOT_HASH)
}

/// Fetches the uncles of blocks that have some, and checks them against the headers. An error includes the number of
/// blocks before it that are fine.
async fn check_uncles(node: &Node, blocks: &[Block]) -> Result<(), (usize, NodeError)> {
    let with_uncles = blocks.iter().enumerate().filter(|(_, block)| !block.uncles.is_empty());
    let Some((first, _)) = with_uncles.clone().next() else {
        return Ok(());
    };
    let calls = with_uncles.clone().flat_map(|(_, block)| {
        let hash = block.at.hash;
        (0..block.uncles.len())
            .map(move |index| Call::new(UNCLES, format!(r#"["{hash}","{index:#x}"]"#)))
    });
    let read = |outcomes: &[CallResult<'_>]| {
        let headers = outcomes.iter().map(|outcome| {
            let json = outcome.clone()?.ok_or(NodeError::Missing)?;
            Ok(json::header_bytes(json).unwrap_or_default())
        });
        headers.collect::<Result<Vec<Bytes>, NodeError>>()
    };
    let headers = match node.call(calls.collect(), read).await {
        Ok(headers) => headers,
        // The header matches its hash, so everything else is checked. A Logmill without nodes serves the block, but
        // has only the hashes of its uncles (error 4444).
        Err(NodeError::NoMethod { .. } | NodeError::Pruned) => {
            node.note_no_uncles();
            return Ok(());
        }
        Err(error) => {
            let number = blocks.get(first).map_or(0, |block| block.at.number);
            return Err((first, late_if_missing(node, error, number, json::NO_UNCLES_YET)));
        }
    };
    let mut headers = &headers[..];
    for (at, block) in with_uncles {
        let (own, rest) = headers.split_at(block.uncles.len().min(headers.len()));
        headers = rest;
        uncles(block, own).map_err(|mismatch| (at, node.note(lie(block, mismatch))))?;
    }
    Ok(())
}

fn uncles(block: &Block, headers: &[Bytes]) -> Result<(), Mismatch> {
    for (index, (header, claimed)) in headers.iter().zip(&block.uncles).enumerate() {
        let computed = keccak256(header);
        if computed != *claimed {
            let what = format!(
                "the fields of uncle {index} hash to {computed}, but the block says {claimed}"
            );
            return Err(Mismatch::Malformed { what });
        }
    }
    if headers.len() != block.uncles.len() {
        let (given, named) = (headers.len(), block.uncles.len());
        let what = format!("the node returned {given} uncles, but the block lists {named}");
        return Err(Mismatch::Malformed { what });
    }
    let mut list = Vec::new();
    let payload_length = headers.iter().map(|header| header.len()).sum();
    RlpHeader { list: true, payload_length }.encode(&mut list);
    headers.iter().for_each(|header| list.extend_from_slice(header));
    let computed = keccak256(&list);
    let Some(header) = block.header.decode().ok().flatten() else {
        let what = "its header cannot be decoded".to_owned();
        return Err(Mismatch::Malformed { what });
    };
    if computed != header.ommers_hash {
        return Err(Mismatch::Root { what: "uncles", computed, expected: header.ommers_hash });
    }
    Ok(())
}

impl BlockQuery {
    fn keys(&self) -> Vec<Key> {
        match self {
            Self::Numbers(range) => range.clone().map(Key::Number).collect(),
            Self::Hash(hash) => vec![Key::Hash(*hash)],
        }
    }
}

impl FetchedBlocks {
    /// Collects blocks up to the first error. Returns that error if there are no blocks before it, or if the node
    /// lacks a method.
    fn collect(blocks: impl Iterator<Item = Result<Block, NodeError>>) -> Result<Self, NodeError> {
        let mut fetched = Self::default();
        for block in blocks {
            match block {
                Ok(block) => fetched.blocks.push(block),
                Err(error @ NodeError::NoMethod { .. }) => return Err(error),
                Err(error) if fetched.blocks.is_empty() => return Err(error),
                Err(error) => {
                    fetched.error = Some(error);
                    break;
                }
            }
        }
        Ok(fetched)
    }
}

impl Key {
    fn block(&self) -> Call {
        match self {
            Self::Number(number) => {
                Call::new("eth_getBlockByNumber", format!(r#"["{number:#x}",true]"#))
            }
            Self::Hash(hash) => Call::new("eth_getBlockByHash", format!(r#"["{hash}",true]"#)),
        }
    }

    fn receipts(&self) -> Call {
        let params = match self {
            Self::Number(number) => format!(r#"["{number:#x}"]"#),
            Self::Hash(hash) => format!(r#"["{hash}"]"#),
        };
        Call::new("eth_getBlockReceipts", params)
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(number) => write!(f, "block {number}"),
            Self::Hash(hash) => write!(f, "block {hash}"),
        }
    }
}
