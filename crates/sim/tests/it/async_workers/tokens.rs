//! What tokens are called, by a node and by observations alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::{Address, U256};
use logmill_pipeline::async_workers::token_metadata::TokenMetadata;
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, RangeWork};
use logmill_sim::Database;

use super::fake::Says;
use super::ground::{CHAIN, Ground, Move, account, string, word};
use crate::work::{on_both, simulate};

const NAME: [u8; 4] = [0x06, 0xfd, 0xde, 0x03];
const SYMBOL: [u8; 4] = [0x95, 0xd8, 0x9b, 0x41];
const DECIMALS: [u8; 4] = [0x31, 0x3c, 0xe5, 0x67];
const ROWS: &str = "SELECT contract_address, name, symbol, decimals, standard, observed_height
    FROM token_metadata ORDER BY contract_address";

async fn open(ground: &Ground) -> TokenMetadata {
    TokenMetadata::open(ground.tables.clone(), CHAIN, ground.state()).await.expect("tables")
}

fn over(ground: &Ground, work: &TokenMetadata) -> AsyncWorker {
    let settings = AsyncSettings::default();
    AsyncWorker::new(Arc::new(work.clone()), ground.tables.clone(), CHAIN, settings)
}

fn paid(token: Address) -> Move {
    Move::Ft { token, to: account(0xaa), amount: 1 }
}

/// Tokens that mean well, and tokens that do not.
fn tell(ground: &Ground) -> Vec<(u64, Move)> {
    let node = &ground.node;
    let fine = account(1);
    node.tell(fine, &NAME, Says::Bytes(string(b"Tether USD")));
    node.tell(fine, &SYMBOL, Says::Bytes(string(b"USDT")));
    node.tell(fine, &DECIMALS, Says::Bytes(word(6)));
    let old = account(2);
    node.tell(old, &NAME, Says::Bytes([b"Maker".to_vec(), vec![0; 27]].concat()));
    node.tell(old, &DECIMALS, Says::Bytes(vec![0xff; 32]));
    let loud = account(3);
    node.tell(loud, &NAME, Says::Bytes(vec![b'x'; 3 << 20]));
    let broken = string("\u{202e}evil\u{7}\u{0}".as_bytes());
    node.tell(loud, &SYMBOL, Says::Bytes([&broken[..], &[0xff, 0xfe]].concat()));
    let spoof = "execution reverted: rate limit exceeded, missing trie node";
    node.tell(loud, &DECIMALS, Says::Error(3, spoof));
    let empty = account(4);
    for call in [NAME, SYMBOL, DECIMALS] {
        node.tell(empty, &call, Says::Bytes(vec![]));
    }
    let silent = account(5);
    let collection = Move::Nft { contract: account(6), id: U256::ONE, to: account(0xaa) };
    vec![
        (10, paid(fine)),
        (11, paid(old)),
        (11, paid(fine)),
        (12, paid(loud)),
        (13, paid(empty)),
        (14, paid(silent)),
        (15, collection),
    ]
}

#[test]
fn tokens_are_asked_once_and_rows_follow_from_what_was_observed() {
    on_both(async |database| {
        let ground = Ground::new(database).await;
        let moves = tell(&ground);
        ground.derive(0..1_000, &moves).await;
        let work = open(&ground).await;
        let worker = over(&ground, &work);
        worker.plan().await.expect("a plan");
        assert_eq!(ground.work(&worker.kind(), &worker).await, 0);
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(1_000));
        let rows = ground.dump(ROWS).await;
        assert_eq!(rows.len(), 6, "{rows:#?}");
        for (row, parts) in rows.iter().zip([
            &["Tether USD", "USDT", "Int(6)", "erc20", "Int(100000)"][..],
            &["Text(\"Maker\"), Null, Null, Null"],
            &["Null, Text(\"evil\"), Null, Null"],
            &["Null, Null, Null, Null"],
            &["Null, Null, Null, Null"],
            &["Null, Null, Null, Null"],
        ]) {
            assert!(parts.iter().all(|part| row.contains(part)), "{row}: {parts:?}");
        }
        // Without a node, and without the table.
        ground.node.is_down.store(true, Ordering::SeqCst);
        let asked = ground.node.asked();
        ground.run("DELETE FROM token_metadata").await;
        assert_eq!(work.rebuild().await.expect("observations"), 6);
        assert_eq!(ground.dump(ROWS).await, rows);
        assert_eq!(work.rebuild().await.expect("observations"), 6, "and again");
        assert_eq!(ground.dump(ROWS).await, rows);
        assert_eq!(ground.node.asked(), asked);
        // A token that is known is not asked again, in whatever range it stands.
        ground.derive(1_000..2_000, &[(1_500, paid(account(1)))]).await;
        worker.plan().await.expect("a plan");
        assert_eq!(ground.work(&worker.kind(), &worker).await, 0);
        assert_eq!(ground.node.asked(), asked);
    });
}

#[test]
fn a_token_that_can_not_be_asked_holds_up_no_other_and_is_asked_again() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let moves = tell(&ground);
        ground.node.tell(account(2), &NAME, Says::Nothing);
        ground.derive(0..1_000, &moves).await;
        let work = open(&ground).await;
        let worker = over(&ground, &work);
        worker.plan().await.expect("a plan");
        assert_eq!(ground.work(&worker.kind(), &worker).await, 1);
        assert_eq!(ground.dump(ROWS).await.len(), 5, "all but one");
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(0));
        ground.node.tell(account(2), &NAME, Says::Bytes(string(b"Maker")));
        ground.pass_time();
        assert_eq!(ground.work(&worker.kind(), &worker).await, 0);
        assert_eq!(ground.dump(ROWS).await.len(), 6);
        assert_eq!(worker.standing().await.expect("a database").checkpoint, Some(1_000));
    });
}

#[test]
fn of_two_that_ask_the_same_token_the_answers_of_one_are_kept() {
    on_both(async |database| {
        let ground = Ground::new(database).await;
        let moves = tell(&ground);
        ground.derive(0..1_000, &moves).await;
        let (one, other) = (open(&ground).await, open(&ground).await);
        let range = 0..1_000;
        let ran = tokio::join!(one.run(&range), other.run(&range));
        ran.0.expect("asked");
        ran.1.expect("asked");
        let rows = ground.dump(ROWS).await;
        let kept = ground.dump("SELECT count(*), count(DISTINCT subject) FROM observation").await;
        assert_eq!(kept, ["Row([Int(36), Int(36)])"]);
        ground.run("DELETE FROM token_metadata").await;
        one.rebuild().await.expect("observations");
        assert_eq!(ground.dump(ROWS).await, rows);
    });
}

#[test]
fn many_tokens_are_gone_through_in_pages() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let token = |number: u16| Address::left_padding_from(&number.to_be_bytes());
        let moves: Vec<(u64, Move)> = (1..=450).map(|number| (7, paid(token(number)))).collect();
        for number in 1..=450 {
            let name = format!("token {number}");
            ground.node.tell(token(number), &NAME, Says::Bytes(string(name.as_bytes())));
        }
        ground.derive(0..1_000, &moves).await;
        let work = open(&ground).await;
        work.run(&(0..1_000)).await.expect("asked");
        let rows = ground.dump(ROWS).await;
        assert_eq!(rows.len(), 450);
        ground.run("DELETE FROM token_metadata").await;
        assert_eq!(work.rebuild().await.expect("observations"), 450);
        assert_eq!(ground.dump(ROWS).await, rows);
    });
}
