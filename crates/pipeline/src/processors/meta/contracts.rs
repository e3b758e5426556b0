//! Contracts that transactions deployed, and how their code changed since.
//!
//! | `kind` of `smart_contracts` | if |
//! |---|---|
//! | `MINIMAL_PROXY` | the init code is that of EIP-1167, byte by byte; it names its implementation |
//! | `PROXY` | it said `Upgraded` or `BeaconUpgraded` of itself while it was created |
//! | `CONTRACT` | else |
//!
//! | `kind` of `contract_versions` | if | `implementation` |
//! |---|---|---|
//! | `DEPLOYED` | a transaction created it; `event_index` is -1, as no log tells it | that of a minimal proxy |
//! | `UPGRADED` | it said `Upgraded(address)` (EIP-1967), the address as a topic or, of old, as data | the address |
//! | `BEACON_UPGRADED` | it said `BeaconUpgraded(address)` (EIP-1967) | the beacon, which names the implementation |
//! | `DIAMOND_CUT` | it said `DiamondCut(…)` (EIP-2535) | null: there are many |
//!
//! `status` is that of the creating transaction: null where the receipt does not tell, as before Byzantium, and then
//! the contract may not be there.
//!
//! Guarantees: a log counts only in the shape of its event. Leaves to others: code, which only a node has, and
//! contracts that other contracts created, which no block tells.

use std::collections::BTreeSet;

use alloy_primitives::{Address, B256, b256, hex, keccak256};
use logmill_chain::Log;

use crate::cells;
use crate::derive::decoded::{DecodedTransaction, abi};
use crate::derive::table::{Fold, folded, key, once};
use crate::derive::{Cell, DecodedBlock, Kind, Rows, Table};
use crate::error::Result;

/// The topic of `Upgraded(address)`.
pub const UPGRADED: B256 =
    b256!("0xbc7cd75a20ee27fd9adebab32041f755214dbc6bffa90cc0225b39da2e5c2d3b");
/// The topic of `BeaconUpgraded(address)`.
pub const BEACON_UPGRADED: B256 =
    b256!("0x1cf3b03a6cf19fa2baba4df148e9dcabedea7f8a5c07840e207e5c089be95d3e");
/// The topic of `DiamondCut((address,uint8,bytes4[])[],address,bytes)`.
pub const DIAMOND_CUT: B256 =
    b256!("0x8faa70878671ccd212d20771b795c50af8fd3ff6cf27f4bde57e5d4de0aeb673");

/// The init code of EIP-1167 before and after the address of the implementation.
const CLONE_START: [u8; 20] = hex!("3d602d80600a3d3981f3363d3d373d3d3d363d73");
const CLONE_END: [u8; 15] = hex!("5af43d82803e903d91602b57fd5bf3");

/// Where a deployment is among the events of its block: before all.
const DEPLOYMENT: i64 = -1;

/// One row a contract.
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

/// One row a change of code.
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

/// A change that a contract tells of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Change {
    kind: &'static str,
    implementation: Option<Address>,
}

/// Adds the rows of a block.
pub(super) fn process(block: &DecodedBlock, rows: &mut Rows) -> Result<()> {
    // Of two transactions that claim to create the same contract, one does. Only hostile nodes have them.
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
    let implementation = cloned(&transaction.input);
    let kind = match implementation {
        Some(_) => "MINIMAL_PROXY",
        None if says_upgraded(block, transaction, created) => "PROXY",
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

/// The implementation that the init code of a minimal proxy names.
fn cloned(init_code: &[u8]) -> Option<Address> {
    let implementation = init_code.strip_prefix(&CLONE_START)?.strip_suffix(&CLONE_END)?;
    Address::try_from(implementation).ok()
}

/// Whether a contract says in the transaction that creates it where its code is.
fn says_upgraded(block: &DecodedBlock, by: &DecodedTransaction, created: Address) -> bool {
    let logs = block.block.receipts.get(by.index).map_or(&[][..], |receipt| &receipt.logs);
    let mut changes = logs.iter().filter(|log| log.address == created).filter_map(change);
    changes.any(|change| change.implementation.is_some())
}

fn change(log: &Log) -> Option<Change> {
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
        // Offset of the facets, address, offset of the call.
        DIAMOND_CUT if log.topics.len() == 1 && log.data.len() >= 96 => ("DIAMOND_CUT", None),
        _ => return None,
    };
    Some(Change { kind, implementation })
}
