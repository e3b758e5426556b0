//! Pools in the style of Uniswap V4: all in one contract, each with an id.
//!
//! ```text
//! Initialize(bytes32 indexed id, address indexed currency0, address indexed currency1, uint24 fee, int24 tickSpacing,
//!            address hooks, uint160 sqrtPriceX96, int24 tick)
//! Swap(bytes32 indexed id, address indexed sender, int128 amount0, int128 amount1, uint160 sqrtPriceX96,
//!      uint128 liquidity, int24 tick, uint24 fee)
//! ModifyLiquidity(bytes32 indexed id, address indexed sender, int24 tickLower, int24 tickUpper, int256 liquidityDelta,
//!                 bytes32 salt)
//! ```
//!
//! The amounts of a swap are the swapper's: a negative one was paid into the pool. That is the opposite of V3. Changes
//! of liquidity have no amounts. The zero address is the native asset.
//!
//! Guarantees: only logs of these shapes are decoded. Leaves to others: the amounts of liquidity, which depend on
//! ticks.

use alloy_primitives::{B256, U256, b256};
use logmill_chain::Log;

use super::pool::{AssetMovement, Event, EventKind, PairId, PoolCreation, PoolLog, State};
use super::uniswap_v3::{fee, price, tick};
use crate::derive::decoded::abi;

pub(super) const INITIALIZE: B256 =
    b256!("0xdd466e674ea557f56295e2d0218a125ea4b4f0f6f3307b95f85e6110838d6438");
pub(super) const SWAP: B256 =
    b256!("0x40e9cecb9f5f1f1c5b9c97dec2917b7ee92e57ba5563708daca94dd84ad7112f");
pub(super) const MODIFY_LIQUIDITY: B256 =
    b256!("0xf208f4912782fd25c7f114ca3723a2d5dd6f3bcc3ac8db5af63baa85f711d5ec");

const DEX: &str = "uniswap_v4";

pub(super) fn read(topic: &B256, log: &Log) -> Option<PoolLog> {
    match *topic {
        INITIALIZE => initialized(log),
        SWAP => swap(log),
        MODIFY_LIQUIDITY => modified(log),
        _ => None,
    }
}

fn initialized(log: &Log) -> Option<PoolLog> {
    let [_, id, currency0, currency1] = log.topics[..] else { return None };
    let [fee_word, tick_spacing, hooks, sqrt_price, tick_word] = abi::words(&log.data)?;
    let created = PoolCreation {
        assets: [abi::address(&currency0)?, abi::address(&currency1)?],
        fee: Some(fee(&fee_word)?),
        tick_spacing: Some(tick(&tick_spacing)?),
        hooks: Some(abi::address(&hooks)?),
    };
    let price = price(&sqrt_price, &tick_word, U256::ZERO)?;
    Some(PoolLog::new(DEX, PairId::Id(id)).created(created).state(State::Price(price)))
}

fn swap(log: &Log) -> Option<PoolLog> {
    let [_, id, sender] = log.topics[..] else { return None };
    let [amount0, amount1, sqrt_price, liquidity, tick, fee_word] = abi::words(&log.data)?;
    fee(&fee_word)?;
    let price = price(&sqrt_price, &tick, abi::unsigned(&liquidity, 128)?)?;
    let moved =
        [abi::signed(&amount0, 128)?, abi::signed(&amount1, 128)?].map(AssetMovement::of_swapper);
    let event = Event {
        sqrt_price_x96: Some(price.sqrt_price_x96),
        ..Event::new(EventKind::Swap, abi::address(&sender)?, moved)
    };
    Some(PoolLog::new(DEX, PairId::Id(id)).event(event).state(State::Price(price)))
}

/// A change by zero only settles fees, and is not an event.
fn modified(log: &Log) -> Option<PoolLog> {
    let [_, id, sender] = log.topics[..] else { return None };
    let [lower, upper, delta, _salt] = abi::words(&log.data)?;
    tick(&lower).and(tick(&upper))?;
    let (sign, liquidity) = abi::signed(&delta, 256)?.into_sign_and_abs();
    if liquidity.is_zero() {
        return None;
    }
    let kind =
        if sign.is_negative() { EventKind::RemoveLiquidity } else { EventKind::AddLiquidity };
    let event = Event {
        liquidity: Some(liquidity),
        ..Event::new(kind, abi::address(&sender)?, [AssetMovement::default(); 2])
    };
    Some(PoolLog::new(DEX, PairId::Id(id)).event(event))
}
