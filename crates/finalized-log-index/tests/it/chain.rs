//! Small random chains, random filters, and the scan that every answer is compared with.

use finalized_log_index::{
    Address, B256, BlockLog, Blocks, Body, Bytes, Filter, FinalizedBlock, Log, LogIndex, Result,
    Topics,
};

#[derive(Clone, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }
}

/// How terms are distributed over logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skew {
    /// Every term is about equally frequent.
    Even,
    /// A few terms are in nearly all logs.
    Hot,
    /// Most terms occur once.
    OneOff,
    /// Each term occurs only in one stretch of blocks.
    Bursts,
    /// There are hardly any logs.
    Sparse,
}

pub(crate) const SKEWS: [Skew; 5] =
    [Skew::Even, Skew::Hot, Skew::OneOff, Skew::Bursts, Skew::Sparse];

/// Number of different terms; small, so that filters match.
const TERMS: u64 = 12;

fn term(dice: &mut Dice, skew: Skew, block: u64, log: u64) -> u64 {
    match skew {
        Skew::Even | Skew::Sparse => dice.below(TERMS),
        Skew::Hot => {
            if dice.one_in(10) {
                dice.below(TERMS)
            } else {
                dice.below(2)
            }
        }
        Skew::OneOff => {
            if dice.one_in(3) {
                dice.below(TERMS)
            } else {
                1_000 + block * 1_000 + log
            }
        }
        Skew::Bursts => (block / 7 + dice.below(2)) % TERMS,
    }
}

pub(crate) fn word(number: u64) -> B256 {
    // Some terms look like addresses or numbers, others like hashes.
    if number.is_multiple_of(2) {
        B256::left_padding_from(&number.to_be_bytes())
    } else {
        let mut word = B256::repeat_byte(0xcc);
        word[..8].copy_from_slice(&number.to_be_bytes());
        word
    }
}

pub(crate) fn address(number: u64) -> Address {
    Address::from_word(word(number | 1))
}

fn log(dice: &mut Dice, skew: Skew, block: u64, log: u64) -> BlockLog {
    let topics = (0..dice.below(5)).map(|_| word(term(dice, skew, block, log)));
    let topics: Topics = topics.collect();
    let length = [0, 0, 32, 64, 33, 7, 300][usize::try_from(dice.below(7)).expect("small")];
    let data: Vec<u8> = (0..length)
        .map(|_| if dice.one_in(4) { dice.next().to_le_bytes()[0] } else { 0 })
        .collect();
    BlockLog {
        address: address(term(dice, skew, block, log)),
        topics,
        data: Bytes::from(data),
        ..BlockLog::default()
    }
}

fn logs(dice: &mut Dice, skew: Skew, number: u64) -> Vec<BlockLog> {
    let most = match skew {
        Skew::Sparse => 2,
        _ => [0, 3, 20, 60, 200][usize::try_from(dice.below(5)).expect("small")],
    };
    let count = if dice.one_in(4) { 0 } else { dice.below(most + 1) };
    let (mut transaction_index, mut log_index) = (0, 0);
    let mut logs = Vec::new();
    for position in 0..count {
        let mut log = log(dice, skew, number, position);
        if dice.one_in(3) {
            transaction_index += 1 + u32::try_from(dice.below(3)).expect("small");
        }
        log.transaction_index = transaction_index;
        log.transaction_hash = transaction_hash(number, transaction_index);
        log.log_index = log_index;
        log_index += 1 + u32::from(dice.one_in(20));
        logs.push(log);
    }
    logs
}

pub(crate) fn transaction_hash(block: u64, index: u32) -> B256 {
    B256::from(*blake3::hash(format!("tx {block} {index}").as_bytes()).as_bytes())
}

pub(crate) fn block_hash(number: u64, branch: &str) -> B256 {
    B256::from(*blake3::hash(format!("block {number} {branch}").as_bytes()).as_bytes())
}

/// A chain of `count` blocks, starting at `first`.
pub(crate) fn chain(seed: u64, skew: Skew, first: u64, count: u64) -> Vec<FinalizedBlock> {
    let mut dice = Dice::new(seed);
    (first..first + count)
        .map(|number| FinalizedBlock {
            number,
            hash: block_hash(number, "main"),
            parent_hash: number.checked_sub(1).map_or(B256::ZERO, |n| block_hash(n, "main")),
            timestamp: 1_700_000_000 + number * 12,
            logs: logs(&mut dice, skew, number),
            body: body(seed, number),
        })
        .collect()
}

/// The body of a block; every third chain has no bodies.
pub(crate) fn body(seed: u64, number: u64) -> Option<Body> {
    let hash = blake3::hash(format!("body {seed} {number}").as_bytes());
    let word = hash.as_bytes();
    let length = usize::from(word[0]) * usize::from(word[1] % 8);
    let bytes: Vec<u8> = word.iter().copied().cycle().take(length).collect();
    let transactions =
        (0..u64::from(word[2] % 5)).map(|index| body_transaction(seed, number, index));
    (!seed.is_multiple_of(3))
        .then(|| Body { bytes: bytes.into(), transactions: transactions.collect() })
}

/// Hash of a transaction of a body.
pub(crate) fn body_transaction(seed: u64, number: u64, index: u64) -> B256 {
    B256::from(*blake3::hash(format!("tx {seed} {number} {index}").as_bytes()).as_bytes())
}

/// Checks that the bodies of these blocks, which are covered, are found by number and by transaction.
pub(crate) async fn check_bodies<'b>(
    index: &LogIndex,
    blocks: impl Iterator<Item = &'b FinalizedBlock>,
) -> Result<()> {
    for block in blocks {
        let found = index.body(block.number).await?;
        let expected = block.body.as_ref().map(|body| body.bytes.clone());
        if found.is_none() && !index.coverage().iter().any(|r| r.contains(&block.number)) {
            // Pruned in the meantime.
            continue;
        }
        assert_eq!(found, expected, "the body of block {}", block.number);
        for transaction in block.body.iter().flat_map(|body| &body.transactions) {
            let found = index.blocks_of_transaction(transaction).await?;
            let covered = index.coverage().iter().any(|r| r.contains(&block.number));
            assert!(!covered || found == [block.number], "the block of {transaction}: {found:?}");
        }
    }
    let unknown = index.blocks_of_transaction(&B256::repeat_byte(0xee)).await?;
    assert!(unknown.is_empty(), "nothing has this transaction");
    Ok(())
}

/// All matching logs, the slow way.
pub(crate) fn scan(blocks: &[FinalizedBlock], filter: &Filter) -> Vec<Log> {
    let wanted = |block: &&FinalizedBlock| match &filter.blocks {
        Blocks::Range(range) | Blocks::Covered(range) => range.contains(&block.number),
        Blocks::Hash(hash) => block.hash == *hash,
    };
    let all = blocks.iter().filter(wanted).flat_map(|block| {
        let matching = block.logs.iter().filter(|log| naive_match(filter, log));
        matching.map(move |log| Log {
            block_number: block.number,
            block_hash: block.hash,
            block_timestamp: block.timestamp,
            log: log.clone(),
        })
    });
    all.collect()
}

/// Written independently of `Filter::matches`, to reveal a mistake there.
fn naive_match(filter: &Filter, log: &BlockLog) -> bool {
    if !filter.addresses.is_empty() && !filter.addresses.contains(&log.address) {
        return false;
    }
    for (position, wanted) in filter.topics.iter().enumerate() {
        match log.topics.get(position) {
            None => return false,
            Some(topic) => {
                if !wanted.is_empty() && !wanted.iter().any(|w| w == topic) {
                    return false;
                }
            }
        }
    }
    true
}

/// A random filter within the blocks of a chain.
pub(crate) fn filter(dice: &mut Dice, blocks: &[FinalizedBlock]) -> Filter {
    let (first, last) = (blocks[0].number, blocks[blocks.len() - 1].number);
    let a = first + dice.below(last - first + 1);
    let b = first + dice.below(last - first + 1);
    let mut filter = match dice.below(8) {
        0 => Filter::range(first..=last),
        1 => Filter::range(a..=a),
        2 => Filter::covered(a.saturating_sub(5).min(b)..=b.max(a).saturating_add(dice.below(50))),
        3 => Filter::block_hash(block_hash(a, "main")),
        _ => Filter::range(a.min(b)..=a.max(b)),
    };
    let term = |dice: &mut Dice| if dice.one_in(6) { 77_777 } else { dice.below(TERMS) };
    for _ in 0..[0, 0, 0, 1, 1, 2, 5][usize::try_from(dice.below(7)).expect("small")] {
        let number = term(dice);
        filter = filter.address(address(number));
    }
    for position in 0..dice.below(5) {
        let position = usize::try_from(position).expect("small");
        filter.topics.resize(position + 1, Vec::new());
        for _ in 0..[0, 0, 1, 1, 2, 6][usize::try_from(dice.below(6)).expect("small")] {
            let number = term(dice);
            filter = filter.topic(position, word(number));
        }
    }
    filter
}
