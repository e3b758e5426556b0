//! A chain on which there is something of everything, and a request for each path that finds it.
//!
//! Guarantees: every path of the document has a request here. Leaves to others: what is asked of the answers.

use std::collections::BTreeMap;

use alloy_primitives::{Address, B256, U256, keccak256};
use logmill_chain::sim::action::TRANSFER;
use logmill_chain::{Block, Log};
use logmill_io::sql::Execute;
use logmill_io::{Amount, Sql, params};

use super::super::ground::{self, CHAIN_ID};
use super::world::{Scan, World, blocks, memory, sim};

/// Blocks of the simulated chain below those that are made by hand.
pub(super) const SIMULATED: u64 = 24;
/// A contract that tells of changes of its code.
pub(super) const PROXY: Address = Address::repeat_byte(0x71);
/// Who announces a pool.
pub(super) const FACTORY: Address = Address::repeat_byte(0x72);
/// A key for which stake was deposited.
const KEY: [u8; 48] = [0x73; 48];
/// The code that a node is said to have told.
pub(super) const CODE: [u8; 5] = [0x60, 0x80, 0x60, 0x40, 0x52];

/// The chain, and what is on it.
pub(super) struct Rich {
    pub(super) world: World,
    pub(super) scan: Scan,
    /// The pool that was announced, and its tokens.
    pub(super) pool: (Address, [Address; 2]),
    /// A token that a transaction of a covered block created.
    pub(super) born: Address,
    /// An account that has it.
    pub(super) holder: Address,
}

/// A log of these topics and words.
pub(super) fn log(address: Address, topics: &[B256], words: &[B256]) -> Log {
    let data: Vec<u8> = words.iter().flat_map(|word| word.0).collect();
    Log { address, topics: topics.iter().copied().collect(), data: data.into() }
}

/// A transfer of a fungible token.
pub(super) fn transfer(token: Address, from: Address, to: Address, amount: U256) -> Log {
    log(token, &[TRANSFER, from.into_word(), to.into_word()], &[amount.into()])
}

impl Rich {
    /// From the first block on, or from a later one.
    pub(super) async fn from(first: u64) -> Self {
        Self::on(memory().await, first).await
    }

    /// The same in a database.
    pub(super) async fn on(sql: Sql, first: u64) -> Self {
        let sim = sim(9);
        sim.grow(SIMULATED - 1);
        let mut last = blocks(&sim, first..SIMULATED);
        let scan = Scan::of(last.clone());
        let created = scan.blocks.iter().flat_map(|block| &block.transactions);
        let born = created.filter_map(|sent| sent.created).next().expect("somebody deploys");
        let (pool, holder) = (sim.world().pool(0), sim.world().account(0));
        let born_log = transfer(born, Address::ZERO, holder, U256::from(1_000));
        let logs = |number: u64| match number == SIMULATED {
            true => vec![vec![born_log.clone(), announced(pool)], vec![], vec![upgraded()]],
            // The tip changes what the final blocks say.
            false => vec![vec![
                transfer(born, holder, PROXY, U256::from(number)),
                transfer(pool.1[0], holder, PROXY, U256::ONE),
                upgraded(),
            ]],
        };
        last.extend(ground::blocks(last.last(), 1, 1, logs));
        let tip: Vec<Block> = ground::blocks(last.last(), 3, 1, logs);
        let scan = Scan::of(last.iter().chain(&tip).cloned());
        let world = World::with(sql, last, tip, |_| true).await;
        let rich = Self { world, scan, pool, born, holder };
        rich.add_rows().await;
        rich
    }

    /// What other workers would write, and what this chain's blocks can not have.
    async fn add_rows(&self) {
        let sql = self.world.tables.sql();
        let item = self.item();
        let chain = i64::try_from(CHAIN_ID).expect("small");
        let token = self.pool.1[0];
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
                "INSERT INTO c1337_g1_staking_nodes VALUES ($1, NULL, $2, 5, 2, 0)",
                params![&KEY[..], Amount::from(32_i64)],
            ),
        ] {
            sql.execute(text, params).await.unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }

    /// An item of ERC-1155 that somebody has.
    pub(super) fn item(&self) -> (Address, U256) {
        let (_, quantities) = self.scan.items();
        let held = quantities.into_iter().filter(|(_, quantity)| *quantity > 0);
        held.map(|((item, _), _)| item).next().expect("some item")
    }

    /// A request for each path of the document, by the path.
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
