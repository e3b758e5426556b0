//! Every record round-trips, a flipped bit is detected, and an edited record with a valid checksum does no harm.

use std::sync::Arc;

use logmill_io::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::body_keys::{BodyKeys, TransactionAt};
use crate::records::chunks::{BodiesRef, Change, ChunkEntry, ChunksHead};
use crate::records::degraded::{Cause, DamagedBlocks, Degradation};
use crate::records::replacement::{Replacement, ReplacementKind};
use crate::records::tail_batch::TailBatch;
use crate::records::tail_state::TailState;
use crate::samples::{Edit, blocks, content, edits, resealed, word};
use crate::section::{Bounds, ChunkPrefix};
use crate::tail::Tail;
use crate::term::ID_MAX;
use crate::types::{Body, FinalizedBlock};

/// The record round-trips, a damaged one does not decode, and an edited one decodes or fails without a panic.
fn check<T: PartialEq + std::fmt::Debug>(
    value: &T,
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T>,
    edits: &[Edit],
    at: usize,
) {
    assert_eq!(&decode(bytes).expect("just written"), value);
    let mut damaged = bytes.to_vec();
    let bit = at % (damaged.len() * 8);
    damaged[bit / 8] ^= 1 << (bit % 8);
    assert!(decode(&damaged).is_err());
    assert!(decode(&bytes[..at % bytes.len()]).is_err());
    let _ = decode(&resealed(bytes, edits));
    let mut other_version = bytes[..bytes.len() - 4].to_vec();
    other_version[0] = 99;
    seal(&mut other_version, 0);
    let error = decode(&other_version).expect_err("a version that is not known");
    assert!(error.to_string().contains("version 99"), "{error}");
}

fn state() -> impl Strategy<Value = TailState> {
    let numbers = (any::<u64>(), any::<u64>(), 0..u64::MAX / 4, 0..u64::MAX / 4);
    (numbers, word(), word(), 0..=ID_MAX, any::<u64>(), 0_u64..100).prop_map(
        |((epoch, generation, start, length), start_parent, head_hash, logs, page_bytes, piece)| {
            TailState {
                epoch,
                generation,
                start,
                start_parent,
                end: start + length,
                head_hash,
                chunk_start: start.saturating_sub(piece),
                before: ChunkPrefix { logs, page_bytes },
            }
        },
    )
}

fn entry() -> impl Strategy<Value = Arc<ChunkEntry>> {
    let blocks = (0..u64::MAX / 2, 1_u64..1 << 24, 0_u64..1 << 20);
    let flags = (any::<bool>(), any::<bool>(), any::<bool>());
    let sizes = (any::<u32>(), any::<u64>(), any::<u64>(), any::<u64>(), 1..u64::MAX);
    (blocks, flags, sizes, word(), word()).prop_map(|(blocks, flags, sizes, one, other)| {
        let (start, length, piece) = blocks;
        let (logs, values, index_bytes, token, bytes) = sizes;
        let bodies = || BodiesRef {
            blocks: start..start + 1,
            token,
            bytes,
            directory_at: token % bytes,
            blake3: *other,
        };
        Arc::new(ChunkEntry {
            blocks: start..start + length,
            parent_hash: one,
            last_hash: other,
            logs,
            values,
            index_bytes,
            token,
            bytes,
            blake3: *one,
            directory_at: token % bytes,
            chunk_start: start.saturating_sub(piece),
            ends_chunk: flags.0,
            anchored: flags.1,
            bodies: flags.2.then(bodies).into_iter().collect(),
        })
    })
}

fn batch(blocks: &[FinalizedBlock], bodies: &BodyKeys) -> Bytes {
    let content = content(blocks);
    TailBatch {
        first_block: content.first_block,
        parent_hash: content.parent_hash,
        blocks: &content.run.blocks,
        bodies,
        pages: content.run.pages.iter().collect(),
    }
    .encode()
}

proptest! {
    #[test]
    fn tail_state_round_trips(state in state(), edits in edits(), at: usize) {
        check(&state, &state.encode(), TailState::decode, &edits, at);
    }

    #[test]
    fn tail_batch_round_trips(blocks in blocks(), edits in edits(), at: usize) {
        let with_body = blocks.iter().filter(|block| block.timestamp % 3 != 0);
        let with_body: Vec<u64> = with_body.map(|block| block.number).collect();
        let place = |block: &u64| TransactionAt { key: block.wrapping_mul(77), block: *block };
        let transactions = with_body.iter().map(place).collect();
        let bodies = BodyKeys { blocks: with_body, transactions };
        let bytes = batch(&blocks, &bodies);
        check(&(blocks, bodies), &bytes, tail_batch::decode, &edits, at);
        // Everything that decodes can be appended.
        if let Ok((edited, _)) = tail_batch::decode(&resealed(&bytes, &edits))
            && let Some(first) = edited.first()
        {
            let start = TailState {
                epoch: 0,
                generation: 0,
                start: first.number,
                start_parent: first.parent_hash,
                end: first.number,
                head_hash: first.parent_hash,
                chunk_start: first.number,
                before: ChunkPrefix::default(),
            };
            let bounds = Bounds { cell_blocks: 16, chunk_logs: 200, piece_logs: 70 };
            Tail::new(bounds, &start).append(&edited);
        }
    }

    #[test]
    fn chunk_change_round_trips(
        add in prop::collection::vec(entry(), 0..5),
        remove in prop::collection::vec(any::<u64>(), 0..5),
        floor: u64,
        edits in edits(),
        at: usize,
    ) {
        let change = Change { add, remove, floor };
        check(&change, &change.encode(), Change::decode, &edits, at);
    }

    #[test]
    fn chunks_head_round_trips(
        seq: u64,
        before: u64,
        kept: u64,
        edits in edits(),
        at: usize,
    ) {
        let (checkpoint, replacements) = (seq.saturating_sub(before), seq.saturating_sub(kept));
        let head = ChunksHead { seq, checkpoint, replacements };
        check(&head, &head.encode(), ChunksHead::decode, &edits, at);
    }

    #[test]
    fn attempt_round_trips(until: i64, edits in edits(), at: usize) {
        let until = Timestamp(until);
        check(&until, &attempt::encode(until), attempt::decode, &edits, at);
    }

    #[test]
    fn bounds_round_trip(
        cell_blocks: u64,
        chunk_logs: u32,
        piece_logs: u32,
        edits in edits(),
        at: usize,
    ) {
        let bounds = Bounds { cell_blocks, chunk_logs, piece_logs };
        check(&bounds, &bounds::encode(&bounds), bounds::decode, &edits, at);
    }

    #[test]
    fn degradation_round_trips(
        cause in 0..4_usize,
        reason in "\\PC{0,80}",
        start in 0..u64::MAX / 2,
        length in 1_u64..1 << 40,
        count in 0..4_usize,
        edits in edits(),
        at: usize,
    ) {
        let causes =
            [Cause::FinalityViolation, Cause::Corruption, Cause::Backlog, Cause::Metadata];
        let cause = causes[cause];
        let blocks = start..start + length;
        let damaged = vec![DamagedBlocks { blocks, what: reason.clone() }; count];
        let degraded = Degradation { cause, reason, damaged };
        check(&degraded, &degraded.encode(), Degradation::decode, &edits, at);
    }

    #[test]
    fn replacement_round_trips(
        seq in 1..u64::MAX,
        start in 0..u64::MAX / 2,
        length in 1_u64..1 << 40,
        kind in 0..2_usize,
        old_hashes in prop::collection::vec(word(), 0..9),
        reason in "\\PC{0,80}",
        at_ms: i64,
        edits in edits(),
        at: usize,
    ) {
        let kinds = [ReplacementKind::Removed, ReplacementKind::Content];
        let kept = old_hashes.len().min(usize::try_from(length).expect("small"));
        let replacement = Replacement {
            seq,
            blocks: start..start + length,
            kind: kinds[kind],
            old_hashes: old_hashes[..kept].to_vec(),
            reason,
            at: Timestamp(at_ms),
        };
        check(&replacement, &replacement.encode(), Replacement::decode, &edits, at);
    }

    #[test]
    fn body_round_trips(
        bytes in prop::collection::vec(any::<u8>(), 0..3_000),
        transactions in prop::collection::vec(word(), 0..5),
        edits in edits(),
        at: usize,
    ) {
        let body = Body { bytes: bytes.into(), transactions };
        check(&body, &body::encode(&body), body::decode, &edits, at);
    }

    #[test]
    fn any_bytes_do_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut sealed = bytes;
        sealed.insert(0, 1);
        seal(&mut sealed, 0);
        let _ = TailState::decode(&sealed);
        let _ = tail_batch::decode(&sealed);
        let _ = Change::decode(&sealed);
        let _ = ChunksHead::decode(&sealed);
        let _ = body::decode(&sealed);
        let _ = attempt::decode(&sealed);
        let _ = bounds::decode(&sealed);
        let _ = Degradation::decode(&sealed);
        let _ = Replacement::decode(&sealed);
    }

    #[test]
    fn keys_sort_like_their_numbers(one: u64, other: u64) {
        let keys = Keys::new("p");
        prop_assert_eq!(keys.change(one) < keys.change(other), one < other);
        prop_assert_eq!(number_of(&keys.change(one)).expect("a number"), one);
        prop_assert_eq!(number_of(&keys.tail_batch(other, one)).expect("a number"), one);
        prop_assert_eq!(number_of(&keys.attempt(one)).expect("a number"), one);
        let generations = keys.tail_batch(one, other) < keys.tail_batch(other, one);
        prop_assert_eq!(generations, one < other);
    }
}

#[test]
fn a_chunks_head_of_version_1_is_read() {
    let mut old = begin(1);
    crate::codec::put_u64(&mut old, 7);
    crate::codec::put_u64(&mut old, 5);
    let head = ChunksHead::decode(&end(old)).expect("version 1");
    assert_eq!(head, ChunksHead { seq: 7, checkpoint: 5, replacements: 0 });
}

#[test]
fn a_long_reason_is_cut_between_characters() {
    let degraded = Degradation::new(Cause::Corruption, "ä".repeat(5_000));
    let kept = Degradation::decode(&degraded.encode()).expect("just written").reason;
    assert!(kept.len() <= 4_096 && kept.chars().all(|letter| letter == 'ä'));
}
