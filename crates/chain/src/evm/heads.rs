//! What a chain is, and where it is now.
//!
//! Guarantees: heads are those of one node at one time, and the newest block is never below the final one. Leaves to
//! others: following them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::future::join_all;
use serde_json::value::RawValue;

use super::json::block_ref;
use super::node::Node;
use super::pool::{Pool, number};
use super::rpc::{Call, Outcome};
use super::trouble::Trouble;
use super::turn::Turn;
use super::wording::{Meaning, is_young, meaning};
use crate::block::BlockRef;
use crate::error::{Error, Result};
use crate::source::{ChainInfo, Finality, Heads};

/// A node this far behind the newest that is known of is not believed at once.
const LAG_BLOCKS_MAX: u64 = 3;

/// The most characters of what a node calls itself.
const CLIENT_CHARS_MAX: usize = 100;

/// What a node says about itself.
#[derive(Debug)]
struct Introduction {
    chain_id: u64,
    head: u64,
    client: String,
    knows_finalized: bool,
}

impl Pool {
    /// Checks all nodes: that one can be reached, that they are of one chain, and how they know of finality.
    pub(super) async fn info(&self) -> Result<ChainInfo> {
        let met = join_all(self.nodes.iter().map(|node| meet(node))).await;
        let mut info: Option<ChainInfo> = None;
        let mut knows_finalized = false;
        for (node, met) in self.nodes.iter().zip(met) {
            let Ok(met) = met else { continue };
            self.accept(node, met.chain_id)?;
            node.told_head(met.head);
            knows_finalized |= met.knows_finalized;
            let finality = self.settings.confirmations.map_or(Finality::Tags, Finality::Depth);
            let first = ChainInfo { chain_id: met.chain_id, finality, client: met.client };
            info.get_or_insert(first);
        }
        let unknown = || self.turn("its chain id".to_owned(), None).verdict(&self.nodes);
        let info = info.ok_or_else(unknown)?;
        if info.finality == Finality::Tags && !knows_finalized {
            let what = format!(
                "the nodes of {} do not know the tag `finalized`: set how many confirmations make a block final",
                self.settings.chain
            );
            return Err(Error::Invalid { what });
        }
        Ok(info)
    }

    /// Where the chain is now.
    pub(super) async fn heads(&self) -> Result<Heads> {
        let mut turn = self.turn("the newest block".to_owned(), None);
        // By how busy they are, one node might never be asked: fetches between the questions can go to the other.
        turn.one_by_one = true;
        let mut best: Option<Heads> = None;
        loop {
            let Ok((index, node)) = self.next(&mut turn).await else {
                return self.best_of(best, turn);
            };
            let heads = match self.heads_of(&node).await {
                Ok(heads) => heads,
                Err(trouble) => {
                    turn.take(index, trouble, true);
                    continue;
                }
            };
            node.told_head(heads.latest.number);
            if !self.is_behind(&heads) {
                self.note_finalized(&heads);
                return Ok(heads);
            }
            if best.as_ref().is_none_or(|best| order(best) < order(&heads)) {
                best = Some(heads);
            }
            turn.take(index, Trouble::Missing, true);
        }
    }

    /// All nodes are behind what is known: the best of them is what there is.
    fn best_of(&self, best: Option<Heads>, turn: Turn) -> Result<Heads> {
        let Some(best) = best else {
            return Err(turn.verdict(&self.nodes));
        };
        let known = self.finalized.load(Ordering::Relaxed);
        let told = best.finalized.map_or(0, |at| at.number);
        if told < known {
            let chain = &self.settings.chain;
            tracing::warn!(%chain, known, told, "the final block of the chain went back");
        }
        Ok(best)
    }

    /// Whether heads are so far behind what other nodes told that another is asked.
    fn is_behind(&self, heads: &Heads) -> bool {
        let nodes = self.nodes.iter().zip(self.rests());
        let awake = nodes.filter(|(_, rest)| rest.is_none());
        let known = awake.filter_map(|(node, _)| Some(node.head()?.0)).max().unwrap_or(0);
        let finalized = heads.finalized.map_or(0, |at| at.number);
        heads.latest.number.saturating_add(LAG_BLOCKS_MAX) < known
            || finalized < self.finalized.load(Ordering::Relaxed)
    }

    fn note_finalized(&self, heads: &Heads) {
        if let Some(at) = heads.finalized {
            self.finalized.fetch_max(at.number, Ordering::Relaxed);
        }
    }

    async fn heads_of(&self, node: &Arc<Node>) -> Result<Heads, Trouble> {
        match self.settings.confirmations {
            None => by_tags(node).await,
            Some(depth) => by_depth(node, depth).await,
        }
    }
}

fn order(heads: &Heads) -> (u64, u64) {
    (heads.finalized.map_or(0, |at| at.number), heads.latest.number)
}

pub(super) fn header_by(tag: &str) -> Call {
    Call::new("eth_getBlockByNumber", format!(r#"["{tag}",false]"#))
}

async fn by_tags(node: &Node) -> Result<Heads, Trouble> {
    let calls = ["latest", "safe", "finalized"].map(header_by).to_vec();
    let read = |outcomes: &[Outcome<'_>]| {
        let latest = existing(outcomes.first())?;
        let (safe, finalized) = (tagged(outcomes.get(1))?, tagged(outcomes.get(2))?);
        if finalized.is_some_and(|at| at.number > latest.number) {
            return Err(Trouble::failed("its newest block is below its final one"));
        }
        // Some nodes take `safe` from another place than `latest`.
        let safe = safe.filter(|at| at.number <= latest.number);
        Ok(Heads { latest, safe, finalized })
    };
    node.call(calls, read).await
}

async fn by_depth(node: &Node, depth: u64) -> Result<Heads, Trouble> {
    let read = |outcomes: &[Outcome<'_>]| existing(outcomes.first());
    let latest = node.call(vec![header_by("latest")], read).await?;
    let finalized = match latest.number.checked_sub(depth) {
        None => None,
        Some(number) => {
            let at = node.call(vec![header_by(&format!("{number:#x}"))], read).await?;
            if at.number != number {
                return Err(Trouble::failed(format!("it gave block {} for {number}", at.number)));
            }
            Some(at)
        }
    };
    Ok(Heads { latest, safe: None, finalized })
}

fn existing(outcome: Option<&Outcome<'_>>) -> Result<BlockRef, Trouble> {
    let json: Option<&RawValue> = outcome.cloned().transpose()?.flatten();
    let json = json.ok_or_else(|| Trouble::failed("it has no newest block"))?;
    block_ref(json).map_err(Trouble::failed)
}

/// The block of a tag; none while there is no such block yet.
fn tagged(outcome: Option<&Outcome<'_>>) -> Result<Option<BlockRef>, Trouble> {
    match outcome {
        Some(Ok(Some(json))) => block_ref(json).map(Some).map_err(Trouble::failed),
        Some(Ok(None)) | None => Ok(None),
        Some(Err(error)) if is_young(error) => Ok(None),
        Some(Err(error)) => Err(Trouble::from(error.clone())),
    }
}

async fn meet(node: &Node) -> Result<Introduction, Trouble> {
    let calls = vec![
        Call::new("eth_chainId", "[]"),
        Call::new("eth_blockNumber", "[]"),
        Call::new("web3_clientVersion", "[]"),
        header_by("finalized"),
    ];
    // Once more for a node that takes no batches, which is known then.
    let read = |outcomes: &[Outcome<'_>]| introduction(outcomes);
    match node.call(calls.clone(), read).await {
        Err(Trouble::NoBatches | Trouble::TooMuch { .. }) => node.call(calls, read).await,
        other => other,
    }
}

fn introduction(outcomes: &[Outcome<'_>]) -> Result<Introduction, Trouble> {
    let client = match outcomes.get(2) {
        Some(Ok(Some(json))) => serde_json::from_str::<String>(json.get()).unwrap_or_default(),
        _ => String::new(),
    };
    let knows_finalized = match outcomes.get(3) {
        Some(Ok(_)) => true,
        Some(Err(error)) => {
            // Too many requests say nothing about tags.
            if matches!(meaning(error), Meaning::Throttled | Meaning::Slow) {
                return Err(Trouble::from(error.clone()));
            }
            is_young(error)
        }
        None => false,
    };
    Ok(Introduction {
        chain_id: number(outcomes.first())?,
        head: number(outcomes.get(1))?,
        client: client.chars().filter(|c| !c.is_control()).take(CLIENT_CHARS_MAX).collect(),
        knows_finalized,
    })
}
