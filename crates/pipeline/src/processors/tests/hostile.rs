//! Malicious logs: known events of known contracts with arbitrary contents.

use alloy_primitives::{Address, B256, Bytes, U256, address, keccak256};
use logmill_chain::{Log, TOPICS_MAX};
use proptest::prelude::*;

const SIGNATURES: [&str; 26] = [
    "Transfer(address,address,uint256)",
    "TransferSingle(address,address,address,uint256,uint256)",
    "TransferBatch(address,address,address,uint256[],uint256[])",
    "Deposit(address,uint256)",
    "Withdrawal(address,uint256)",
    "FeesCollected(address,address,uint256,uint256)",
    "FeesForwarded(address,(address,uint256)[])",
    "PairCreated(address,address,address,uint256)",
    "Sync(uint112,uint112)",
    "Swap(address,uint256,uint256,uint256,uint256,address)",
    "Mint(address,uint256,uint256)",
    "Burn(address,uint256,uint256,address)",
    "PoolCreated(address,address,uint24,int24,address)",
    "Initialize(uint160,int24)",
    "Swap(address,address,int256,int256,uint160,uint128,int24)",
    "Swap(address,address,int256,int256,uint160,uint128,int24,uint128,uint128)",
    "Mint(address,address,int24,int24,uint128,uint256,uint256)",
    "Burn(address,int24,int24,uint128,uint256,uint256)",
    "Initialize(bytes32,address,address,uint24,int24,address,uint160,int24)",
    "Swap(bytes32,address,int128,int128,uint160,uint128,int24,uint24)",
    "ModifyLiquidity(bytes32,address,int24,int24,int256,bytes32)",
    "TokenExchange(address,int128,uint256,int128,uint256)",
    "AddLiquidity(address,uint256[2],uint256[2],uint256,uint256)",
    "AddLiquidity(address,uint256[],uint256[],uint256,uint256)",
    "RemoveLiquidityOne(address,int128,uint256,uint256,uint256)",
    "NothingThatWeKnow()",
];

/// Contracts with special handling (wrapped ether, an early collection, the fee collector), and an unknown one.
const CONTRACTS: [Address; 4] = [
    address!("0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2"),
    address!("0x06012c8cf97bead5deae237070f9587f8e7a266d"),
    address!("0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9"),
    address!("0x3333333333333333333333333333333333333333"),
];

/// Plausible words: offsets, lengths, accounts, small and negative numbers, the largest, and noise.
fn words() -> impl Strategy<Value = B256> {
    prop_oneof![
        4 => (0_u64..12).prop_map(|number| U256::from(number * 32).into()),
        4 => (0_u64..6).prop_map(|number| U256::from(number).into()),
        6 => (0_u8..4).prop_map(|number| Address::repeat_byte(number).into_word()),
        2 => (1_u64..1_000_000).prop_map(|number| U256::from(number).wrapping_neg().into()),
        1 => Just(B256::repeat_byte(0xff)),
        1 => Just(U256::from(u64::MAX).into()),
        1 => any::<[u8; 32]>().prop_map(B256::from),
    ]
}

pub(super) fn hostile_logs() -> impl Strategy<Value = Log> {
    let topics = prop::collection::vec(words(), 0..TOPICS_MAX);
    let data = prop::collection::vec(words(), 0..14);
    // Most data is whole words.
    let cut = prop_oneof![6 => Just(0_usize), 1 => 1_usize..32];
    let signature = prop::sample::select(&SIGNATURES[..]);
    let parts = (signature, prop::sample::select(&CONTRACTS[..]), topics, data, cut);
    parts.prop_map(|(signature, address, topics, data, cut)| {
        let mut data = data.concat();
        data.truncate(data.len().saturating_sub(cut));
        let topics = std::iter::once(keccak256(signature)).chain(topics).collect();
        Log { address, topics, data: Bytes::from(data) }
    })
}
