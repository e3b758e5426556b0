//! The blob gas price, for chains whose blob schedules are published.
//!
//! A header holds the excess blob gas; the price follows from it and a parameter that forks change: EIP-4844 set it,
//! EIP-7691 changed it, and since EIP-7892 it changes in forks that change nothing else. A later change may be
//! unknown to us, so from the last known change on only a node can report the price.
//!
//! Guarantees: a price follows the chain's own rules, or is `None`. Leaves to others: prices that nodes report
//! ([`crate::facts`]), which take precedence.

use alloy_eips::eip7840::BlobParams;

/// Activation times of a chain's blob parameters, in seconds since 1970.
struct Schedule {
    cancun: u64,
    prague: u64,
    first_change: u64,
    second_change: u64,
}

const MAINNET: Schedule = Schedule {
    cancun: 1_710_338_135,
    prague: 1_746_612_311,
    first_change: 1_765_290_071,
    second_change: 1_767_747_671,
};
const SEPOLIA: Schedule = Schedule {
    cancun: 1_706_655_072,
    prague: 1_741_159_776,
    first_change: 1_761_017_184,
    second_change: 1_761_607_008,
};
const HOLESKY: Schedule = Schedule {
    cancun: 1_707_305_664,
    prague: 1_740_434_112,
    first_change: 1_759_800_000,
    second_change: 1_760_389_824,
};
const HOODI: Schedule = Schedule {
    cancun: 0,
    prague: 1_742_999_832,
    first_change: 1_762_365_720,
    second_change: 1_762_955_544,
};

/// The blob gas price in a block; `None` where the rules are not known.
pub fn blob_gas_price(chain_id: u64, timestamp: u64, excess_blob_gas: u64) -> Option<u128> {
    let price = rules(chain_id, timestamp)?.calc_blob_fee(excess_blob_gas);
    // A saturated result is not a price.
    Some(price).filter(|price| *price < u128::MAX)
}

/// Maximum blob gas of a block; `None` where the rules are not known.
pub fn blob_gas_max(chain_id: u64, timestamp: u64) -> Option<u64> {
    Some(rules(chain_id, timestamp)?.max_blob_gas_per_block())
}

fn rules(chain_id: u64, timestamp: u64) -> Option<BlobParams> {
    let schedule = match chain_id {
        1 => MAINNET,
        11_155_111 => SEPOLIA,
        17_000 => HOLESKY,
        560_048 => HOODI,
        _ => return None,
    };
    schedule.rules(timestamp)
}

impl Schedule {
    fn rules(&self, timestamp: u64) -> Option<BlobParams> {
        match timestamp {
            at if at < self.cancun || at >= self.second_change => None,
            at if at < self.prague => Some(BlobParams::cancun()),
            at if at < self.first_change => Some(BlobParams::prague()),
            _ => Some(BlobParams::bpo1()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_price_follows_the_rules_of_its_time() {
        let excess = 80_000_000;
        let check = |at, expected| assert_eq!(blob_gas_price(1, at, excess), expected, "{at}");
        check(1_710_338_134, None);
        // e^(80 000 000 / 3 338 477), then two slower schedules.
        check(1_710_338_135, Some(25_527_513_271));
        check(1_746_612_310, Some(25_527_513_271));
        check(1_746_612_311, Some(8_669_718));
        check(1_765_290_071, Some(14_547));
        check(1_767_747_671, None);
        assert_eq!(blob_gas_max(1, 1_710_338_135), Some(6 << 17));
        assert_eq!(blob_gas_max(1, 1_767_747_671), None);
        assert_eq!(blob_gas_price(560_048, 0, 0), Some(1));
        assert_eq!(blob_gas_price(100, 1_750_000_000, 0), None, "a chain with rules of its own");
        assert_eq!(blob_gas_price(1, 1_750_000_000, u64::MAX), None);
    }
}
