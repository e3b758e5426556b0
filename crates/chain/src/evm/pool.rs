//! The nodes of a chain as one.
//!
//! Guarantees: all calls for one block go to one node; a block that a node can not give, or gives wrongly, is asked of
//! the others; a node is asked nothing before it is known to be of the chain. Leaves to others: which blocks.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use alloy_primitives::{B256, U64};
use futures::future::join_all;
use futures::{StreamExt, stream};
use logmill_io::Clock;

use super::choice::{Candidate, Choice, choose};
use super::fetch::{Wanted, fetch};
use super::node::Node;
use super::rpc::{Call, Outcome};
use super::settings::EvmSettings;
use super::trouble::Trouble;
use super::turn::Turn;
use crate::block::{Block, BlockRef};
use crate::error::{Error, Result};
use crate::verify::Mismatch;

/// The nodes.
#[derive(Debug)]
pub(super) struct Pool {
    pub(super) nodes: Vec<Arc<Node>>,
    pub(super) settings: EvmSettings,
    pub(super) clock: Arc<dyn Clock>,
    /// The id of the chain, once known.
    pub(super) chain_id: OnceLock<u64>,
    /// The highest final block that any node told of.
    pub(super) finalized: AtomicU64,
}

/// Blocks up to where it went wrong.
struct Part {
    blocks: Vec<Block>,
    error: Option<Error>,
}

impl Pool {
    /// The blocks of a range, from as many nodes as there are.
    pub(super) async fn blocks(&self, range: Range<u64>) -> Result<Vec<Block>> {
        let parts = stream::iter(self.split(range.clone()))
            .map(|part| async move { (part.clone(), self.part(part, None).await) })
            .buffered(self.settings.concurrent_max.max(1));
        let mut parts = std::pin::pin!(parts);
        let mut blocks: Vec<Block> = Vec::new();
        while let Some((range, mut part)) = parts.next().await {
            let before = blocks.last().map(|block| block.at.hash);
            if let (Some(before), Some(first)) = (before, part.blocks.first())
                && first.at.parent_hash != before
            {
                // The nodes do not agree: one must be found that goes on from what we have.
                part = self.part(range, Some(before)).await;
            }
            blocks.extend(part.blocks);
            if let Some(error) = part.error {
                return if blocks.is_empty() { Err(error) } else { Ok(blocks) };
            }
        }
        Ok(blocks)
    }

    /// Cuts a range into parts that a node may well give at once.
    fn split(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + use<> {
        let nodes = self.nodes.iter().zip(self.rests());
        let awake = nodes.filter(|(_, rest)| rest.is_none());
        let size = awake.map(|(node, _)| node.blocks_at_once()).max().unwrap_or(1);
        let mut from = range.start;
        std::iter::from_fn(move || {
            let end = range.end.min(from.saturating_add(size));
            let part = from..end;
            from = end;
            (!part.is_empty()).then_some(part)
        })
    }

    /// The blocks of a range, each time from one node; the first follows `after`.
    async fn part(&self, range: Range<u64>, mut after: Option<B256>) -> Part {
        let mut blocks: Vec<Block> = Vec::new();
        let mut from = range.start;
        let mut turn = self.turn(format!("block {from}"), Some(from));
        while from < range.end {
            let Ok((index, node)) = self.next(&mut turn).await else {
                return Part { blocks, error: Some(turn.verdict(&self.nodes)) };
            };
            let asked = node.blocks_at_once().min(range.end - from);
            let at_last_resort = asked == 1 && node.calls_at_once() == 1;
            let wanted = Wanted::Numbers(from..from + asked);
            let mut got = fetch(&node, &wanted, self.settings.verify).await;
            if let (Some(first), Some(before)) = (got.blocks.first(), after)
                && first.at.parent_hash != before
            {
                turn.take(index, self.stray(&node, first.at, before), at_last_resort);
                continue;
            }
            self.resize(&node, asked, got.trouble.as_ref());
            if got.blocks.is_empty() {
                let unknown = Trouble::failed("it gave no block");
                let trouble = got.trouble.unwrap_or(unknown);
                self.take(&mut turn, index, trouble, at_last_resort);
                continue;
            }
            after = got.blocks.last().map(|block| block.at.hash);
            from += u64::try_from(got.blocks.len()).unwrap_or(u64::MAX);
            blocks.append(&mut got.blocks);
            turn = self.turn(format!("block {from}"), Some(from));
        }
        Part { blocks, error: None }
    }

    /// A block by its hash.
    pub(super) async fn block_by_hash(&self, hash: B256) -> Result<Option<Block>> {
        let mut turn = self.turn(format!("block {hash}"), None);
        loop {
            let (index, node) = match self.next(&mut turn).await {
                Ok(next) => next,
                Err(()) if turn.is_missing() => return Ok(None),
                Err(()) => return Err(turn.verdict(&self.nodes)),
            };
            let at_last_resort = node.calls_at_once() == 1;
            let mut got = fetch(&node, &Wanted::Hash(hash), self.settings.verify).await;
            if let Some(block) = got.blocks.pop() {
                return Ok(Some(block));
            }
            self.resize(&node, 1, got.trouble.as_ref());
            let trouble = got.trouble.unwrap_or(Trouble::Missing);
            self.take(&mut turn, index, trouble, at_last_resort);
        }
    }

    /// Takes what a node said to a question for blocks.
    fn take(&self, turn: &mut Turn, index: usize, trouble: Trouble, last_resort: bool) {
        if let Trouble::Late { number, .. } = trouble {
            let head = self.nodes.get(index).and_then(|node| Some(node.head()?.0));
            turn.was_late(index, self.clock.monotonic(), number, head);
        } else {
            turn.take(index, trouble, last_resort);
        }
    }

    /// How much longer each node rests. While all do, they rest no longer than the last node may.
    pub(super) fn rests(&self) -> Vec<Option<Duration>> {
        let rests: Vec<Option<Duration>> = self.nodes.iter().map(|node| node.rest()).collect();
        if rests.iter().any(Option::is_none) {
            return rests;
        }
        self.nodes.iter().map(|node| node.rest_as_last()).collect()
    }

    /// Learns how much a node can be asked for.
    fn resize(&self, node: &Node, asked: u64, trouble: Option<&Trouble>) {
        match trouble {
            Some(Trouble::TooMuch { .. }) => {
                node.blocks_were_too_many(asked);
                node.calls_were_too_many(asked.saturating_mul(2));
            }
            Some(Trouble::Slow { .. }) => node.blocks_were_too_many(asked),
            Some(_) => {}
            None => node.blocks_went_well(asked),
        }
    }

    /// A node is on another branch than the one that we have. Below the final block that is a lie.
    fn stray(&self, node: &Node, at: BlockRef, before: B256) -> Trouble {
        let BlockRef { number, hash, parent_hash: parent, .. } = at;
        let chain = &self.settings.chain;
        tracing::warn!(%chain, node = %node.name, block = number, %parent, %before, "a node is on another branch");
        if number <= self.finalized.load(Ordering::Relaxed) {
            let what = format!("it has the parent {parent}, but the block before it is {before}");
            return node.note(Trouble::Lie {
                number,
                hash,
                mismatch: Mismatch::Malformed { what },
            });
        }
        node.note(Trouble::Unlinked { number, parent, before })
    }

    /// A question, with all the time that there is for it.
    pub(super) fn turn(&self, what: String, number: Option<u64>) -> Turn {
        let deadline = self.clock.monotonic().saturating_add(self.settings.patience);
        Turn::new(what, number, deadline)
    }

    /// The next node to ask. An error if there is none within the time.
    pub(super) async fn next(&self, turn: &mut Turn) -> Result<(usize, Arc<Node>), ()> {
        while turn.attempt() {
            match choose(&self.candidates(turn), turn.number) {
                Choice::Ask(index) => {
                    let node = self.nodes.get(index).ok_or(())?;
                    if self.is_of_the_chain(node).await {
                        return Ok((index, Arc::clone(node)));
                    }
                }
                Choice::Refresh(lagging) => {
                    let nodes = lagging.iter().filter_map(|index| self.nodes.get(*index));
                    join_all(nodes.map(|node| ask_head(node))).await;
                }
                Choice::Wait(rest) => {
                    // A little more, so that it is over then.
                    let rest = rest.saturating_add(Duration::from_millis(1));
                    if self.clock.monotonic().saturating_add(rest) > turn.deadline {
                        return Err(());
                    }
                    self.clock.sleep(rest).await;
                }
                Choice::Nobody => return Err(()),
            }
        }
        Err(())
    }

    fn candidates(&self, turn: &Turn) -> Vec<Candidate> {
        let now = self.clock.monotonic();
        let nodes = self.nodes.iter().zip(self.rests()).enumerate();
        let candidates = nodes.map(|(index, (node, rest))| Candidate {
            answered: turn.has_answer_of(index),
            rest: rest.max(turn.waits_for(index, now)),
            head: node.head(),
            load: if turn.one_by_one { node.silence() } else { node.load() },
        });
        candidates.collect()
    }

    /// Whether a node is of the chain; asks it if that is not known yet. What goes wrong is noted.
    async fn is_of_the_chain(&self, node: &Node) -> bool {
        if node.is_checked() {
            return true;
        }
        let call = Call::new("eth_chainId", "[]");
        let Ok(got) = node.call(vec![call], |outcomes| number(outcomes.first())).await else {
            return false;
        };
        self.accept(node, got).is_ok()
    }

    /// Takes the chain id that a node told.
    pub(super) fn accept(&self, node: &Node, got: u64) -> Result<()> {
        let expected = self.settings.chain_id.unwrap_or_else(|| *self.chain_id.get_or_init(|| got));
        if got == expected {
            node.is_of_the_chain();
            return Ok(());
        }
        let error = Error::WrongChain { node: node.name.clone(), expected, got };
        node.is_of_another_chain(error.to_string());
        Err(error)
    }
}

async fn ask_head(node: &Node) {
    let call = Call::new("eth_blockNumber", "[]");
    if let Ok(head) = node.call(vec![call], |outcomes| number(outcomes.first())).await {
        node.told_head(head);
    }
}

/// A number that a node answered.
pub(super) fn number(outcome: Option<&Outcome<'_>>) -> Result<u64, Trouble> {
    let json = outcome.cloned().transpose()?.flatten();
    let json = json.ok_or_else(|| Trouble::failed("null where a number should be"))?;
    let number: Result<U64, _> = serde_json::from_str(json.get());
    number.map(|number| number.to()).map_err(|error| Trouble::failed(format!("no number: {error}")))
}
