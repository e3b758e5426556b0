//! Pools in the style of Uniswap V2.
//!
//! ```text
//! PairCreated(address indexed token0, address indexed token1, address pair, uint256)      of the factory
//! Sync(uint112 reserve0, uint112 reserve1)
//! Swap(address indexed sender, uint256 amount0In, uint256 amount1In, uint256 amount0Out, uint256 amount1Out,
//!      address indexed to)
//! Mint(address indexed sender, uint256 amount0, uint256 amount1)
//! Burn(address indexed sender, uint256 amount0, uint256 amount1, address indexed to)
//! ```
//!
//! Guarantees: only logs of these shapes are decoded. Leaves to others: fees, which are not logged.

use alloy_primitives::{Address, B256, b256};
use logmill_chain::Log;

use super::pool::{AssetMovement, Event, EventKind, PairId, PoolCreation, PoolLog, State};
use crate::derive::decoded::abi;

pub(super) const PAIR_CREATED: B256 =
    b256!("0x0d3648bd0f6ba80134a33ba9275ac585d9d315f0ad8355cddefde31afa28d0e9");
pub(super) const SYNC: B256 =
    b256!("0x1c411e9a96e071241c2f21f7726b17ae89e3cab4c78be50e062b03a9fffbbad1");
pub(super) const SWAP: B256 =
    b256!("0xd78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822");
pub(super) const MINT: B256 =
    b256!("0x4c209b5fc8ad50758f13e2e1088ba56a560dff690a1c6fef26394f4c03821c4f");
pub(super) const BURN: B256 =
    b256!("0xdccd412f0b1252819cb1fd330b93224ca42612892bb3f4f789976e6d81936496");

const DEX: &str = "uniswap_v2";

pub(super) fn read(topic: &B256, log: &Log) -> Option<PoolLog> {
    match *topic {
        PAIR_CREATED => created(log),
        SYNC => sync(log),
        SWAP => swap(log),
        MINT => mint(log),
        BURN => burn(log),
        _ => None,
    }
}

fn of_pool(log: &Log) -> PoolLog {
    PoolLog::new(DEX, PairId::Contract(log.address))
}

fn created(log: &Log) -> Option<PoolLog> {
    let [_, token0, token1] = log.topics[..] else { return None };
    let [pair, _] = abi::words(&log.data)?;
    let assets = [abi::address(&token0)?, abi::address(&token1)?];
    let created = PoolCreation { assets, fee: None, tick_spacing: None, hooks: None };
    Some(PoolLog::new(DEX, PairId::Contract(abi::address(&pair)?)).created(created))
}

fn sync(log: &Log) -> Option<PoolLog> {
    let [_] = log.topics[..] else { return None };
    let [reserve0, reserve1] = abi::words(&log.data)?;
    let reserves = [abi::unsigned(&reserve0, 112)?, abi::unsigned(&reserve1, 112)?];
    Some(of_pool(log).state(State::Reserves(reserves)))
}

fn swap(log: &Log) -> Option<PoolLog> {
    let [_, sender, to] = log.topics[..] else { return None };
    abi::address(&sender)?;
    let [in0, in1, out0, out1] = abi::words(&log.data)?.map(Into::into);
    let moved = [AssetMovement::new(in0, out0), AssetMovement::new(in1, out1)];
    Some(of_pool(log).event(Event::new(EventKind::Swap, abi::address(&to)?, moved)))
}

fn mint(log: &Log) -> Option<PoolLog> {
    let [_, sender] = log.topics[..] else { return None };
    liquidity(log, EventKind::AddLiquidity, abi::address(&sender)?)
}

fn burn(log: &Log) -> Option<PoolLog> {
    let [_, sender, to] = log.topics[..] else { return None };
    abi::address(&sender)?;
    liquidity(log, EventKind::RemoveLiquidity, abi::address(&to)?)
}

fn liquidity(log: &Log, kind: EventKind, account: Address) -> Option<PoolLog> {
    let amounts: [B256; 2] = abi::words(&log.data)?;
    let moved = amounts.map(|amount| AssetMovement::liquidity(kind, amount.into()));
    Some(of_pool(log).event(Event::new(kind, account, moved)))
}
