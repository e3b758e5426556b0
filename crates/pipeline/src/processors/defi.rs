//! `defi_worker`: activity of pools: swaps, liquidity added and removed, new pools, and their last state.
//!
//! The shape of its logs decides which exchange a pool belongs to, since forks share it: `uniswap_v2`, `uniswap_v3`,
//! `pancakeswap_v3`, `uniswap_v4`, `curve`, `curve_underlying`. A pair is identified by its pool's address or, if one
//! contract holds all pools, by the pool's id. Rows include the contract that wrote the log: any contract can log the
//! id of another's pool or claim to have created it, and must not thereby change that pool's data. So pairs are also
//! keyed by their factory, and state and counts by the contract.
//!
//! In and out are from the pool's point of view: a swap brings one asset in and takes the other out. Prices are the
//! pool's own, as the square root in units of 2^-96; those of V2 and Curve follow from the amounts moved.
//!
//! Guarantees: a log counts only if topics and data have the shape of its event, down to the bits of its numbers.
//! Leaves to others: which token a coin of a Curve pool is, fees of V2, which factories to trust.

use alloy_primitives::Address;
use logmill_chain::Log;

use crate::cells;
use crate::derive::table::{folded, key, once};
use crate::derive::{DecodedBlock, Fold, Kind, Processor, Rows, Table};
use crate::error::Result;

mod curve;
mod pool;
mod uniswap_v2;
mod uniswap_v3;
mod uniswap_v4;

use pool::{Event, EventKind, PoolCreation, PoolLog, State};

/// Swaps, and liquidity added and removed. Liquidity in more than two coins has one row per two coins.
pub static DEFI_EVENTS: Table = Table {
    name: "defi_events",
    columns: &[
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        key("batch_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("pair_id", Kind::Bytes),
        once("contract_address", Kind::Address),
        once("dex_key", Kind::Text),
        // Swap, AddLiquidity or RemoveLiquidity.
        once("event_type", Kind::Text),
        // The sender of the transaction, and the account in the log: the recipient, provider or buyer.
        once("maker", Kind::Address),
        once("account", Kind::Address),
        // Numbers of these coins in a Curve pool.
        once("asset0_index", Kind::Int),
        once("asset1_index", Kind::Int),
        once("asset0_in", Kind::Amount),
        once("asset0_out", Kind::Amount),
        once("asset1_in", Kind::Amount),
        once("asset1_out", Kind::Amount),
        // V3 and V4: the price after a swap, and the liquidity added or removed.
        once("sqrt_price_x96", Kind::Amount),
        once("liquidity", Kind::Amount),
        once("timestamp", Kind::Int),
    ],
    indexes: &[&["pair_id", "block_height"]],
};

/// Pools as announced by their factories. The fee is in hundredths of a basis point.
pub static DEFI_PAIRS: Table = Table {
    name: "defi_pairs",
    columns: &[
        key("pair_id", Kind::Bytes),
        key("factory", Kind::Address),
        folded("dex_key", Kind::Text, Fold::First),
        folded("asset0", Kind::Address, Fold::First),
        folded("asset1", Kind::Address, Fold::First),
        folded("fee", Kind::Int, Fold::First),
        folded("tick_spacing", Kind::Int, Fold::First),
        folded("hooks", Kind::Address, Fold::First),
        folded("created_height", Kind::Int, Fold::Min),
    ],
    indexes: &[],
};

/// The last state that a pool logged: reserves for V2; price, tick and liquidity as of the last swap for V3 and V4.
pub static DEFI_RESERVES: Table = Table {
    name: "defi_reserves",
    columns: &[
        key("pair_id", Kind::Bytes),
        key("contract_address", Kind::Address),
        folded("reserve0", Kind::Amount, Fold::Last),
        folded("reserve1", Kind::Amount, Fold::Last),
        folded("sqrt_price_x96", Kind::Amount, Fold::Last),
        folded("tick", Kind::Int, Fold::Last),
        folded("liquidity", Kind::Amount, Fold::Last),
        folded("height", Kind::Int, Fold::Last),
    ],
    indexes: &[],
};

/// Activity per pool.
pub static DEFI_PAIR_STATS: Table = Table {
    name: "defi_pair_stats",
    columns: &[
        key("pair_id", Kind::Bytes),
        key("contract_address", Kind::Address),
        folded("swap_count", Kind::Int, Fold::Sum),
        folded("first_seen_height", Kind::Int, Fold::Min),
        folded("last_seen_height", Kind::Int, Fold::Max),
    ],
    indexes: &[],
};

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Defi;

impl Processor for Defi {
    fn name(&self) -> &'static str {
        super::ProcessorName::Defi.as_str()
    }

    fn version(&self) -> u32 {
        1
    }

    fn tables(&self) -> &'static [&'static Table] {
        const { &[&DEFI_EVENTS, &DEFI_PAIRS, &DEFI_RESERVES, &DEFI_PAIR_STATS] }
    }

    fn process(&self, block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
        for placed in block.block.logs() {
            if let Some(pool_log) = read(placed.log) {
                let context = LogContext {
                    block,
                    contract: placed.log.address,
                    transaction_index: placed.transaction_index,
                    log_index: placed.log_index,
                };
                context.push(&pool_log, rows)?;
            }
        }
        Ok(())
    }
}

/// Decodes a log of a pool; none if it is not one.
fn read(log: &Log) -> Option<PoolLog> {
    let topic = log.topics.first()?;
    uniswap_v2::read(topic, log)
        .or_else(|| uniswap_v3::read(topic, log))
        .or_else(|| uniswap_v4::read(topic, log))
        .or_else(|| curve::read(topic, log))
}

/// Position of a log.
struct LogContext<'a> {
    block: &'a DecodedBlock,
    contract: Address,
    transaction_index: usize,
    log_index: usize,
}

impl LogContext<'_> {
    fn push(&self, pool_log: &PoolLog, rows: &mut Rows) -> Result<()> {
        for (batch_index, event) in pool_log.events.iter().enumerate() {
            self.event(pool_log, batch_index, event, rows)?;
        }
        if let Some(event) = pool_log.events.first() {
            self.count(pool_log, event.kind, rows)?;
        }
        if let Some(state) = &pool_log.state {
            self.state(pool_log, state, rows)?;
        }
        if let Some(created) = &pool_log.created {
            self.created(pool_log, created, rows)?;
        }
        Ok(())
    }

    fn event(
        &self,
        pool_log: &PoolLog,
        batch_index: usize,
        event: &Event,
        rows: &mut Rows,
    ) -> Result<()> {
        let transaction = self.block.transactions.get(self.transaction_index);
        let cells = cells![
            self.block.number(),
            self.log_index,
            batch_index,
            self.transaction_index,
            pool_log.pair.bytes(),
            self.contract,
            pool_log.dex,
            event.kind.name(),
            transaction.and_then(|transaction| transaction.from),
            event.account,
            event.assets[0].index,
            event.assets[1].index,
            event.assets[0].into,
            event.assets[0].out,
            event.assets[1].into,
            event.assets[1].out,
            event.sqrt_price_x96,
            event.liquidity,
            self.block.timestamp(),
        ];
        rows.push(&DEFI_EVENTS, self.log_index, cells)
    }

    fn count(&self, pool_log: &PoolLog, kind: EventKind, rows: &mut Rows) -> Result<()> {
        let height = self.block.number();
        let swaps = u32::from(kind == EventKind::Swap);
        let cells = cells![pool_log.pair.bytes(), self.contract, swaps, height, height];
        rows.push(&DEFI_PAIR_STATS, self.log_index, cells)
    }

    fn state(&self, pool_log: &PoolLog, state: &State, rows: &mut Rows) -> Result<()> {
        let (reserves, price) = match state {
            State::Reserves(reserves) => (Some(reserves), None),
            State::Price(price) => (None, Some(price)),
        };
        let cells = cells![
            pool_log.pair.bytes(),
            self.contract,
            reserves.map(|reserves| reserves[0]),
            reserves.map(|reserves| reserves[1]),
            price.map(|price| price.sqrt_price_x96),
            price.map(|price| price.tick),
            price.map(|price| price.liquidity),
            self.block.number(),
        ];
        rows.push(&DEFI_RESERVES, self.log_index, cells)
    }

    fn created(&self, pool_log: &PoolLog, created: &PoolCreation, rows: &mut Rows) -> Result<()> {
        let cells = cells![
            pool_log.pair.bytes(),
            self.contract,
            pool_log.dex,
            created.assets[0],
            created.assets[1],
            created.fee,
            created.tick_spacing,
            created.hooks,
            self.block.number(),
        ];
        rows.push(&DEFI_PAIRS, self.log_index, cells)
    }
}

#[cfg(test)]
mod tests;
