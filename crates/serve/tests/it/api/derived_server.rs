//! A derived and served chain, and a scan of its blocks.
//!
//! Guarantees: expected results are computed from blocks alone, without any table. Leaves to others: comparing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::{Address, B256, U256};
use logmill_chain::sim::{Shape, SimChain, SimSettings};
use logmill_chain::{Block, Log};
use logmill_io::sql::SqliteSettings;
use logmill_io::{Clock, SeededEntropy, Sql, SystemClock};
use logmill_pipeline::derive::{DecodedBlock, DeriveSettings, Deriver, Processor, Reader, Tables};
use logmill_pipeline::processors;
use serde_json::Value;

use super::super::test_server::{CHAIN_ID, TestServer};
use super::schema;

/// Maximum number of pages of a list that a test reads.
const PAGES_MAX: usize = 2_000;

pub(super) struct DerivedServer {
    pub(super) server: TestServer,
    pub(super) tables: Tables,
    pub(super) deriver: Deriver,
}

/// A simulated chain with a block every third of a day.
pub(super) fn sim(seed: u64) -> SimChain {
    let shape = Shape { transactions: 4, logs: 14, accounts: 12, wallets: 20, ..Shape::sparse() };
    SimChain::with(SimSettings { seed, shape, slot_s: 30_000, ..SimSettings::default() })
}

pub(super) fn blocks(sim: &SimChain, range: std::ops::Range<u64>) -> Vec<Block> {
    range.map(|number| (*sim.block(number).expect("it exists")).clone()).collect()
}

pub(super) async fn memory() -> Sql {
    let (clock, entropy) = (SystemClock::shared(), SeededEntropy::shared(3));
    Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await.expect("a database")
}

impl DerivedServer {
    /// A chain with these final blocks and this tip, derived by all processors.
    pub(super) async fn of(last: Vec<Block>, tip: Vec<Block>) -> Self {
        Self::with(memory().await, last, tip, |_| true).await
    }

    /// The same in a given database, with some of the processors.
    pub(super) async fn with(
        sql: Sql,
        last: Vec<Block>,
        tip: Vec<Block>,
        runs: impl Fn(&str) -> bool,
    ) -> Self {
        // The cause of an internal error is only in the log.
        let _ = tracing_subscriber::fmt().with_test_writer().try_init();
        let tables = Tables::open(sql).await.expect("tables");
        let reader = Reader::new(tables.clone(), CHAIN_ID);
        let server = TestServer::with(last, tip, |state| {
            state.chains.get_mut(&CHAIN_ID).expect("it").reader = Some(reader);
        })
        .await;
        let all = processors::all(&processors::Settings::of_chain(CHAIN_ID));
        let all: Vec<Arc<dyn Processor>> = all.into_iter().filter(|one| runs(one.name())).collect();
        let (settings, clock): (_, Arc<dyn Clock>) =
            (DeriveSettings::default(), SystemClock::shared());
        let chain = server.chain.clone();
        let deriver = Deriver::new(chain, tables.clone(), all, settings, "test", clock);
        deriver.catch_up().await.expect("derived");
        Self { server, tables, deriver }
    }

    /// Replaces the tip and derives the new one.
    pub(super) async fn reorg(&self, tip: Vec<Block>) {
        self.server.stage(tip).await;
        self.deriver.catch_up().await.expect("derived");
    }

    /// Requests a path of the chain; returns status and body.
    pub(super) async fn ask(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.server.get(&format!("/api/v1/{CHAIN_ID}{path}")).await;
        let body = serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"));
        (status, body)
    }

    /// Requests a path; the answer must match the document.
    pub(super) async fn get(&self, path: &str) -> Value {
        let (status, body) = self.ask(path).await;
        assert_eq!(status, 200, "{path}: {body}");
        schema::check_answer(path, &body);
        body
    }

    /// Requests a path that must fail; returns status, error code and message.
    pub(super) async fn refused(&self, path: &str) -> (u16, String, String) {
        let (status, body) = self.ask(path).await;
        let text = |name: &str| body["error"][name].as_str().unwrap_or_default().to_owned();
        assert!(status >= 400 && !text("message").is_empty(), "{path}: {status} {body}");
        (status, text("code"), text("message"))
    }

    /// All items of a list, read in pages of this size.
    pub(super) async fn all(&self, path: &str, limit: usize) -> Vec<Value> {
        let (mut items, mut cursor) = (Vec::new(), String::new());
        for _ in 0..PAGES_MAX {
            let sign = if path.contains('?') { '&' } else { '?' };
            let mut page = self.get(&format!("{path}{sign}limit={limit}{cursor}")).await;
            let Value::Array(found) = page["items"].take() else {
                panic!("{path} is no list");
            };
            assert!(found.len() <= limit, "{path}: {} items", found.len());
            items.extend(found);
            match page["next"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
        panic!("{path} does not come to an end");
    }
}

pub(super) struct Scan {
    pub(super) blocks: Vec<DecodedBlock>,
}

/// The compared fields of a fungible transfer: block, log, hash, token, from, to, amount.
pub(super) type TransferRow = (u64, u64, B256, Address, Address, Address, String);

impl Scan {
    pub(super) fn of(blocks: impl IntoIterator<Item = Block>) -> Self {
        let decoded = |block| DecodedBlock::new(CHAIN_ID, Arc::new(block)).expect("a good block");
        Self { blocks: blocks.into_iter().map(decoded).collect() }
    }

    /// All fungible transfers, newest first.
    pub(super) fn transfers(&self) -> Vec<TransferRow> {
        let mut all = Vec::new();
        for block in &self.blocks {
            for one in &block.tokens.ft {
                let hash = block.transactions[one.transaction_index].hash;
                let place = (block.number(), u64::try_from(one.log_index).expect("few"));
                let amount = one.amount.to_string();
                all.push((place.0, place.1, hash, one.token, one.from, one.to, amount));
            }
        }
        all.reverse();
        all
    }

    /// The balance of each account and token.
    pub(super) fn holdings(&self) -> BTreeMap<(Address, Address), i128> {
        let mut all: BTreeMap<(Address, Address), i128> = BTreeMap::new();
        for (.., token, from, to, amount) in self.transfers() {
            let amount: i128 = amount.parse().expect("simulated amounts are small");
            for (account, delta) in [(from, -amount), (to, amount)] {
                *all.entry((account, token)).or_default() += delta;
            }
        }
        all.retain(|(account, _), _| !account.is_zero());
        all
    }

    /// The owner of each ERC-721 item, and the quantities of each ERC-1155 item.
    pub(super) fn items(&self) -> (BTreeMap<(Address, U256), Address>, Quantities) {
        let (mut owners, mut quantities) = (BTreeMap::new(), Quantities::new());
        for one in self.blocks.iter().flat_map(|block| &block.tokens.nft) {
            let item = (one.collection, one.token_id);
            if one.standard.number() == 721 {
                owners.insert(item, one.to);
                continue;
            }
            let quantity: i128 = one.quantity.to();
            for (owner, delta) in [(one.from, -quantity), (one.to, quantity)] {
                if !owner.is_zero() {
                    *quantities.entry((item, owner)).or_default() += delta;
                }
            }
        }
        (owners, quantities)
    }

    /// All logs with block and log index, newest first.
    pub(super) fn logs(&self) -> Vec<(u64, u64, &Log)> {
        let mut all = Vec::new();
        for block in &self.blocks {
            let place = |index: usize| u64::try_from(index).expect("few");
            let logs = block.block.logs();
            all.extend(logs.map(|placed| (block.number(), place(placed.log_index), placed.log)));
        }
        all.reverse();
        all
    }

    /// Every account that sent or received a fungible token.
    pub(super) fn holders(&self) -> BTreeSet<Address> {
        self.holdings().into_keys().map(|(account, _)| account).collect()
    }

    /// Every fungible token with a transfer.
    pub(super) fn tokens(&self) -> BTreeSet<Address> {
        self.transfers().into_iter().map(|moved| moved.3).collect()
    }
}

/// Quantity per item and owner.
pub(super) type Quantities = BTreeMap<((Address, U256), Address), i128>;

/// The compared fields of a transfer in an answer.
pub(super) fn moved(item: &Value) -> TransferRow {
    let text = |name: &str| item[name].as_str().expect("text").to_owned();
    let number = |name: &str| item[name].as_u64().expect("a number");
    let address = |name: &str| text(name).parse().expect("an address");
    (
        number("blockNumber"),
        number("logIndex"),
        text("transactionHash").parse().expect("a hash"),
        address("token"),
        address("from"),
        address("to"),
        text("amount"),
    )
}
