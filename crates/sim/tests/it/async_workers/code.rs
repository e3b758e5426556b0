//! The code of contracts, from a node that may be hostile.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::{Address, B256, U256, hex};
use logmill_io::SystemClock;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_pipeline::async_workers::contract_code::ContractCode;
use logmill_pipeline::async_workers::nft_items::{Clients, ItemSettings, NftItems, item_kind};
use logmill_pipeline::async_workers::token_metadata::TokenMetadata;
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, RangeWork};
use logmill_pipeline::derive::Processor;
use logmill_pipeline::derive::store::{Permit, SwapOutcome};
use logmill_pipeline::observe::StateReader;
use logmill_pipeline::processors::evm::Evm;
use logmill_sim::Database;
use logmill_sim::scripted_node::ScriptedAnswer;
use logmill_work::IntervalSet;

use super::fixture::{CHAIN, Move, WorkerFixture, account, data, string};
use crate::work::{on_both, simulate};

const NAME: [u8; 4] = [0x06, 0xfd, 0xde, 0x03];
const TOKEN_URI: [u8; 4] = [0xc8, 0x7b, 0x56, 0xdd];
const KEPT: &str = "SELECT subject, block, status, length(value) FROM observation
    WHERE kind = 'code' ORDER BY subject";
/// Stored numbers of the answer statuses.
const OK: u32 = 0;
const EMPTY: u32 = 2;
const TOO_LARGE: u32 = 3;

async fn open(fixture: &WorkerFixture, state: StateReader) -> ContractCode {
    ContractCode::open(fixture.tables.clone(), CHAIN, state).await.expect("tables")
}

fn over(fixture: &WorkerFixture, work: &ContractCode) -> AsyncWorker {
    let settings = AsyncSettings::default();
    AsyncWorker::new(Arc::new(work.clone()), fixture.tables.clone(), CHAIN, settings)
}

/// Plans, and runs what is due; returns how many ranges failed.
async fn go(fixture: &WorkerFixture, worker: &AsyncWorker) -> usize {
    worker.plan().await.expect("a plan");
    fixture.work(&worker.kind(), worker).await
}

fn created(block: u64, contract: Address) -> (u64, Move) {
    (block, Move::Create { contract })
}

/// Scripts the node's answer for the code of a contract.
fn script(fixture: &WorkerFixture, contract: Address, answer: ScriptedAnswer) {
    fixture.node.script(contract, &[], answer);
}

/// An observation as text.
fn kept(contract: Address, block: u64, status: u32, bytes: usize) -> String {
    let subject = hex::encode(contract);
    format!("{subject} at {block}: {status}, {bytes} bytes")
}

async fn all_kept(fixture: &WorkerFixture) -> Vec<String> {
    let found = fixture.sql().query(KEPT, Vec::new()).await.expect("read");
    let row = |row: &logmill_io::sql::Row| {
        let contract = Address::from_slice(&row.blob(0).expect("a contract"));
        let number = |column| row.count(column).expect("a number");
        let status = u32::try_from(number(2)).expect("small");
        kept(contract, number(1), status, usize::try_from(number(3)).expect("small"))
    };
    found.rows.iter().map(row).collect()
}

/// A proxy that forwards every call to another contract (EIP-1167).
fn minimal_proxy(to: Address) -> Vec<u8> {
    let (head, tail) = (hex!("363d3d373d3d3d363d73"), hex!("5af43d82803e903d91602b57fd5bf3"));
    [&head[..], to.as_slice(), &tail[..]].concat()
}

#[test]
fn code_is_requested_once_and_kept_as_the_node_returned_it() {
    on_both(async |database| {
        let fixture = WorkerFixture::new(database).await;
        let [plain, proxy, gone, huge] = [1, 2, 3, 4].map(account);
        script(&fixture, plain, ScriptedAnswer::Bytes(hex!("6080604052").to_vec()));
        script(&fixture, proxy, ScriptedAnswer::Bytes(minimal_proxy(plain)));
        // Its creation failed, or it destroyed itself.
        script(&fixture, gone, ScriptedAnswer::Bytes(vec![]));
        script(&fixture, huge, ScriptedAnswer::Bytes(vec![0xfe; 3 << 20]));
        let moves = [(5, plain), (6, proxy), (7, gone), (8, huge)];
        let moves = moves.map(|(block, contract)| created(block, contract));
        fixture.derive(0..1_000, &moves).await;
        let work = open(&fixture, fixture.state()).await;
        let worker = over(&fixture, &work);
        assert_eq!(go(&fixture, &worker).await, 0);
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(1_000));
        let expected = [
            kept(plain, 100_000, OK, 5),
            kept(proxy, 100_000, OK, 45),
            kept(gone, 100_000, EMPTY, 0),
            kept(huge, 100_000, TOO_LARGE, 0),
        ];
        assert_eq!(all_kept(&fixture).await, expected);
        let value = "SELECT value FROM observation WHERE kind = 'code' AND length(value) = 45";
        let value = fixture.sql().query(value, Vec::new()).await.expect("read");
        assert_eq!(value.row().expect("one").blob(0).expect("bytes"), minimal_proxy(plain));
        // From here on the node is down, and must not be needed: not by another process, not for the same range again,
        // not for a range in which a contract is created again, and not over tables that were derived again.
        fixture.node.is_down.store(true, Ordering::SeqCst);
        let requests = fixture.node.requests();
        let other = open(&fixture, fixture.state()).await;
        other.run(&(0..1_000)).await.expect("all is known");
        fixture.derive(1_000..2_000, &[created(1_500, plain)]).await;
        assert_eq!(go(&fixture, &over(&fixture, &other)).await, 0);
        let evm: Arc<dyn Processor> = Arc::new(Evm);
        fixture.tables.rederive(CHAIN, &evm, Permit::default()).await.expect("begun");
        let generations = fixture.tables.generations(CHAIN, &[evm]).await.expect("generations");
        let new =
            generations.iter().max_by_key(|generation| generation.number).expect("a generation");
        fixture.derive_into(new, 0..2_000, &moves).await;
        let swapped = fixture.tables.swap(None, new, &IntervalSet::new()).await.expect("complete");
        assert_eq!(swapped, SwapOutcome::Serves);
        work.run(&(0..1_000)).await.expect("all is known, in the new tables too");
        assert_eq!(fixture.node.requests(), requests);
        assert_eq!(all_kept(&fixture).await, expected);
    });
}

#[test]
fn invalid_code_is_not_an_answer_and_does_not_delay_others() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let json = |text: &str| ScriptedAnswer::Json(text.to_owned());
        let hostile = [
            json("null"),
            json("{}"),
            json("7"),
            json(r#""6080""#),
            json(r#""0x123""#),
            json(r#""0xzz""#),
            json(r#"["0x6080"]"#),
            json("\"0x60"),
            ScriptedAnswer::Error(-32_000, "header not found"),
            ScriptedAnswer::Nothing,
        ];
        let contract = |number: usize| account(u8::try_from(number + 1).expect("few"));
        let mut moves = Vec::new();
        for (number, answer) in hostile.iter().enumerate() {
            script(&fixture, contract(number), answer.clone());
            moves.push(created(5, contract(number)));
        }
        let good = account(0xaa);
        script(&fixture, good, ScriptedAnswer::Bytes(vec![0xfe]));
        moves.push(created(5, good));
        fixture.derive(0..1_000, &moves).await;
        let worker = over(&fixture, &open(&fixture, fixture.state()).await);
        assert_eq!(go(&fixture, &worker).await, 1);
        assert_eq!(all_kept(&fixture).await, [kept(good, 100_000, OK, 1)]);
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(0));
        (0..hostile.len()).for_each(|number| {
            script(&fixture, contract(number), ScriptedAnswer::Bytes(vec![0xfe]));
        });
        fixture.pass_time();
        let requests = fixture.node.requests();
        assert_eq!(go(&fixture, &worker).await, 0);
        assert_eq!(fixture.node.requests() - requests, hostile.len(), "the good one is known");
        assert_eq!(all_kept(&fixture).await.len(), hostile.len() + 1);
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(1_000));
    });
}

#[test]
fn a_contract_is_never_queried_at_a_block_before_its_creation() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        fixture.node.finalized.store(99, Ordering::SeqCst);
        let state = fixture.state();
        let (old, new) = (account(1), account(2));
        for contract in [old, new] {
            script(&fixture, contract, ScriptedAnswer::Bytes(vec![0xfe; 7]));
            fixture.node.script(contract, &NAME, ScriptedAnswer::Bytes(string(b"Coin")));
            let uri = string(br#"data:,{"name":"Ape"}"#);
            let call = data(TOKEN_URI, &[B256::with_last_byte(1)]);
            fixture.node.script(contract, &call, ScriptedAnswer::Bytes(uri));
        }
        fixture.node.create(new, 110);
        let paid = |token| Move::Ft { token, to: account(9), amount: 1 };
        let item = |contract| Move::Nft { contract, id: U256::ONE, to: account(9) };
        let code = open(&fixture, state.clone()).await;
        let (names, items) = (names(&fixture, state.clone()).await, items(&fixture, state).await);
        // The second time the tables are ahead of the final block that the node reported before.
        for (contract, block, range) in [(old, 50, 0..100), (new, 110, 100..120)] {
            let moves =
                [created(block, contract), (block, paid(contract)), (block, item(contract))];
            fixture.derive(range.clone(), &moves).await;
            code.run(&range).await.expect("answered");
            names.run(&range).await.expect("answered");
            RangeWork::run(&items, &range).await.expect("found");
            assert_eq!(fixture.work(&item_kind(CHAIN), &items).await, 0);
        }
        assert_eq!(all_kept(&fixture).await, [kept(old, 99, OK, 7), kept(new, 119, OK, 7)]);
        let named = "SELECT count(*) FROM token_metadata WHERE name = 'Coin'";
        assert_eq!(fixture.dump(named).await, ["Row([Int(2)])"]);
        let named = "SELECT count(*), max(observed_height) FROM nft_items WHERE name = 'Ape'";
        assert_eq!(fixture.dump(named).await, ["Row([Int(2), Int(110)])"]);
    });
}

async fn names(fixture: &WorkerFixture, state: StateReader) -> TokenMetadata {
    TokenMetadata::open(fixture.tables.clone(), CHAIN, state).await.expect("tables")
}

async fn items(fixture: &WorkerFixture, state: StateReader) -> NftItems {
    let nobody = GuardedClient::new(SystemClock::shared(), GuardedSettings::default());
    let nobody = nobody.expect("a client");
    let clients = Clients { web: nobody.clone(), gateways: nobody };
    let (tables, settings) = (fixture.tables.clone(), ItemSettings::default());
    NftItems::open(tables, CHAIN, state, clients, settings).await.expect("tables")
}

#[test]
fn many_contracts_are_read_in_pages() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let contract = |number: u16| Address::left_padding_from(&number.to_be_bytes());
        let moves: Vec<(u64, Move)> = (1..=450).map(|n| created(7, contract(n))).collect();
        (1..=450).for_each(|n| script(&fixture, contract(n), ScriptedAnswer::Bytes(vec![0xfe])));
        fixture.derive(0..1_000, &moves).await;
        let work = open(&fixture, fixture.state()).await;
        work.run(&(0..1_000)).await.expect("answered");
        assert_eq!((all_kept(&fixture).await.len(), fixture.node.requests()), (450, 450));
    });
}
