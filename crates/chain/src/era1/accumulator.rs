//! The accumulator of an era1 file: one hash over the hashes and total difficulties of its blocks.
//!
//! It is the SSZ root of `List[HeaderRecord, 8192]`, where a record is `{block_hash: Bytes32, total_difficulty:
//! Uint256}`.
//!
//! Guarantees: a pure function. Leaves to others: the records.

use alloy_primitives::{B256, U256};
use sha2::{Digest, Sha256};

/// Maximum number of blocks in a file.
pub const BLOCKS_MAX: usize = 8192;
/// Depth of a tree with this many leaves.
const DEPTH: u32 = BLOCKS_MAX.trailing_zeros();

/// The part of a block that goes into the accumulator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderRecord {
    pub hash: B256,
    /// The difficulty of all blocks up to and including this one.
    pub total_difficulty: U256,
}

/// Computes the accumulator of at most [`BLOCKS_MAX`] blocks.
pub fn accumulator(records: &[HeaderRecord]) -> B256 {
    let record = |record: &HeaderRecord| {
        pair(&record.hash, &B256::from(record.total_difficulty.to_le_bytes::<32>()))
    };
    let mut level: Vec<B256> = records.iter().map(record).collect();
    // Root of an empty subtree at each level.
    let mut absent = B256::ZERO;
    for _ in 0..DEPTH {
        let parent = |leaves: &[B256]| match leaves {
            [left, right] => pair(left, right),
            [left] => pair(left, &absent),
            _ => absent,
        };
        level = level.chunks(2).map(parent).collect();
        absent = pair(&absent, &absent);
    }
    let root = level.first().copied().unwrap_or(absent);
    let mut length = B256::ZERO;
    length[..8].copy_from_slice(&u64::try_from(records.len()).unwrap_or(u64::MAX).to_le_bytes());
    pair(&root, &length)
}

fn pair(left: &B256, right: &B256) -> B256 {
    let hash = Sha256::new().chain_update(left).chain_update(right).finalize();
    B256::from_slice(&hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same by definition: a full tree with every possible leaf.
    fn by_definition(records: &[HeaderRecord]) -> B256 {
        let mut leaves = vec![B256::ZERO; BLOCKS_MAX];
        for (leaf, record) in leaves.iter_mut().zip(records) {
            let difficulty = B256::from(record.total_difficulty.to_le_bytes::<32>());
            *leaf = pair(&record.hash, &difficulty);
        }
        while leaves.len() > 1 {
            leaves = leaves.chunks(2).map(|both| pair(&both[0], &both[1])).collect();
        }
        let length = U256::from(records.len()).to_le_bytes::<32>();
        pair(&leaves[0], &B256::from(length))
    }

    #[test]
    fn the_accumulator_is_the_root_of_the_full_tree() {
        let records: Vec<HeaderRecord> = (0..100u64)
            .map(|number| HeaderRecord {
                hash: B256::from(U256::from(number * 7 + 1)),
                total_difficulty: U256::from(number) << 70usize,
            })
            .collect();
        for count in [0, 1, 2, 3, 7, 8, 63, 100] {
            assert_eq!(accumulator(&records[..count]), by_definition(&records[..count]), "{count}");
        }
    }
}
