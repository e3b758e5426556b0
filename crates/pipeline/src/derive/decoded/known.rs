//! `TokenSettings`: contracts whose logs cannot be decoded by their shape alone.
//!
//! Guarantees: the defaults are safe on every chain, because other deployers cannot obtain a known address elsewhere.
//! Leaves to others: decoding the logs of these contracts ([`super::tokens`]).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use alloy_primitives::{Address, Keccak256, address};

/// Tokens that wrap a chain's native asset.
const WRAPPED_NATIVE: [Address; 23] = [
    // Ethereum and its test networks: Sepolia, Goerli, Holesky.
    address!("0xc02aaa39b223fe8d0a0e5c4f27ead9083c756cc2"),
    address!("0xfff9976782d46cc05630d1f6ebab18b2324d6b14"),
    address!("0xb4fbf271143f4fbf7b91a5ded31805e42b2208d6"),
    address!("0x94373a4919b3240d86ea41593d5eba789fef3848"),
    // Optimism, Base, Mode, Unichain and other OP chains.
    address!("0x4200000000000000000000000000000000000006"),
    // Arbitrum, Linea, Scroll, Blast, zkSync Era, Polygon zkEVM, Taiko.
    address!("0x82af49447d8a07e3bd95bd0d56f35241523fbab1"),
    address!("0xe5d7c2a44ffddf6b295a15c148167daaaf5cf34f"),
    address!("0x5300000000000000000000000000000000000004"),
    address!("0x4300000000000000000000000000000000000004"),
    address!("0x5aea5775959fbc2557cc8789bc1bf90a239d9a91"),
    address!("0x4f9a0e7fd2bf6067db6994cf12e4495df938e6e9"),
    address!("0xa51894664a773981c6c112c43ce576f315d5b1b6"),
    // BNB, Polygon, Gnosis, Avalanche, Fantom, Sonic.
    address!("0xbb4cdb9cbd36b01bd1cbaebf2de08d9173bc095c"),
    address!("0x0d500b1d8e8ef31e21c99d1db9a6444d3adf1270"),
    address!("0xe91d153e0b41518a2ce8dd3d7944fa863463a97d"),
    address!("0xb31f66aa3c1e785363f0875a1b74e27b85fd66c7"),
    address!("0x21be370d5312f44cb42ce377bc9b8a0cef1a4c83"),
    address!("0x039e2fb66102314ce7b64ce5ce3e5183bc94ad38"),
    // Mantle, Cronos, Moonbeam, Moonriver, Berachain.
    address!("0x78c1b0c915c4faa5fffa6cabf0219da63d7f4cb8"),
    address!("0x5c7f8a570d578ed84e63fdfa7b1ee72deae1ae23"),
    address!("0xacc15dc74880c9944775448304b263d191c6077f"),
    address!("0x98878b06940ae243284ca214f92bb71a2b032b8a"),
    address!("0x6969696969696969696969696969696969696969"),
];

/// Collections on Ethereum that predate ERC-721 or deviate from it.
const EARLY_NFTS: [Address; 6] = [
    // Nothing is indexed: CryptoKitties, CryptoBots, CryptoFighters.
    address!("0x06012c8cf97bead5deae237070f9587f8e7a266d"),
    address!("0xf7a6e15dfd5cdd9ef12711bd757a9b6021abf643"),
    address!("0x87d598064c736dd0c712d329afcfaa0ccc1921a1"),
    // The id is not indexed: Cryptovoxels, CryptoArte, Beeple's Everydays.
    address!("0x79986af15539de2db9a5086382daeda917a9cf0c"),
    address!("0xbace7e22f06554339911a03b8e0ae28203da9598"),
    address!("0xd92e44ac213b9ebda0178e1523cc0ce177b7fa96"),
];

static DEFAULT: LazyLock<TokenSettings> = LazyLock::new(TokenSettings::default);

/// Contracts whose logs cannot be decoded by their shape alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenSettings {
    /// Tokens whose `Deposit` and `Withdrawal` are mints and burns.
    pub wrapped_native: BTreeSet<Address>,
    /// Collections whose `Transfer` follows ERC-721, whichever of its arguments are indexed.
    pub early_nfts: BTreeSet<Address>,
}

impl Default for TokenSettings {
    fn default() -> Self {
        Self { wrapped_native: WRAPPED_NATIVE.into(), early_nfts: EARLY_NFTS.into() }
    }
}

impl TokenSettings {
    pub fn known() -> &'static Self {
        &DEFAULT
    }

    /// Short hash that identifies the settings.
    pub fn fingerprint(&self) -> String {
        let mut hash = Keccak256::new();
        for set in [&self.wrapped_native, &self.early_nfts] {
            set.iter().for_each(|address| hash.update(address));
            // Separator: an address that moves from one set to the other must change the hash.
            hash.update([0]);
        }
        let hash = hash.finalize();
        alloy_primitives::hex::encode(&hash[..8])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_settings_have_another_fingerprint() {
        let known = TokenSettings::known();
        assert_eq!(known.fingerprint(), TokenSettings::default().fingerprint());
        let mut moved = known.clone();
        let last = *moved.wrapped_native.iter().next_back().unwrap();
        moved.wrapped_native.remove(&last);
        assert_ne!(moved.fingerprint(), known.fingerprint());
        moved.early_nfts.insert(last);
        assert_ne!(moved.fingerprint(), known.fingerprint());
    }

    #[test]
    fn defaults_are_unique() {
        assert_eq!(TokenSettings::known().wrapped_native.len(), WRAPPED_NATIVE.len());
        assert_eq!(TokenSettings::known().early_nfts.len(), EARLY_NFTS.len());
    }
}
