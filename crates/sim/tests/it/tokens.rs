//! Tokens and pools of real blocks: what is derived from their logs fits together.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;

use finalized_log_index::Address;
use flate2::read::GzDecoder;
use logmill_chain::sim::{Shape, SimChain};
use logmill_chain::{Block, Log, Outcome, Receipt};
use logmill_io::Amount;
use logmill_pipeline::derive::{Cell, DecodedBlock, Processor, Rows};
use logmill_pipeline::processors::{self, Settings};
use serde_json::Value;

fn number(value: &Value) -> usize {
    value.as_u64().and_then(|number| usize::try_from(number).ok()).expect("a number")
}

fn parsed<T: std::str::FromStr<Err: std::fmt::Debug>>(value: &Value) -> T {
    value.as_str().expect("a text").parse().expect("well formed")
}

fn log(value: &Value) -> Log {
    let topics = value["topics"].as_array().expect("a list").iter().map(parsed).collect();
    Log { address: parsed(&value["address"]), topics, data: parsed(&value["data"]) }
}

/// The 62 blocks with their own numbers, times and logs; headers and transactions are those of another chain.
fn mainnet(folder: &Path) -> Vec<DecodedBlock> {
    let chain = SimChain::new(1, Shape::mainnet());
    chain.grow(1);
    let like = chain.block(1).expect("just made");
    let mut blocks: BTreeMap<u64, Block> = BTreeMap::new();
    let path = folder.join("mainnet_blocks/pevm_reexec_62_blocks_logs.jsonl.gz");
    let file = File::open(path).expect("the file is there");
    for line in BufReader::new(GzDecoder::new(file)).lines() {
        let value: Value = serde_json::from_str(&line.expect("it unpacks")).expect("JSON");
        let height = value["blockNumber"].as_u64().expect("a number");
        let block = blocks.entry(height).or_insert_with(|| {
            let mut block = Block { transactions: vec![], receipts: vec![], ..(*like).clone() };
            block.at.number = height;
            block.at.timestamp = value["blockTimestamp"].as_u64().expect("a number");
            block
        });
        while block.receipts.len() <= number(&value["transactionIndex"]) {
            let index = block.transactions.len() % like.transactions.len();
            block.transactions.push(like.transactions[index].clone());
            let outcome = Outcome::Status(true);
            let (tx_type, logs) = (like.receipts[index].tx_type, vec![]);
            block.receipts.push(Receipt {
                tx_type,
                outcome,
                cumulative_gas_used: 0,
                logs,
                extra: None,
            });
        }
        assert_eq!(number(&value["logIndex"]), block.log_count(), "whole blocks, in order");
        block.receipts[number(&value["transactionIndex"])].logs.push(log(&value));
    }
    let decoded = |block| DecodedBlock::new(1, Arc::new(block)).expect("it can be read");
    blocks.into_values().map(decoded).collect()
}

/// The rows of every table.
fn derived(blocks: &[DecodedBlock]) -> BTreeMap<&'static str, Vec<Vec<Cell>>> {
    let of_processor = |processor: Arc<dyn Processor>| {
        let mut rows = Rows::new(processor.tables());
        for block in blocks {
            rows.at_block(block.number());
            processor.process(block, &mut rows).expect("rows that fit");
        }
        rows.fold().expect("rows that fold");
        let of_table = |(table, rows): (&logmill_pipeline::derive::Table, &[_])| {
            let cells = |row: &logmill_pipeline::derive::rows::Row| row.cells().to_vec();
            (table.name, rows.iter().map(cells).collect())
        };
        rows.tables().map(of_table).collect::<Vec<_>>()
    };
    processors::all(&Settings::of_chain(1)).into_iter().flat_map(of_processor).collect()
}

fn amount(cell: &Cell) -> Amount {
    let Cell::Amount(amount) = cell else { panic!("{cell:?}") };
    *amount
}

fn address(cell: &Cell) -> Address {
    let Cell::Address(address) = cell else { panic!("{cell:?}") };
    *address
}

fn int(cell: &Cell) -> i64 {
    let Cell::Int(int) = cell else { panic!("{cell:?}") };
    *int
}

fn sum(amounts: impl Iterator<Item = Amount>) -> Amount {
    amounts.fold(Amount::ZERO, |sum, amount| sum.checked_add(amount).expect("it fits"))
}

#[test]
fn transfers_of_real_blocks_are_all_read_and_add_up() {
    let Some(folder) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let tables = derived(&mainnet(&folder));
    // Counted by hand: 4 257 of ERC-20, 205 deposits and 171 withdrawals of wrapped ether; and 10 773 of ERC-721,
    // 18 CryptoKitties, a CryptoBot, 18 singles, a batch of one.
    assert_eq!(tables["ft_transfers"].len(), 4_257 + 205 + 171);
    assert_eq!(tables["nft_transfers"].len(), 10_773 + 18 + 1 + 18 + 1);
    let held: BTreeSet<Address> =
        tables["ft_holdings"].iter().map(|row| address(&row[1])).collect();
    assert!(held.len() > 300, "{}", held.len());
    for row in &tables["ft_tokens"] {
        let token = address(&row[0]);
        let of_token = |row: &&Vec<Cell>| address(&row[1]) == token;
        let supply = sum([amount(&row[4]), -amount(&row[5])].into_iter());
        let held = tables["ft_holdings"].iter().filter(of_token).map(|row| amount(&row[2]));
        assert_eq!(sum(held), supply, "{token}");
        let days = tables["daily_balances"].iter().filter(of_token).map(|row| amount(&row[3]));
        assert_eq!(sum(days), supply, "{token}");
    }
    let moved: i64 = tables["nft_collections"].iter().map(|row| int(&row[4])).sum();
    assert_eq!(usize::try_from(moved).expect("few"), tables["nft_transfers"].len());
    let owned: i64 = tables["nft_ownership"].iter().map(|row| int(&row[4])).sum();
    assert_eq!(usize::try_from(owned).expect("few"), 10_773 + 18 + 1);
}

#[test]
fn what_real_pools_say_is_what_their_tokens_did() {
    let Some(folder) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let tables = derived(&mainnet(&folder));
    let place = |row: &[Cell], tx: usize| (int(&row[0]), int(&row[tx]));
    let moved: BTreeSet<_> = tables["ft_transfers"]
        .iter()
        .map(|row| (place(row, 2), address(&row[4]), address(&row[5]), amount(&row[6])))
        .collect();
    let mut checked: BTreeMap<(String, String), usize> = BTreeMap::new();
    for row in &tables["defi_events"] {
        let (Cell::Text(dex), Cell::Text(kind)) = (&row[6], &row[7]) else { panic!("{row:?}") };
        *checked.entry((dex.clone(), kind.clone())).or_default() += 1;
        if kind != "Swap" || dex == "curve" {
            continue;
        }
        let (pool, transaction) = (address(&row[5]), place(row, 3));
        // What a pool says it got came from someone, and what it says it gave went to someone.
        for (at, inward) in [(12, true), (13, false), (14, true), (15, false)] {
            let stated = amount(&row[at]);
            let found = moved.iter().any(|(at, from, to, amount)| {
                let party = if inward { to } else { from };
                *at == transaction && *party == pool && *amount == stated
            });
            assert!(found || stated == Amount::ZERO, "{stated} of {row:?}");
        }
    }
    let count = |dex: &str, kind: &str| checked.get(&(dex.into(), kind.into())).copied();
    assert_eq!(count("uniswap_v2", "Swap"), Some(454));
    assert_eq!(count("uniswap_v3", "Swap"), Some(95));
    assert_eq!(count("curve", "Swap"), Some(10));
    assert_eq!(count("uniswap_v2", "AddLiquidity"), Some(8));
    assert_eq!(tables["defi_pairs"].len(), 1);
}
