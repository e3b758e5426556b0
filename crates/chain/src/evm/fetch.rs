//! Blocks from one node: all calls for a block go to it, and its answers are put together and checked.
//!
//! Guarantees: what is given is as verified as asked for, linked, and what was asked for. Leaves to others: what to do
//! when the node can not, see [`super::pool`].

use std::ops::Range;

use alloy_primitives::{B256, Bytes, keccak256};
use alloy_rlp::Header as RlpHeader;
use logmill_io::compute;

use super::json::{self, Flaw};
use super::node::{Node, Receipts};
use super::receipt::{self, NodeLog, NodeReceipt};
use super::rpc::{Call, Outcome};
use super::trouble::Trouble;
use crate::block::{Block, Header};
use crate::verify::{Mismatch, Verify, verify};

/// How often a range of logs is asked for again with less. It can be halved ten times from the most.
const LOGS_TRIES_MAX: u32 = 12;

/// Which blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// By their numbers.
    Numbers(Range<u64>),
    /// One by its hash.
    Hash(B256),
}

/// What a node gave: the first blocks of those wanted, and why not the next.
#[derive(Debug, Default)]
pub(super) struct Got {
    pub(super) blocks: Vec<Block>,
    pub(super) trouble: Option<Trouble>,
}

#[derive(Clone, Copy, Debug)]
enum Key {
    Number(u64),
    Hash(B256),
}

/// Asks a node for blocks. What goes wrong is noted.
pub(super) async fn fetch(node: &Node, wanted: &Wanted, level: Verify) -> Got {
    let mut got = loop {
        let how = node.receipts();
        let got = match how {
            Receipts::OfBlock => by_block(node, wanted, level).await,
            Receipts::OfTransaction => by_transaction(node, wanted, level).await,
            Receipts::Logs => by_logs(node, wanted, level).await,
        };
        match got {
            // There are three ways, so this goes round three times at most.
            Err(Trouble::NoMethod { .. }) if node.lacks(how) => {}
            Err(trouble) => return Got { blocks: Vec::new(), trouble: Some(trouble) },
            Ok(got) => break got,
        }
    };
    if got.blocks.iter().any(|block| matches!(block.header, Header::Canonical(_))) {
        node.gave_hashed_headers();
    }
    if level == Verify::Full
        && let Err((good, trouble)) = check_uncles(node, &got.blocks).await
    {
        got.blocks.truncate(good);
        return Got { trouble: Some(trouble), ..got };
    }
    cut_unlinked(&mut got);
    got.trouble = got.trouble.map(|trouble| node.note(trouble));
    got
}

fn cut_unlinked(got: &mut Got) {
    let linked = got.blocks.windows(2).take_while(|two| two[1].at.parent_hash == two[0].at.hash);
    let good = linked.count() + 1;
    if let (Some(before), Some(next)) = (got.blocks.get(good - 1), got.blocks.get(good)) {
        got.trouble = Some(Trouble::Unlinked {
            number: next.at.number,
            parent: next.at.parent_hash,
            before: before.at.hash,
        });
        got.blocks.truncate(good);
    }
}

async fn by_block(node: &Node, wanted: &Wanted, level: Verify) -> Result<Got, Trouble> {
    let keys = wanted.keys();
    let calls = keys.iter().flat_map(|key| [key.block(), key.receipts()]).collect();
    let read = move |outcomes: &[Outcome<'_>]| {
        Got::collect(keys.iter().zip(outcomes.chunks_exact(2)).map(|(key, pair)| {
            let mut block = draft(*key, &pair[0])?;
            let receipts = pair[1].clone()?.ok_or_else(|| late(block.at.number))?;
            let receipts = receipt::read_all(receipts).map_err(Trouble::failed)?;
            let added = json::add_receipts(&mut block, receipts);
            finish(block, added, level)
        }))
    };
    node.call(calls, read).await
}

async fn by_transaction(node: &Node, wanted: &Wanted, level: Verify) -> Result<Got, Trouble> {
    let Got { blocks, trouble } = drafts(node, wanted).await?;
    let hashes = blocks.iter().flat_map(|block| &block.transactions).map(|tx| tx.hash);
    let calls = hashes.map(|hash| Call::new("eth_getTransactionReceipt", format!(r#"["{hash}"]"#)));
    let read = |outcomes: &[Outcome<'_>]| {
        let receipts = outcomes.iter().map(|outcome| {
            let json = outcome.clone()?;
            json.map(receipt::read).transpose().map_err(Trouble::failed)
        });
        receipts.collect::<Result<Vec<Option<NodeReceipt>>, Trouble>>()
    };
    let calls: Vec<Call> = calls.collect();
    let receipts = if calls.is_empty() { Vec::new() } else { node.call(calls, read).await? };
    let joined = compute(move || {
        let mut receipts = receipts.into_iter();
        Got::collect(blocks.into_iter().map(|mut block| {
            let own: Option<Vec<NodeReceipt>> =
                receipts.by_ref().take(block.transactions.len()).collect();
            let own = own.ok_or_else(|| late(block.at.number))?;
            let added = json::add_receipts(&mut block, own);
            finish(block, added, level)
        }))
    });
    settle(node, joined.await, trouble)
}

async fn by_logs(node: &Node, wanted: &Wanted, level: Verify) -> Result<Got, Trouble> {
    if level == Verify::Full {
        let why = Mismatch::NoReceipts.to_string();
        return Err(node.note(Trouble::NoMethod { why }));
    }
    let Got { blocks, trouble } = drafts(node, wanted).await?;
    let (Some(first), Some(last)) = (blocks.first(), blocks.last()) else {
        return Ok(Got { blocks, trouble });
    };
    let logs = match wanted {
        Wanted::Hash(hash) => logs(node, format!(r#"[{{"blockHash":"{hash}"}}]"#)).await?,
        Wanted::Numbers(_) => logs_of(node, first.at.number..last.at.number + 1).await?,
    };
    let joined = compute(move || {
        let mut logs = logs.into_iter().peekable();
        Got::collect(blocks.into_iter().map(|mut block| {
            let number = block.at.number;
            let own =
                std::iter::from_fn(|| logs.next_if(|log| log.block_number.to::<u64>() <= number));
            let own: Vec<NodeLog> = own.collect();
            let is_late = own.is_empty() && level != Verify::Off && has_logs(&block);
            let added = match is_late {
                true => Err(Flaw::Late(json::NO_LOGS_YET)),
                false => json::add_logs(&mut block, own),
            };
            finish(block, added, level)
        }))
    });
    settle(node, joined.await, trouble)
}

/// Whether the header says that there are logs.
fn has_logs(block: &Block) -> bool {
    block.header.bloom().ok().flatten().is_some_and(|bloom| !bloom.is_zero())
}

/// What is put together after the last answer was noted as fine.
fn settle(
    node: &Node,
    joined: Result<Got, Trouble>,
    earlier: Option<Trouble>,
) -> Result<Got, Trouble> {
    let mut got = joined.map_err(|trouble| node.note(trouble))?;
    got.trouble = got.trouble.or(earlier);
    Ok(got)
}

async fn drafts(node: &Node, wanted: &Wanted) -> Result<Got, Trouble> {
    let keys = wanted.keys();
    let calls = keys.iter().map(Key::block).collect();
    let read = move |outcomes: &[Outcome<'_>]| {
        Got::collect(keys.iter().zip(outcomes).map(|(key, outcome)| draft(*key, outcome)))
    };
    node.call(calls, read).await
}

/// The logs of a range, in as many requests as the node needs.
async fn logs_of(node: &Node, range: Range<u64>) -> Result<Vec<NodeLog>, Trouble> {
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
            Err(Trouble::TooMuch { better, .. }) if asked > 1 && tries < LOGS_TRIES_MAX => {
                tries += 1;
                node.logs_were_too_many(asked, better);
            }
            Err(trouble) => return Err(trouble),
        }
    }
    Ok(all)
}

async fn logs(node: &Node, params: String) -> Result<Vec<NodeLog>, Trouble> {
    let read = |outcomes: &[Outcome<'_>]| {
        let json = outcomes.first().cloned().transpose()?.flatten().ok_or(Trouble::Missing)?;
        receipt::read_logs(json).map_err(Trouble::failed)
    };
    node.call(vec![Call::new("eth_getLogs", params)], read).await
}

fn draft(key: Key, outcome: &Outcome<'_>) -> Result<Block, Trouble> {
    let json = outcome.clone()?.ok_or(Trouble::Missing)?;
    let block = json::block(json).map_err(Trouble::failed)?;
    let is_it = match key {
        Key::Number(number) => block.at.number == number,
        Key::Hash(hash) => block.at.hash == hash,
    };
    if !is_it {
        let what = format!("the node was asked for {key} and gave block {}", block.at.number);
        return Err(lie(&block, Mismatch::Malformed { what }));
    }
    Ok(block)
}

fn finish(mut block: Block, added: Result<(), Flaw>, level: Verify) -> Result<Block, Trouble> {
    let checked = added.and_then(|()| verify(&mut block, level).map_err(Flaw::Mismatch));
    match checked {
        Ok(()) => Ok(block),
        Err(Flaw::Moved) => Err(Trouble::Moved),
        Err(Flaw::Late(why)) => Err(Trouble::Late { number: block.at.number, why: why.to_owned() }),
        // The node says less than it could, but nothing wrong.
        Err(Flaw::Mismatch(Mismatch::NoReceipts)) => {
            Err(Trouble::NoMethod { why: Mismatch::NoReceipts.to_string() })
        }
        Err(Flaw::Mismatch(mismatch)) => Err(lie(&block, mismatch)),
    }
}

fn lie(block: &Block, mismatch: Mismatch) -> Trouble {
    Trouble::mismatch(block.at.number, block.at.hash, mismatch)
}

fn late(number: u64) -> Trouble {
    Trouble::Late { number, why: json::NO_RECEIPTS_YET.to_owned() }
}

/// Asks for the uncles of blocks that have some, and checks them against the headers. If they are wrong, says how many
/// blocks before them are fine.
async fn check_uncles(node: &Node, blocks: &[Block]) -> Result<(), (usize, Trouble)> {
    let with_uncles = blocks.iter().enumerate().filter(|(_, block)| !block.uncles.is_empty());
    let Some((first, _)) = with_uncles.clone().next() else {
        return Ok(());
    };
    let calls = with_uncles.clone().flat_map(|(_, block)| {
        let hash = block.at.hash;
        (0..block.uncles.len()).map(move |index| {
            Call::new("eth_getUncleByBlockHashAndIndex", format!(r#"["{hash}","{index:#x}"]"#))
        })
    });
    let read = |outcomes: &[Outcome<'_>]| {
        let headers = outcomes.iter().map(|outcome| {
            let json = outcome.clone()?.ok_or(Trouble::Missing)?;
            Ok(json::header_bytes(json).unwrap_or_default())
        });
        headers.collect::<Result<Vec<Bytes>, Trouble>>()
    };
    let headers = node.call(calls.collect(), read).await.map_err(|trouble| (first, trouble))?;
    let mut headers = &headers[..];
    for (at, block) in with_uncles {
        let (own, rest) = headers.split_at(block.uncles.len().min(headers.len()));
        headers = rest;
        uncles(block, own).map_err(|mismatch| (at, node.note(lie(block, mismatch))))?;
    }
    Ok(())
}

/// Checks the headers of a block's uncles.
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
        let what = format!("the node gave {given} uncles, but the block names {named}");
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

impl Wanted {
    fn keys(&self) -> Vec<Key> {
        match self {
            Self::Numbers(range) => range.clone().map(Key::Number).collect(),
            Self::Hash(hash) => vec![Key::Hash(*hash)],
        }
    }
}

impl Got {
    /// The blocks up to the first that is none. An error if that is the first, or is about the node's methods.
    fn collect(blocks: impl Iterator<Item = Result<Block, Trouble>>) -> Result<Self, Trouble> {
        let mut got = Self::default();
        for block in blocks {
            match block {
                Ok(block) => got.blocks.push(block),
                Err(trouble @ Trouble::NoMethod { .. }) => return Err(trouble),
                Err(trouble) if got.blocks.is_empty() => return Err(trouble),
                Err(trouble) => {
                    got.trouble = Some(trouble);
                    break;
                }
            }
        }
        Ok(got)
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
