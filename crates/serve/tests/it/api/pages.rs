//! Pages add up to the result of a scan of the blocks, with a tip and after a reorg.

use std::collections::{BTreeMap, BTreeSet};

use alloy_primitives::{Address, U256};
use logmill_chain::Block;
use logmill_chain::sim::action::{FEES_COLLECTED, SWAP_V2, SWAP_V3};
use serde_json::Value;

use super::derived_server::{DerivedServer, Scan, TransferRow, blocks, moved, sim};
use super::sample_chain::SampleChain;

/// Number of final blocks, and of all blocks.
const FINAL: u64 = 40;
const ALL: u64 = 52;

/// Block and log index of items.
fn places(items: &[Value]) -> Vec<(u64, u64)> {
    let number = |item: &Value, name: &str| item[name].as_u64().expect("a number");
    items.iter().map(|item| (number(item, "blockNumber"), number(item, "logIndex"))).collect()
}

/// Compares every list with the scan; of the lists of accounts and blocks, every `step`th.
async fn check_all(derived: &DerivedServer, scan: &Scan, step: usize) {
    check_transfers(derived, scan, step).await;
    check_holdings(derived, scan, step).await;
    check_days(derived, scan).await;
    check_items(derived, scan, step).await;
    check_nft_transfers(derived, scan).await;
    check_transactions(derived, scan, step).await;
    check_events(derived, scan).await;
    check_blocks(derived, scan, step).await;
}

#[tokio::test]
async fn pages_add_up_to_a_scan_of_the_blocks_also_after_a_reorg() {
    let sim = sim(5);
    sim.grow(ALL - 1);
    let (last, tip) = (blocks(&sim, 0..FINAL), blocks(&sim, FINAL..ALL));
    let scan = Scan::of(last.iter().chain(&tip).cloned());
    let derived = DerivedServer::of(last.clone(), tip).await;
    check_all(&derived, &scan, 4).await;
    sim.reorg(ALL - FINAL - 2, ALL - FINAL + 3).expect("it can be reorganised");
    let tip = blocks(&sim, FINAL..sim.latest().number + 1);
    let after = Scan::of(last.iter().chain(&tip).cloned());
    assert_ne!(after.transfers(), scan.transfers());
    derived.reorg(tip).await;
    check_all(&derived, &after, 3).await;
}

#[tokio::test]
async fn postgresql_returns_the_same_pages() {
    let server = logmill_sim::postgres::PostgresServer::start();
    let sql = logmill_sim::Database::postgres(&server).open().await;
    let sample = SampleChain::on(sql, 0).await;
    for path in sample.requests().values() {
        sample.derived.get(path).await;
    }
    check_all(&sample.derived, &sample.scan, 9).await;
    // With the first blocks missing, so that the creation block must be looked up.
    let part = SampleChain::on(logmill_sim::Database::postgres(&server).open().await, 3).await;
    let born = part.derived.get(&format!("/accounts/{}/holdings", part.holder)).await;
    let items = born["items"].as_array().expect("a list");
    assert_eq!(items.iter().filter(|item| item["complete"] == true).count(), 1);
}

async fn check_transfers(derived: &DerivedServer, scan: &Scan, step: usize) {
    let all = scan.transfers();
    let of = |keep: &dyn Fn(&TransferRow) -> bool| -> Vec<TransferRow> {
        all.iter().filter(|moved| keep(moved)).cloned().collect()
    };
    for token in scan.tokens() {
        let items = derived.all(&format!("/tokens/{token}/transfers"), 7).await;
        let found: Vec<TransferRow> = items.iter().map(moved).collect();
        assert_eq!(found, of(&|moved| moved.3 == token), "{token}");
    }
    for (number, account) in scan.holders().into_iter().step_by(step).enumerate() {
        let limit = [1, 3, 100][number % 3];
        let items = derived.all(&format!("/accounts/{account}/transfers"), limit).await;
        let found: Vec<TransferRow> = items.iter().map(moved).collect();
        assert_eq!(found, of(&|moved| moved.4 == account || moved.5 == account), "{account}");
    }
}

async fn check_holdings(derived: &DerivedServer, scan: &Scan, step: usize) {
    let expected = scan.holdings();
    for account in scan.holders().into_iter().step_by(step) {
        let items = derived.all(&format!("/accounts/{account}/holdings"), 2).await;
        let found: BTreeMap<(Address, Address), i128> = items
            .iter()
            .map(|item| {
                assert_eq!((&item["complete"], &item["balance"]), (&true.into(), &item["delta"]));
                let balance: i128 = item["balance"].as_str().expect("text").parse().expect("small");
                assert_eq!(item["negative"], balance < 0);
                let token = item["token"].as_str().expect("text").parse().expect("an address");
                ((account, token), balance)
            })
            .collect();
        assert_eq!(found.len(), items.len(), "each once");
        let of_account = expected.iter().filter(|((of, _), _)| *of == account);
        assert_eq!(found, of_account.map(|(key, value)| (*key, *value)).collect());
    }
    for token in scan.tokens() {
        let items = derived.all(&format!("/tokens/{token}/holders"), 3).await;
        let found: Vec<(i128, Address)> = items
            .iter()
            .map(|item| {
                let text = |name: &str| item[name].as_str().expect("text");
                (text("balance").parse().expect("small"), text("address").parse().expect("hex"))
            })
            .collect();
        assert!(found.is_sorted_by(|a, b| a.0 >= b.0), "those with most first");
        let some = expected.iter().filter(|((_, of), balance)| *of == token && **balance > 0);
        let some: BTreeSet<_> = some.map(|((account, _), balance)| (*balance, *account)).collect();
        assert_eq!(found.len(), some.len(), "each once");
        assert_eq!(found.into_iter().collect::<BTreeSet<_>>(), some);
    }
}

async fn check_days(derived: &DerivedServer, scan: &Scan) {
    let mut days: BTreeMap<(Address, Address), BTreeMap<u64, i128>> = BTreeMap::new();
    for block in &scan.blocks {
        for change in &block.tokens.ft_changes {
            let of = days.entry((change.account, change.token)).or_default();
            let delta: i128 = change.delta.to_string().parse().expect("small");
            *of.entry(block.timestamp() / 86_400).or_default() += delta;
        }
    }
    let longest = days.into_iter().max_by_key(|(_, days)| days.len()).expect("somebody");
    let ((account, token), days) = longest;
    assert!(days.len() > 3, "there is something to page through");
    let items = derived.all(&format!("/accounts/{account}/balances?token={token}"), 2).await;
    let number = |item: &Value, name: &str| -> i128 {
        item[name].as_str().expect("text").parse().expect("small")
    };
    let found: BTreeMap<u64, i128> = items
        .iter()
        .map(|item| (item["day"].as_u64().expect("a number"), number(item, "delta")))
        .collect();
    assert_eq!(found, days);
    let mut balance = 0;
    for item in items.iter().rev() {
        assert_eq!(number(item, "opening"), balance);
        balance += number(item, "delta");
        assert_eq!((number(item, "closing"), number(item, "sum")), (balance, balance));
    }
    assert_eq!(balance, scan.holdings()[&(account, token)]);
}

async fn check_items(derived: &DerivedServer, scan: &Scan, step: usize) {
    let (owners, quantities) = scan.items();
    let unique = owners.keys();
    let ids: BTreeSet<_> = unique.chain(quantities.keys().map(|(item, _)| item)).copied().collect();
    let collections: BTreeSet<Address> = ids.iter().map(|(collection, _)| *collection).collect();
    let id = |item: &Value| -> U256 { item["id"].as_str().expect("text").parse().expect("an id") };
    let found: BTreeSet<Address> = derived
        .all("/collections", 2)
        .await
        .iter()
        .map(|item| item["address"].as_str().expect("text").parse().expect("an address"))
        .collect();
    assert_eq!(found, collections);
    for collection in &collections {
        let items = derived.all(&format!("/collections/{collection}/items"), 3).await;
        let found: Vec<U256> = items.iter().map(id).collect();
        let of = ids.iter().filter(|(of, _)| of == collection).map(|(_, id)| *id);
        assert_eq!(found, of.collect::<Vec<_>>(), "by their ids, each once");
        for item in items.iter().filter(|item| item["standard"] == "erc721") {
            let owner = owners[&(*collection, id(item))];
            let said: Option<Address> =
                item["owner"].as_str().map(|owner| owner.parse().expect("an address"));
            assert_eq!(said.unwrap_or_default(), owner);
        }
    }
    let mut owned: BTreeMap<Address, BTreeSet<(Address, U256, i128)>> = BTreeMap::new();
    for ((collection, id), owner) in &owners {
        owned.entry(*owner).or_default().insert((*collection, *id, 1));
    }
    for (((collection, id), owner), quantity) in quantities.iter().filter(|(_, many)| **many > 0) {
        owned.entry(*owner).or_default().insert((*collection, *id, *quantity));
    }
    for (owner, expected) in owned.into_iter().step_by(step) {
        let items = derived.all(&format!("/accounts/{owner}/nfts"), 2).await;
        let found = items.iter().map(|item| {
            let text = |name: &str| item[name].as_str().expect("text");
            let collection = text("collection").parse().expect("an address");
            (collection, id(item), text("quantity").parse().expect("small"))
        });
        assert_eq!(found.collect::<BTreeSet<_>>(), expected, "{owner}");
        assert_eq!(items.len(), expected.len(), "each once");
    }
}

async fn check_nft_transfers(derived: &DerivedServer, scan: &Scan) {
    let mut of: BTreeMap<Address, Vec<(u64, u64, u64)>> = BTreeMap::new();
    let mut of_item: BTreeMap<(Address, U256), usize> = BTreeMap::new();
    let number = |index: usize| u64::try_from(index).expect("few");
    for block in &scan.blocks {
        for one in &block.tokens.nft {
            let place = (block.number(), number(one.log_index), number(one.batch_index));
            of.entry(one.collection).or_default().push(place);
            *of_item.entry((one.collection, one.token_id)).or_default() += 1;
        }
    }
    for (collection, mut expected) in of {
        expected.reverse();
        let items = derived.all(&format!("/collections/{collection}/transfers"), 4).await;
        let found = items.iter().map(|item| {
            let number = |name: &str| item[name].as_u64().expect("a number");
            (number("blockNumber"), number("logIndex"), number("batchIndex"))
        });
        assert_eq!(found.collect::<Vec<_>>(), expected);
    }
    let ((collection, id), count) =
        of_item.into_iter().max_by_key(|(_, count)| *count).expect("some item");
    let items = derived.all(&format!("/collections/{collection}/items/{id}/transfers"), 1).await;
    assert_eq!(items.len(), count);
    assert!(items.iter().all(|item| item["itemId"] == id.to_string()));
}

async fn check_transactions(derived: &DerivedServer, scan: &Scan, step: usize) {
    let hash = |item: &Value| item["hash"].as_str().expect("text").to_owned();
    let mut hashes: Vec<String> = Vec::new();
    for (number, block) in scan.blocks.iter().rev().enumerate() {
        let of: Vec<String> = block.transactions.iter().map(|sent| sent.hash.to_string()).collect();
        hashes.extend(of.iter().rev().cloned());
        if number % step > 0 {
            continue;
        }
        let items = derived.all(&format!("/blocks/{}/transactions", block.number()), 2).await;
        assert_eq!(items.iter().map(hash).collect::<Vec<_>>(), of, "block {}", block.number());
    }
    let items = derived.all("/transactions", 9).await;
    assert_eq!(items.iter().map(hash).collect::<Vec<_>>(), hashes);
    let mut sent: BTreeMap<Address, Vec<String>> = BTreeMap::new();
    for transaction in scan.blocks.iter().rev().flat_map(|block| block.transactions.iter().rev()) {
        let from = transaction.from.expect("signed");
        sent.entry(from).or_default().push(transaction.hash.to_string());
    }
    for (account, expected) in sent.into_iter().step_by(step) {
        let items = derived.all(&format!("/accounts/{account}/transactions"), 8).await;
        let payer = |item: &&Value| {
            item["roles"].as_array().is_some_and(|roles| roles.contains(&"PAYER".into()))
        };
        let found = items.iter().filter(payer).map(|item| hash(&item["transaction"]));
        assert_eq!(found.collect::<Vec<_>>(), expected, "{account}");
    }
}

async fn check_events(derived: &DerivedServer, scan: &Scan) {
    let logs = scan.logs();
    let of = |topics: &[alloy_primitives::B256]| -> Vec<(u64, u64)> {
        let is_one = |log: &logmill_chain::Log| {
            log.topics.first().is_some_and(|topic| topics.contains(topic))
        };
        logs.iter()
            .filter(|(.., log)| is_one(log))
            .map(|(block, index, _)| (*block, *index))
            .collect()
    };
    let swaps = derived.all("/swaps", 5).await;
    assert_eq!(places(&swaps), of(&[SWAP_V2, SWAP_V3]));
    let fees = derived.all("/fees", 2).await;
    assert_eq!(places(&fees), of(&[FEES_COLLECTED]));
    for name in ["integrator", "token"] {
        let value = fees[0][name].as_str().expect("text");
        let some = derived.all(&format!("/fees?{name}={value}"), 1).await;
        let expected: Vec<&Value> = fees.iter().filter(|fee| fee[name] == value).collect();
        assert_eq!(some.iter().collect::<Vec<_>>(), expected, "{name}");
    }
    let some = derived.all("/fees?fromBlock=10&toBlock=45", 3).await;
    let within = |fee: &&Value| (10..=45).contains(&fee["blockNumber"].as_u64().expect("it"));
    assert_eq!(some.iter().collect::<Vec<_>>(), fees.iter().filter(within).collect::<Vec<_>>());
    let pools = derived.all("/pairs", 2).await;
    let named: BTreeSet<&str> = swaps.iter().filter_map(|swap| swap["pair"].as_str()).collect();
    let found: BTreeSet<&str> = pools.iter().filter_map(|pool| pool["pair"].as_str()).collect();
    assert_eq!((found, pools.len()), (named.clone(), named.len()));
    for pool in &pools {
        let pair = pool["pair"].as_str().expect("text");
        let events = derived.all(&format!("/pairs/{pair}/events"), 4).await;
        let expected: Vec<&Value> = swaps.iter().filter(|swap| swap["pair"] == pair).collect();
        assert_eq!(events.iter().collect::<Vec<_>>(), expected);
        assert_eq!(pool["swapCount"], expected.len());
        let detail = derived.get(&format!("/pairs/{pair}")).await;
        assert_eq!(detail["pools"][0]["state"], pool["state"]);
    }
    let staked = derived.all("/staking/events", 50).await;
    let withdrawals: usize = scan.blocks.iter().map(|block| block.withdrawals.len()).sum();
    assert_eq!(staked.len(), withdrawals);
}

async fn check_blocks(derived: &DerivedServer, scan: &Scan, step: usize) {
    let items = derived.all("/blocks", 7).await;
    assert_eq!(items.len(), scan.blocks.len());
    for (item, decoded) in items.iter().zip(scan.blocks.iter().rev()).step_by(step) {
        let block: &Block = &decoded.block;
        let by_hash = derived.get(&format!("/blocks/{}", block.at.hash)).await;
        let by_number = derived.get(&format!("/blocks/{}", block.at.number)).await;
        assert_eq!(by_hash, by_number);
        for (name, value) in item.as_object().expect("an object") {
            assert_eq!(by_hash[name], *value);
        }
        assert_eq!(item["hash"], block.at.hash.to_string());
        assert_eq!(item["transactionCount"], block.transactions.len());
        assert_eq!(item["logCount"], block.log_count());
        assert_eq!(item["gasUsed"], decoded.header.gas_used.expect("known"));
    }
}
