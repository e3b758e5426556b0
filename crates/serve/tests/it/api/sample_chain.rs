//! A chain with data for every path, and a request for each path that finds it.
//!
//! Guarantees: every path of the document has a request here. Leaves to others: assertions about the answers.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, U256, keccak256};
use logmill_chain::sim::action::TRANSFER;
use logmill_chain::{Block, Log};
use logmill_io::sql::Execute;
use logmill_io::{Amount, Sql, params};
use logmill_pipeline::async_workers::reconcile;

use super::super::test_server::{self, CHAIN_ID};
use super::derived_server::{DerivedServer, Scan, blocks, memory, sim};

/// Number of simulated blocks below the hand-made ones.
pub(super) const SIMULATED: u64 = 24;
/// A contract that logs changes of its code.
pub(super) const PROXY: Address = Address::repeat_byte(0x71);
/// The contract that announces a pool.
pub(super) const FACTORY: Address = Address::repeat_byte(0x72);
/// A validator key with a deposit.
const KEY: [u8; 48] = [0x73; 48];
/// Code as observed from a node.
pub(super) const CODE: [u8; 5] = [0x60, 0x80, 0x60, 0x40, 0x52];

pub(super) struct SampleChain {
    pub(super) derived: DerivedServer,
    pub(super) scan: Scan,
    /// The announced pool and its tokens.
    pub(super) pool: (Address, [Address; 2]),
    /// A token created by a transaction of a covered block.
    pub(super) born: Address,
    /// An account that holds `born`.
    pub(super) holder: Address,
}

pub(super) fn log(address: Address, topics: &[B256], words: &[B256]) -> Log {
    let data: Vec<u8> = words.iter().flat_map(|word| word.0).collect();
    Log { address, topics: topics.iter().copied().collect(), data: data.into() }
}

pub(super) fn transfer(token: Address, from: Address, to: Address, amount: U256) -> Log {
    log(token, &[TRANSFER, from.into_word(), to.into_word()], &[amount.into()])
}

impl SampleChain {
    /// In memory, with the blocks from `first` on.
    pub(super) async fn from(first: u64) -> Self {
        Self::on(memory().await, first).await
    }

    /// The same in a given database.
    pub(super) async fn on(sql: Sql, first: u64) -> Self {
        let sim = sim(9);
        sim.grow(SIMULATED - 1);
        let mut last = blocks(&sim, first..SIMULATED);
        let scan = Scan::of(last.clone());
        let created = scan.blocks.iter().flat_map(|block| &block.transactions);
        let born = created.filter_map(|sent| sent.created).next().expect("somebody deploys");
        let (pool, holder) = (sim.actors().pool(0), sim.actors().account(0));
        let born_log = transfer(born, Address::ZERO, holder, U256::from(1_000));
        let logs = |number: u64| match number == SIMULATED {
            true => vec![vec![born_log.clone(), announced(pool)], vec![], vec![upgraded()]],
            // The tip changes facts of the final blocks.
            false => vec![vec![
                transfer(born, holder, PROXY, U256::from(number)),
                transfer(pool.1[0], holder, PROXY, U256::ONE),
                upgraded(),
            ]],
        };
        last.extend(test_server::blocks(last.last(), 1, 1, logs));
        let tip: Vec<Block> = test_server::blocks(last.last(), 3, 1, logs);
        let scan = Scan::of(last.iter().chain(&tip).cloned());
        let derived = DerivedServer::with(sql, last, tip, |_| true).await;
        let sample = Self { derived, scan, pool, born, holder };
        sample.add_rows().await;
        sample
    }

    /// Adds rows that other workers would write and rows that the blocks of this chain cannot produce.
    async fn add_rows(&self) {
        let sql = self.derived.tables.sql();
        let item = self.item();
        let chain = i64::try_from(CHAIN_ID).expect("small");
        let token = self.pool.1[0];
        sql.migrate(&reconcile::MIGRATIONS).await.expect("a table");
        for (text, params) in [
            (
                "CREATE TABLE token_metadata (chain_id BIGINT NOT NULL, \
                 contract_address {bytes} NOT NULL, name TEXT, symbol TEXT, decimals BIGINT, \
                 standard TEXT, observed_height BIGINT NOT NULL, \
                 PRIMARY KEY (chain_id, contract_address)) {clustered}",
                params![],
            ),
            (
                "INSERT INTO token_metadata VALUES ($1, $2, 'Some Token', 'SOME', 6, 'erc20', 3)",
                params![chain, token.as_slice()],
            ),
            (
                "CREATE TABLE nft_items (chain_id BIGINT NOT NULL, \
                 contract_address {bytes} NOT NULL, nft_id {amount} NOT NULL, uri TEXT, \
                 name TEXT, description TEXT, image TEXT, animation_url TEXT, external_url TEXT, \
                 traits TEXT, metadata_error TEXT, retries BIGINT NOT NULL, refetch_after BIGINT, \
                 observed_height BIGINT, PRIMARY KEY (chain_id, contract_address, nft_id))",
                params![],
            ),
            (
                "INSERT INTO nft_items (chain_id, contract_address, nft_id, name, retries) \
                 VALUES ($1, $2, $3, 'Some Item', 0)",
                params![chain, item.0.as_slice(), amount(item.1)],
            ),
            (
                "CREATE TABLE observation (chain_id BIGINT NOT NULL, kind {name} NOT NULL, \
                 subject {bytes} NOT NULL, block BIGINT NOT NULL, status BIGINT NOT NULL, \
                 value {bytes} NOT NULL, observed_at BIGINT NOT NULL, \
                 PRIMARY KEY (chain_id, kind, subject, block))",
                params![],
            ),
            (
                "INSERT INTO observation VALUES ($1, 'code', $2, 3, 0, $3, 0)",
                params![chain, self.born.as_slice(), &CODE[..]],
            ),
            (
                "INSERT INTO reconciliation
                    (chain_id, kind, subject, block, since, expected, observed, verdict)
                 VALUES ($1, 'ft_balance', $2, 7, 3, '12', '11', 'differs')",
                params![chain, [token.as_slice(), self.holder.as_slice()].concat()],
            ),
            (
                "INSERT INTO c1337_g1_staking_nodes VALUES ($1, NULL, $2, 5, 2, 0)",
                params![&KEY[..], Amount::from(32_i64)],
            ),
        ] {
            sql.execute(text, params).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    /// An ERC-1155 item with an owner.
    pub(super) fn item(&self) -> (Address, U256) {
        let (_, quantities) = self.scan.items();
        let held = quantities.into_iter().filter(|(_, quantity)| *quantity > 0);
        held.map(|((item, _), _)| item).next().expect("some item")
    }

    /// A request for each path of the document, keyed by the path.
    pub(super) fn requests(&self) -> BTreeMap<&'static str, String> {
        let (collection, id) = self.item();
        let (_, quantities) = self.scan.items();
        let is_it = |(item, _): &&(_, _)| *item == (collection, id);
        let owner = quantities.keys().find(is_it).expect("an owner").1;
        let (pool, [token, _]) = self.pool;
        let (holder, pages) = (self.holder, "limit=3");
        let hash = self.scan.transfers().last().expect("a transfer").2;
        let withdrawals = self.scan.blocks.iter().flat_map(|block| &block.withdrawals);
        let validator = withdrawals.map(|one| one.validator_index).next().expect("one");
        let key = alloy_primitives::hex::encode_prefixed(KEY);
        let items = format!("/collections/{collection}/items");
        BTreeMap::from([
            ("/blocks", format!("/blocks?{pages}")),
            ("/blocks/{block}", format!("/blocks/{SIMULATED}")),
            ("/blocks/{block}/transactions", format!("/blocks/{SIMULATED}/transactions?{pages}")),
            ("/transactions", format!("/transactions?{pages}")),
            ("/transactions/{hash}", format!("/transactions/{hash}")),
            ("/accounts/{address}", format!("/accounts/{holder}")),
            (
                "/accounts/{address}/transactions",
                format!("/accounts/{holder}/transactions?{pages}"),
            ),
            ("/accounts/{address}/transfers", format!("/accounts/{holder}/transfers?{pages}")),
            ("/accounts/{address}/holdings", format!("/accounts/{holder}/holdings?{pages}")),
            (
                "/accounts/{address}/balances",
                format!("/accounts/{holder}/balances?token={token}&{pages}"),
            ),
            ("/accounts/{address}/nfts", format!("/accounts/{owner}/nfts?{pages}")),
            ("/tokens", format!("/tokens?{pages}")),
            ("/tokens/{address}", format!("/tokens/{token}")),
            ("/tokens/{address}/holders", format!("/tokens/{token}/holders?{pages}")),
            ("/tokens/{address}/transfers", format!("/tokens/{token}/transfers?{pages}")),
            ("/collections", format!("/collections?{pages}")),
            ("/collections/{address}", format!("/collections/{collection}")),
            ("/collections/{address}/transfers", format!("/collections/{collection}/transfers")),
            ("/collections/{address}/items", format!("{items}?{pages}")),
            ("/collections/{address}/items/{id}", format!("{items}/{id}")),
            ("/collections/{address}/items/{id}/owners", format!("{items}/{id}/owners")),
            ("/collections/{address}/items/{id}/transfers", format!("{items}/{id}/transfers")),
            ("/swaps", format!("/swaps?{pages}")),
            ("/pairs", format!("/pairs?{pages}")),
            ("/pairs/{pair}", format!("/pairs/{pool}")),
            ("/pairs/{pair}/events", format!("/pairs/{pool}/events?{pages}")),
            ("/contracts/{address}", format!("/contracts/{PROXY}")),
            ("/contracts/{address}/code", format!("/contracts/{}/code", self.born)),
            ("/contracts/{address}/versions", format!("/contracts/{PROXY}/versions?{pages}")),
            ("/staking/events", format!("/staking/events?{pages}")),
            ("/staking/validators/{index}", format!("/staking/validators/{validator}")),
            ("/staking/nodes/{pubkey}", format!("/staking/nodes/{key}")),
            ("/fees", format!("/fees?{pages}")),
            ("/reconciliation", format!("/reconciliation?{pages}")),
            ("/status", "/status".to_owned()),
        ])
    }
}

pub(super) fn amount(number: U256) -> Amount {
    Amount::from_be_bytes(&number.to_be_bytes::<32>()).expect("256 bits")
}

fn announced((pool, [one, other]): (Address, [Address; 2])) -> Log {
    let topic = keccak256("PairCreated(address,address,address,uint256)");
    let topics = [topic, one.into_word(), other.into_word()];
    log(FACTORY, &topics, &[pool.into_word(), B256::with_last_byte(1)])
}

fn upgraded() -> Log {
    log(PROXY, &[keccak256("Upgraded(address)"), FACTORY.into_word()], &[])
}
