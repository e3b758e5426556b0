//! Pools in the style of Uniswap V3, and of PancakeSwap V3, whose swaps have two more values.
//!
//! ```text
//! PoolCreated(address indexed token0, address indexed token1, uint24 indexed fee, int24 tickSpacing, address pool)
//! Initialize(uint160 sqrtPriceX96, int24 tick)
//! Swap(address indexed sender, address indexed recipient, int256 amount0, int256 amount1, uint160 sqrtPriceX96,
//!      uint128 liquidity, int24 tick [, uint128 protocolFeesToken0, uint128 protocolFeesToken1])
//! Mint(address sender, address indexed owner, int24 indexed tickLower, int24 indexed tickUpper, uint128 amount,
//!      uint256 amount0, uint256 amount1)
//! Burn(address indexed owner, int24 indexed tickLower, int24 indexed tickUpper, uint128 amount, uint256 amount0,
//!      uint256 amount1)
//! ```
//!
//! The amounts of a swap are the pool's: a positive one came in. A burn of zero liquidity only settles fees, and is not
//! an event here. The amounts of a burn leave the pool when they are collected; they count as removed at once.
//!
//! Guarantees: only logs of these shapes are decoded. Leaves to others: liquidity between swaps, which depends on
//! ticks.

use alloy_primitives::{Address, B256, U256, b256};
use logmill_chain::Log;

use super::pool::{AssetMovement, Event, EventKind, PairId, PoolCreation, PoolLog, Price, State};
use crate::derive::decoded::abi;

pub(super) const POOL_CREATED: B256 =
    b256!("0x783cca1c0412dd0d695e784568c96da2e9c22ff989357a2e8b1d9b2b4e6b7118");
pub(super) const INITIALIZE: B256 =
    b256!("0x98636036cb66a9c19a37435efc1e90142190214e8abeb821bdba3f2990dd4c95");
pub(super) const SWAP: B256 =
    b256!("0xc42079f94a6350d7e6235f29174924f928cc2ac818eb64fed8004e115fbcca67");
pub(super) const PANCAKE_SWAP: B256 =
    b256!("0x19b47279256b2a23a1665c810c8d55a1758940ee09377d4f8d26497a3577dc83");
pub(super) const MINT: B256 =
    b256!("0x7a53080ba414158be7ec69b987b5fb7d07dee101fe85488f0853ae16239d0bde");
pub(super) const BURN: B256 =
    b256!("0x0c396cd989a39f4459b5fa1aed6a9a8dcdbc45908acfd67e028cd568da98982c");

const DEX: &str = "uniswap_v3";
const PANCAKE: &str = "pancakeswap_v3";

pub(super) fn read(topic: &B256, log: &Log) -> Option<PoolLog> {
    match *topic {
        POOL_CREATED => created(log),
        INITIALIZE => initialized(log),
        SWAP => swap(log, DEX, abi::words(&log.data)?),
        PANCAKE_SWAP => {
            let [amount0, amount1, price, liquidity, tick, fees0, fees1] = abi::words(&log.data)?;
            abi::unsigned(&fees0, 128).and(abi::unsigned(&fees1, 128))?;
            swap(log, PANCAKE, [amount0, amount1, price, liquidity, tick])
        }
        MINT => mint(log),
        BURN => burn(log),
        _ => None,
    }
}

/// A tick or a tick spacing.
pub(super) fn tick(word: &B256) -> Option<i64> {
    i64::try_from(abi::signed(word, 24)?).ok()
}

/// A fee in hundredths of a basis point.
pub(super) fn fee(word: &B256) -> Option<i64> {
    i64::try_from(abi::unsigned(word, 24)?).ok()
}

pub(super) fn price(sqrt_price: &B256, tick_word: &B256, liquidity: U256) -> Option<Price> {
    let sqrt_price_x96 = abi::unsigned(sqrt_price, 160)?;
    Some(Price { sqrt_price_x96, tick: tick(tick_word)?, liquidity })
}

fn of_pool(log: &Log, dex: &'static str) -> PoolLog {
    PoolLog::new(dex, PairId::Contract(log.address))
}

fn created(log: &Log) -> Option<PoolLog> {
    let [_, token0, token1, fee_word] = log.topics[..] else { return None };
    let [tick_spacing, pool] = abi::words(&log.data)?;
    let created = PoolCreation {
        assets: [abi::address(&token0)?, abi::address(&token1)?],
        fee: Some(fee(&fee_word)?),
        tick_spacing: Some(tick(&tick_spacing)?),
        hooks: None,
    };
    Some(PoolLog::new(DEX, PairId::Contract(abi::address(&pool)?)).created(created))
}

/// A new pool has no liquidity.
fn initialized(log: &Log) -> Option<PoolLog> {
    let [_] = log.topics[..] else { return None };
    let [sqrt_price, tick] = abi::words(&log.data)?;
    Some(of_pool(log, DEX).state(State::Price(price(&sqrt_price, &tick, U256::ZERO)?)))
}

fn swap(log: &Log, dex: &'static str, words: [B256; 5]) -> Option<PoolLog> {
    let [_, sender, recipient] = log.topics[..] else { return None };
    abi::address(&sender)?;
    let [amount0, amount1, sqrt_price, liquidity, tick] = words;
    let price = price(&sqrt_price, &tick, abi::unsigned(&liquidity, 128)?)?;
    let moved =
        [abi::signed(&amount0, 256)?, abi::signed(&amount1, 256)?].map(AssetMovement::of_pool);
    let event = Event {
        sqrt_price_x96: Some(price.sqrt_price_x96),
        ..Event::new(EventKind::Swap, abi::address(&recipient)?, moved)
    };
    Some(of_pool(log, dex).event(event).state(State::Price(price)))
}

fn mint(log: &Log) -> Option<PoolLog> {
    let [sender, amounts @ ..]: [B256; 4] = abi::words(&log.data)?;
    abi::address(&sender)?;
    liquidity(log, EventKind::AddLiquidity, amounts)
}

fn burn(log: &Log) -> Option<PoolLog> {
    liquidity(log, EventKind::RemoveLiquidity, abi::words(&log.data)?)
}

fn liquidity(log: &Log, kind: EventKind, words: [B256; 3]) -> Option<PoolLog> {
    let [_, owner, lower, upper] = log.topics[..] else { return None };
    tick(&lower).and(tick(&upper))?;
    let owner: Address = abi::address(&owner)?;
    let [liquidity, amount0, amount1] = words;
    let liquidity = abi::unsigned(&liquidity, 128)?;
    if liquidity.is_zero() {
        return None;
    }
    let moved = [amount0, amount1].map(|amount| AssetMovement::liquidity(kind, amount.into()));
    let event = Event { liquidity: Some(liquidity), ..Event::new(kind, owner, moved) };
    Some(of_pool(log, DEX).event(event))
}
