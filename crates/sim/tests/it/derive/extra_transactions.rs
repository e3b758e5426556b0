//! Every table of every processor, as the deriver wrote it, against a model that shares no code with the processors.
//!
//! The chain has the usual simulated transactions, and visits: transactions with events that those never emit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use alloy_primitives::{Address, B256, Bytes, U256, hex, keccak256};
use logmill_chain::sim::{ExtraTransaction, SimChain, SimSettings};
use logmill_chain::{Block, Log};
use logmill_pipeline::derive::{Deriver, Processor, Tables};
use logmill_pipeline::{Chain, processors};
use logmill_sim::Database;
use logmill_sim::chain_world::{World, shape};

use super::life;
use super::model::{self, assert_same};
use super::naive::{self, Assumptions};

/// Ethereum: its deposit contract and the price of its blobs are known.
const CHAIN: u64 = 1;
/// A time at which blob gas costs one wei if there is no excess.
const GENESIS_S: u64 = 1_750_000_000;

fn who(number: u64) -> Address {
    Address::from_slice(&keccak256(number.to_be_bytes())[12..])
}

fn number(number: u64) -> B256 {
    U256::from(number).into()
}

fn minus(number: u64) -> B256 {
    U256::from(number).wrapping_neg().into()
}

fn log(address: Address, event: &str, topics: &[B256], words: &[B256]) -> Log {
    let topics = [&[keccak256(event)], topics].concat();
    Log { address, topics: topics.into_iter().collect(), data: words.concat().into() }
}

fn deposit(node: u8, gwei: u64, sequence: u64) -> Log {
    let part = |bytes: &[u8]| {
        let mut padded = number(bytes.len() as u64).to_vec();
        padded.extend_from_slice(bytes);
        padded.resize(padded.len().next_multiple_of(32), 0);
        padded
    };
    let parts = [
        part(&[node; 48]),
        part(&[sequence.to_le_bytes()[0]; 32]),
        part(&gwei.to_le_bytes()),
        part(&[9; 96]),
        part(&sequence.to_le_bytes()),
    ];
    let offsets = [160, 256, 320, 384, 512].map(number).concat();
    let contract = Address::from(hex!("00000000219ab540356cbb839cbe05303d7705fa"));
    let topics = [keccak256("DepositEvent(bytes,bytes,bytes,bytes,bytes)")];
    let data = [offsets, parts.concat()].concat().into();
    Log { address: contract, topics: topics.into_iter().collect(), data }
}

/// New pools of each exchange, and events that the simulated chain does not have.
fn pools(at: u64) -> Vec<Log> {
    let (factory, pool, [a, b]) =
        (who(1), who(100 + at % 5), [who(2), who(3)].map(|it| it.into_word()));
    let id = keccak256([u8::try_from(at % 3).expect("small")]);
    let price: B256 = (U256::ONE << 96usize).into();
    let swap_v4 = [minus(at), number(at + 5), price, number(at * 3), minus(7), number(500)];
    vec![
        log(
            factory,
            "PairCreated(address,address,address,uint256)",
            &[a, b],
            &[pool.into_word(), number(at)],
        ),
        log(
            who(4),
            "PoolCreated(address,address,uint24,int24,address)",
            &[a, b, number(3_000)],
            &[number(60), pool.into_word()],
        ),
        log(pool, "Initialize(uint160,int24)", &[], &[price, minus(at)]),
        log(pool, "Mint(address,uint256,uint256)", &[a], &[number(at), number(at + 1)]),
        log(pool, "Burn(address,uint256,uint256,address)", &[a, b], &[number(at), number(at + 1)]),
        log(
            pool,
            "Mint(address,address,int24,int24,uint128,uint256,uint256)",
            &[b, minus(3), number(3)],
            &[a, number(at), number(8), number(9)],
        ),
        log(
            pool,
            "Burn(address,int24,int24,uint128,uint256,uint256)",
            &[b, minus(3), number(3)],
            &[number(at % 2), number(8), number(9)],
        ),
        log(
            who(5),
            "Initialize(bytes32,address,address,uint24,int24,address,uint160,int24)",
            &[id, B256::ZERO, b],
            &[number(100), number(1), a, price, number(at)],
        ),
        log(
            who(5),
            "Swap(bytes32,address,int128,int128,uint160,uint128,int24,uint24)",
            &[id, a],
            &swap_v4,
        ),
        log(
            who(5),
            "ModifyLiquidity(bytes32,address,int24,int24,int256,bytes32)",
            &[id, a],
            &[minus(1), number(1), minus(at), number(0)],
        ),
        log(
            who(6),
            "TokenExchange(address,int128,uint256,int128,uint256)",
            &[a],
            &[number(1), number(at), number(0), number(at + 2)],
        ),
    ]
}

/// Approvals, sales, forwarded fees, and changes of code.
fn others(at: u64) -> Vec<Log> {
    let (a, b) = (who(7).into_word(), who(8).into_word());
    let parts = [number(32), number(2), a, number(at), b, number(at + 1)];
    vec![
        log(who(9), "ApprovalForAll(address,address,bool)", &[a, b], &[number(1)]),
        log(who(9), "Approval(address,address,uint256)", &[a, B256::ZERO, number(at)], &[]),
        log(
            who(10),
            "PunkBought(uint256,uint256,address,address)",
            &[number(at), a, b],
            &[number(5)],
        ),
        log(FORWARDER, "FeesForwarded(address,(address,uint256)[])", &[a], &parts),
        log(who(11), "FeesForwarded(address,(address,uint256)[])", &[a], &parts),
        log(who(12), "Upgraded(address)", &[a], &[]),
        log(who(12), "Upgraded(address)", &[], &[b]),
        log(who(13), "BeaconUpgraded(address)", &[a], &[]),
        log(
            who(14),
            "DiamondCut((address,uint8,bytes4[])[],address,bytes)",
            &[],
            &[number(96), a, number(128), number(0), number(0)],
        ),
        // There and back again, to oneself, and from the zero address to itself.
        log(who(15), "Transfer(address,address,uint256)", &[a, a], &[U256::MAX.into()]),
        log(who(15), "Transfer(address,address,uint256)", &[B256::ZERO, b], &[U256::MAX.into()]),
        log(who(15), "Transfer(address,address,uint256)", &[b, B256::ZERO], &[number(at)]),
        log(who(16), "Transfer(address,address,uint256)", &[a, B256::ZERO, number(at % 4)], &[]),
    ]
}

const FORWARDER: Address = Address::repeat_byte(0x77);

fn extra_transactions(at: u64, branch: u32) -> Vec<ExtraTransaction> {
    let clone = hex!("3d602d80600a3d3981f3363d3d373d3d3d363d73").to_vec();
    let clone = [clone, who(at).to_vec(), hex!("5af43d82803e903d91602b57fd5bf3").to_vec()].concat();
    let stake = deposit(u8::try_from(at % 3).expect("small"), 32_000_000_000 + at, at);
    let call = |logs| ExtraTransaction { to: Some(who(20)), input: Bytes::from(vec![1; 5]), logs };
    match (at + u64::from(branch)) % 4 {
        0 => vec![
            call(pools(at)),
            ExtraTransaction { to: None, input: clone.into(), logs: Vec::new() },
        ],
        1 => vec![call(others(at))],
        2 => vec![call(vec![stake.clone()]), call(vec![stake])],
        _ => Vec::new(),
    }
}

fn every_processor() -> Vec<Arc<dyn Processor>> {
    let mut settings = processors::Settings::of_chain(CHAIN);
    settings.fees.forwarders = vec![FORWARDER];
    settings.usage = Some(life::transfers());
    processors::all(&settings)
}

/// The stored blocks, as a chain with another id.
async fn chain(world: &World) -> Chain {
    let index =
        finalized_log_index::LogIndex::open(world.stores.clone(), world.index_settings.clone());
    let index = index.await.expect("it opens");
    let tip = logmill_pipeline::tip::Tip::open(
        Arc::clone(&world.stores.meta),
        logmill_sim::chain_world::PREFIX,
    );
    Chain::new(CHAIN, index, tip.await.expect("it opens"))
}

async fn derived(database: &Database) -> (SimChain, Vec<u64>, Tables) {
    let settings = SimSettings {
        seed: 31,
        shape: shape(),
        chain_id: CHAIN,
        genesis_s: GENESIS_S,
        // So that there are several days.
        slot_s: 9_000,
        finality_lag: Some(6),
    };
    let mut world =
        World::of(31, SimChain::with_extra_transactions(settings, extra_transactions)).await;
    world.settings.history_stop = 0;
    world.sim.grow(25);
    let process = world.write().await;
    let tables = Tables::open(database.open().await).await.expect("tables");
    let deriver = || async {
        let chain = chain(&world).await;
        let settings = life::settings();
        let clock = world.clock.clone();
        Deriver::new(chain, tables.clone(), every_processor(), settings, "test", clock)
    };
    // The head first, then a reorg, then history.
    process.catch_up().await.expect("nothing is in the way");
    deriver().await.catch_up().await.expect("derived");
    world.sim.reorg(4, 9).expect("a branch");
    process.catch_up().await.expect("nothing is in the way");
    deriver().await.catch_up().await.expect("derived");
    process.fill().await.expect("nothing is in the way");
    world.sim.grow(3);
    process.catch_up().await.expect("nothing is in the way");
    deriver().await.catch_up().await.expect("derived");
    let view = process.chain.view().await.expect("read");
    (world.sim.clone(), view.covered().into_iter().flatten().collect(), tables)
}

async fn check(database: &Database) {
    let (sim, covered, tables) = derived(database).await;
    let blocks: Vec<Arc<Block>> =
        covered.iter().map(|number| sim.block(*number).expect("it exists")).collect();
    assert_eq!(blocks.len(), 34, "the whole chain is covered");
    let assumptions =
        Assumptions { chain_id: CHAIN, blob_gas_price: Some(1), forwarder: Some(FORWARDER) };
    let expected = naive::tables(&assumptions, &blocks);
    let mut found = BTreeMap::new();
    for processor in every_processor() {
        found.append(&mut model::found_on(CHAIN, &tables, &*processor).await);
    }
    let names =
        |tables: &BTreeMap<&'static str, _>| tables.keys().copied().collect::<BTreeSet<_>>();
    assert_eq!(names(&expected), names(&found), "every table has rows");
    for (name, rows) in &expected {
        assert_same(name, &found[name], rows);
    }
}

#[tokio::test(start_paused = true)]
async fn every_table_equals_a_model_without_processors_computed_from_raw_bytes() {
    check(&Database::memory().await).await;
}

#[tokio::test]
async fn every_table_equals_the_model_on_postgresql_too() {
    let server = logmill_sim::postgres::PostgresServer::start();
    check(&Database::postgres(&server)).await;
}
