//! Properties of all processors.

use std::collections::BTreeSet;

use logmill_chain::sim::{Shape, SimChain};
use proptest::prelude::*;

use super::*;
use crate::derive::block_builder::{self, BlockBuilder};
use crate::derive::{BlockParts, Cell, DecodedBlock, Phase};

mod hostile;
mod naive;

use hostile::hostile_logs;
use naive::NaiveTables;

/// All folded rows of all processors, by table and key.
fn derived(blocks: &[&DecodedBlock]) -> Vec<(&'static str, Vec<Vec<Cell>>)> {
    let mut all_rows = Vec::new();
    for processor in all(&Settings::of_chain(1)) {
        let rows = block_builder::rows(&*processor, blocks.iter().copied());
        for table in processor.tables() {
            all_rows.push((table.name, block_builder::table(&rows, table)));
        }
    }
    all_rows
}

fn simulated(seed: u64, count: u64) -> Vec<DecodedBlock> {
    let chain = SimChain::new(seed, Shape::sparse());
    chain.grow(count);
    let blocks = (0..=count).filter_map(|number| chain.block(number));
    blocks.map(|block| DecodedBlock::new(1, block).expect("it can be read")).collect()
}

fn of_table<'a>(derived: &'a [(&str, Vec<Vec<Cell>>)], name: &str) -> &'a [Vec<Cell>] {
    derived.iter().find(|(table, _)| *table == name).map(|(_, rows)| &rows[..]).expect("its table")
}

#[test]
fn names_are_unique_tables_have_one_writer_and_phases_come_in_order() {
    let all = all(&Settings::of_chain(1));
    let names: BTreeSet<&str> = all.iter().map(|processor| processor.name()).collect();
    assert_eq!(names.len(), all.len());
    let tables: Vec<_> = all.iter().flat_map(|processor| processor.tables()).collect();
    let unique: BTreeSet<&str> = tables.iter().map(|table| table.name).collect();
    assert_eq!(unique.len(), tables.len());
    tables.iter().for_each(|table| table.check().unwrap());
    assert!(all.is_sorted_by_key(|processor| processor.phase()));
}

/// The names of a phase's processors, sorted.
fn of_phase(phase: Phase) -> Vec<&'static str> {
    let all = all(&Settings::of_chain(1));
    let names = all.iter().filter(|it| it.phase() == phase).map(|it| it.name());
    let mut names: Vec<&str> = names.collect();
    names.sort_unstable();
    names
}

#[test]
fn the_phases_are_those_of_the_document() {
    let one = [
        "accounts_worker",
        "defi_worker",
        "evm_worker",
        // Belongs to the collector, and is not in the document.
        "fees_worker",
        "meta_worker",
        "staking_worker",
        "token_worker",
        "tx_contracts_worker",
        "tx_metrics_worker",
    ];
    assert_eq!(of_phase(Phase::One), one);
    let two = ["daily_balance_worker", "ft_holdings_worker", "nft_ownership_worker"];
    assert_eq!(of_phase(Phase::Two), two);
}

#[test]
fn settings_are_in_the_parameters_of_the_processors_that_use_them() {
    let changed = |change: fn(&mut Settings)| -> Vec<&'static str> {
        let mut settings = Settings::of_chain(1);
        let before = all(&settings);
        change(&mut settings);
        let pairs = before.iter().zip(all(&settings));
        pairs.filter(|(a, b)| a.parameters() != b.parameters()).map(|(a, _)| a.name()).collect()
    };
    let of_tokens = changed(|settings| settings.tokens.wrapped_native.clear());
    for name in [
        "token_worker",
        "ft_holdings_worker",
        "nft_ownership_worker",
        "daily_balance_worker",
        "accounts_worker",
        "meta_worker",
        "tx_contracts_worker",
    ] {
        assert!(of_tokens.contains(&name), "{name}");
    }
    assert!(!of_tokens.contains(&"fees_worker"));
    assert_eq!(changed(|settings| settings.fees.collectors.clear()), ["fees_worker"]);
}

#[test]
fn a_simulated_chain_fills_every_table_that_it_has_events_for() {
    let blocks = simulated(1, 60);
    let found = derived(&blocks.iter().collect::<Vec<_>>());
    for name in [
        "ft_transfers",
        "nft_transfers",
        "ft_tokens",
        "nft_collections",
        "fee_events",
        "defi_events",
        "defi_reserves",
        "defi_pair_stats",
        "ft_holdings",
        "nft_ownership",
        "nft_balances",
        "daily_balances",
    ] {
        assert!(!of_table(&found, name).is_empty(), "{name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(12)))]

    #[test]
    fn token_tables_are_those_of_a_naive_fold(seed in any::<u64>()) {
        let blocks = simulated(seed, 40);
        let found = derived(&blocks.iter().collect::<Vec<_>>());
        let naive = NaiveTables::of(&blocks);
        let check = |name, expected: Vec<Vec<Cell>>| {
            let mut found = of_table(&found, name).to_vec();
            found.sort_by_cached_key(|row| format!("{row:?}"));
            let mut expected = expected;
            expected.sort_by_cached_key(|row| format!("{row:?}"));
            prop_assert_eq!(found, expected, "{}", name);
            Ok(())
        };
        check("ft_holdings", naive.holdings())?;
        check("daily_balances", naive.daily())?;
        check("nft_ownership", naive.owners())?;
        check("nft_balances", naive.quantities())?;
        prop_assert_eq!(of_table(&found, "ft_transfers").len(), naive.ft_transfers);
        prop_assert_eq!(of_table(&found, "nft_transfers").len(), naive.nft_transfers);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(logmill_io::proof_cases(256)))]

    #[test]
    fn hostile_logs_yield_rows_that_fit_and_fold_in_any_order(
        logs in prop::collection::vec(prop::collection::vec(hostile_logs(), 0..12), 1..6),
        order in any::<prop::sample::Index>(),
    ) {
        let block = |(number, logs): (u64, Vec<_>)| {
            let (first, second) = logs.split_at(logs.len() / 2);
            let builder = BlockBuilder::new(number).time(number * 40_000);
            builder.transaction(first.to_vec()).transaction(second.to_vec()).decoded()
        };
        let blocks: Vec<DecodedBlock> = (100..).zip(logs).map(block).collect();
        let straight: Vec<&DecodedBlock> = blocks.iter().collect();
        let mut turned: Vec<&DecodedBlock> = blocks.iter().rev().collect();
        turned.rotate_left(order.index(blocks.len()));
        prop_assert_eq!(derived(&straight), derived(&turned));
    }
}

#[test]
fn all_transfers_of_a_large_block_are_counted() {
    use alloy_primitives::U256;
    let token = block_builder::account(3);
    let party =
        |number: u64| block_builder::account(u8::try_from(1 + number % 200).expect("small"));
    let logs = (0..10_000)
        .map(|number| block_builder::erc20(token, party(number), party(number + 1), U256::MAX));
    let block = BlockBuilder::new(1).transaction(logs).decoded();
    let found = derived(&[&block]);
    assert_eq!(of_table(&found, "ft_transfers").len(), 10_000);
    assert_eq!(of_table(&found, "ft_holdings").len(), 200);
    let counts = of_table(&found, "ft_holdings").iter().map(|row| row[3].clone());
    assert!(counts.into_iter().all(|count| count == Cell::from(100_u64)));
}

#[test]
fn processors_that_read_only_logs_need_no_transactions() {
    let (settings, chain) = (Settings::of_chain(1), SimChain::new(3, Shape::mainnet()));
    chain.grow(6);
    for processor in all(&settings) {
        for number in 0..=6 {
            let rows = |reads| {
                let block = chain.block(number).expect("it exists");
                let block = DecodedBlock::with(1, block, &settings.tokens, reads).expect("good");
                block_builder::rows(&*processor, [&block])
            };
            let (least, all) = (rows(processor.reads()), rows(BlockParts::Everything));
            for ((table, least), (_, all)) in least.tables().zip(all.tables()) {
                assert_eq!(least, all, "{} of block {number}", table.name);
            }
        }
    }
}
