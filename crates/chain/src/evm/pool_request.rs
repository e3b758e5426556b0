//! One request to the pool: the answers of the nodes so far, and the error to return in the end.
//!
//! Guarantees: bounded in time and attempts; the final error includes each node's last error. Leaves to others:
//! asking.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use alloy_primitives::B256;

use super::node::Node;
use super::node_error::NodeError;
use crate::error::Error;
use crate::mismatch::Mismatch;

/// Maximum attempts per request. Halving the largest batch down to one call takes fewer.
const ATTEMPTS_MAX: u32 = 16;

/// A node whose head is this far above a block that it does not know has lost it. A smaller distance may be a reorg.
const RECENT_BLOCKS: u64 = 128;

/// Wait before a node that was late is asked again: doubled each time, up to a bound. Receipts mostly arrive within
/// milliseconds of their block. With [`ATTEMPTS_MAX`] a node has about five seconds.
const LATE_FIRST: Duration = Duration::from_millis(20);
const LATE_MAX: Duration = Duration::from_secs(2);

/// How long a block may be missing on a node that reported it: an address may have several nodes behind it, some of
/// them a moment behind. After that the block is gone.
const MISSING_MAX: Duration = Duration::from_millis(500);

#[derive(Debug)]
pub(super) struct PoolRequest {
    /// The requested block, if it is requested by number.
    pub(super) number: Option<u64>,
    /// Whether nodes are asked in turn, however busy they are.
    pub(super) one_by_one: bool,
    /// Until when resting nodes are waited for.
    pub(super) deadline: Duration,
    what: String,
    answers: BTreeMap<usize, NodeError>,
    moved: BTreeSet<usize>,
    late: BTreeMap<usize, Lateness>,
    /// The last reason why a node was late.
    late_why: Option<String>,
    attempts: u32,
}

/// A node that has the block, but not yet all of its parts.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    /// When it is asked again.
    until: Duration,
    /// The last wait.
    wait: Duration,
    /// When it was first late.
    since: Duration,
}

impl PoolRequest {
    pub(super) fn new(what: String, number: Option<u64>, deadline: Duration) -> Self {
        let (answers, moved, late) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let (one_by_one, late_why, attempts) = (false, None, 0);
        Self { number, one_by_one, deadline, what, answers, moved, late, late_why, attempts }
    }

    /// Counts an attempt; returns false if none is left.
    pub(super) fn attempt(&mut self) -> bool {
        self.attempts += 1;
        self.attempts <= ATTEMPTS_MAX
    }

    /// Whether a node must not be asked again.
    pub(super) fn is_answered_by(&self, node: usize) -> bool {
        self.answers.contains_key(&node)
    }

    /// Whether any node reported that it does not know the block.
    pub(super) fn is_missing(&self) -> bool {
        self.answers.values().any(|answer| matches!(answer, NodeError::Missing))
    }

    /// The block that all nodes that have it returned, if it could not be checked on any of them, and why.
    pub(super) fn unverifiable(&self) -> Option<(u64, &Mismatch)> {
        let mut found: Option<(u64, B256, &Mismatch)> = None;
        for answer in self.answers.values() {
            match answer {
                NodeError::Unverifiable { number, hash, mismatch }
                    if found.is_none_or(|(_, same, _)| same == *hash) =>
                {
                    found = Some((*number, *hash, mismatch));
                }
                NodeError::Pruned | NodeError::NoMethod { .. } => {}
                _ => return None,
            }
        }
        found.map(|(number, _, mismatch)| (number, mismatch))
    }

    /// Remaining wait before a late node is asked again for this request; the node itself does not rest.
    pub(super) fn wait_for(&self, node: usize, now: Duration) -> Option<Duration> {
        let wait = self.late.get(&node)?.until.checked_sub(now)?;
        (!wait.is_zero()).then_some(wait)
    }

    /// Records that a node was late. One whose head is far above the block will not get the missing parts later
    /// either.
    pub(super) fn was_late(
        &mut self,
        node: usize,
        now: Duration,
        number: u64,
        why: String,
        head: Option<u64>,
    ) {
        if head.is_some_and(|head| is_old(number, head)) {
            self.answers.insert(node, NodeError::Missing);
            return;
        }
        self.late_why = Some(why);
        self.ask_later(node, now);
    }

    /// Records that a node does not know a block that it reported.
    pub(super) fn was_missing(
        &mut self,
        node: usize,
        now: Duration,
        number: u64,
        head: Option<u64>,
    ) {
        let since = self.late.get(&node).map_or(now, |late| late.since);
        let is_over = now.saturating_sub(since) >= MISSING_MAX;
        if is_over || head.is_some_and(|head| is_old(number, head)) {
            self.answers.insert(node, NodeError::Missing);
            return;
        }
        self.ask_later(node, now);
    }

    fn ask_later(&mut self, node: usize, now: Duration) {
        let before = self.late.get(&node);
        let wait = before.map_or(LATE_FIRST, |late| late.wait.saturating_mul(2)).min(LATE_MAX);
        let since = before.map_or(now, |late| late.since);
        self.late.insert(node, Lateness { until: now.saturating_add(wait), wait, since });
    }

    /// Records a node's error. `last_resort` means that the request cannot be made smaller.
    pub(super) fn record(&mut self, node: usize, error: NodeError, last_resort: bool) {
        let is_final = match &error {
            NodeError::NoMethod { .. }
            | NodeError::Missing
            | NodeError::Pruned
            | NodeError::Unlinked { .. }
            | NodeError::Lie { .. }
            | NodeError::Unverifiable { .. } => true,
            NodeError::TooMuch { .. } => last_resort,
            // The first time may have been a reorg between two of its answers.
            NodeError::Moved => !self.moved.insert(node),
            NodeError::Failed { .. }
            | NodeError::Slow { .. }
            | NodeError::Rpc(_)
            | NodeError::Late { .. }
            | NodeError::BatchRefused { .. } => false,
        };
        if is_final {
            self.answers.insert(node, error);
        }
    }

    /// The error to return, from all answers.
    pub(super) fn into_error(self, nodes: &[std::sync::Arc<Node>]) -> Error {
        let unavailable =
            || Error::Unavailable { what: self.what.clone(), why: last_errors(nodes) };
        let lie = self.answers.iter().rev().find_map(|(index, answer)| match answer {
            NodeError::Lie { number, hash, mismatch }
            | NodeError::Unverifiable { number, hash, mismatch } => Some(Error::Mismatch {
                node: nodes.get(*index).map_or_else(String::new, |node| node.name.clone()),
                number: *number,
                hash: *hash,
                mismatch: mismatch.clone(),
            }),
            _ => None,
        });
        if let Some(lie) = lie {
            return lie;
        }
        let unlinked = self.answers.values().find_map(|answer| match answer {
            NodeError::Unlinked { number, parent, before } => {
                Some(Error::Unlinked { number: *number, parent: *parent, before: *before })
            }
            _ => None,
        });
        if let Some(unlinked) = unlinked {
            return unlinked;
        }
        let Some(number) = self.number else {
            return unavailable();
        };
        let heads: Vec<u64> = nodes.iter().filter_map(|node| Some(node.head()?.0)).collect();
        let all = (0..nodes.len()).all(|index| self.is_answered_by(index));
        let pruned = self.answers.values().any(|answer| matches!(answer, NodeError::Pruned));
        let all_above = heads.iter().min().is_some_and(|head| is_old(number, *head));
        let is_gone = pruned || (self.is_missing() && all_above);
        let is_above = !heads.is_empty() && heads.iter().all(|head| *head < number);
        match () {
            () if is_gone && all => Error::Pruned { number },
            () if is_gone => unavailable(),
            () if self.late_why.is_some() => {
                Error::Late { number, why: self.late_why.unwrap_or_default() }
            }
            () if self.is_missing() || is_above => Error::NotYet { number },
            () => unavailable(),
        }
    }
}

/// Whether a node at `head` should have had all of block `number` for a long time.
fn is_old(number: u64, head: u64) -> bool {
    head >= number.saturating_add(RECENT_BLOCKS)
}

/// Each node's last error.
fn last_errors(nodes: &[std::sync::Arc<Node>]) -> String {
    let each = nodes.iter().map(|node| {
        let error = node.last_error().unwrap_or_else(|| "no error so far".to_owned());
        format!("{}: {error}", node.name)
    });
    let all: Vec<String> = each.collect();
    if all.is_empty() { "there are no nodes".to_owned() } else { all.join("; ") }
}
