//! The code of contracts, by a node that may not mean well.

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
use logmill_pipeline::observe::StateReader;
use logmill_pipeline::processors::evm::Evm;
use logmill_sim::Database;
use logmill_work::IntervalSet;

use super::fake::Says;
use super::ground::{CHAIN, Ground, Move, account, data, string};
use crate::work::{on_both, simulate};

const NAME: [u8; 4] = [0x06, 0xfd, 0xde, 0x03];
const TOKEN_URI: [u8; 4] = [0xc8, 0x7b, 0x56, 0xdd];
const KEPT: &str = "SELECT subject, block, status, length(value) FROM observation
    WHERE kind = 'code' ORDER BY subject";
/// The numbers of what sort an answer is.
const OK: u32 = 0;
const EMPTY: u32 = 2;
const TOO_LARGE: u32 = 3;

async fn open(ground: &Ground, state: StateReader) -> ContractCode {
    ContractCode::open(ground.tables.clone(), CHAIN, state).await.expect("tables")
}

fn over(ground: &Ground, work: &ContractCode) -> AsyncWorker {
    let settings = AsyncSettings::default();
    AsyncWorker::new(Arc::new(work.clone()), ground.tables.clone(), CHAIN, settings)
}

/// Plans, and runs what is due; gives how many ranges failed.
async fn go(ground: &Ground, worker: &AsyncWorker) -> usize {
    worker.plan().await.expect("a plan");
    ground.work(&worker.kind(), worker).await
}

fn created(block: u64, contract: Address) -> (u64, Move) {
    (block, Move::Create { contract })
}

/// What is told of a contract's code.
fn tell(ground: &Ground, contract: Address, says: Says) {
    ground.node.tell(contract, &[], says);
}

/// The row of an observation.
fn kept(contract: Address, block: u64, status: u32, bytes: usize) -> String {
    let subject = hex::encode(contract);
    format!("{subject} at {block}: {status}, {bytes} bytes")
}

async fn all_kept(ground: &Ground) -> Vec<String> {
    let found = ground.sql().query(KEPT, Vec::new()).await.expect("read");
    let row = |row: &logmill_io::sql::Row| {
        let contract = Address::from_slice(&row.blob(0).expect("a contract"));
        let number = |column| row.count(column).expect("a number");
        let status = u32::try_from(number(2)).expect("small");
        kept(contract, number(1), status, usize::try_from(number(3)).expect("small"))
    };
    found.rows.iter().map(row).collect()
}

/// A proxy that hands every call on to another contract, as EIP-1167 has it.
fn minimal_proxy(to: Address) -> Vec<u8> {
    let (head, tail) = (hex!("363d3d373d3d3d363d73"), hex!("5af43d82803e903d91602b57fd5bf3"));
    [&head[..], to.as_slice(), &tail[..]].concat()
}

#[test]
fn code_is_asked_for_once_and_kept_as_the_node_has_it() {
    on_both(async |database| {
        let ground = Ground::new(database).await;
        let [plain, proxy, gone, huge] = [1, 2, 3, 4].map(account);
        tell(&ground, plain, Says::Bytes(hex!("6080604052").to_vec()));
        tell(&ground, proxy, Says::Bytes(minimal_proxy(plain)));
        // It failed, or has destroyed itself.
        tell(&ground, gone, Says::Bytes(vec![]));
        tell(&ground, huge, Says::Bytes(vec![0xfe; 3 << 20]));
        let moves = [(5, plain), (6, proxy), (7, gone), (8, huge)];
        let moves = moves.map(|(block, contract)| created(block, contract));
        ground.derive(0..1_000, &moves).await;
        let work = open(&ground, ground.state()).await;
        let worker = over(&ground, &work);
        assert_eq!(go(&ground, &worker).await, 0);
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(1_000));
        let expected = [
            kept(plain, 100_000, OK, 5),
            kept(proxy, 100_000, OK, 45),
            kept(gone, 100_000, EMPTY, 0),
            kept(huge, 100_000, TOO_LARGE, 0),
        ];
        assert_eq!(all_kept(&ground).await, expected);
        let value = "SELECT value FROM observation WHERE kind = 'code' AND length(value) = 45";
        let value = ground.sql().query(value, Vec::new()).await.expect("read");
        assert_eq!(value.row().expect("one").blob(0).expect("bytes"), minimal_proxy(plain));
        // From here on nobody can be asked: neither by another process, nor for the same range again, nor for a range
        // in which a contract is created once more, nor over tables that were derived anew.
        ground.node.is_down.store(true, Ordering::SeqCst);
        let asked = ground.node.asked();
        let other = open(&ground, ground.state()).await;
        other.run(&(0..1_000)).await.expect("all is known");
        ground.derive(1_000..2_000, &[created(1_500, plain)]).await;
        assert_eq!(go(&ground, &over(&ground, &other)).await, 0);
        let evm: Arc<dyn Processor> = Arc::new(Evm);
        ground.tables.rederive(CHAIN, &evm).await.expect("begun");
        let lines = ground.tables.lines(CHAIN, &[evm]).await.expect("lines");
        let new = lines.iter().max_by_key(|line| line.generation).expect("a generation");
        ground.derive_into(new, 0..2_000, &moves).await;
        assert!(ground.tables.swap(None, new, &IntervalSet::new()).await.expect("complete"));
        work.run(&(0..1_000)).await.expect("all is known, in the new tables too");
        assert_eq!(ground.node.asked(), asked);
        assert_eq!(all_kept(&ground).await, expected);
    });
}

#[test]
fn what_is_no_code_is_no_answer_and_holds_up_no_other() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let json = |text: &str| Says::Json(text.to_owned());
        let hostile = [
            json("null"),
            json("{}"),
            json("7"),
            json(r#""6080""#),
            json(r#""0x123""#),
            json(r#""0xzz""#),
            json(r#"["0x6080"]"#),
            json("\"0x60"),
            Says::Error(-32_000, "header not found"),
            Says::Nothing,
        ];
        let contract = |number: usize| account(u8::try_from(number + 1).expect("few"));
        let mut moves = Vec::new();
        for (number, says) in hostile.iter().enumerate() {
            tell(&ground, contract(number), says.clone());
            moves.push(created(5, contract(number)));
        }
        let good = account(0xaa);
        tell(&ground, good, Says::Bytes(vec![0xfe]));
        moves.push(created(5, good));
        ground.derive(0..1_000, &moves).await;
        let worker = over(&ground, &open(&ground, ground.state()).await);
        assert_eq!(go(&ground, &worker).await, 1);
        assert_eq!(all_kept(&ground).await, [kept(good, 100_000, OK, 1)]);
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(0));
        (0..hostile.len()).for_each(|number| {
            tell(&ground, contract(number), Says::Bytes(vec![0xfe]));
        });
        ground.pass_time();
        let asked = ground.node.asked();
        assert_eq!(go(&ground, &worker).await, 0);
        assert_eq!(ground.node.asked() - asked, hostile.len(), "the good one is known");
        assert_eq!(all_kept(&ground).await.len(), hostile.len() + 1);
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(1_000));
    });
}

#[test]
fn nothing_is_asked_about_at_a_block_before_it_was_there() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        ground.node.finalized.store(99, Ordering::SeqCst);
        let state = ground.state();
        let (old, new) = (account(1), account(2));
        for contract in [old, new] {
            tell(&ground, contract, Says::Bytes(vec![0xfe; 7]));
            ground.node.tell(contract, &NAME, Says::Bytes(string(b"Coin")));
            let uri = string(br#"data:,{"name":"Ape"}"#);
            let call = data(TOKEN_URI, &[B256::with_last_byte(1)]);
            ground.node.tell(contract, &call, Says::Bytes(uri));
        }
        ground.node.create(new, 110);
        let paid = |token| Move::Ft { token, to: account(9), amount: 1 };
        let item = |contract| Move::Nft { contract, id: U256::ONE, to: account(9) };
        let code = open(&ground, state.clone()).await;
        let (names, items) = (names(&ground, state.clone()).await, items(&ground, state).await);
        // The second time the tables are further than what the node called final a moment ago.
        for (contract, block, range) in [(old, 50, 0..100), (new, 110, 100..120)] {
            let moves =
                [created(block, contract), (block, paid(contract)), (block, item(contract))];
            ground.derive(range.clone(), &moves).await;
            code.run(&range).await.expect("asked");
            names.run(&range).await.expect("asked");
            RangeWork::run(&items, &range).await.expect("found");
            assert_eq!(ground.work(&item_kind(CHAIN), &items).await, 0);
        }
        assert_eq!(all_kept(&ground).await, [kept(old, 99, OK, 7), kept(new, 119, OK, 7)]);
        let named = "SELECT count(*) FROM token_metadata WHERE name = 'Coin'";
        assert_eq!(ground.dump(named).await, ["Row([Int(2)])"]);
        let named = "SELECT count(*), max(observed_height) FROM nft_items WHERE name = 'Ape'";
        assert_eq!(ground.dump(named).await, ["Row([Int(2), Int(110)])"]);
    });
}

async fn names(ground: &Ground, state: StateReader) -> TokenMetadata {
    TokenMetadata::open(ground.tables.clone(), CHAIN, state).await.expect("tables")
}

async fn items(ground: &Ground, state: StateReader) -> NftItems {
    let nobody = GuardedClient::new(SystemClock::shared(), GuardedSettings::default());
    let nobody = nobody.expect("a client");
    let clients = Clients { web: nobody.clone(), gateways: nobody };
    let (tables, settings) = (ground.tables.clone(), ItemSettings::default());
    NftItems::open(tables, CHAIN, state, clients, settings).await.expect("tables")
}

#[test]
fn many_contracts_are_gone_through_in_pages() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let contract = |number: u16| Address::left_padding_from(&number.to_be_bytes());
        let moves: Vec<(u64, Move)> = (1..=450).map(|n| created(7, contract(n))).collect();
        (1..=450).for_each(|n| tell(&ground, contract(n), Says::Bytes(vec![0xfe])));
        ground.derive(0..1_000, &moves).await;
        let work = open(&ground, ground.state()).await;
        work.run(&(0..1_000)).await.expect("asked");
        assert_eq!((all_kept(&ground).await.len(), ground.node.asked()), (450, 450));
    });
}
