//! Plans what to record and cancel, so that the recorded usage of one height matches the stored block.
//!
//! | in the ledger | in the block | action |
//! |---|---|---|
//! | usage of another hash | anything | cancel it |
//! | nothing | usage | record it; as the next revision if an earlier one was cancelled |
//! | usage | the same | none |
//! | usage, of the rule as it is now | other usage, or none | keep it; if the block was replaced, replace it |
//! | usage, of an earlier version of the rule | other usage, or none | keep it: rule changes leave billed usage alone |
//! | usage of a removed rule | the same under a new name | none: the rule was renamed |
//!
//! Guarantees: pure; applied to its own result it changes nothing. Leaves to others: executing the plan
//! ([`super::reconcile`]).

use std::collections::{BTreeMap, BTreeSet};

use super::ledger::{BlockEntries, Entry, Rules};
use super::usage::{BlockHash, LogUsage};

/// The block stored at a height now.
#[derive(Clone, Copy, Debug)]
pub(crate) enum StoredBlock<'a> {
    Block { hash: &'a BlockHash, usage: &'a [LogUsage] },
    Gone,
}

/// A new recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Recording {
    /// Position in the usage of the block.
    pub(crate) index: usize,
    /// Its entry in the ledger.
    pub(crate) entry: Entry,
}

/// Changes at one height.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) cancel: Vec<(BlockHash, Entry)>,
    pub(crate) record: Vec<Recording>,
    /// The new contents of the ledger rows that change.
    pub(crate) after: BTreeMap<BlockHash, Vec<Entry>>,
    /// Number of usage events that differ from those recorded under an earlier definition of their rule.
    pub(crate) conflicts: u64,
}

/// Plans one height. `replaced`: the content of the block may have changed under the same hash.
pub(crate) fn plan(
    recorded: &BlockEntries,
    stored: StoredBlock<'_>,
    replaced: bool,
    rules: &Rules,
) -> Plan {
    let mut plan = Plan::default();
    let alive = match stored {
        StoredBlock::Block { hash, .. } => Some(hash),
        StoredBlock::Gone => None,
    };
    for (hash, entries) in recorded.iter().filter(|(hash, _)| Some(*hash) != alive) {
        plan.cancel_all(hash, entries);
    }
    if let StoredBlock::Block { hash, usage } = stored {
        let before = recorded.get(hash).map(Vec::as_slice).unwrap_or_default();
        plan.compare(hash, before, usage, replaced, rules);
    }
    plan
}

impl Plan {
    /// Cancels a block that is no longer stored.
    fn cancel_all(&mut self, hash: &BlockHash, entries: &[Entry]) {
        let live: Vec<_> = entries.iter().filter(|entry| entry.live).collect();
        if live.is_empty() {
            return;
        }
        self.cancel.extend(live.into_iter().map(|entry| (*hash, *entry)));
        let dead = entries.iter().map(|entry| Entry { live: false, ..*entry });
        self.after.insert(*hash, dead.collect());
    }

    fn compare(
        &mut self,
        hash: &BlockHash,
        before: &[Entry],
        usage: &[LogUsage],
        replaced: bool,
        rules: &Rules,
    ) {
        let mut after = before.to_vec();
        let mut matched: BTreeSet<usize> = BTreeSet::new();
        for (index, found) in usage.iter().enumerate() {
            let Some(rule) = rules.number(&found.rule) else { continue };
            let content = found.event.content;
            let name = |entry: &Entry| rules.name(entry.rule);
            let of_rule = position(&after, found.log, |_, entry| name(entry) == found.rule);
            let same = of_rule.or_else(|| {
                position(&after, found.log, |index, entry| {
                    entry.content == content && !rules.has(name(entry)) && !matched.contains(&index)
                })
            });
            if let Some(same) = same {
                let entry = after[same];
                if entry.content == content {
                    matched.insert(same);
                    // The current definition finds the same usage. An id keeps the rule name it was created with.
                    if rules.name(entry.rule) == found.rule {
                        after[same].rule = rule;
                    }
                    continue;
                }
                if !(replaced && rules.is_current(entry.rule)) {
                    matched.insert(same);
                    self.conflicts += 1;
                    continue;
                }
                self.cancel.push((*hash, entry));
                after[same].live = false;
            }
            let entry = Entry {
                log: found.log,
                rule,
                revision: next_revision(&after, found, rules),
                live: true,
                content,
            };
            matched.insert(after.len());
            after.push(entry);
            self.record.push(Recording { index, entry });
        }
        for (index, entry) in after.iter_mut().enumerate() {
            let is_false = replaced && rules.is_current(entry.rule) && !matched.contains(&index);
            if entry.live && is_false {
                self.cancel.push((*hash, *entry));
                entry.live = false;
            }
        }
        if after != before {
            self.after.insert(*hash, after);
        }
    }
}

/// The live entry of a log that satisfies `is`.
fn position(entries: &[Entry], log: u64, is: impl Fn(usize, &Entry) -> bool) -> Option<usize> {
    let mut all = entries.iter().enumerate();
    all.find(|(index, entry)| entry.live && entry.log == log && is(*index, entry)).map(|(at, _)| at)
}

/// One more than the highest revision ever used for this log and rule.
fn next_revision(entries: &[Entry], usage: &LogUsage, rules: &Rules) -> u32 {
    let same = |entry: &&Entry| entry.log == usage.log && rules.name(entry.rule) == usage.rule;
    let last = entries.iter().filter(same).map(|entry| entry.revision).max();
    last.map_or(1, |last| last.saturating_add(1))
}

#[cfg(test)]
mod tests;
