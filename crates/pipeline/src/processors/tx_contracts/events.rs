//! Events that identify what a transaction did.
//!
//! Guarantees: a log matches only with the signature's hash and the right number of topics, since other contracts have
//! events of the same signature with other parameters indexed. Leaves to others: the remaining contents.

use std::sync::LazyLock;

use alloy_primitives::keccak256;
use alloy_primitives::map::B256Map;
use logmill_chain::Log;

/// The tag of a transaction with this log.
pub(super) fn tag(log: &Log) -> Option<&'static str> {
    static BY_TOPIC: LazyLock<B256Map<(&str, usize)>> = LazyLock::new(|| {
        let known = EVENTS.iter();
        known.map(|(tag, topics, event)| (keccak256(event), (*tag, *topics))).collect()
    });
    let (tag, topics) = BY_TOPIC.get(log.topics.first()?)?;
    (*topics == log.topics.len()).then_some(tag)
}

/// Tag, number of topics (including the event's own), and signature.
#[rustfmt::skip]
const EVENTS: &[(&str, usize, &str)] = &[
    // Uniswap V2
    ("SWAP", 3, "Swap(address,uint256,uint256,uint256,uint256,address)"),
    // Uniswap V3
    ("SWAP", 3, "Swap(address,address,int256,int256,uint160,uint128,int24)"),
    // PancakeSwap V3
    ("SWAP", 3, "Swap(address,address,int256,int256,uint160,uint128,int24,uint128,uint128)"),
    // Uniswap V4
    ("SWAP", 3, "Swap(bytes32,address,int128,int128,uint160,uint128,int24,uint24)"),
    // Velodrome V2
    ("SWAP", 3, "Swap(address,address,uint256,uint256,uint256,uint256)"),
    // Balancer V2
    ("SWAP", 4, "Swap(bytes32,address,address,uint256,uint256)"),
    // Balancer V3
    ("SWAP", 4, "Swap(address,address,address,uint256,uint256,uint256,uint256)"),
    // Liquidity Book
    ("SWAP", 3, "Swap(address,address,uint24,bytes32,bytes32,uint24,bytes32,bytes32)"),
    // Curve
    ("SWAP", 2, "TokenExchange(address,int128,uint256,int128,uint256)"),
    ("SWAP", 2, "TokenExchangeUnderlying(address,int128,uint256,int128,uint256)"),
    // Curve V2
    ("SWAP", 2, "TokenExchange(address,uint256,uint256,uint256,uint256)"),
    // Curve, next generation
    ("SWAP", 2, "TokenExchange(address,uint256,uint256,uint256,uint256,uint256,uint256)"),
    // Uniswap V1
    ("SWAP", 4, "TokenPurchase(address,uint256,uint256)"),
    ("SWAP", 4, "EthPurchase(address,uint256,uint256)"),
    // Uniswap V2
    ("LIQUIDITY", 2, "Mint(address,uint256,uint256)"),
    ("LIQUIDITY", 3, "Burn(address,uint256,uint256,address)"),
    // Velodrome V2
    ("LIQUIDITY", 3, "Burn(address,address,uint256,uint256)"),
    // Uniswap V3
    ("LIQUIDITY", 4, "Mint(address,address,int24,int24,uint128,uint256,uint256)"),
    ("LIQUIDITY", 4, "Burn(address,int24,int24,uint128,uint256,uint256)"),
    // Uniswap V4
    ("LIQUIDITY", 3, "ModifyLiquidity(bytes32,address,int24,int24,int256,bytes32)"),
    // Balancer V2
    ("LIQUIDITY", 3, "PoolBalanceChanged(bytes32,address,address[],int256[],uint256[])"),
    // Curve
    ("LIQUIDITY", 2, "AddLiquidity(address,uint256[2],uint256[2],uint256,uint256)"),
    ("LIQUIDITY", 2, "AddLiquidity(address,uint256[3],uint256[3],uint256,uint256)"),
    ("LIQUIDITY", 2, "RemoveLiquidity(address,uint256[2],uint256[2],uint256)"),
    ("LIQUIDITY", 2, "RemoveLiquidity(address,uint256[3],uint256[3],uint256)"),
    ("LIQUIDITY", 2, "RemoveLiquidityOne(address,uint256,uint256)"),
    // Seaport
    ("MARKETPLACE", 3, concat!(
        "OrderFulfilled(bytes32,address,address,address,(uint8,address,uint256,",
        "uint256)[],(uint8,address,uint256,uint256,address)[])",
    )),
    // Wyvern
    ("MARKETPLACE", 4, "OrdersMatched(bytes32,bytes32,address,address,uint256,bytes32)"),
    // LooksRare
    ("MARKETPLACE", 4, concat!(
        "TakerBid(bytes32,uint256,address,address,address,address,address,uint256,",
        "uint256,uint256)",
    )),
    ("MARKETPLACE", 4, concat!(
        "TakerAsk(bytes32,uint256,address,address,address,address,address,uint256,",
        "uint256,uint256)",
    )),
    // Blur
    ("MARKETPLACE", 3, concat!(
        "OrdersMatched(address,address,(address,uint8,address,address,uint256,uint256,",
        "address,uint256,uint256,uint256,(uint16,address)[],uint256,bytes),bytes32,",
        "(address,uint8,address,address,uint256,uint256,address,uint256,uint256,uint256,",
        "(uint16,address)[],uint256,bytes),bytes32)",
    )),
    // Blur V2
    ("MARKETPLACE", 1, "Execution721Packed(bytes32,uint256,uint256)"),
    ("MARKETPLACE", 1, "Execution721MakerFeePacked(bytes32,uint256,uint256,uint256)"),
    ("MARKETPLACE", 1, "Execution721TakerFeePacked(bytes32,uint256,uint256,uint256)"),
    // X2Y2
    ("MARKETPLACE", 1, "EvProfit(bytes32,address,address,uint256)"),
    // CryptoPunks
    ("MARKETPLACE", 4, "PunkBought(uint256,uint256,address,address)"),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use alloy_primitives::{B256, b256};

    use super::*;
    use crate::derive::decoded_block_builder::{log, who};

    #[test]
    fn published_topics_are_known_with_the_right_number_of_topics() {
        let check = |topic: B256, topics: usize, expected: Option<&str>| {
            let mut all = vec![topic];
            all.resize(topics, B256::ZERO);
            assert_eq!(tag(&log(who(1), &all, &[])), expected, "{topic} {topics}");
        };
        for (topic, topics, expected) in PUBLISHED {
            check(topic, topics, Some(expected));
            check(topic, topics % 4 + 1, None);
        }
        check(B256::ZERO, 1, None);
        assert_eq!(tag(&log(who(1), &[], &[])), None);
        let distinct: BTreeSet<B256> = EVENTS.iter().map(|event| keccak256(event.2)).collect();
        assert_eq!(distinct.len(), EVENTS.len());
    }

    const PUBLISHED: [(B256, usize, &str); 8] = [
        (b256!("0xd78ad95fa46c994b6551d0da85fc275fe613ce37657fb8d5e3d130840159d822"), 3, "SWAP"),
        (b256!("0xc42079f94a6350d7e6235f29174924f928cc2ac818eb64fed8004e115fbcca67"), 3, "SWAP"),
        (b256!("0x40e9cecb9f5f1f1c5b9c97dec2917b7ee92e57ba5563708daca94dd84ad7112f"), 3, "SWAP"),
        (b256!("0x8b3e96f2b889fa771c53c981b40daf005f63f637f1869f707052d15a3dd97140"), 2, "SWAP"),
        (
            b256!("0x0c396cd989a39f4459b5fa1aed6a9a8dcdbc45908acfd67e028cd568da98982c"),
            4,
            "LIQUIDITY",
        ),
        (
            b256!("0xf208f4912782fd25c7f114ca3723a2d5dd6f3bcc3ac8db5af63baa85f711d5ec"),
            3,
            "LIQUIDITY",
        ),
        (
            b256!("0x9d9af8e38d66c62e2c12f0225249fd9d721c54b83f48d9352c97c6cacdcb6f31"),
            3,
            "MARKETPLACE",
        ),
        (
            b256!("0x61cbb2a3dee0b6064c2e681aadd61677fb4ef319f0b547508d495626f5a62f64"),
            3,
            "MARKETPLACE",
        ),
    ];
}
