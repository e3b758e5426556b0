//! Contracts deployed by transactions, and later changes of their code.
//!
//! | `kind` of `smart_contracts` | condition |
//! |---|---|
//! | `MINIMAL_PROXY` | the init code is exactly that of EIP-1167; it contains the implementation |
//! | `PROXY` | it logged `Upgraded` or `BeaconUpgraded` in the transaction that created it |
//! | `CONTRACT` | neither |
//!
//! | `kind` of `contract_versions` | condition | `implementation` |
//! |---|---|---|
//! | `DEPLOYED` | a transaction created it; `event_index` is -1, as there is no log | that of a minimal proxy |
//! | `UPGRADED` | it logged `Upgraded(address)` (EIP-1967), with a topic or, in old contracts, data | the address |
//! | `BEACON_UPGRADED` | it logged `BeaconUpgraded(address)` (EIP-1967) | the beacon, which has the implementation |
//! | `DIAMOND_CUT` | it logged `DiamondCut(…)` (EIP-2535) | null: there are many |
//!
//! `status` is that of the creating transaction: null if the receipt has none, as before Byzantium, and then the
//! contract may not exist.
//!
//! Guarantees: a log counts only in the shape of its event. Leaves to others: code, which only a node has, and
//! contracts created by other contracts, which do not appear in blocks.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, b256, hex, keccak256};
use logmill_chain::Log;

use crate::cells;
use crate::derive::decoded::{DecodedTransaction, abi};
use crate::derive::table::{Fold, folded, key, once};
use crate::derive::{Cell, DecodedBlock, Kind, Rows, Table};
use crate::error::Result;

/// Topic of `Upgraded(address)`.
pub(crate) const UPGRADED: B256 =
    b256!("0xbc7cd75a20ee27fd9adebab32041f755214dbc6bffa90cc0225b39da2e5c2d3b");
/// Topic of `BeaconUpgraded(address)`.
pub(crate) const BEACON_UPGRADED: B256 =
    b256!("0x1cf3b03a6cf19fa2baba4df148e9dcabedea7f8a5c07840e207e5c089be95d3e");
/// Topic of `DiamondCut((address,uint8,bytes4[])[],address,bytes)`.
pub(crate) const DIAMOND_CUT: B256 =
    b256!("0x8faa70878671ccd212d20771b795c50af8fd3ff6cf27f4bde57e5d4de0aeb673");

/// Init code of EIP-1167 before and after the address of the implementation.
const CLONE_START: [u8; 20] = hex!("3d602d80600a3d3981f3363d3d373d3d3d363d73");
const CLONE_END: [u8; 15] = hex!("5af43d82803e903d91602b57fd5bf3");

/// `event_index` of a deployment: before all logs of its block.
const DEPLOYMENT: i64 = -1;

/// One row per contract.
pub static SMART_CONTRACTS: Table = Table {
    name: "smart_contracts",
    columns: &[
        key("address", Kind::Address),
        folded("creator", Kind::Address, Fold::First),
        folded("tx_index", Kind::Int, Fold::First),
        folded("init_code_hash", Kind::Bytes, Fold::First),
        folded("kind", Kind::Text, Fold::First),
        folded("status", Kind::Int, Fold::First),
        folded("created_height", Kind::Int, Fold::Min),
    ],
    indexes: &[],
};

/// One row per change of code.
pub static CONTRACT_VERSIONS: Table = Table {
    name: "contract_versions",
    columns: &[
        key("address", Kind::Address),
        key("block_height", Kind::Int),
        key("event_index", Kind::Int),
        once("tx_index", Kind::Int),
        once("kind", Kind::Text),
        once("implementation", Kind::Address),
        once("init_code_hash", Kind::Bytes),
        once("init_code_bytes", Kind::Int),
        once("timestamp", Kind::Int),
    ],
    indexes: &[],
};

/// A change of code that a contract logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CodeChange {
    kind: &'static str,
    implementation: Option<Address>,
}

pub(super) fn process(block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
    // If two transactions claim to create the same contract, only the first counts. Only a hostile node reports that.
    let mut deployed = BTreeSet::new();
    for transaction in &block.transactions {
        if let Some(created) = transaction.created.filter(|created| deployed.insert(*created)) {
            deployment(block, transaction, created, rows)?;
        }
    }
    for placed in block.block.logs() {
        let Some(change) = change(placed.log) else {
            continue;
        };
        let cells = cells![
            placed.log.address,
            block.number(),
            placed.log_index,
            placed.transaction_index,
            change.kind,
            change.implementation,
            Cell::Null,
            Cell::Null,
            block.timestamp(),
        ];
        rows.push(&CONTRACT_VERSIONS, placed.log_index, cells)?;
    }
    Ok(())
}

fn deployment(
    block: &DecodedBlock,
    transaction: &DecodedTransaction,
    created: Address,
    rows: &mut Rows,
) -> Result<()> {
    let init_code_hash = keccak256(&transaction.input);
    let implementation = clone_implementation(&transaction.input);
    let kind = match implementation {
        Some(_) => "MINIMAL_PROXY",
        None if logs_upgrade(block, transaction, created) => "PROXY",
        None => "CONTRACT",
    };
    let contract = cells![
        created,
        transaction.from,
        transaction.index,
        init_code_hash,
        kind,
        transaction.success,
        block.number(),
    ];
    rows.push(&SMART_CONTRACTS, transaction.index, contract)?;
    let version = cells![
        created,
        block.number(),
        DEPLOYMENT,
        transaction.index,
        "DEPLOYED",
        implementation,
        init_code_hash,
        transaction.input.len(),
        block.timestamp(),
    ];
    rows.push(&CONTRACT_VERSIONS, transaction.index, version)
}

/// The implementation in the init code of a minimal proxy.
fn clone_implementation(init_code: &[u8]) -> Option<Address> {
    let implementation = init_code.strip_prefix(&CLONE_START)?.strip_suffix(&CLONE_END)?;
    Address::try_from(implementation).ok()
}

/// Whether a contract logs its implementation or beacon in the transaction that creates it.
fn logs_upgrade(block: &DecodedBlock, by: &DecodedTransaction, created: Address) -> bool {
    let logs = block.block.receipts.get(by.index).map_or(&[][..], |receipt| &receipt.logs);
    let mut changes = logs.iter().filter(|log| log.address == created).filter_map(change);
    changes.any(|change| change.implementation.is_some())
}

fn change(log: &Log) -> Option<CodeChange> {
    let as_topic = || match log.topics[..] {
        [_, word] if log.data.is_empty() => abi::address(&word),
        _ => None,
    };
    let as_data = || match log.topics[..] {
        [_] if log.data.len() == 32 => abi::address(&abi::word(&log.data, 0)?),
        _ => None,
    };
    let (kind, implementation) = match *log.topics.first()? {
        UPGRADED => ("UPGRADED", Some(as_topic().or_else(as_data)?)),
        BEACON_UPGRADED => ("BEACON_UPGRADED", Some(as_topic()?)),
        // At least: offset of the facets, address, offset of the call.
        DIAMOND_CUT if log.topics.len() == 1 && log.data.len() >= 96 => ("DIAMOND_CUT", None),
        _ => return None,
    };
    Some(CodeChange { kind, implementation })
}
