//! Pools: swaps, liquidity, new pools, and their last state.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, I256, U256, keccak256};
use logmill_chain::Log;

use super::{ExpectedTables, Facts, Tx, is, logs, row, topic_address, word, word_address};

/// Amounts of an asset that entered and left a pool, and the coin's number where coins are numbered.
#[derive(Clone, Copy, Default)]
struct Asset {
    coin: Option<u64>,
    came: Option<U256>,
    left: Option<U256>,
}

/// What a log reports about a pool.
struct PoolUpdate {
    dex: &'static str,
    pair: Vec<u8>,
    event: Option<Event>,
    created: Option<Vec<String>>,
    state: Option<Vec<String>>,
}

struct Event {
    kind: &'static str,
    account: Address,
    assets: [Asset; 2],
    price: Option<U256>,
    liquidity: Option<U256>,
}

/// A pool, and the contract that emits its events.
type Key = (Vec<u8>, Address);

pub(super) fn tables(blocks: &[Facts], out: &mut ExpectedTables) {
    let mut pairs: BTreeMap<Key, Vec<String>> = BTreeMap::new();
    let mut states: BTreeMap<Key, Vec<String>> = BTreeMap::new();
    let mut stats: BTreeMap<Key, Vec<(bool, u64)>> = BTreeMap::new();
    for (block, tx, index, log) in logs(blocks) {
        let Some(said) = read(log) else { continue };
        let key = (said.pair.clone(), log.address);
        if let Some(event) = &said.event {
            out.add("defi_events", event_row(block, tx, index, log, &said, event));
            stats.entry(key.clone()).or_default().push((event.kind == "Swap", block.number));
        }
        if let Some(created) = said.created {
            let dex = row![said.dex];
            let row = [dex, created, row![block.number]].concat();
            pairs.entry(key.clone()).or_insert(row);
        }
        if let Some(state) = said.state {
            states.insert(key, [state, row![block.number]].concat());
        }
    }
    for (table, all) in [("defi_pairs", pairs), ("defi_reserves", states)] {
        for ((pair, contract), rest) in all {
            out.add(table, [row![&pair[..], contract], rest].concat());
        }
    }
    for ((pair, contract), seen) in stats {
        let swaps = seen.iter().filter(|(swap, _)| *swap).count();
        let heights = || seen.iter().map(|(_, height)| *height);
        let row = row![&pair[..], contract, swaps, heights().min(), heights().max()];
        out.add("defi_pair_stats", row);
    }
}

fn event_row(
    block: &Facts,
    tx: &Tx,
    index: usize,
    log: &Log,
    said: &PoolUpdate,
    event: &Event,
) -> Vec<String> {
    let place = row![block.number, index, 0u8, tx.index, &said.pair[..], log.address, said.dex];
    let [one, two] = &event.assets;
    let what = row![event.kind, tx.from, event.account, one.coin, two.coin];
    let amounts = row![one.came, one.left, two.came, two.left];
    [place, what, amounts, row![event.price, event.liquidity, block.time]].concat()
}

fn read(log: &Log) -> Option<PoolUpdate> {
    v2(log).or_else(|| v3(log)).or_else(|| v4(log)).or_else(|| curve(log))
}

fn came(amount: U256) -> Asset {
    Asset { coin: None, came: Some(amount), left: Some(U256::ZERO) }
}

fn left(amount: U256) -> Asset {
    Asset { coin: None, came: Some(U256::ZERO), left: Some(amount) }
}

/// A signed amount: positive if it entered the pool.
fn signed(number: U256) -> Asset {
    if number.bit(255) { left(number.wrapping_neg()) } else { came(number) }
}

fn tick(number: U256) -> String {
    I256::from_raw(number).to_string()
}

fn pool(dex: &'static str, log: &Log) -> PoolUpdate {
    let pair = log.address.to_vec();
    PoolUpdate { dex, pair, event: None, created: None, state: None }
}

fn event(kind: &'static str, account: Address, assets: [Asset; 2]) -> Event {
    Event { kind, account, assets, price: None, liquidity: None }
}

fn v2(log: &Log) -> Option<PoolUpdate> {
    let named = |signature: &str, topics, words| is(log, keccak256(signature), topics, words);
    let pool = pool("uniswap_v2", log);
    if named("PairCreated(address,address,address,uint256)", 3, 2) {
        let none = None::<u64>;
        let created = row![topic_address(log, 1), topic_address(log, 2), none, none, none];
        return Some(PoolUpdate {
            pair: word_address(log, 0).to_vec(),
            created: Some(created),
            ..pool
        });
    }
    if named("Sync(uint112,uint112)", 1, 2) {
        let none = None::<u64>;
        let state = row![word(log, 0), word(log, 1), none, none, none];
        return Some(PoolUpdate { state: Some(state), ..pool });
    }
    let event = if named("Swap(address,uint256,uint256,uint256,uint256,address)", 3, 4) {
        let asset = |number| Asset {
            coin: None,
            came: Some(word(log, number)),
            left: Some(word(log, number + 2)),
        };
        event("Swap", topic_address(log, 2), [asset(0), asset(1)])
    } else if named("Mint(address,uint256,uint256)", 2, 2) {
        let assets = [came(word(log, 0)), came(word(log, 1))];
        event("AddLiquidity", topic_address(log, 1), assets)
    } else if named("Burn(address,uint256,uint256,address)", 3, 2) {
        let assets = [left(word(log, 0)), left(word(log, 1))];
        event("RemoveLiquidity", topic_address(log, 2), assets)
    } else {
        return None;
    };
    Some(PoolUpdate { event: Some(event), ..pool })
}

fn v3(log: &Log) -> Option<PoolUpdate> {
    let named = |signature: &str, topics, words| is(log, keccak256(signature), topics, words);
    let (pool, none) = (pool("uniswap_v3", log), None::<u64>);
    if named("PoolCreated(address,address,uint24,int24,address)", 4, 2) {
        let (fee, spacing) = (U256::from_be_bytes(log.topics[3].0), tick(word(log, 0)));
        let created = row![topic_address(log, 1), topic_address(log, 2), fee, spacing, none];
        return Some(PoolUpdate {
            pair: word_address(log, 1).to_vec(),
            created: Some(created),
            ..pool
        });
    }
    if named("Initialize(uint160,int24)", 1, 2) {
        let state = row![none, none, word(log, 0), tick(word(log, 1)), 0u8];
        return Some(PoolUpdate { state: Some(state), ..pool });
    }
    if named("Swap(address,address,int256,int256,uint160,uint128,int24)", 3, 5) {
        let assets = [signed(word(log, 0)), signed(word(log, 1))];
        let price = Some(word(log, 2));
        let event = Event { price, ..event("Swap", topic_address(log, 2), assets) };
        let state = row![none, none, price, tick(word(log, 4)), word(log, 3)];
        return Some(PoolUpdate { event: Some(event), state: Some(state), ..pool });
    }
    let (kind, first, assets) =
        if named("Mint(address,address,int24,int24,uint128,uint256,uint256)", 4, 4) {
            ("AddLiquidity", 1, [came(word(log, 2)), came(word(log, 3))])
        } else if named("Burn(address,int24,int24,uint128,uint256,uint256)", 4, 3) {
            ("RemoveLiquidity", 0, [left(word(log, 1)), left(word(log, 2))])
        } else {
            return None;
        };
    let liquidity = word(log, first);
    // A burn of nothing only settles fees.
    if liquidity.is_zero() {
        return None;
    }
    let event = Event { liquidity: Some(liquidity), ..event(kind, topic_address(log, 1), assets) };
    Some(PoolUpdate { event: Some(event), ..pool })
}

fn v4(log: &Log) -> Option<PoolUpdate> {
    let named = |signature: &str, topics, words| is(log, keccak256(signature), topics, words);
    let none = None::<u64>;
    let id = |topic: &B256| PoolUpdate { pair: topic.to_vec(), ..pool("uniswap_v4", log) };
    let starts = "Initialize(bytes32,address,address,uint24,int24,address,uint160,int24)";
    if named(starts, 4, 5) {
        let assets = row![topic_address(log, 2), topic_address(log, 3)];
        let rest = row![word(log, 0), tick(word(log, 1)), word_address(log, 2)];
        let state = row![none, none, word(log, 3), tick(word(log, 4)), 0u8];
        let created = Some([assets, rest].concat());
        return Some(PoolUpdate { created, state: Some(state), ..id(&log.topics[1]) });
    }
    if named("Swap(bytes32,address,int128,int128,uint160,uint128,int24,uint24)", 3, 6) {
        // The amounts are from the swapper's point of view.
        let assets = [signed(word(log, 0).wrapping_neg()), signed(word(log, 1).wrapping_neg())];
        let price = Some(word(log, 2));
        let event = Event { price, ..event("Swap", topic_address(log, 2), assets) };
        let state = row![none, none, price, tick(word(log, 4)), word(log, 3)];
        return Some(PoolUpdate { event: Some(event), state: Some(state), ..id(&log.topics[1]) });
    }
    if named("ModifyLiquidity(bytes32,address,int24,int24,int256,bytes32)", 3, 4) {
        let delta = word(log, 2);
        let (kind, size) = match delta.bit(255) {
            true => ("RemoveLiquidity", delta.wrapping_neg()),
            false => ("AddLiquidity", delta),
        };
        let event = event(kind, topic_address(log, 2), [Asset::default(); 2]);
        let event = Event { liquidity: Some(size), ..event };
        return Some(PoolUpdate { event: Some(event), ..id(&log.topics[1]) });
    }
    None
}

fn curve(log: &Log) -> Option<PoolUpdate> {
    let exchange = keccak256("TokenExchange(address,int128,uint256,int128,uint256)");
    if !is(log, exchange, 2, 4) {
        return None;
    }
    let coin = |number| Some(word(log, number).to::<u64>());
    let sold = Asset { coin: coin(0), ..came(word(log, 1)) };
    let bought = Asset { coin: coin(2), ..left(word(log, 3)) };
    let event = event("Swap", topic_address(log, 1), [sold, bought]);
    Some(PoolUpdate { event: Some(event), ..pool("curve", log) })
}
