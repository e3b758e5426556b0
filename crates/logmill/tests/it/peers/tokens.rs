//! Tables derived from a node's blocks equal what its contracts report.

use std::collections::BTreeMap;
use std::sync::Arc;

use alloy_primitives::{Address, U256};
use logmill_chain::evm::{EvmSettings, EvmSource, NodeSettings};
use logmill_chain::{BlockSource, VerifyLevel};
use logmill_io::wire::{Endpoint, HttpClient};
use logmill_io::{Amount, OsEntropy, SystemClock};
use logmill_pipeline::derive::rows::amount;
use logmill_pipeline::derive::{BlockParts, Cell, DecodedBlock, Rows};
use logmill_pipeline::processors::{self, Settings};
use serde_json::json;

use super::market::{COLLECTOR, HOLDERS, ITEMS, Market, WETH, word_of};

type Tables = BTreeMap<&'static str, Vec<Vec<Cell>>>;

/// Fetches and decodes all blocks of a node.
fn blocks(url: &str, head: u64, settings: &Settings) -> Vec<DecodedBlock> {
    let node = NodeSettings::new(Endpoint::parse(url).expect("an address"));
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    let client = HttpClient::new(Arc::clone(&clock)).expect("a client");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let found = runtime.expect("a runtime").block_on(async {
        let source = EvmSource::new(vec![node], EvmSettings::new("test"), &client, clock, &entropy);
        source.expect("fine settings").blocks(1..head + 1).await.expect("blocks")
    });
    assert!(found.iter().all(|block| block.verified == VerifyLevel::Full));
    let decoded = |block| {
        DecodedBlock::with(31_337, Arc::new(block), &settings.tokens, BlockParts::Everything)
    };
    found.into_iter().map(|block| decoded(block).expect("it can be read")).collect()
}

fn derived(blocks: &[DecodedBlock], settings: &Settings) -> Tables {
    let mut tables = Tables::new();
    for processor in processors::all(settings) {
        let mut rows = Rows::new(processor.tables());
        for block in blocks {
            rows.at_block(block.number());
            processor.process(block, &mut rows).expect("rows that fit");
        }
        rows.fold().expect("rows that fold");
        for (table, rows) in rows.tables() {
            tables.insert(table.name, rows.iter().map(|row| row.cells().to_vec()).collect());
        }
    }
    tables
}

fn address(text: &str) -> Address {
    text.parse().expect("an address")
}

fn number(number: u64) -> U256 {
    U256::from(number)
}

/// The value of the row with this key; zero without a row.
fn held(rows: &[Vec<Cell>], key: &[Cell]) -> Amount {
    let row = rows.iter().find(|row| row.starts_with(key));
    row.map_or(Amount::ZERO, |row| match &row[key.len()] {
        Cell::Amount(amount) => *amount,
        other => panic!("no amount: {other:?}"),
    })
}

fn holders(market: &Market) -> Vec<Address> {
    let numbered = (1..=HOLDERS).map(|holder| Address::from_word(number(holder).into()));
    let persons = market.accounts.iter().map(|text| address(text));
    numbered.chain(persons).chain([address(COLLECTOR)]).collect()
}

fn check_coins(market: &Market, tables: &Tables) {
    for token in [&*market.coin, WETH] {
        let mut sum = Amount::ZERO;
        for holder in holders(market) {
            let balance = market.ask(token, "balanceOf(address)", &[word_of(holder)]);
            let ours = held(&tables["ft_holdings"], &[holder.into(), address(token).into()]);
            assert_eq!(ours, amount(balance), "{holder} of {token}");
            sum = sum.checked_add(ours).expect("it fits");
        }
        let supply = market.ask(token, "totalSupply()", &[]);
        assert_eq!(sum, amount(supply), "nobody else has any of {token}");
        let key = [Cell::from(address(token))];
        let counted = tables["ft_tokens"].iter().find(|row| row.starts_with(&key));
        let Some([_, _, _, _, Cell::Amount(minted), Cell::Amount(burned)]) =
            counted.map(|row| &row[..])
        else {
            panic!("no catalogue of {token}");
        };
        assert_eq!(minted.checked_add(-*burned), Some(sum), "{token}");
    }
}

fn check_items(market: &Market, tables: &Tables) {
    let (mut burnt, mut several) = (0, 0);
    for id in (1..=ITEMS).map(number) {
        let owner: U256 = market.ask(&market.deed, "ownerOf(uint256)", &[id]);
        let key = [Cell::from(address(&market.deed)), Cell::from(id)];
        let ours = tables["nft_ownership"].iter().find(|row| row.starts_with(&key));
        let ours = ours.map_or(Cell::from(Address::ZERO), |row| row[2].clone());
        assert_eq!(ours, Address::from_word(owner.into()).into(), "deed {id}");
        burnt += usize::from(owner.is_zero());
        for holder in holders(market) {
            let arguments = [word_of(holder), id];
            let balance = market.ask(&market.goods, "balanceOf(address,uint256)", &arguments);
            let key = [address(&market.goods).into(), id.into(), holder.into()];
            assert_eq!(held(&tables["nft_balances"], &key), amount(balance), "{id} of {holder}");
            several += usize::from(balance > U256::ONE);
        }
    }
    assert!(burnt > 0 && several > 0, "{burnt} burnt, {several} several times");
}

fn check_fees(market: &Market, tables: &Tables) {
    let mut fees: BTreeMap<(Address, Address), Amount> = BTreeMap::new();
    for row in &tables["fee_events"] {
        let (Cell::Address(token), Cell::Address(integrator), Cell::Amount(fee)) =
            (&row[6], &row[7], &row[8])
        else {
            panic!("{row:?}");
        };
        let sum = fees.entry((*integrator, *token)).or_default();
        *sum = sum.checked_add(*fee).expect("it fits");
    }
    let collected = "getTokenBalance(address,address)";
    for ((integrator, token), sum) in &fees {
        let theirs = market.ask(COLLECTOR, collected, &[word_of(*integrator), word_of(*token)]);
        if *integrator == address(&market.accounts[1]) {
            // Withdrawn; that does not change the earnings.
            assert_eq!((theirs, *token), (U256::ZERO, address(&market.coin)));
            assert!(*sum > Amount::ZERO);
            continue;
        }
        assert_eq!(*sum, amount(theirs), "{integrator} in {token}");
    }
    assert!(fees.len() > 40, "{} integrators and tokens", fees.len());
    assert!(tables["fee_forwards"].len() > 20);
}

#[test]
fn holdings_owners_and_fees_equal_those_of_the_contracts() {
    let market = Market::new();
    market.grow(12, 1);
    let rpc = market.anvil.rpc();
    let mut settings = Settings::of_chain(31_337);
    settings.fees.forwarders = vec![address(&market.forwarder)];
    let check = || {
        let head = rpc.head();
        let failed = (1..=head).any(|block| {
            let receipts = rpc.call("eth_getBlockReceipts", json!([format!("{block:#x}")]));
            receipts.as_array().expect("a list").iter().any(|receipt| receipt["status"] != "0x1")
        });
        assert!(!failed, "every transaction succeeds");
        let tables = derived(&blocks(&rpc.url(), head, &settings), &settings);
        check_coins(&market, &tables);
        check_items(&market, &tables);
        check_fees(&market, &tables);
    };
    check();
    market.anvil.rollback(5);
    market.grow(7, 2);
    check();
}
