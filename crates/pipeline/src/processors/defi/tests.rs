//! Logs of every kind of pool, with real numbers where available.

use alloy_primitives::{B256, U256, address, b256, keccak256};

use super::*;
use crate::derive::Cell;
use crate::derive::block_builder::{BlockBuilder, account, log, rows, table, word};
use crate::derive::rows::amount;

/// USDC and wrapped ether, with a fee of 0.05 %.
const POOL: Address = address!("0x88e6a0c2ddd26feeb64f039a2c41296fcb3f5640");

fn negative(number: u64) -> B256 {
    U256::from(number).wrapping_neg().into()
}

fn decimal(text: &str) -> B256 {
    text.parse::<U256>().unwrap().into()
}

/// The only event in a log.
fn event(log: &Log) -> Event {
    let pool_log = read(log).expect("a log of a pool");
    let [event] = &pool_log.events[..] else { panic!("{pool_log:?}") };
    event.clone()
}

/// In and out of both assets, as decimal text.
fn moved(log: &Log) -> [String; 4] {
    let [a, b] = event(log).assets;
    [a.into, a.out, b.into, b.out].map(|it| it.map_or_else(String::new, |it| it.to_string()))
}

fn is_nothing(address: Address, topics: &[B256], data: &[B256]) {
    assert_eq!(read(&log(address, topics, data)), None, "{topics:?} {data:?}");
}

#[test]
fn the_events_have_the_hashes_of_their_signatures() {
    for (topic, signature) in [
        (uniswap_v2::PAIR_CREATED, "PairCreated(address,address,address,uint256)"),
        (uniswap_v2::SYNC, "Sync(uint112,uint112)"),
        (uniswap_v2::SWAP, "Swap(address,uint256,uint256,uint256,uint256,address)"),
        (uniswap_v2::MINT, "Mint(address,uint256,uint256)"),
        (uniswap_v2::BURN, "Burn(address,uint256,uint256,address)"),
        (uniswap_v3::POOL_CREATED, "PoolCreated(address,address,uint24,int24,address)"),
        (uniswap_v3::INITIALIZE, "Initialize(uint160,int24)"),
        (uniswap_v3::SWAP, "Swap(address,address,int256,int256,uint160,uint128,int24)"),
        (
            uniswap_v3::PANCAKE_SWAP,
            "Swap(address,address,int256,int256,uint160,uint128,int24,uint128,uint128)",
        ),
        (uniswap_v3::MINT, "Mint(address,address,int24,int24,uint128,uint256,uint256)"),
        (uniswap_v3::BURN, "Burn(address,int24,int24,uint128,uint256,uint256)"),
        (
            uniswap_v4::INITIALIZE,
            "Initialize(bytes32,address,address,uint24,int24,address,uint160,int24)",
        ),
        (uniswap_v4::SWAP, "Swap(bytes32,address,int128,int128,uint160,uint128,int24,uint24)"),
        (
            uniswap_v4::MODIFY_LIQUIDITY,
            "ModifyLiquidity(bytes32,address,int24,int24,int256,bytes32)",
        ),
    ] {
        assert_eq!(keccak256(signature), topic, "{signature}");
    }
}

#[test]
fn a_v2_swap_logs_amounts_in_and_out() {
    let (router, to) = (account(1).into_word(), account(2).into_word());
    let topics = [uniswap_v2::SWAP, router, to];
    let swap = |data: [u64; 4]| log(account(3), &topics, &data.map(word));
    assert_eq!(moved(&swap([1_000, 0, 0, 997])), ["1000", "0", "0", "997"]);
    assert_eq!(moved(&swap([0, 5, 7, 0])), ["0", "7", "5", "0"]);
    // A flash swap pays back in what it took out.
    assert_eq!(moved(&swap([100, 0, 99, 0])), ["100", "99", "0", "0"]);
    assert_eq!(event(&swap([1, 0, 0, 1])).account, account(2));
    is_nothing(account(3), &topics, &[word(1); 3]);
    is_nothing(account(3), &topics[..2], &[word(1); 4]);
    is_nothing(account(3), &[topics[0], router, B256::repeat_byte(1)], &[word(1); 4]);
}

#[test]
fn v2_liquidity_is_added_and_removed() {
    let (router, to) = (account(1).into_word(), account(2).into_word());
    let minted = event(&log(account(3), &[uniswap_v2::MINT, router], &[word(10), word(20)]));
    assert_eq!((minted.kind, minted.account), (EventKind::AddLiquidity, account(1)));
    let burnt = log(account(3), &[uniswap_v2::BURN, router, to], &[word(10), word(20)]);
    assert_eq!(event(&burnt).kind, EventKind::RemoveLiquidity);
    assert_eq!(event(&burnt).account, account(2));
    assert_eq!(moved(&burnt), ["0", "10", "0", "20"]);
}

#[test]
fn positive_amounts_came_into_a_v3_pool() {
    let (router, to) = (account(1).into_word(), account(2).into_word());
    // 2 000 USDC in, one ether out.
    let state = [
        decimal("1771595571142957166518320255467520"),
        decimal("16953186214354129911"),
        word(200_311),
    ];
    let swap = |amounts: [B256; 2]| {
        let data = [amounts[0], amounts[1], state[0], state[1], state[2]];
        log(POOL, &[uniswap_v3::SWAP, router, to], &data)
    };
    let (usdc, ether) = (2_000_000_000, 1_000_000_000_000_000_000);
    let sold = swap([word(usdc), negative(ether)]);
    assert_eq!(moved(&sold), ["2000000000", "0", "0", "1000000000000000000"]);
    assert_eq!(
        moved(&swap([negative(usdc), word(ether)])),
        ["0", "2000000000", "1000000000000000000", "0"]
    );
    let pool_log = read(&sold).unwrap();
    assert_eq!(pool_log.events[0].account, account(2));
    assert_eq!(pool_log.events[0].sqrt_price_x96, Some(state[0].into()));
    let Some(State::Price(price)) = pool_log.state else { panic!("{pool_log:?}") };
    assert_eq!((price.tick, price.liquidity), (200_311, state[1].into()));
    // The smallest number has no positive counterpart.
    let mut smallest = B256::ZERO;
    smallest[0] = 0x80;
    let two_to_255 = (U256::MAX >> 1usize) + U256::ONE;
    assert_eq!(
        moved(&swap([smallest, word(1)])),
        ["0".to_owned(), two_to_255.to_string(), "1".to_owned(), "0".to_owned()]
    );
}

#[test]
fn v3_logs_with_too_large_numbers_are_skipped() {
    let (router, to) = (account(1).into_word(), account(2).into_word());
    let topics = [uniswap_v3::SWAP, router, to];
    let good = [word(1), negative(1), word(5), word(6), negative(887_272)];
    assert!(read(&log(POOL, &topics, &good)).is_some());
    for (at, bad) in [
        (2, B256::from(U256::ONE << 160usize)),
        (3, B256::from(U256::ONE << 128usize)),
        (4, word(1 << 23)),
        (4, negative((1 << 23) + 1)),
    ] {
        let mut data = good;
        data[at] = bad;
        is_nothing(POOL, &topics, &data);
    }
    is_nothing(POOL, &topics, &good[..4]);
    is_nothing(POOL, &topics[..2], &good);
    // The longer shape has its own topic and its own exchange name.
    let mut longer = good.to_vec();
    longer.extend([word(0), word(9)]);
    is_nothing(POOL, &topics, &longer);
    let pool_log = read(&log(POOL, &[uniswap_v3::PANCAKE_SWAP, router, to], &longer)).unwrap();
    assert_eq!((pool_log.dex, pool_log.events.len()), ("pancakeswap_v3", 1));
}

#[test]
fn v3_liquidity_is_added_and_removed_and_a_poke_is_skipped() {
    let (owner, lower, upper) = (account(1).into_word(), negative(60), word(60));
    let minted = log(
        POOL,
        &[uniswap_v3::MINT, owner, lower, upper],
        &[account(9).into_word(), word(7), word(10), word(20)],
    );
    assert_eq!(moved(&minted), ["10", "0", "20", "0"]);
    assert_eq!(event(&minted).liquidity, Some(U256::from(7)));
    assert_eq!(event(&minted).account, account(1));
    let topics = [uniswap_v3::BURN, owner, lower, upper];
    let burnt = log(POOL, &topics, &[word(7), word(10), word(20)]);
    assert_eq!(moved(&burnt), ["0", "10", "0", "20"]);
    is_nothing(POOL, &topics, &[word(0), word(0), word(0)]);
    is_nothing(POOL, &[topics[0], owner, word(1 << 23), upper], &[word(7), word(1), word(2)]);
}

#[test]
fn negative_amounts_went_into_a_v4_pool() {
    let manager = address!("0x000000000004444c5dc75cb358380d2e3de08a90");
    let id = b256!("0x21c67e77068de97969ba93d4aab21826d33ca12bb9f565d8496e8fda8a82ca27");
    let topics = [uniswap_v4::SWAP, id, account(1).into_word()];
    let swap = |amount0, amount1| {
        let state = [word(1 << 40), word(6), negative(200_311), word(500)];
        log(manager, &topics, &[amount0, amount1, state[0], state[1], state[2], state[3]])
    };
    // One ether paid, 2 000 USDC received.
    let (ether, usdc) = (1_000_000_000_000_000_000, 2_000_000_000);
    let sold = swap(negative(ether), word(usdc));
    assert_eq!(moved(&sold), ["1000000000000000000", "0", "0", "2000000000"]);
    assert_eq!(
        moved(&swap(word(ether), negative(usdc))),
        ["0", "1000000000000000000", "2000000000", "0"]
    );
    let pool_log = read(&sold).unwrap();
    assert_eq!((pool_log.dex, pool_log.pair), ("uniswap_v4", pool::PairId::Id(id)));
    assert!(matches!(pool_log.state, Some(State::Price(price)) if price.tick == -200_311));
    // 128 bits, and one more.
    assert!(read(&swap(B256::from(U256::MAX >> 129usize), word(0))).is_some());
    assert!(read(&swap(B256::from(U256::ONE << 127usize), word(0))).is_none());
}

#[test]
fn v4_liquidity_has_no_amounts() {
    let topics = [uniswap_v4::MODIFY_LIQUIDITY, word(77), account(1).into_word()];
    let modify = |delta| log(account(3), &topics, &[negative(60), word(60), delta, word(0)]);
    let added = event(&modify(word(5)));
    assert_eq!((added.kind, added.liquidity), (EventKind::AddLiquidity, Some(U256::from(5))));
    assert_eq!(moved(&modify(word(5))), ["", "", "", ""]);
    let removed = event(&modify(negative(5)));
    assert_eq!((removed.kind, removed.liquidity), (EventKind::RemoveLiquidity, added.liquidity));
    assert_eq!(read(&modify(word(0))), None);
}

#[test]
fn curve_coins_are_identified_by_number() {
    let buyer = account(1).into_word();
    let swap = |signature: &str, words: &[u64]| {
        let data: Vec<B256> = words.iter().map(|number| word(*number)).collect();
        log(account(3), &[keccak256(signature), buyer], &data)
    };
    for (signature, rest, dex) in [
        ("TokenExchange(address,int128,uint256,int128,uint256)", &[][..], "curve"),
        ("TokenExchange(address,uint256,uint256,uint256,uint256)", &[], "curve"),
        (
            "TokenExchange(address,uint256,uint256,uint256,uint256,uint256,uint256)",
            &[8, 9],
            "curve",
        ),
        ("TokenExchangeUnderlying(address,int128,uint256,int128,uint256)", &[], "curve_underlying"),
    ] {
        let log = swap(signature, &[&[2, 500, 0, 499], rest].concat());
        assert_eq!(moved(&log), ["500", "0", "0", "499"], "{signature}");
        assert_eq!(event(&log).assets.map(|it| it.index), [Some(2), Some(0)]);
        assert_eq!(event(&log).account, account(1));
        assert_eq!(read(&log).unwrap().dex, dex);
        assert_eq!(read(&swap(signature, &[2, 500, 0])), None);
        assert_eq!(read(&swap(signature, &[&[9, 500, 0, 499], rest].concat())), None);
    }
    let signature = "TokenExchange(address,int128,uint256,int128,uint256)";
    let topics = [keccak256(signature), buyer];
    is_nothing(account(3), &topics, &[negative(1), word(1), word(0), word(1)]);
}

#[test]
fn curve_liquidity_has_one_event_per_two_coins() {
    let check = |signature: &str, words: &[u64], expected: &[&[(i64, u64)]]| {
        let data: Vec<B256> = words.iter().map(|number| word(*number)).collect();
        let pool_log =
            read(&log(account(3), &[keccak256(signature), account(1).into_word()], &data));
        let of_event = |event: &Event| -> Vec<(i64, u64)> {
            let coins = event.assets.iter().filter(|asset| asset.index.is_some());
            let sum = |asset: &pool::AssetMovement| asset.into.unwrap() + asset.out.unwrap();
            coins.map(|asset| (asset.index.unwrap(), sum(asset).to())).collect()
        };
        let found: Vec<_> = pool_log.unwrap().events.iter().map(of_event).collect();
        assert_eq!(found, expected, "{signature}");
    };
    check(
        "AddLiquidity(address,uint256[2],uint256[2],uint256,uint256)",
        &[10, 20, 1, 1, 5, 6],
        &[&[(0, 10), (1, 20)]],
    );
    check(
        "AddLiquidity(address,uint256[3],uint256[3],uint256,uint256)",
        &[10, 20, 30, 1, 1, 1, 5, 6],
        &[&[(0, 10), (1, 20)], &[(2, 30)]],
    );
    check(
        "AddLiquidity(address,uint256[4],uint256[4],uint256,uint256)",
        &[0, 20, 0, 0, 1, 1, 1, 1, 5, 6],
        &[&[(1, 20)]],
    );
    check("RemoveLiquidity(address,uint256[3],uint256)", &[10, 0, 30, 5], &[&[(0, 10), (2, 30)]]);
    check("RemoveLiquidity(address,uint256[3],uint256)", &[0, 0, 0, 5], &[]);
    check(
        "RemoveLiquidityImbalance(address,uint256[],uint256[],uint256,uint256)",
        &[128, 224, 5, 6, 2, 10, 20, 2, 1, 1],
        &[&[(0, 10), (1, 20)]],
    );
    check(
        "RemoveLiquidityOne(address,int128,uint256,uint256,uint256)",
        &[1, 100, 99, 6],
        &[&[(1, 99)]],
    );
    check(
        "RemoveLiquidityOne(address,uint256,uint256,uint256,uint256,uint256)",
        &[100, 2, 99, 1, 1],
        &[&[(2, 99)]],
    );
    let one = keccak256("RemoveLiquidityOne(address,uint256,uint256)");
    let found = event(&log(account(3), &[one, account(1).into_word()], &[word(100), word(99)]));
    assert_eq!(found.kind, EventKind::RemoveLiquidity);
    assert_eq!((found.assets[0].index, found.assets[0].out), (None, Some(U256::from(99))));
}

#[test]
fn curve_lists_with_invalid_lengths_are_skipped() {
    let signature = "AddLiquidity(address,uint256[],uint256[],uint256,uint256)";
    let topics = [keccak256(signature), account(1).into_word()];
    for bad in [
        &[][..],
        &[128, 224, 5],
        &[128, 224, 5, 6, 3, 10, 20],
        &[u64::MAX, 224, 5, 6, 2, 10, 20],
        // More coins than a pool can have.
        &[128, 0, 5, 6, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1],
    ] {
        let data: Vec<B256> = bad.iter().map(|number| word(*number)).collect();
        is_nothing(account(3), &topics, &data);
    }
}

#[test]
fn rows_of_a_pool_depend_only_on_logs_of_its_contract() {
    let (id, manager, liar) = (word(77), account(3), account(4));
    let (asset0, asset1) = (Address::ZERO, account(6));
    let sender = account(1).into_word();
    let create = |by| {
        let topics = [uniswap_v4::INITIALIZE, id, asset0.into_word(), asset1.into_word()];
        log(by, &topics, &[word(500), word(10), word(0), word(1 << 40), negative(5)])
    };
    let swap = |by, tick: u64| {
        let data = [negative(8), word(9), word(1 << 41), word(6), word(tick), word(500)];
        log(by, &[uniswap_v4::SWAP, id, sender], &data)
    };
    let blocks = [
        BlockBuilder::new(8).time(99).transaction([
            swap(manager, 1),
            swap(manager, 2),
            swap(liar, 3),
        ]),
        BlockBuilder::new(7).transaction([create(liar), create(manager)]),
    ]
    .map(BlockBuilder::decoded);
    let rows = rows(&Defi, &blocks);
    let pair = || Cell::from(id);
    let mut pairs = table(&rows, &DEFI_PAIRS);
    pairs.retain(|row| row[1] == manager.into());
    let mut expected = cells![id, manager, "uniswap_v4", asset0, asset1, 500_u64, 10_u64];
    expected.extend(cells![Address::ZERO, 7_u64]);
    assert_eq!(pairs, [expected]);
    let state = |by, tick: u64| {
        let (price, liquidity) = (U256::ONE << 41usize, U256::from(6));
        let mut row = vec![pair(), Cell::from(by), Cell::Null, Cell::Null];
        row.extend(cells![price, tick, liquidity, 8_u64]);
        row
    };
    assert_eq!(table(&rows, &DEFI_RESERVES), [state(manager, 2), state(liar, 3)]);
    let count = |by, swaps: u64| cells![id, by, swaps, 8_u64, 8_u64];
    assert_eq!(table(&rows, &DEFI_PAIR_STATS), [count(manager, 2), count(liar, 1)]);
    let events = table(&rows, &DEFI_EVENTS);
    assert_eq!(events.len(), 3);
    let maker = blocks[0].transactions.first().and_then(|transaction| transaction.from);
    let mut expected = cells![8_u64, 0_u64, 0_u64, 0_u64, id, manager, "uniswap_v4", "Swap"];
    expected.extend([maker.into(), account(1).into(), Cell::Null, Cell::Null]);
    expected.extend([8, 0, 0, 9].map(|number| amount(U256::from(number)).into()));
    expected.extend([(U256::ONE << 41usize).into(), Cell::Null, 99_u64.into()]);
    assert_eq!(events[0], expected);
}

#[test]
fn pairs_and_reserves_come_from_their_logs() {
    let (factory, pool, asset0, asset1) = (account(1), account(2), account(3), account(4));
    let assets = [asset0.into_word(), asset1.into_word()];
    let v2 = log(
        factory,
        &[uniswap_v2::PAIR_CREATED, assets[0], assets[1]],
        &[pool.into_word(), word(12)],
    );
    let topics = [uniswap_v3::POOL_CREATED, assets[0], assets[1], word(3_000)];
    let v3 = log(factory, &topics, &[negative(60), POOL.into_word()]);
    let sync =
        |reserve0, reserve1| log(pool, &[uniswap_v2::SYNC], &[word(reserve0), word(reserve1)]);
    let start = log(POOL, &[uniswap_v3::INITIALIZE], &[word(1 << 40), negative(9)]);
    let large = log(pool, &[uniswap_v2::SYNC], &[(U256::ONE << 112usize).into(), word(1)]);
    assert_eq!(read(&large), None);
    let blocks = [
        BlockBuilder::new(8).transaction([sync(30, 40), sync(50, 60)]),
        BlockBuilder::new(7).transaction([v2, v3, sync(10, 20), start]),
    ]
    .map(BlockBuilder::decoded);
    let rows = rows(&Defi, &blocks);
    let created = |pool: Address, dex, fee: Option<i64>, spacing: Option<i64>| {
        let pair = bytes::Bytes::copy_from_slice(pool.as_slice());
        let mut row = cells![pair, factory, dex, asset0, asset1, fee, spacing];
        row.extend([Cell::Null, 7_u64.into()]);
        row
    };
    let expected = [
        created(pool, "uniswap_v2", None, None),
        created(POOL, "uniswap_v3", Some(3_000), Some(-60)),
    ];
    assert_eq!(table(&rows, &DEFI_PAIRS), expected);
    let reserves = table(&rows, &DEFI_RESERVES);
    assert_eq!(reserves[0][2..4], cells![U256::from(50), U256::from(60)]);
    assert_eq!(reserves[1][4..], cells![U256::ONE << 40usize, -9_i64, U256::ZERO, 7_u64]);
    assert!(table(&rows, &DEFI_EVENTS).is_empty());
    assert!(table(&rows, &DEFI_PAIR_STATS).is_empty());
}
