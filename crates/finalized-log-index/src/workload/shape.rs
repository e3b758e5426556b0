//! The shape of mainnet's logs: which events, by which contracts, with which topics and data.
//!
//! The proportions are those of 51 consecutive blocks around 18 426 253: `Transfer` 45.6 %, `Approval` 7.8 %, V2
//! `Sync` 7.7 %, V2 `Swap` 7.5 %, `Deposit` 4.1 %, `Withdrawal` 3.5 %, V3 `Swap` 2.5 %; WETH 18.8 % and USDT 8.0 % of
//! the logs; data of 69 bytes on average and 3 328 at most.
//!
//! Leaves to others: blocks and transactions.

use alloy_primitives::{Address, B256, address, b256};

use super::draw::{self, Draw, Octaves};
use crate::types::Topics;

/// `Transfer(address,address,uint256)`, of ERC-20 and of ERC-721.
pub(super) const TRANSFER: B256 =
    b256!("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");
const APPROVAL: B256 = b256!("0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925");
const SYNC: B256 = b256!("0x1c411e9a96e071241c2f21f7726b17ae89e3cab4c78be50e062b03a9fffbbad1");
const SWAP_V2: B256 = b256!("0xd78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822");
const SWAP_V3: B256 = b256!("0xc42079f94a6350d7e6235f29174924f928cc2ac818eb64fed8004e115fbcca67");
const DEPOSIT: B256 = b256!("0xe1fffcc4923d04b559f4d29a8bfc6cda04eb5b0d3c460751c2402c5c5cc9109c");
const WITHDRAWAL: B256 =
    b256!("0x7fcf532c15f0a6db0bd6d0e038bea71d30d808c7d98cb3bf7268a95bf5081b65");

/// The contract with the most logs.
pub(super) const WETH: Address = address!("0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2");
const USDT: Address = address!("0xdac17f958d2ee523a2206206994597c13d831ec7");

/// Kinds of keys from which addresses and hashes are derived: the high bits of a key.
const TOKENS: u64 = 1 << 56;
const POOLS: u64 = 2 << 56;
const OTHERS: u64 = 3 << 56;
const EVENTS: u64 = 4 << 56;
const HOT_WALLETS: u64 = 5 << 56;
const WALLETS: u64 = 6 << 56;
const ONE_OFF_WALLETS: u64 = 7 << 56;
const ONE_OFF_TOPICS: u64 = 8 << 56;
const ABSENT_TOPICS: u64 = 9 << 56;

/// Wallets that existed before the first block.
const WALLETS_BEFORE: u64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
enum Event {
    Transfer,
    TransferNft,
    Approval,
    Sync,
    SwapV2,
    SwapV3,
    Deposit,
    Withdrawal,
    Other,
}

/// Number of logs of each event out of 1 024; the rest is [`Event::Other`].
const EVENT_SHARES: [(Event, usize); 8] = [
    (Event::Transfer, 431),
    (Event::TransferNft, 36),
    (Event::Approval, 80),
    (Event::Sync, 79),
    (Event::SwapV2, 77),
    (Event::SwapV3, 26),
    (Event::Deposit, 42),
    (Event::Withdrawal, 36),
];

/// Transfers of the two largest tokens, out of 1 024.
const WETH_SHARE: u64 = 230;
const USDT_SHARE: u64 = 164;

/// Draws logs one by one, and counts the wallets and hashes used so far.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    seed: u64,
    events: [Event; 1024],
    tokens: Octaves,
    pools: Octaves,
    others: Octaves,
    kinds: Octaves,
    hot_wallets: Octaves,
    ages: Octaves,
    /// Wallets that appeared since the first block and may return.
    wallets_new: u64,
    wallets_one_off: u64,
    topics_one_off: u64,
}

impl Shape {
    pub(super) fn new(seed: u64) -> Self {
        let mut events = [Event::Other; 1024];
        let shares = EVENT_SHARES.iter().flat_map(|(event, share)| (0..*share).map(|_| *event));
        for (slot, event) in events.iter_mut().zip(shares) {
            *slot = event;
        }
        Self {
            // Shifted, so that the kinds in the high bits of a key stay distinct.
            seed: draw::mix(seed) >> 8,
            events,
            tokens: Octaves::new(1, 15, 198),
            pools: Octaves::new(1, 14, 200),
            others: Octaves::new(0, 14, 196),
            kinds: Octaves::new(0, 11, 225),
            hot_wallets: Octaves::new(0, 13, 240),
            ages: Octaves::new(0, 20, 256),
            wallets_new: 0,
            wallets_one_off: 0,
            topics_one_off: 0,
        }
    }

    /// Draws one log: returns its contract and topics, and appends its data to `data`.
    pub(super) fn log(
        &mut self,
        draw: &mut Draw,
        sender: B256,
        data: &mut Vec<u8>,
    ) -> (Address, Topics) {
        let event = *draw.pick(&self.events);
        let mut topics = Topics::new();
        let contract = match event {
            Event::Transfer | Event::Approval => {
                let topic0 = if matches!(event, Event::Transfer) { TRANSFER } else { APPROVAL };
                topics.extend([topic0, self.party(draw, sender), self.receiver(draw, sender)]);
                amount(draw, data);
                self.token(draw)
            }
            Event::TransferNft => {
                let from = if draw.chance(300) { B256::ZERO } else { self.party(draw, sender) };
                topics.extend([TRANSFER, from, self.receiver(draw, sender), token_id(draw)]);
                self.other(draw)
            }
            Event::Sync => {
                topics.push(SYNC);
                amounts(draw, data, 2);
                self.pool(draw)
            }
            Event::SwapV2 | Event::SwapV3 => {
                let is_v2 = matches!(event, Event::SwapV2);
                let topic0 = if is_v2 { SWAP_V2 } else { SWAP_V3 };
                topics.extend([topic0, self.hot_wallet(draw), self.party(draw, sender)]);
                amounts(draw, data, if is_v2 { 4 } else { 5 });
                self.pool(draw)
            }
            Event::Deposit | Event::Withdrawal => {
                let topic0 = if matches!(event, Event::Deposit) { DEPOSIT } else { WITHDRAWAL };
                topics.extend([topic0, self.party(draw, sender)]);
                amount(draw, data);
                WETH
            }
            Event::Other => self.any(draw, sender, &mut topics, data),
        };
        (contract, topics)
    }

    /// A log of another event: one of hundreds of kinds, each with its own number of topics and words.
    fn any(
        &mut self,
        draw: &mut Draw,
        sender: B256,
        topics: &mut Topics,
        data: &mut Vec<u8>,
    ) -> Address {
        let kind = draw.rank(&self.kinds);
        topics.push(draw::hash(EVENTS | self.seed ^ kind));
        let form = draw::mix(kind);
        let topic_count = *[1, 2, 2, 2, 3, 3, 4, 1].get((form & 7) as usize).unwrap_or(&2);
        for position in 1..topic_count {
            topics.push(match (form >> (8 * position)) & 7 {
                0 | 1 if position == 1 => self.one_off_topic(draw),
                2 => small(draw, 1 << 16),
                3 => self.hot_wallet(draw),
                _ => self.party(draw, sender),
            });
        }
        let words = (form >> 40) % 9;
        for word in 0..words {
            match (form >> (42 + 2 * word)) & 3 {
                0 => data.extend_from_slice(self.party(draw, sender).as_slice()),
                1 => data.extend_from_slice(small(draw, 1 << 10).as_slice()),
                _ => amount(draw, data),
            }
        }
        if draw.chance(14) {
            blob(draw, data, 3_328 / 32 - words);
        }
        self.other(draw)
    }

    /// A participant: the sender, a hot wallet or contract, a recent wallet, or one that never returns.
    fn party(&mut self, draw: &mut Draw, sender: B256) -> B256 {
        match draw.bits() >> 60 {
            0..=4 => sender,
            5..=10 => self.hot_wallet(draw),
            11..=14 => self.known_wallet(draw),
            _ => self.one_off_wallet(),
        }
    }

    /// A recipient: like [`Self::party`], or a new wallet that may return.
    fn receiver(&mut self, draw: &mut Draw, sender: B256) -> B256 {
        if !draw.chance(100) {
            return self.party(draw, sender);
        }
        self.wallets_new += 1;
        self.wallet(self.wallets_new - 1 + WALLETS_BEFORE)
    }

    /// The sender of a transaction.
    pub(super) fn sender(&mut self, draw: &mut Draw) -> B256 {
        if draw.chance(200) { self.hot_wallet(draw) } else { self.known_wallet(draw) }
    }

    fn hot_wallet(&self, draw: &mut Draw) -> B256 {
        self.party_name(HOT_WALLETS, draw.rank(&self.hot_wallets))
    }

    /// The more recent a wallet is, the more likely it returns.
    fn known_wallet(&self, draw: &mut Draw) -> B256 {
        let newest = WALLETS_BEFORE + self.wallets_new;
        self.wallet(newest - 1 - draw.rank(&self.ages))
    }

    fn one_off_wallet(&mut self) -> B256 {
        self.wallets_one_off += 1;
        self.party_name(ONE_OFF_WALLETS, self.wallets_one_off)
    }

    fn one_off_topic(&mut self, draw: &mut Draw) -> B256 {
        if draw.chance(100) {
            return small(draw, 1 << 30);
        }
        self.topics_one_off += 1;
        draw::hash(ONE_OFF_TOPICS | self.seed ^ (self.topics_one_off - 1))
    }

    fn token(&self, draw: &mut Draw) -> Address {
        match draw.bits() >> 54 {
            bits if bits < WETH_SHARE => WETH,
            bits if bits < WETH_SHARE + USDT_SHARE => USDT,
            _ => self.contract(TOKENS, draw.rank(&self.tokens)),
        }
    }

    fn pool(&self, draw: &mut Draw) -> Address {
        self.contract(POOLS, draw.rank(&self.pools))
    }

    fn other(&self, draw: &mut Draw) -> Address {
        self.contract(OTHERS, draw.rank(&self.others))
    }

    fn contract(&self, kind: u64, rank: u64) -> Address {
        draw::address(kind | self.seed ^ rank)
    }

    fn party_name(&self, kind: u64, number: u64) -> B256 {
        draw::address(kind | self.seed ^ number).into_word()
    }

    fn wallet(&self, number: u64) -> B256 {
        self.party_name(WALLETS, number)
    }

    /// The token with this rank after WETH and USDT.
    pub(super) fn token_of_rank(&self, rank: u64) -> Address {
        self.contract(TOKENS, rank)
    }

    /// One of the wallets that appeared since the first block, if any.
    pub(super) fn new_wallet(&self, n: u64) -> Option<B256> {
        Some(self.wallet(WALLETS_BEFORE + draw::mix(n).checked_rem(self.wallets_new)?))
    }

    /// One of the hashes that occurred once, if any.
    pub(super) fn past_one_off_topic(&self, n: u64) -> Option<B256> {
        let number = draw::mix(n).checked_rem(self.topics_one_off)?;
        Some(draw::hash(ONE_OFF_TOPICS | self.seed ^ number))
    }

    pub(super) fn absent_topic(&self, n: u64) -> B256 {
        draw::hash(ABSENT_TOPICS | self.seed ^ n)
    }
}

/// A number below `end`, as a word.
fn small(draw: &mut Draw, end: u64) -> B256 {
    let mut word = [0; 32];
    word[24..].copy_from_slice(&draw.below(end).to_be_bytes());
    B256::from(word)
}

/// Id of an NFT: usually small, sometimes a hash.
fn token_id(draw: &mut Draw) -> B256 {
    if draw.chance(200) { draw.hash() } else { small(draw, 10_000) }
}

/// An amount with up to 11 significant bytes; a quarter of them are round.
fn amount(draw: &mut Draw, data: &mut Vec<u8>) {
    let bits = draw.bits();
    let value = u128::from(draw.bits()) << 24 | u128::from(bits >> 40);
    let value = value >> (8 * (bits & 7));
    let round = 10u128.pow(((bits >> 8) & 15) as u32);
    let value = if bits & 0x30 == 0 { value / round * round } else { value };
    data.extend_from_slice(&[0; 16]);
    data.extend_from_slice(&value.to_be_bytes());
}

fn amounts(draw: &mut Draw, data: &mut Vec<u8>, count: usize) {
    for _ in 0..count {
        amount(draw, data);
    }
}

/// Words of dynamic data, half of them mostly zeros, as in calls and signatures.
fn blob(draw: &mut Draw, data: &mut Vec<u8>, words_max: u64) {
    for word in 0..draw.below(words_max) {
        if word & 1 == 0 {
            data.extend_from_slice(draw.hash().as_slice());
        } else {
            data.extend_from_slice(small(draw, 1 << 20).as_slice());
        }
    }
}
