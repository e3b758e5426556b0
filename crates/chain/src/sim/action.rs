//! The actions on a simulated chain, and their logs.
//!
//! Guarantees: each log, and the call that causes it, is encoded as the contracts of its standard do. Leaves to
//! others: who sends it. Balances are not tracked, so amounts need not be available.

use alloy_primitives::{Address, B256, Bytes, U256, b256};

use super::actors::{Actors, FEE_COLLECTOR, WETH};
use super::draw::{self, Draw};
use crate::block::{Log, Topics};

/// `Transfer(address,address,uint256)`, of ERC-20 and of ERC-721.
pub const TRANSFER: B256 =
    b256!("0xddf252ad1be2c89b69c2b068fc378daa952ba7f163c4a11628f55a4df523b3ef");
/// `Approval(address,address,uint256)`.
pub const APPROVAL: B256 =
    b256!("0x8c5be1e5ebec7d5bd14f71427d1e84f3dd0314c0f7b2291e5b200ac8c7c3b925");
/// `TransferSingle(address,address,address,uint256,uint256)`, of ERC-1155.
pub const TRANSFER_SINGLE: B256 =
    b256!("0xc3d58168c5ae7397731d063d5bbf3d657854427343f4c083240f7aacaa2d0f62");
/// `TransferBatch(address,address,address,uint256[],uint256[])`, of ERC-1155.
pub const TRANSFER_BATCH: B256 =
    b256!("0x4a39dc06d4c0dbc64b70af90fd698a233a518aa5d07e595d983b8c0526c8f7fb");
/// `Sync(uint112,uint112)`, of Uniswap V2.
pub const SYNC: B256 = b256!("0x1c411e9a96e071241c2f21f7726b17ae89e3cab4c78be50e062b03a9fffbbad1");
/// `Swap(address,uint256,uint256,uint256,uint256,address)`, of Uniswap V2.
pub const SWAP_V2: B256 =
    b256!("0xd78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822");
/// `Swap(address,address,int256,int256,uint160,uint128,int24)`, of Uniswap V3.
pub const SWAP_V3: B256 =
    b256!("0xc42079f94a6350d7e6235f29174924f928cc2ac818eb64fed8004e115fbcca67");
/// `Deposit(address,uint256)`, of wrapped ether.
pub const DEPOSIT: B256 =
    b256!("0xe1fffcc4923d04b559f4d29a8bfc6cda04eb5b0d3c460751c2402c5c5cc9109c");
/// `Withdrawal(address,uint256)`, of wrapped ether.
pub const WITHDRAWAL: B256 =
    b256!("0x7fcf532c15f0a6db0bd6d0e038bea71d30d808c7d98cb3bf7268a95bf5081b65");
/// `FeesCollected(address,address,uint256,uint256)`.
pub const FEES_COLLECTED: B256 =
    b256!("0x28a87b6059180e46de5fb9ab35eb043e8fe00ab45afcc7789e3934ecbbcde3ea");

/// Kind of the words that serve as topics of unknown events.
const EVENTS: u64 = 0xe7e7;
/// Maximum number of items in a batch of NFTs.
const BATCH_MAX: u64 = 5;

/// A call and its logs.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) to: Option<Address>,
    pub(super) value: U256,
    pub(super) input: Vec<u8>,
    pub(super) logs: Vec<Log>,
}

impl Call {
    fn new(to: Address, selector: [u8; 4], words: &[B256]) -> Self {
        Self { to: Some(to), value: U256::ZERO, input: input(selector, words), logs: Vec::new() }
    }

    fn with(mut self, logs: impl IntoIterator<Item = Log>) -> Self {
        self.logs.extend(logs);
        self
    }

    fn paying(mut self, value: U256) -> Self {
        self.value = value;
        self
    }
}

/// An action without logs: an ether transfer or a contract creation.
pub(super) fn quiet(actors: &Actors, draw: &mut Draw) -> Call {
    if draw.chance(40) {
        let words: Vec<B256> = (0..2 + draw.below(6)).map(|_| draw.word()).collect();
        return Call {
            to: None,
            value: U256::ZERO,
            // The usual beginning of code.
            input: input([0x60, 0x80, 0x60, 0x40], &words),
            logs: Vec::new(),
        };
    }
    let (to, value) = (actors.draw_party(draw), draw.amount());
    Call { to: Some(to), value, input: Vec::new(), logs: Vec::new() }
}

/// An action with logs. The shares are about mainnet's, with more collected fees.
pub(super) fn loud(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    match draw.below(100) {
        0..=37 => transfer(actors, draw, sender),
        38..=47 => approve(actors, draw, sender),
        48..=53 => nft(actors, draw, sender),
        54..=57 => multi_token(actors, draw, sender),
        58..=69 => swap_v2(actors, draw, sender),
        70..=76 => swap_v3(actors, draw, sender),
        77..=81 => wrap(draw, sender),
        82..=85 => unwrap_ether(draw, sender),
        86..=92 => fees(actors, draw, sender),
        _ => other(actors, draw, sender),
    }
}

fn transfer(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let (token, to, amount) = (actors.draw_token(draw), actors.draw_party(draw), draw.amount());
    Call::new(token, [0xa9, 0x05, 0x9c, 0xbb], &[to.into_word(), amount.into()])
        .with([moved(token, sender, to, amount)])
}

fn approve(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let (token, spender) = (actors.draw_token(draw), actors.draw_router(draw));
    let amount = if draw.chance(512) { U256::MAX } else { draw.amount() };
    let log =
        log(token, [APPROVAL, sender.into_word(), spender.into_word()], words(&[amount.into()]));
    Call::new(token, [0x09, 0x5e, 0xa7, 0xb3], &[spender.into_word(), amount.into()]).with([log])
}

fn nft(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let (token, to) = (actors.draw_collection(draw, false), actors.draw_party(draw));
    let id = if draw.chance(200) { draw.word() } else { U256::from(draw.below(10_000)).into() };
    let from = if draw.chance(300) { Address::ZERO } else { sender };
    let log = log(token, [TRANSFER, from.into_word(), to.into_word(), id], Bytes::new());
    Call::new(token, [0x42, 0x84, 0x2e, 0x0e], &[from.into_word(), to.into_word(), id]).with([log])
}

fn multi_token(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let (token, to) = (actors.draw_collection(draw, true), actors.draw_party(draw));
    let parties = [sender.into_word(), sender.into_word(), to.into_word()];
    let topics = |topic0| [topic0, parties[0], parties[1], parties[2]];
    let single = [number(draw.below(500)), number(1 + draw.below(20))];
    let call = Call::new(token, [0xf2, 0x42, 0x43, 0x2a], &[parties[0], parties[2], single[0]]);
    if draw.chance(640) {
        return call.with([log(token, topics(TRANSFER_SINGLE), words(&single))]);
    }
    let count = draw.below(BATCH_MAX + 1);
    let drawn: Vec<(B256, B256)> =
        (0..count).map(|_| (number(draw.below(500)), number(1 + draw.below(20)))).collect();
    // Two offsets, then each list after its length.
    let mut data = vec![number(64), number(96 + 32 * count), number(count)];
    data.extend(drawn.iter().map(|(id, _)| *id));
    data.push(number(count));
    data.extend(drawn.iter().map(|(_, amount)| *amount));
    call.with([log(token, topics(TRANSFER_BATCH), words(&data))])
}

fn swap_v2(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let ((pool, tokens), router) = (actors.draw_pool(draw, false), actors.draw_router(draw));
    let (paid, got) = (draw.amount(), draw.amount());
    let forth = draw.chance(512);
    let (input_token, output_token) =
        if forth { (tokens[0], tokens[1]) } else { (tokens[1], tokens[0]) };
    let zero = U256::ZERO;
    let amounts = if forth { [paid, zero, zero, got] } else { [zero, paid, got, zero] };
    let reserves = [draw.amount().into(), draw.amount().into()];
    let swap = [SWAP_V2, router.into_word(), sender.into_word()];
    let call = [number(0xa0), input_token.into_word(), output_token.into_word(), paid.into()];
    Call::new(router, [0x38, 0xed, 0x17, 0x39], &call).with([
        moved(input_token, sender, pool, paid),
        moved(output_token, pool, sender, got),
        log(pool, [SYNC], words(&reserves)),
        log(pool, swap, words(&amounts.map(B256::from))),
    ])
}

fn swap_v3(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let ((pool, tokens), router) = (actors.draw_pool(draw, true), actors.draw_router(draw));
    let (paid, got) = (draw.amount(), draw.amount());
    // Amounts paid out by the pool are negative.
    let state = [
        paid.into(),
        got.wrapping_neg().into(),
        ((U256::ONE << 96usize) | draw.amount()).into(),
        draw.amount().into(),
        U256::from(draw.below(200_000)).wrapping_neg().into(),
    ];
    let swap = [SWAP_V3, router.into_word(), sender.into_word()];
    let call = [tokens[0].into_word(), tokens[1].into_word(), number(3_000), paid.into()];
    Call::new(router, [0x41, 0x4b, 0xf3, 0x89], &call).with([
        moved(tokens[1], pool, sender, got),
        moved(tokens[0], sender, pool, paid),
        log(pool, swap, words(&state)),
    ])
}

fn wrap(draw: &mut Draw, sender: Address) -> Call {
    let amount = draw.amount();
    Call::new(WETH, [0xd0, 0xe3, 0x0d, 0xb0], &[]).paying(amount).with([log(
        WETH,
        [DEPOSIT, sender.into_word()],
        words(&[amount.into()]),
    )])
}

fn unwrap_ether(draw: &mut Draw, sender: Address) -> Call {
    let amount = draw.amount();
    Call::new(WETH, [0x2e, 0x1a, 0x7d, 0x4d], &[amount.into()]).with([log(
        WETH,
        [WITHDRAWAL, sender.into_word()],
        words(&[amount.into()]),
    )])
}

/// Fees for an integrator, in ether or in a token.
fn fees(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let integrator = actors.draw_integrator(draw);
    let (theirs, ours) = (draw.amount(), draw.amount() >> 3usize);
    let native = draw.chance(400);
    let token = if native { Address::ZERO } else { actors.draw_token(draw) };
    let topics = [FEES_COLLECTED, token.into_word(), integrator.into_word()];
    let collected = log(FEE_COLLECTOR, topics, words(&[theirs.into(), ours.into()]));
    let selector = if native { [0xe0, 0xcb, 0xc5, 0xf2] } else { [0xee, 0xde, 0xd5, 0x4b] };
    let call = [token.into_word(), theirs.into(), ours.into(), integrator.into_word()];
    let call = Call::new(FEE_COLLECTOR, selector, &call);
    if native {
        return call.paying(theirs + ours).with([collected]);
    }
    call.with([moved(token, sender, FEE_COLLECTOR, theirs + ours), collected])
}

/// A log of an unknown event, without topics, with many, or with much data.
fn other(actors: &Actors, draw: &mut Draw, sender: Address) -> Call {
    let (contract, kind) = actors.draw_other(draw);
    let mut topics = Topics::new();
    for position in 0..draw.below(5) {
        topics.push(match position {
            0 => draw::word(0, EVENTS, kind),
            1 => sender.into_word(),
            2 => draw.word(),
            _ => number(draw.below(1 << 16)),
        });
    }
    let words_max = u64::from(actors.shape().data_words_max);
    let mut data = Vec::new();
    for _ in 0..if draw.chance(100) { draw.below(words_max + 1) } else { draw.below(5) } {
        data.extend_from_slice(draw.word().as_slice());
    }
    if draw.chance(100) {
        // Data need not be whole words.
        data.push(kind.to_le_bytes()[0]);
    }
    let log = Log { address: contract, topics, data: data.into() };
    Call::new(contract, [0xc0, 0xde, 0xc0, 0xde], &[number(kind)]).with([log])
}

/// The log of a token transfer.
fn moved(token: Address, from: Address, to: Address, amount: U256) -> Log {
    log(token, [TRANSFER, from.into_word(), to.into_word()], words(&[amount.into()]))
}

fn log<const N: usize>(address: Address, topics: [B256; N], data: Bytes) -> Log {
    Log { address, topics: topics.into_iter().collect(), data }
}

fn number(number: u64) -> B256 {
    U256::from(number).into()
}

fn words(words: &[B256]) -> Bytes {
    words.concat().into()
}

fn input(selector: [u8; 4], words: &[B256]) -> Vec<u8> {
    let mut input = selector.to_vec();
    words.iter().for_each(|word| input.extend_from_slice(word.as_slice()));
    input
}

#[cfg(test)]
mod tests {
    use alloy_primitives::keccak256;

    use super::*;

    #[test]
    fn the_events_have_the_hashes_of_their_signatures() {
        for (topic, signature) in [
            (TRANSFER, "Transfer(address,address,uint256)"),
            (APPROVAL, "Approval(address,address,uint256)"),
            (TRANSFER_SINGLE, "TransferSingle(address,address,address,uint256,uint256)"),
            (TRANSFER_BATCH, "TransferBatch(address,address,address,uint256[],uint256[])"),
            (SYNC, "Sync(uint112,uint112)"),
            (SWAP_V2, "Swap(address,uint256,uint256,uint256,uint256,address)"),
            (SWAP_V3, "Swap(address,address,int256,int256,uint160,uint128,int24)"),
            (DEPOSIT, "Deposit(address,uint256)"),
            (WITHDRAWAL, "Withdrawal(address,uint256)"),
            (FEES_COLLECTED, "FeesCollected(address,address,uint256,uint256)"),
        ] {
            assert_eq!(keccak256(signature), topic, "{signature}");
        }
    }
}
