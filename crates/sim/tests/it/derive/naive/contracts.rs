//! Contracts: which were deployed and changed, which a transaction touched, and what it did.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, hex, keccak256};
use logmill_chain::Log;

use super::{ExpectedTables, Facts, Tx, row, staking, tokens, topic_address, word_address};

/// Tag, number of topics and signature of the events on the test chains.
const TAGGED: [(&str, usize, &str); 10] = [
    ("SWAP", 3, "Swap(address,uint256,uint256,uint256,uint256,address)"),
    ("SWAP", 3, "Swap(address,address,int256,int256,uint160,uint128,int24)"),
    ("SWAP", 3, "Swap(bytes32,address,int128,int128,uint160,uint128,int24,uint24)"),
    ("SWAP", 2, "TokenExchange(address,int128,uint256,int128,uint256)"),
    ("LIQUIDITY", 2, "Mint(address,uint256,uint256)"),
    ("LIQUIDITY", 3, "Burn(address,uint256,uint256,address)"),
    ("LIQUIDITY", 4, "Mint(address,address,int24,int24,uint128,uint256,uint256)"),
    ("LIQUIDITY", 4, "Burn(address,int24,int24,uint128,uint256,uint256)"),
    ("LIQUIDITY", 3, "ModifyLiquidity(bytes32,address,int24,int24,int256,bytes32)"),
    ("MARKETPLACE", 4, "PunkBought(uint256,uint256,address,address)"),
];

pub(super) fn tables(chain_id: u64, blocks: &[Facts], out: &mut ExpectedTables) {
    let mut contracts: BTreeMap<Address, Vec<String>> = BTreeMap::new();
    for block in blocks {
        for tx in &block.transactions {
            if let Some(created) = tx.created {
                let row = deployment(block, tx, created, out);
                contracts.entry(created).or_insert(row);
            }
            for (index, log) in &tx.logs {
                if let Some((kind, implementation)) = change(log) {
                    let place = row![log.address, block.number, index, tx.index];
                    let none = None::<u64>;
                    let said = row![kind, implementation, none, none, block.time];
                    out.add("contract_versions", [place, said].concat());
                }
            }
            touched(block, tx, out);
        }
    }
    contracts.into_values().for_each(|row| out.add("smart_contracts", row));
    tags(chain_id, blocks, out);
}

/// Adds the version of a new contract, and returns the row of the contract.
fn deployment(block: &Facts, tx: &Tx, created: Address, out: &mut ExpectedTables) -> Vec<String> {
    let text = hex::encode(&tx.input);
    let clone = text
        .strip_prefix("3d602d80600a3d3981f3363d3d373d3d3d363d73")
        .and_then(|rest| rest.strip_suffix("5af43d82803e903d91602b57fd5bf3"));
    let says = tx.logs.iter().any(|(_, log)| {
        log.address == created && change(log).is_some_and(|(_, target)| target.is_some())
    });
    let kind = match (clone, says) {
        (Some(_), _) => "MINIMAL_PROXY",
        (None, true) => "PROXY",
        (None, false) => "CONTRACT",
    };
    let hash = keccak256(&tx.input);
    let place = row![created, block.number, -1, tx.index];
    let said = row!["DEPLOYED", clone, hash, tx.input.len(), block.time];
    out.add("contract_versions", [place, said].concat());
    row![created, tx.from, tx.index, hash, kind, tx.success, block.number]
}

/// The code change that a log reports, and the new implementation, if any.
fn change(log: &Log) -> Option<(&'static str, Option<Address>)> {
    let topic = *log.topics.first()?;
    let shape = (log.topics.len(), log.data.len());
    let indexed = || Some(topic_address(log, 1));
    if topic == keccak256("Upgraded(address)") {
        match shape {
            (2, 0) => Some(("UPGRADED", indexed())),
            (1, 32) => Some(("UPGRADED", Some(word_address(log, 0)))),
            _ => None,
        }
    } else if topic == keccak256("BeaconUpgraded(address)") {
        (shape == (2, 0)).then(|| ("BEACON_UPGRADED", indexed()))
    } else if topic == keccak256("DiamondCut((address,uint8,bytes4[])[],address,bytes)") {
        Some(("DIAMOND_CUT", None))
    } else {
        None
    }
}

fn touched(block: &Facts, tx: &Tx, out: &mut ExpectedTables) {
    let writers: BTreeSet<Address> = tx.logs.iter().map(|(_, log)| log.address).collect();
    let called = tx.to.filter(|to| !tx.input.is_empty() || writers.contains(to));
    let mut add = |contract: Address, source: &str| {
        out.add("tx_contracts", row![block.number, tx.index, contract, source]);
    };
    tx.created.into_iter().for_each(|it| add(it, "create"));
    called.into_iter().for_each(|it| add(it, "call"));
    for writer in writers {
        if Some(writer) != called && Some(writer) != tx.created {
            add(writer, "log");
        }
    }
}

fn tags(chain_id: u64, blocks: &[Facts], out: &mut ExpectedTables) {
    let mut all: BTreeSet<(u64, usize, &'static str)> = BTreeSet::new();
    for it in tokens::moved(blocks) {
        let mut add = |tag| all.insert((it.number, it.transaction, tag));
        add(match (it.standard, it.kind(), it.wraps) {
            (0, 0, _) => "FT_TRANSFER",
            (_, 0, _) => "NFT_TRANSFER",
            (_, 1, true) => "WRAP",
            (_, 1, false) => "MINT",
            (_, _, true) => "UNWRAP",
            (_, _, false) => "BURN",
        });
        if it.standard != 0 {
            add("NFT");
        }
    }
    for block in blocks {
        for tx in &block.transactions {
            let (failed, quiet) = (tx.success == Some(false), tx.logs.is_empty());
            let pays = tx.to.is_some() && !tx.value.is_zero() && tx.input.is_empty();
            let rules = [
                (failed, "FAILED"),
                (tx.created.is_some(), "DEPLOY"),
                (tx.kind == 3, "BLOB"),
                (tx.kind == 4, "SET_CODE"),
                (pays && quiet && !failed, "TRANSFER"),
            ];
            let of_rules = rules.into_iter().filter(|(holds, _)| *holds).map(|(_, tag)| tag);
            let of_logs = tx.logs.iter().flat_map(|(_, log)| of_log(chain_id, log));
            all.extend(of_rules.chain(of_logs).map(|tag| (block.number, tx.index, tag)));
        }
    }
    for (number, index, tag) in all {
        out.add("tx_tags", row![number, index, tag]);
    }
}

fn of_log(chain_id: u64, log: &Log) -> Vec<&'static str> {
    let (topic, count) = (log.topics.first().copied(), log.topics.len());
    let named = |signature: &str| topic == Some(keccak256(signature));
    let mut tags = Vec::new();
    let approves = named("Approval(address,address,uint256)") && count >= 3
        || named("ApprovalForAll(address,address,bool)") && count == 3;
    if approves && !topic_address(log, 2).is_zero() {
        tags.push("APPROVAL");
    }
    if named("FeesCollected(address,address,uint256,uint256)") && count == 3
        || named("FeesForwarded(address,(address,uint256)[])") && count == 2
    {
        tags.push("FEE");
    }
    if staking::deposit(chain_id, log) {
        tags.push("STAKING");
    }
    let tagged = TAGGED.iter().filter(|(_, topics, event)| *topics == count && named(event));
    tags.extend(tagged.map(|(tag, _, _)| *tag));
    tags
}
