//! Deposits and withdrawals of stake.

use std::collections::BTreeMap;

use alloy_primitives::{Address, U256, hex, keccak256};
use logmill_chain::Log;

use super::{ExpectedTables, Facts, Text, logs, row};

/// The deposit contract of Ethereum.
const CONTRACT: &str = "00000000219ab540356cbb839cbe05303d7705fa";

/// Whether a log is a deposit. The deposits of the tests are all well-formed.
pub(super) fn deposit(chain_id: u64, log: &Log) -> bool {
    let event = keccak256("DepositEvent(bytes,bytes,bytes,bytes,bytes)");
    chain_id == 1 && log.address.text() == CONTRACT && log.topics[..] == [event]
}

fn wei(gwei: u64) -> U256 {
    U256::from(gwei) * U256::from(1_000_000_000u64)
}

struct Node {
    credentials: String,
    deposited: U256,
    first: u64,
    count: u64,
}

pub(super) fn tables(chain_id: u64, blocks: &[Facts], out: &mut ExpectedTables) {
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    for (block, tx, index, log) in logs(blocks).filter(|(_, _, _, log)| deposit(chain_id, log)) {
        // The parts follow five offsets, each after its length: key, credentials, amount, signature, index.
        let little = |at: usize| u64::from_le_bytes(log.data[at..at + 8].try_into().expect("8"));
        let (node, credentials) =
            (hex::encode(&log.data[192..240]), hex::encode(&log.data[288..320]));
        let (amount, sequence) = (wei(little(352)), little(544));
        let place = row![block.number, 0u8, index, tx.index, "DEPOSIT"];
        let said = row![node, None::<u64>, tx.from, amount, credentials, sequence, block.time];
        out.add("staking_events", [place, said].concat());
        let new = Node { credentials, deposited: U256::ZERO, first: block.number, count: 0 };
        let node = nodes.entry(node).or_insert(new);
        node.deposited += amount;
        node.count += 1;
    }
    for (id, node) in nodes {
        out.add(
            "staking_nodes",
            row![id, node.credentials, node.deposited, node.first, node.count],
        );
    }
    let mut validators: BTreeMap<u64, (U256, Address, u64, u64)> = BTreeMap::new();
    for block in blocks {
        for (position, (index, validator, address, gwei)) in block.withdrawals.iter().enumerate() {
            let none = None::<u64>;
            let place = row![block.number, 1u8, position, none, "WITHDRAWAL", none];
            let said = row![validator, address, wei(*gwei), none, index, block.time];
            out.add("staking_events", [place, said].concat());
            let seen = validators.entry(*validator).or_default();
            *seen = (seen.0 + wei(*gwei), *address, block.number, seen.3 + 1);
        }
    }
    for (validator, (withdrawn, address, last, count)) in validators {
        out.add("staking_validators", row![validator, withdrawn, address, last, count]);
    }
}
