//! Tests of every row of the planner's table, and that a plan applied to its own result changes nothing.

use logmill_io::{SeededEntropy, Timestamp};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::chains::usage::RuleVersion;
use crate::event::{RawEvent, Sender};
use crate::settings::{EventType, Op, Settings};

const HASH: BlockHash = [1; 32];
const OTHER: BlockHash = [2; 32];

/// Rules 1 and 2 are the former and the current `fees`, 3 is `calls`, 4 is `old`, which was removed.
fn rules() -> Rules {
    let rule = |name: &str, definition| RuleVersion { name: name.to_owned(), definition };
    let known =
        [(1, rule("fees", 1)), (2, rule("fees", 2)), (3, rule("calls", 3)), (4, rule("old", 4))];
    Rules { known: known.into(), current: vec![2, 3] }
}

fn usage(log: u64, rule: &str, value: i64) -> LogUsage {
    let mut settings = Settings::default();
    settings.events.insert("sum".to_owned(), EventType::new(Op::Sum));
    let text = json!({"eventType": "sum", "customerId": "c", "value": value, "id": "x",
        "timestamp": "1000"})
    .to_string();
    let raw: RawEvent<'_> = serde_json::from_str(&text).expect("an object");
    let entropy = SeededEntropy::shared(1);
    let sender = Sender { source: "test", now: Timestamp(1_000), entropy: &*entropy };
    let event = raw.check(&settings, None, &sender).expect("it is right");
    LogUsage { log, rule: rule.to_owned(), event }
}

fn entry(log: u64, rule: u32, value: i64) -> Entry {
    let content = usage(log, "fees", value).event.content;
    Entry { log, rule, revision: 1, live: true, content }
}

fn planned(recorded: &BlockEntries, usage: &[LogUsage], replaced: bool) -> Plan {
    plan(recorded, StoredBlock::Block { hash: &HASH, usage }, replaced, &rules())
}

fn recorded(entries: &[Entry]) -> BlockEntries {
    [(HASH, entries.to_vec())].into()
}

#[test]
fn new_usage_is_recorded_and_the_same_usage_is_left_alone() {
    for replaced in [false, true] {
        let plan = planned(&BlockEntries::new(), &[usage(3, "fees", 7)], replaced);
        assert_eq!(plan.record, [Recording { index: 0, entry: entry(3, 2, 7) }]);
        assert_eq!(plan.after, recorded(&[entry(3, 2, 7)]));
        assert_eq!(planned(&plan.after, &[usage(3, "fees", 7)], replaced), Plan::default());
    }
}

#[test]
fn usage_of_another_hash_or_of_a_block_that_is_gone_is_cancelled() {
    let dead: BlockEntries = [(OTHER, vec![entry(3, 2, 7), entry(4, 4, 8)])].into();
    let cancelled = vec![(OTHER, entry(3, 2, 7)), (OTHER, entry(4, 4, 8))];
    for replaced in [false, true] {
        let plan = planned(&dead, &[], replaced);
        assert_eq!((plan.cancel, plan.record.len()), (cancelled.clone(), 0));
        assert!(plan.after[&OTHER].iter().all(|entry| !entry.live));
        assert_eq!(planned(&plan.after, &[], replaced), Plan::default());
    }
    assert_eq!(plan(&dead, StoredBlock::Gone, true, &rules()).cancel, cancelled);
}

#[test]
fn other_content_under_the_same_hash_counts_only_where_blocks_were_replaced() {
    let before = recorded(&[entry(3, 2, 7), entry(4, 3, 1)]);
    let now = [usage(3, "fees", 9)];
    let plan = planned(&before, &now, false);
    assert_eq!((plan.cancel.len(), plan.record.len(), plan.conflicts), (0, 0, 1));
    let plan = planned(&before, &now, true);
    assert_eq!(plan.cancel, [(HASH, entry(3, 2, 7)), (HASH, entry(4, 3, 1))]);
    let again = Entry { revision: 2, ..entry(3, 2, 9) };
    assert_eq!(plan.record, [Recording { index: 0, entry: again }]);
    assert_eq!(planned(&plan.after, &now, true), Plan::default());
    // And back: a third recording, as both ids are used.
    let back = planned(&plan.after, &[usage(3, "fees", 7)], true);
    assert_eq!(back.record[0].entry.revision, 3);
}

#[test]
fn usage_recorded_under_a_former_rule_stays_while_its_block_is_stored() {
    // The rule was changed, and finds another value, or nothing.
    let before = recorded(&[entry(3, 1, 7), entry(4, 4, 8)]);
    for (now, conflicts) in [(vec![usage(3, "fees", 9)], 1), (vec![], 0)] {
        let plan = planned(&before, &now, true);
        assert_eq!((plan.cancel.len(), plan.record.len()), (0, 0));
        assert_eq!(plan.conflicts, conflicts);
    }
    // It finds the same: the entry now belongs to the current definition.
    let plan = planned(&before, &[usage(3, "fees", 7)], false);
    assert_eq!(plan.after, recorded(&[entry(3, 2, 7), entry(4, 4, 8)]));
    assert!(plan.cancel.is_empty() && plan.record.is_empty());
}

#[test]
fn a_rule_that_was_renamed_bills_nothing_twice() {
    let before = recorded(&[entry(3, 4, 7)]);
    assert_eq!(planned(&before, &[usage(3, "calls", 7)], true), Plan::default());
    // Other content is not the same usage under another name.
    assert_eq!(planned(&before, &[usage(3, "calls", 8)], true).record.len(), 1);
    // One recording stands for one rule.
    let two = [usage(3, "calls", 7), usage(3, "fees", 7)];
    assert_eq!(planned(&before, &two, true).record.len(), 1);
}

fn usages() -> impl Strategy<Value = Vec<LogUsage>> {
    let rule = prop_oneof![Just("fees"), Just("calls")];
    let one = ((0..4_u64, rule), 0..3_i64);
    prop::collection::btree_map(one.0, one.1, 0..6).prop_map(|all| {
        all.into_iter().map(|((log, rule), value)| usage(log, rule, value)).collect()
    })
}

proptest! {
    #[test]
    fn a_plan_applied_to_its_result_changes_nothing_and_no_id_is_used_twice(
        steps in prop::collection::vec((usages(), any::<bool>()), 1..8),
    ) {
        let mut ledger = BlockEntries::new();
        let mut used = BTreeSet::new();
        for (usage, other) in steps {
            let hash = if other { OTHER } else { HASH };
            let stored = StoredBlock::Block { hash: &hash, usage: &usage };
            let plan = plan(&ledger, stored, true, &rules());
            for recording in &plan.record {
                let Entry { log, rule, revision, .. } = recording.entry;
                prop_assert!(used.insert((hash, log, rule, revision)));
            }
            ledger.extend(plan.after);
            let again = super::plan(&ledger, stored, true, &rules());
            prop_assert_eq!(again, Plan::default());
            // The live entries match the block.
            let live: BTreeSet<_> = ledger.iter().flat_map(|(hash, entries)| {
                entries.iter().filter(|entry| entry.live).map(move |entry| {
                    (*hash, entry.log, rules().name(entry.rule).to_owned(), entry.content)
                })
            }).collect();
            let stored: BTreeSet<_> = usage.iter().map(|one| {
                (hash, one.log, one.rule.clone(), one.event.content)
            }).collect();
            prop_assert_eq!(live, stored);
        }
    }
}
