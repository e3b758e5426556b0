//! Tests of coverage and of the rules of publication.

use super::*;
use crate::section::ChunkPrefix;

fn hash(number: u64, branch: u8) -> B256 {
    let mut hash = B256::left_padding_from(&number.to_be_bytes());
    hash[0] = branch;
    hash
}

/// A chunk of `blocks` on `branch`, whose parent is on the branch `parent`.
fn chunk(blocks: BlockRange, parent: u8, branch: u8) -> ChunkEntry {
    ChunkEntry {
        parent_hash: hash(blocks.start.wrapping_sub(1), parent),
        last_hash: hash(blocks.end - 1, branch),
        logs: 1,
        values: 1,
        index_bytes: 1,
        token: blocks.start * 1_000 + u64::from(branch),
        bytes: 100,
        blake3: [branch; 32],
        directory_at: 50,
        chunk_start: blocks.start,
        ends_chunk: true,
        anchored: false,
        bodies: Vec::new(),
        blocks,
    }
}

fn anchored(entry: ChunkEntry) -> ChunkEntry {
    ChunkEntry { anchored: true, ..entry }
}

fn tail(start: u64, end: u64, branch: u8) -> TailState {
    TailState {
        epoch: 1,
        generation: 0,
        start,
        start_parent: hash(start.wrapping_sub(1), branch),
        end,
        head_hash: hash(end - 1, branch),
        chunk_start: start,
        before: ChunkPrefix::default(),
    }
}

fn covered(list: &ChunkList, tail: Option<&TailState>) -> Vec<(u64, u64)> {
    list.coverage(tail).iter().map(|range| (range.start, range.end)).collect()
}

fn add(list: &mut ChunkList, entry: ChunkEntry, tail: Option<&TailState>) -> Result<Vec<u64>> {
    match list.plan_add(&Arc::new(entry), &[], tail)? {
        PublishPlan::Published(_) => Ok(Vec::new()),
        PublishPlan::Change(change) => {
            list.apply(&change)?;
            Ok(change.remove)
        }
    }
}

#[test]
fn only_chunks_linked_to_an_anchor_are_covered() {
    let mut list = ChunkList::default();
    add(&mut list, chunk(0..10, 0, 0), None).expect("free");
    add(&mut list, chunk(10..20, 0, 0), None).expect("free");
    assert!(list.coverage(None).is_empty(), "consistent, but nothing says canonical");
    let tail = tail(20, 25, 0);
    assert_eq!(covered(&list, Some(&tail)), [(0, 25)]);
    add(&mut list, anchored(chunk(40..50, 0, 0)), None).expect("free");
    assert_eq!(covered(&list, None), [(40, 50)]);
    add(&mut list, chunk(30..40, 0, 0), None).expect("free");
    assert_eq!(covered(&list, None), [(30, 50)], "linked to an anchored neighbour");
}

#[test]
fn the_side_without_an_anchor_is_dropped() {
    let mut list = ChunkList::default();
    add(&mut list, chunk(10..20, 0, 0), None).expect("free");
    add(&mut list, chunk(20..30, 1, 1), None).expect("neither is anchored, so both stay");
    assert_eq!(list.iter().count(), 2);
    let removed = add(&mut list, anchored(chunk(30..40, 1, 1)), None).expect("it links");
    assert_eq!(removed, [10_000], "the branch that is now anchored wins");
    assert_eq!(covered(&list, None), [(20, 40)]);
    let error = add(&mut list, chunk(10..20, 0, 0), None).expect_err("it contradicts");
    assert!(matches!(error, Error::Unpublishable { .. }), "{error}");
    add(&mut list, chunk(10..20, 0, 1), None).expect("it links");
    assert_eq!(covered(&list, None), [(10, 40)]);
}

#[test]
fn anchors_that_contradict_each_other_are_a_finality_violation() {
    let mut list = ChunkList::default();
    add(&mut list, anchored(chunk(10..20, 0, 0)), None).expect("free");
    let error = add(&mut list, anchored(chunk(20..30, 1, 1)), None).expect_err("both anchored");
    assert!(matches!(error, Error::FinalityViolation { .. }), "{error}");
    let wrong = tail(20, 25, 1);
    let error = add(&mut list, chunk(0..10, 0, 0), Some(&wrong)).expect_err("the tail");
    assert!(matches!(error, Error::FinalityViolation { .. }), "{error}");
}

#[test]
fn overlaps_are_refused_and_repetition_is_fine() {
    let mut list = ChunkList::default();
    let tail = tail(20, 25, 0);
    add(&mut list, chunk(10..20, 0, 0), Some(&tail)).expect("free");
    assert!(add(&mut list, chunk(10..20, 0, 0), Some(&tail)).expect("the same").is_empty());
    for blocks in [5..11, 10..20, 12..14, 19..21] {
        let error = add(&mut list, chunk(blocks, 0, 1), Some(&tail)).expect_err("an overlap");
        assert!(matches!(error, Error::Unpublishable { .. }), "{error}");
    }
    let error = add(&mut list, chunk(20..30, 0, 0), Some(&tail)).expect_err("the tail's");
    assert!(matches!(error, Error::Unpublishable { .. }), "{error}");
}

#[test]
fn a_merged_chunk_replaces_its_pieces() {
    let piece = |blocks: BlockRange, ends_chunk| ChunkEntry {
        chunk_start: 8,
        ends_chunk,
        ..anchored(chunk(blocks, 0, 0))
    };
    let mut list = ChunkList::default();
    add(&mut list, piece(8..10, false), None).expect("free");
    add(&mut list, piece(10..14, false), None).expect("free");
    assert!(list.mergeable().is_empty(), "the chunk goes on");
    add(&mut list, piece(14..16, true), None).expect("free");
    let groups = list.mergeable();
    assert_eq!(groups.len(), 1);
    let tokens: Vec<u64> = groups[0].iter().map(|entry| entry.token).collect();
    let merged = Arc::new(ChunkEntry { token: 1, ..anchored(chunk(8..16, 0, 0)) });
    let Ok(PublishPlan::Change(change)) = list.plan_add(&merged, &tokens, None) else {
        panic!("it can be published");
    };
    list.apply(&change).expect("it fits");
    assert_eq!(covered(&list, None), [(8, 16)]);
    assert!(list.mergeable().is_empty());
    let again = Arc::new(ChunkEntry { token: 2, blake3: [9; 32], ..(*merged).clone() });
    let error = list.plan_add(&again, &tokens, None).expect_err("the pieces are gone");
    assert!(matches!(error, Error::Unpublishable { .. }), "{error}");
}

#[test]
fn a_change_that_does_not_fit_is_corrupt() {
    let mut list = ChunkList::default();
    let entry = Arc::new(chunk(0..10, 0, 0));
    let change = Change { add: vec![entry], remove: Vec::new(), floor: 0 };
    list.apply(&change).expect("it fits");
    assert!(list.apply(&change).is_err(), "added twice");
    let missing = Change { remove: vec![77], ..Change::default() };
    assert!(list.apply(&missing).is_err(), "removed what was not there");
}
