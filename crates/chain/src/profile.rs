//! `ChainProfile`: what is known about a chain from its id. One table, explained in `docs/chains.md`.
//!
//! | family | verification | node fields are kept |
//! |---|---|---|
//! | Ethereum | full | no: everything follows |
//! | BNB | full | yes |
//! | OP stack, Arbitrum, Polygon, development | bloom | yes |
//! | Ethermint, Flow EVM, zkSync | off | yes |
//! | unknown | full, or bloom if the chain's blocks cannot pass full | yes |
//!
//! Guarantees: a chain of a known family is never checked less than its row says, unless a setting says so. Leaves to
//! others: settings, which take precedence, and finding out which checks an unknown chain can pass (`evm::level`).

use std::fmt;

use serde::Serialize;

use crate::verify_level::VerifyLevel;

/// Confirmations that make a block final on an unknown chain whose nodes do not know the tag `finalized`.
const CONFIRMATIONS_UNKNOWN: u64 = 128;
/// The same for development chains. Developers revert blocks (`evm_revert`), so it matches the depth of Anvil's own
/// tag and also applies where a node reports its newest block as final.
const CONFIRMATIONS_DEVELOPMENT: u64 = 64;

/// Chains with the same block format and rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// Ethereum, its testnets, and development nodes with the same rules.
    Ethereum,
    /// OP stack rollups: deposits of type 0x7e, and L1 fees in receipts.
    OpStack,
    /// Arbitrum rollups: types 0x64 to 0x6a, and prices that do not follow from the transaction.
    Arbitrum,
    /// Polygon PoS: the state sync is not in the roots.
    Polygon,
    /// BNB Smart Chain.
    Bnb,
    /// ZK stack rollups: their own hashes and blooms.
    ZkSync,
    /// Flow EVM: its own hashes.
    FlowEvm,
    /// Cosmos chains with an EVM (Cronos): their own hashes, and blooms that include logs outside of transactions.
    Ethermint,
    /// Development nodes that accept transactions without signatures (Anvil, Hardhat).
    Development,
    /// Not in the table.
    Unknown,
}

/// What is known about a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChainProfile {
    pub family: Family,
    /// The verification level, unless a setting overrides it.
    pub verify: VerifyLevel,
    /// Whether the level drops once the chain's blocks are found not to pass it: only for unknown chains.
    pub may_verify_less: bool,
    /// Confirmations that make a block final if the nodes do not know the tag `finalized`; `None` makes that an
    /// error.
    pub confirmations: Option<u64>,
    /// Whether confirmations also apply while `finalized` is the newest block, as on Hardhat, whose blocks can be
    /// reverted.
    pub takes_blocks_back: bool,
}

const ETHEREUM: &[u64] = &[1, 5, 1_337, 17_000, 560_048, 11_155_111];
const OP_STACK: &[u64] = &[
    10,
    130,
    185,
    204,
    252,
    255,
    291,
    480,
    690,
    919,
    957,
    1_135,
    1_301,
    1_750,
    1_868,
    1_946,
    4_801,
    5_611,
    7_560,
    8_453,
    34_443,
    42_220,
    57_073,
    60_808,
    81_457,
    84_532,
    763_373,
    7_777_777,
    11_142_220,
    11_155_420,
    888_888_888,
    999_999_999,
];
const ARBITRUM: &[u64] =
    &[4_078, 33_111, 33_139, 42_161, 42_170, 70_700, 421_614, 660_279, 23_011_913, 1_380_012_617];
const POLYGON: &[u64] = &[137, 80_001, 80_002];
const BNB: &[u64] = &[56, 97];
const ZKSYNC: &[u64] = &[232, 300, 324, 388, 2_741, 11_124, 37_111, 50_104, 61_166, 543_210];
const FLOW_EVM: &[u64] = &[545, 747];
const ETHERMINT: &[u64] = &[25, 338, 2_222, 7_700, 7_701, 9_000, 9_001];
const DEVELOPMENT: &[u64] = &[31_337];

impl ChainProfile {
    pub fn of(chain_id: u64) -> Self {
        let rows = [
            (ETHEREUM, Family::Ethereum, VerifyLevel::Full),
            (OP_STACK, Family::OpStack, VerifyLevel::Bloom),
            (ARBITRUM, Family::Arbitrum, VerifyLevel::Bloom),
            (POLYGON, Family::Polygon, VerifyLevel::Bloom),
            (BNB, Family::Bnb, VerifyLevel::Full),
            (ZKSYNC, Family::ZkSync, VerifyLevel::Off),
            (FLOW_EVM, Family::FlowEvm, VerifyLevel::Off),
            (ETHERMINT, Family::Ethermint, VerifyLevel::Off),
            (DEVELOPMENT, Family::Development, VerifyLevel::Bloom),
        ];
        let row = rows.into_iter().find(|(ids, ..)| ids.contains(&chain_id));
        let (_, family, verify) = row.unwrap_or((&[], Family::Unknown, VerifyLevel::Full));
        let confirmations = match family {
            Family::Unknown => Some(CONFIRMATIONS_UNKNOWN),
            Family::Development => Some(CONFIRMATIONS_DEVELOPMENT),
            _ => None,
        };
        let may_verify_less = family == Family::Unknown;
        let takes_blocks_back = family == Family::Development;
        Self { family, verify, may_verify_less, confirmations, takes_blocks_back }
    }

    /// Whether genuine headers of the family match their hashes as on Ethereum. A header of these chains that has only
    /// known fields and another hash is false.
    pub fn has_ethereum_headers(&self) -> bool {
        match self.family {
            Family::Ethereum
            | Family::OpStack
            | Family::Arbitrum
            | Family::Polygon
            | Family::Bnb
            | Family::Development => true,
            Family::ZkSync | Family::FlowEvm | Family::Ethermint | Family::Unknown => false,
        }
    }

    /// Whether everything that nodes report about a block follows from it, so that no node fields are kept.
    pub fn has_ethereum_rules(&self) -> bool {
        self.family == Family::Ethereum
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ethereum => "Ethereum",
            Self::OpStack => "the OP stack",
            Self::Arbitrum => "Arbitrum",
            Self::Polygon => "Polygon PoS",
            Self::Bnb => "the BNB Smart Chain",
            Self::ZkSync => "the ZK stack",
            Self::FlowEvm => "Flow EVM",
            Self::Ethermint => "Ethermint",
            Self::Development => "a development chain",
            Self::Unknown => "a chain of no known family",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_family_completes_the_words_blocks_of() {
        for (family, name) in [
            (Family::OpStack, "the OP stack"),
            (Family::Development, "a development chain"),
            (Family::Unknown, "a chain of no known family"),
        ] {
            assert_eq!(family.to_string(), name);
        }
    }

    #[test]
    fn a_chain_is_in_one_family_and_only_an_unknown_one_may_be_checked_less() {
        let lists =
            [ETHEREUM, OP_STACK, ARBITRUM, POLYGON, BNB, ZKSYNC, FLOW_EVM, ETHERMINT, DEVELOPMENT];
        let mut ids: Vec<u64> = lists.concat();
        let count = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), count, "an id in two rows");
        assert!(ids.iter().all(|id| !ChainProfile::of(*id).may_verify_less));
        for (id, family, verify) in [
            (1, Family::Ethereum, VerifyLevel::Full),
            (8_453, Family::OpStack, VerifyLevel::Bloom),
            (42_161, Family::Arbitrum, VerifyLevel::Bloom),
            (137, Family::Polygon, VerifyLevel::Bloom),
            (56, Family::Bnb, VerifyLevel::Full),
            (324, Family::ZkSync, VerifyLevel::Off),
            (747, Family::FlowEvm, VerifyLevel::Off),
            (31_337, Family::Development, VerifyLevel::Bloom),
            (25, Family::Ethermint, VerifyLevel::Off),
            (7_331, Family::Unknown, VerifyLevel::Full),
        ] {
            let profile = ChainProfile::of(id);
            assert_eq!((profile.family, profile.verify), (family, verify), "{id}");
        }
    }

    /// Parses a row of the documentation: family name, ids, level, confirmations.
    fn row(line: &str) -> Option<(&str, Vec<u64>, &str, Option<u64>)> {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, family, ids, checked, _, last, _] = cells[..] else { return None };
        let ids = ids.split(|c: char| !c.is_ascii_digit()).filter_map(|id| id.parse().ok());
        let level = checked.strip_prefix('`')?.split('`').next()?;
        let depth = last.split_once("else ").and_then(|(_, rest)| rest.split(' ').next());
        Some((family, ids.collect(), level, depth.map(|depth| depth.parse().expect("a number"))))
    }

    #[test]
    fn the_table_of_the_documentation_is_that_of_the_code() {
        let text = include_str!("../../../docs/chains.md");
        let names = [
            ("Ethereum", ETHEREUM, Family::Ethereum),
            ("BNB Smart Chain", BNB, Family::Bnb),
            ("OP stack", OP_STACK, Family::OpStack),
            ("Arbitrum", ARBITRUM, Family::Arbitrum),
            ("Polygon PoS", POLYGON, Family::Polygon),
            ("Ethermint (Cronos and others)", ETHERMINT, Family::Ethermint),
            ("Flow EVM", FLOW_EVM, Family::FlowEvm),
            ("ZK stack", ZKSYNC, Family::ZkSync),
            ("Anvil, Hardhat", DEVELOPMENT, Family::Development),
            ("unknown", &[], Family::Unknown),
        ];
        let rows: Vec<_> = text.lines().filter_map(row).collect();
        assert_eq!(rows.len(), names.len(), "{rows:?}");
        for (name, ids, family) in names {
            let found = rows.iter().find(|row| row.0 == name);
            let (_, listed, level, depth) = found.unwrap_or_else(|| panic!("no row of {name}"));
            let line = text.lines().find(|line| line.starts_with(&format!("| {name} |")));
            let is_whole = !line.expect("a row").contains(" and others |");
            assert!(listed.iter().all(|id| ids.contains(id)), "{name}: {listed:?}");
            assert!(!is_whole || listed.len() == ids.len(), "{name}: {listed:?}");
            let profile = ChainProfile::of(ids.first().copied().unwrap_or(7_331));
            assert_eq!(profile.family, family);
            assert_eq!(
                (profile.verify.to_string(), profile.confirmations),
                ((*level).to_owned(), *depth),
                "{name}"
            );
        }
    }
}
