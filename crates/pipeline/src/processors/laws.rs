//! Laws of the transaction processors: their folds equal naive counts, and no input bytes can break them.
//!
//! Guarantees: the naive counts come from a node's JSON answers, by independent code. Leaves to others: decoding token
//! transfers, which are taken from the block.

mod hostile;

use std::collections::BTreeMap;

use alloy_primitives::{Address, U64, U256};
use logmill_chain::sim::{Fork, Shape, SimChain, rpc};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::accounts::{ACCOUNTS, Accounts};
use super::meta::{ACCOUNT_STATS, ADDRESS_TRANSACTIONS, Meta, PAYER};
use super::tx_metrics::{TX_METRICS, TxMetrics};
use crate::cells;
use crate::derive::decoded_block_builder::{check_keys, rows_of, table};
use crate::derive::{Cell, DecodedBlock, Processor, Rows};

/// Length of a simulated chain.
const BLOCKS: u64 = 24;

fn chain(seed: u64, fork: u8) -> SimChain {
    let fork = [Fork::Homestead, Fork::London, Fork::Prague][usize::from(fork % 3)];
    let chain = SimChain::new(seed, Shape::sparse().at(fork));
    chain.grow(BLOCKS);
    chain
}

fn decoded(chain: &SimChain) -> Vec<DecodedBlock> {
    let block = |number| {
        let block = chain.block(number).expect("a block");
        DecodedBlock::new(chain.settings().chain_id, block).expect("it is read")
    };
    (1..=BLOCKS).map(block).collect()
}

/// The rows of two parts of the blocks, each folded, then appended and folded again.
fn in_parts(processor: &dyn Processor, blocks: &[DecodedBlock], cut: usize) -> Rows {
    let (first, second) = blocks.split_at(cut.min(blocks.len()));
    let mut rows = rows_of(processor, first);
    rows.append(rows_of(processor, second));
    rows.fold().expect("parts fold");
    check_keys(&rows);
    rows
}

/// A node's answers for a block: the block, and its receipts.
fn node_answers(chain: &SimChain, number: u64) -> (Value, Vec<Value>) {
    let ask = |method: &str, params: Value| {
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let answer: Value =
            serde_json::from_str(&rpc::answer(chain, &request.to_string())).expect("JSON");
        answer["result"].clone()
    };
    let number = format!("{number:#x}");
    let block = ask("eth_getBlockByNumber", json!([number, false]));
    let receipts = ask("eth_getBlockReceipts", json!([number]));
    (block, receipts.as_array().expect("receipts").clone())
}

fn address(value: &Value) -> Option<Address> {
    serde_json::from_value(value.clone()).ok()
}

fn quantity(value: &Value) -> Option<u64> {
    serde_json::from_value::<U64>(value.clone()).ok().map(|number| number.to())
}

fn token_parties(block: &DecodedBlock) -> impl Iterator<Item = (usize, Address)> + '_ {
    let ft = block.tokens.ft.iter();
    let ft = ft.flat_map(|moved| [moved.from, moved.to].map(|who| (moved.transaction_index, who)));
    let nft = block.tokens.nft.iter();
    let nft =
        nft.flat_map(|moved| [moved.from, moved.to].map(|who| (moved.transaction_index, who)));
    ft.chain(nft)
}

/// Addresses in a transaction, according to the node's receipt.
fn parties(block: &DecodedBlock, index: usize, receipt: &Value) -> Vec<Address> {
    let named = [&receipt["from"], &receipt["to"]].map(address).into_iter().flatten();
    let created = address(&receipt["contractAddress"]).filter(|_| receipt["status"] != "0x0");
    let tokens = token_parties(block).filter(|(at, _)| *at == index).map(|(_, who)| who);
    let signed = block.transactions[index].authorities.iter().copied();
    let mut all: Vec<Address> = named.chain(created).chain(tokens).chain(signed).collect();
    all.retain(|who| !who.is_zero());
    all.sort_unstable();
    all.dedup();
    all
}

fn naive_stats(chain: &SimChain, blocks: &[DecodedBlock]) -> Vec<Vec<Cell>> {
    let mut stats: BTreeMap<Address, (u64, u64, U256, u64)> = BTreeMap::new();
    for block in blocks {
        let (_, receipts) = node_answers(chain, block.number());
        for (index, receipt) in receipts.iter().enumerate() {
            for who in parties(block, index, receipt) {
                let counted = stats.entry(who).or_default();
                counted.0 += 1;
                if address(&receipt["from"]) == Some(who) {
                    counted.1 += 1;
                    counted.2 += U256::from(quantity(&receipt["gasUsed"]).expect("gas"));
                }
                counted.3 = counted.3.max(block.number());
            }
        }
    }
    stats
        .into_iter()
        .map(|(who, (all, sent, gas, last))| cells![who, all, sent, gas, last])
        .collect()
}

fn naive_accounts(chain: &SimChain, blocks: &[DecodedBlock]) -> Vec<Vec<Cell>> {
    let mut accounts: BTreeMap<Address, (u64, u64, bool, bool)> = BTreeMap::new();
    for block in blocks {
        let (answer, receipts) = node_answers(chain, block.number());
        let mut see = |who: Address, is_contract: bool, is_signer: bool| {
            let at = block.number();
            let seen = accounts.entry(who).or_insert((at, at, false, false));
            *seen = (seen.0.min(at), seen.1.max(at), seen.2 | is_contract, seen.3 | is_signer);
        };
        for (index, receipt) in receipts.iter().enumerate() {
            for who in parties(block, index, receipt) {
                see(who, false, address(&receipt["from"]) == Some(who));
            }
            for authority in &block.transactions[index].authorities {
                see(*authority, false, true);
            }
            if let Some(created) = address(&receipt["contractAddress"])
                && receipt["status"] == "0x1"
            {
                see(created, true, false);
            }
            for log in receipt["logs"].as_array().expect("logs") {
                see(address(&log["address"]).expect("a contract"), true, false);
            }
        }
        for withdrawal in answer["withdrawals"].as_array().into_iter().flatten() {
            see(address(&withdrawal["address"]).expect("an address"), false, false);
        }
        see(address(&answer["miner"]).expect("a miner"), false, false);
    }
    let row = |(who, (first, last, is_contract, is_signer))| {
        cells![who, first, last, is_contract, is_signer]
    };
    accounts.into_iter().map(row).collect()
}

fn naive_metrics(chain: &SimChain, blocks: &[DecodedBlock]) -> Vec<Vec<Cell>> {
    let mut metrics = Vec::new();
    for block in blocks {
        let (answer, receipts) = node_answers(chain, block.number());
        let base_fee = U256::from(quantity(&answer["baseFeePerGas"]).unwrap_or(0));
        for (index, receipt) in receipts.iter().enumerate() {
            let gas = quantity(&receipt["gasUsed"]).expect("gas");
            let price: U256 =
                serde_json::from_value(receipt["effectiveGasPrice"].clone()).expect("a price");
            let of_gas = |price: U256| U256::from(gas) * price;
            metrics.push(cells![
                block.number(),
                index,
                receipt["logs"].as_array().expect("logs").len(),
                gas,
                block.transactions[index].gas_limit,
                price,
                of_gas(price),
                of_gas(base_fee),
                of_gas(price - base_fee),
                Cell::Null,
                Cell::Null,
                quantity(&receipt["status"]),
            ]);
        }
    }
    metrics
}

/// In the order of [`table`].
fn sorted(mut rows: Vec<Vec<Cell>>, key_len: usize) -> Vec<Vec<Cell>> {
    rows.sort_by_cached_key(|cells| format!("{:?}", &cells[..key_len]));
    rows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(12)))]

    #[test]
    fn folds_equal_naive_counts_in_any_block_order(
        seed in any::<u64>(),
        fork in 0u8..3,
        order in Just((0..BLOCKS).collect::<Vec<u64>>()).prop_shuffle(),
        cut in 0..=24usize,
    ) {
        let chain = chain(seed, fork);
        let blocks = decoded(&chain);
        let expected = [
            (&ACCOUNT_STATS, naive_stats(&chain, &blocks)),
            (&ACCOUNTS, naive_accounts(&chain, &blocks)),
            (&TX_METRICS, naive_metrics(&chain, &blocks)),
        ];
        let processors: [&dyn Processor; 3] = [&Meta::default(), &Accounts::default(), &TxMetrics];
        for (processor, (of, expected)) in processors.into_iter().zip(expected) {
            let mut blocks: Vec<(u64, DecodedBlock)> =
                order.iter().copied().zip(decoded(&chain)).collect();
            blocks.sort_by_key(|(order, _)| *order);
            let blocks: Vec<_> = blocks.into_iter().map(|(_, block)| block).collect();
            let rows = in_parts(processor, &blocks, cut);
            prop_assert_eq!(table(&rows, of), sorted(expected, of.key_len()));
        }
    }

    #[test]
    fn counts_of_an_account_are_its_rows(seed in any::<u64>(), fork in 0u8..3) {
        let rows = rows_of(&Meta::default(), &decoded(&chain(seed, fork)));
        let mut counted: BTreeMap<Address, (i64, i64)> = BTreeMap::new();
        for cells in table(&rows, &ADDRESS_TRANSACTIONS) {
            let (Cell::Address(who), Cell::Int(roles)) = (&cells[0], &cells[3]) else {
                panic!("{cells:?}");
            };
            let counts = counted.entry(*who).or_default();
            counts.0 += 1;
            counts.1 += i64::from(roles & i64::from(PAYER) != 0);
        }
        let stats = table(&rows, &ACCOUNT_STATS).into_iter();
        let stats: Vec<_> = stats.map(|cells| cells[..3].to_vec()).collect();
        let counted = counted.into_iter().map(|(who, (all, sent))| cells![who, all, sent]);
        prop_assert_eq!(stats, sorted(counted.collect(), 1));
    }
}
