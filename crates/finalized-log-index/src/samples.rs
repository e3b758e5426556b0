//! Generators for unit tests: random blocks, and edited bytes with a valid checksum.

use alloy_primitives::{Address, B256, Bytes};
use proptest::prelude::*;

use crate::codec::{CRC_BYTES, seal};
use crate::section::{Bounds, ChunkPrefix, Content, Section};
use crate::types::{BlockLog, FinalizedBlock, Topics};

/// A word from a small set; some look like numbers, some like hashes.
pub(crate) fn word() -> impl Strategy<Value = B256> {
    prop_oneof![
        (0_u8..9).prop_map(|byte| B256::left_padding_from(&[byte])),
        (0_u8..40).prop_map(|byte| B256::repeat_byte(byte ^ 0x5a)),
        any::<[u8; 32]>().prop_map(B256::from),
    ]
}

fn log() -> impl Strategy<Value = BlockLog> {
    let topics = prop::collection::vec(word(), 0..5);
    let byte = prop_oneof![3 => Just(0_u8), 1 => any::<u8>()];
    let data = prop::collection::vec(byte, 0..99);
    (word(), topics, data, 0_u32..2, 0_u32..3).prop_map(|(address, topics, data, tx_gap, gap)| {
        BlockLog {
            address: Address::from_word(address),
            topics: topics.into_iter().collect::<Topics>(),
            data: Bytes::from(data),
            // Gaps; [`in_order`] turns them into indexes.
            transaction_index: tx_gap,
            log_index: gap,
            ..BlockLog::default()
        }
    })
}

/// Consecutive blocks, some of them empty.
pub(crate) fn blocks() -> impl Strategy<Value = Vec<FinalizedBlock>> {
    let logs = prop_oneof![
        1 => Just(Vec::new()),
        3 => prop::collection::vec(log(), 0..12),
        1 => prop::collection::vec(log(), 60..150),
    ];
    let block = (logs, any::<u64>());
    (prop::collection::vec(block, 1..9), 0_u64..1 << 40).prop_map(|(blocks, first)| {
        let made = (first..).zip(blocks);
        made.map(|(number, (logs, timestamp))| in_order(number, timestamp, logs)).collect()
    })
}

fn in_order(number: u64, timestamp: u64, mut logs: Vec<BlockLog>) -> FinalizedBlock {
    let (mut tx, mut index) = (0, 0);
    for log in &mut logs {
        tx += log.transaction_index;
        index += log.log_index;
        log.transaction_index = tx;
        log.log_index = index;
        log.transaction_hash = hash(number, u64::from(tx) + 1);
        index += 1;
    }
    let parent_hash = hash(number.wrapping_sub(1), 0);
    FinalizedBlock { number, hash: hash(number, 0), parent_hash, timestamp, logs, body: None }
}

fn hash(block: u64, part: u64) -> B256 {
    let bytes = [block.to_le_bytes(), part.to_le_bytes()].concat();
    B256::from(*blake3::hash(&bytes).as_bytes())
}

/// Content of one section with these blocks.
pub(crate) fn content(blocks: &[FinalizedBlock]) -> Content {
    let bounds = Bounds { cell_blocks: 1 << 20, chunk_logs: 1 << 20, piece_logs: 1 << 20 };
    let first = &blocks[0];
    let mut section = Section::new(bounds, first.number, ChunkPrefix::default());
    for block in blocks {
        section.push(block);
    }
    Content { first_block: first.number, parent_hash: first.parent_hash, run: section.finish() }
}

/// An edit of bytes: changes one, inserts one, or truncates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Edit {
    at: usize,
    byte: u8,
    kind: u8,
}

pub(crate) fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = (any::<usize>(), any::<u8>(), 0_u8..8);
    let edit = edit.prop_map(|(at, byte, kind)| Edit { at, byte, kind });
    prop::collection::vec(edit, 1..4)
}

/// Edits the bytes before the checksum and appends a valid checksum.
pub(crate) fn resealed(sealed: &[u8], edits: &[Edit]) -> Vec<u8> {
    let mut bytes = sealed[..sealed.len() - CRC_BYTES].to_vec();
    for edit in edits {
        let at = edit.at % (bytes.len() + 1);
        match edit.kind {
            0 => bytes.truncate(at),
            1 => bytes.insert(at, edit.byte),
            2 if at < bytes.len() => bytes[at] = bytes[at].wrapping_add(1),
            3 if at < bytes.len() => bytes[at] ^= 1 << (edit.byte % 8),
            _ if at < bytes.len() => bytes[at] = edit.byte,
            _ => {}
        }
    }
    seal(&mut bytes, 0);
    bytes
}
