//! Pools in the style of Curve, with two to eight coins, which logs identify by number.
//!
//! Every generation of pools has its own events; `EVENTS` lists them. The coins of `TokenExchangeUnderlying` are those
//! underlying a pool's coins and are numbered separately, so such swaps have their own `dex_key`. If liquidity
//! changes in more than two coins, each event has two of them. `RemoveLiquidityOne` with three numbers has two meanings
//! in two generations, which no log distinguishes; it is skipped.
//!
//! Guarantees: only logs of these shapes are decoded. Leaves to others: which token a coin is.

use std::sync::LazyLock;

use alloy_primitives::map::B256HashMap;
use alloy_primitives::{Address, B256, U256, keccak256};
use logmill_chain::Log;

use super::pool::{AssetMovement, Event, EventKind, PairId, PoolLog};
use crate::derive::decoded::abi;

const DEX: &str = "curve";
const UNDERLYING: &str = "curve_underlying";

/// Maximum number of coins of a pool.
const COINS_MAX: usize = 8;

/// Layout of an event's data. The only indexed argument is the account.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Coin sold, its amount, coin bought, its amount, and further words.
    Exchange { dex: &'static str, words: usize },
    /// An amount per coin, or the offset of a list of them, and further words.
    Amounts { kind: EventKind, coins: Coins, words: usize },
    /// One coin was removed: the word with its number, if there is one, and the word with its amount.
    One { coin: Option<usize>, amount: usize, words: usize },
}

/// Number of coins in an event; none if it has a list of them.
type Coins = Option<usize>;

const TWO: Coins = Some(2);
const THREE: Coins = Some(3);
const FOUR: Coins = Some(4);
const LISTED: Coins = None;

const fn exchanged(dex: &'static str, words: usize) -> Shape {
    Shape::Exchange { dex, words }
}

const fn added(coins: Coins, words: usize) -> Shape {
    Shape::Amounts { kind: EventKind::AddLiquidity, coins, words }
}

const fn removed(coins: Coins, words: usize) -> Shape {
    Shape::Amounts { kind: EventKind::RemoveLiquidity, coins, words }
}

const fn removed_one(coin: Option<usize>, amount: usize, words: usize) -> Shape {
    Shape::One { coin, amount, words }
}

const EVENTS: [(&str, Shape); 25] = [
    ("TokenExchange(address,int128,uint256,int128,uint256)", exchanged(DEX, 4)),
    ("TokenExchange(address,uint256,uint256,uint256,uint256)", exchanged(DEX, 4)),
    ("TokenExchange(address,uint256,uint256,uint256,uint256,uint256,uint256)", exchanged(DEX, 6)),
    ("TokenExchangeUnderlying(address,int128,uint256,int128,uint256)", exchanged(UNDERLYING, 4)),
    ("AddLiquidity(address,uint256[2],uint256[2],uint256,uint256)", added(TWO, 6)),
    ("AddLiquidity(address,uint256[3],uint256[3],uint256,uint256)", added(THREE, 8)),
    ("AddLiquidity(address,uint256[4],uint256[4],uint256,uint256)", added(FOUR, 10)),
    ("AddLiquidity(address,uint256[2],uint256,uint256)", added(TWO, 4)),
    ("AddLiquidity(address,uint256[3],uint256,uint256)", added(THREE, 5)),
    ("AddLiquidity(address,uint256[2],uint256,uint256,uint256)", added(TWO, 5)),
    ("AddLiquidity(address,uint256[3],uint256,uint256,uint256)", added(THREE, 6)),
    ("AddLiquidity(address,uint256[],uint256[],uint256,uint256)", added(LISTED, 4)),
    ("RemoveLiquidity(address,uint256[2],uint256[2],uint256)", removed(TWO, 5)),
    ("RemoveLiquidity(address,uint256[3],uint256[3],uint256)", removed(THREE, 7)),
    ("RemoveLiquidity(address,uint256[4],uint256[4],uint256)", removed(FOUR, 9)),
    ("RemoveLiquidity(address,uint256[2],uint256)", removed(TWO, 3)),
    ("RemoveLiquidity(address,uint256[3],uint256)", removed(THREE, 4)),
    ("RemoveLiquidity(address,uint256[],uint256[],uint256)", removed(LISTED, 3)),
    ("RemoveLiquidityImbalance(address,uint256[2],uint256[2],uint256,uint256)", removed(TWO, 6)),
    ("RemoveLiquidityImbalance(address,uint256[3],uint256[3],uint256,uint256)", removed(THREE, 8)),
    ("RemoveLiquidityImbalance(address,uint256[4],uint256[4],uint256,uint256)", removed(FOUR, 10)),
    ("RemoveLiquidityImbalance(address,uint256[],uint256[],uint256,uint256)", removed(LISTED, 4)),
    ("RemoveLiquidityOne(address,uint256,uint256)", removed_one(None, 1, 2)),
    ("RemoveLiquidityOne(address,int128,uint256,uint256,uint256)", removed_one(Some(0), 2, 4)),
    (
        "RemoveLiquidityOne(address,uint256,uint256,uint256,uint256,uint256)",
        removed_one(Some(1), 2, 5),
    ),
];

static SHAPES: LazyLock<B256HashMap<Shape>> =
    LazyLock::new(|| EVENTS.iter().map(|(text, shape)| (keccak256(text), *shape)).collect());

pub(super) fn read(topic: &B256, log: &Log) -> Option<PoolLog> {
    let shape = SHAPES.get(topic)?;
    let [_, account] = log.topics[..] else { return None };
    let account = abi::address(&account)?;
    let data = &log.data[..];
    let pair = PairId::Contract(log.address);
    match *shape {
        Shape::Exchange { dex, words } => {
            exact(data, words)?;
            Some(PoolLog::new(dex, pair).event(exchange(data, account)?))
        }
        Shape::Amounts { kind, coins, words } => {
            let amounts = amounts(data, coins, words)?;
            Some(PoolLog { events: liquidity(kind, account, &amounts), ..PoolLog::new(DEX, pair) })
        }
        Shape::One { coin, amount, words } => {
            exact(data, words)?;
            let kind = EventKind::RemoveLiquidity;
            let mut moved = AssetMovement::liquidity(kind, number(data, amount)?);
            if let Some(word) = coin {
                moved = moved.coin(coin_number(data, word)?);
            }
            let event = Event::new(kind, account, [moved, AssetMovement::default()]);
            Some(PoolLog::new(DEX, pair).event(event))
        }
    }
}

fn exact(data: &[u8], words: usize) -> Option<()> {
    (data.len() == words * 32).then_some(())
}

fn number(data: &[u8], word: usize) -> Option<U256> {
    abi::word(data, word).map(Into::into)
}

/// The number of a coin; none if it is negative or too large.
fn coin_number(data: &[u8], word: usize) -> Option<i64> {
    let coins_max = i64::try_from(COINS_MAX).ok()?;
    i64::try_from(number(data, word)?).ok().filter(|coin| *coin < coins_max)
}

fn exchange(data: &[u8], buyer: Address) -> Option<Event> {
    let sold = AssetMovement::new(number(data, 1)?, U256::ZERO).coin(coin_number(data, 0)?);
    let bought = AssetMovement::new(U256::ZERO, number(data, 3)?).coin(coin_number(data, 2)?);
    Some(Event::new(EventKind::Swap, buyer, [sold, bought]))
}

/// The amount of every coin. A list may begin anywhere after the head, which has `words` words.
fn amounts(data: &[u8], coins: Coins, words: usize) -> Option<Vec<U256>> {
    if let Some(coins) = coins {
        exact(data, words)?;
        return (0..coins).map(|coin| number(data, coin)).collect();
    }
    data.get(..words * 32)?;
    let amounts = abi::array(data, 0, 1).filter(|amounts| amounts.len() <= COINS_MAX)?;
    Some(amounts.into_iter().map(Into::into).collect())
}

/// Events for the coins that moved, two coins each.
fn liquidity(kind: EventKind, account: Address, amounts: &[U256]) -> Vec<Event> {
    let coins = (0_i64..).zip(amounts).filter(|(_, amount)| !amount.is_zero());
    let moved: Vec<AssetMovement> =
        coins.map(|(coin, amount)| AssetMovement::liquidity(kind, *amount).coin(coin)).collect();
    let event = |two: &[AssetMovement]| {
        let assets = [two[0], two.get(1).copied().unwrap_or_default()];
        Event::new(kind, account, assets)
    };
    moved.chunks(2).map(event).collect()
}
