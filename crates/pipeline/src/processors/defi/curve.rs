//! Pools like those of Curve, of two to eight coins, which logs call by their numbers.
//!
//! Every generation of pools has its own events; `EVENTS` lists them. The coins of `TokenExchangeUnderlying` are those
//! below a pool's coins, numbered on their own: such swaps have a key of their own. Of liquidity in more than two
//! coins, the coins that moved are told two by two. `RemoveLiquidityOne` with three numbers means two things in two
//! generations, which no log tells apart; it is left out.
//!
//! Guarantees: only what has these shapes is read. Leaves to others: which token a coin is.

use std::sync::LazyLock;

use alloy_primitives::map::B256HashMap;
use alloy_primitives::{Address, B256, U256, keccak256};
use logmill_chain::Log;

use super::pool::{Event, EventKind, Moved, PairId, Said};
use crate::derive::decoded::abi;

const DEX: &str = "curve";
const UNDERLYING: &str = "curve_underlying";

/// The most coins of a pool.
const COINS_MAX: usize = 8;

/// What an event's data says, after the account that is its only indexed argument.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Coin sold, how much, coin bought, how much, and other words.
    Exchange { dex: &'static str, words: usize },
    /// An amount of each coin, or the place of a list of them, and other words.
    Amounts { kind: EventKind, coins: Coins, words: usize },
    /// One coin that was taken out: the word that tells which, if there is one, and the word of its amount.
    One { coin: Option<usize>, amount: usize, words: usize },
}

/// How many coins an event tells of: so many, or as many as its list has.
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

pub(super) fn read(topic: &B256, log: &Log) -> Option<Said> {
    let shape = SHAPES.get(topic)?;
    let [_, account] = log.topics[..] else { return None };
    let account = abi::address(&account)?;
    let data = &log.data[..];
    let pair = PairId::Contract(log.address);
    match *shape {
        Shape::Exchange { dex, words } => {
            exact(data, words)?;
            Some(Said::new(dex, pair).event(exchange(data, account)?))
        }
        Shape::Amounts { kind, coins, words } => {
            let amounts = amounts(data, coins, words)?;
            Some(Said { events: liquidity(kind, account, &amounts), ..Said::new(DEX, pair) })
        }
        Shape::One { coin, amount, words } => {
            exact(data, words)?;
            let kind = EventKind::RemoveLiquidity;
            let mut moved = Moved::liquidity(kind, number(data, amount)?);
            if let Some(word) = coin {
                moved = moved.coin(coin_number(data, word)?);
            }
            let event = Event::new(kind, account, [moved, Moved::default()]);
            Some(Said::new(DEX, pair).event(event))
        }
    }
}

fn exact(data: &[u8], words: usize) -> Option<()> {
    (data.len() == words * 32).then_some(())
}

fn number(data: &[u8], word: usize) -> Option<U256> {
    abi::word(data, word).map(Into::into)
}

/// The number of a coin; a negative one is none, as is one of many digits.
fn coin_number(data: &[u8], word: usize) -> Option<i64> {
    let coins_max = i64::try_from(COINS_MAX).ok()?;
    i64::try_from(number(data, word)?).ok().filter(|coin| *coin < coins_max)
}

fn exchange(data: &[u8], buyer: Address) -> Option<Event> {
    let sold = Moved::new(number(data, 1)?, U256::ZERO).coin(coin_number(data, 0)?);
    let bought = Moved::new(U256::ZERO, number(data, 3)?).coin(coin_number(data, 2)?);
    Some(Event::new(EventKind::Swap, buyer, [sold, bought]))
}

/// The amount of every coin. A list is anywhere after the head of so many words.
fn amounts(data: &[u8], coins: Coins, words: usize) -> Option<Vec<U256>> {
    if let Some(coins) = coins {
        exact(data, words)?;
        return (0..coins).map(|coin| number(data, coin)).collect();
    }
    data.get(..words * 32)?;
    let amounts = abi::array(data, 0, 1).filter(|amounts| amounts.len() <= COINS_MAX)?;
    Some(amounts.into_iter().map(Into::into).collect())
}

/// The coins that moved, two by two.
fn liquidity(kind: EventKind, account: Address, amounts: &[U256]) -> Vec<Event> {
    let coins = (0_i64..).zip(amounts).filter(|(_, amount)| !amount.is_zero());
    let moved: Vec<Moved> =
        coins.map(|(coin, amount)| Moved::liquidity(kind, *amount).coin(coin)).collect();
    let event = |two: &[Moved]| {
        let assets = [two[0], two.get(1).copied().unwrap_or_default()];
        Event::new(kind, account, assets)
    };
    moved.chunks(2).map(event).collect()
}
