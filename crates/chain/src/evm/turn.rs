//! One question to the pool: who has said what to it, and what that means in the end.
//!
//! Guarantees: bounded in time and attempts; the error at the end says what each node said. Leaves to others:
//! asking.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::node::Node;
use super::trouble::Trouble;
use crate::error::Error;

/// How often nodes are asked one question. Halving the largest batch down to one call takes less.
const ATTEMPTS_MAX: u32 = 16;

/// A node whose head is this far above a block that it does not know has lost it. Less may be a reorganization.
const RECENT_BLOCKS: u64 = 128;

/// How long a node is not asked this question again after it was late: doubled each time, up to a bound.
const LATE_FIRST: Duration = Duration::from_millis(250);
const LATE_MAX: Duration = Duration::from_secs(2);

/// A question.
#[derive(Debug)]
pub(super) struct Turn {
    /// The block that is asked for, if it is known by its number.
    pub(super) number: Option<u64>,
    /// Whether nodes are asked one after the other, however busy they are.
    pub(super) one_by_one: bool,
    /// Until when resting nodes are waited for.
    pub(super) deadline: Duration,
    what: String,
    answers: BTreeMap<usize, Trouble>,
    moved: BTreeSet<usize>,
    late: BTreeMap<usize, Lateness>,
    attempts: u32,
}

/// A node that has the block and not yet what belongs to it.
#[derive(Clone, Copy, Debug)]
struct Lateness {
    /// When it is asked again.
    until: Duration,
    /// How long it was left alone the last time.
    wait: Duration,
}

impl Turn {
    pub(super) fn new(what: String, number: Option<u64>, deadline: Duration) -> Self {
        let (answers, moved, late) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        Self { number, one_by_one: false, deadline, what, answers, moved, late, attempts: 0 }
    }

    /// One more attempt, if there is one left.
    pub(super) fn attempt(&mut self) -> bool {
        self.attempts += 1;
        self.attempts <= ATTEMPTS_MAX
    }

    /// Whether a node is not to be asked again.
    pub(super) fn has_answer_of(&self, node: usize) -> bool {
        self.answers.contains_key(&node)
    }

    /// Whether any node said that it does not know the block.
    pub(super) fn is_missing(&self) -> bool {
        self.answers.values().any(|answer| matches!(answer, Trouble::Missing))
    }

    /// How much longer a node that was late is not asked this question again; the node itself does not rest.
    pub(super) fn waits_for(&self, node: usize, now: Duration) -> Option<Duration> {
        let wait = self.late.get(&node)?.until.checked_sub(now)?;
        (!wait.is_zero()).then_some(wait)
    }

    /// A node was late. One whose head is far above the block will not have the rest of it later either.
    pub(super) fn was_late(&mut self, node: usize, now: Duration, number: u64, head: Option<u64>) {
        if head.is_some_and(|head| is_old(number, head)) {
            self.answers.insert(node, Trouble::Missing);
            return;
        }
        let before = self.late.get(&node).map(|late| late.wait.saturating_mul(2));
        let wait = before.unwrap_or(LATE_FIRST).min(LATE_MAX);
        self.late.insert(node, Lateness { until: now.saturating_add(wait), wait });
    }

    /// Takes what a node said. `last_resort` says that it can not be asked for less.
    pub(super) fn take(&mut self, node: usize, trouble: Trouble, last_resort: bool) {
        let is_final = match &trouble {
            Trouble::NoMethod { .. }
            | Trouble::Missing
            | Trouble::Pruned
            | Trouble::Unlinked { .. }
            | Trouble::Lie { .. }
            | Trouble::Unverifiable { .. } => true,
            Trouble::TooMuch { .. } => last_resort,
            // Once may have been a reorganization between two of its answers.
            Trouble::Moved => !self.moved.insert(node),
            Trouble::Failed { .. }
            | Trouble::Slow { .. }
            | Trouble::Rpc(_)
            | Trouble::Late { .. }
            | Trouble::NoBatches => false,
        };
        if is_final {
            self.answers.insert(node, trouble);
        }
    }

    /// What it all means.
    pub(super) fn verdict(self, nodes: &[std::sync::Arc<Node>]) -> Error {
        let unavailable = || Error::Unavailable { what: self.what.clone(), why: said(nodes) };
        let lie = self.answers.iter().rev().find_map(|(index, answer)| match answer {
            Trouble::Lie { number, hash, mismatch }
            | Trouble::Unverifiable { number, hash, mismatch } => Some(Error::Mismatch {
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
            Trouble::Unlinked { number, parent, before } => {
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
        let all = (0..nodes.len()).all(|index| self.has_answer_of(index));
        let pruned = self.answers.values().any(|answer| matches!(answer, Trouble::Pruned));
        let all_above = heads.iter().min().is_some_and(|head| is_old(number, *head));
        let is_gone = pruned || (self.is_missing() && all_above);
        let is_above = !heads.is_empty() && heads.iter().all(|head| *head < number);
        match () {
            () if is_gone && all => Error::Pruned { number },
            () if is_gone => unavailable(),
            () if self.is_missing() || is_above => Error::NotYet { number },
            () => unavailable(),
        }
    }
}

/// Whether a node at `head` should have all of block `number` for long.
fn is_old(number: u64, head: u64) -> bool {
    head >= number.saturating_add(RECENT_BLOCKS)
}

/// What each node said last.
fn said(nodes: &[std::sync::Arc<Node>]) -> String {
    let each = nodes.iter().map(|node| {
        let said = node.last_error().unwrap_or_else(|| "nothing wrong so far".to_owned());
        format!("{}: {said}", node.name)
    });
    let all: Vec<String> = each.collect();
    if all.is_empty() { "there are no nodes".to_owned() } else { all.join("; ") }
}
