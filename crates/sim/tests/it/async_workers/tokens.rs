//! Metadata of tokens, from a node and from observations alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::{Address, U256};
use logmill_pipeline::async_workers::token_metadata::TokenMetadata;
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, RangeWork};
use logmill_sim::Database;
use logmill_sim::scripted_node::ScriptedAnswer;

use super::fixture::{CHAIN, Move, WorkerFixture, account, string, word};
use crate::work::{on_both, simulate};

const NAME: [u8; 4] = [0x06, 0xfd, 0xde, 0x03];
const SYMBOL: [u8; 4] = [0x95, 0xd8, 0x9b, 0x41];
const DECIMALS: [u8; 4] = [0x31, 0x3c, 0xe5, 0x67];
const ROWS: &str = "SELECT contract_address, name, symbol, decimals, standard, observed_height
    FROM token_metadata ORDER BY contract_address";

async fn open(fixture: &WorkerFixture) -> TokenMetadata {
    TokenMetadata::open(fixture.tables.clone(), CHAIN, fixture.state()).await.expect("tables")
}

fn over(fixture: &WorkerFixture, work: &TokenMetadata) -> AsyncWorker {
    let settings = AsyncSettings::default();
    AsyncWorker::new(Arc::new(work.clone()), fixture.tables.clone(), CHAIN, settings)
}

fn paid(token: Address) -> Move {
    Move::Ft { token, to: account(0xaa), amount: 1 }
}

/// Honest and hostile tokens.
fn script(fixture: &WorkerFixture) -> Vec<(u64, Move)> {
    let node = &fixture.node;
    let fine = account(1);
    node.script(fine, &NAME, ScriptedAnswer::Bytes(string(b"Tether USD")));
    node.script(fine, &SYMBOL, ScriptedAnswer::Bytes(string(b"USDT")));
    node.script(fine, &DECIMALS, ScriptedAnswer::Bytes(word(6)));
    let old = account(2);
    node.script(old, &NAME, ScriptedAnswer::Bytes([b"Maker".to_vec(), vec![0; 27]].concat()));
    node.script(old, &DECIMALS, ScriptedAnswer::Bytes(vec![0xff; 32]));
    let loud = account(3);
    node.script(loud, &NAME, ScriptedAnswer::Bytes(vec![b'x'; 3 << 20]));
    let broken = string("\u{202e}evil\u{7}\u{0}".as_bytes());
    node.script(loud, &SYMBOL, ScriptedAnswer::Bytes([&broken[..], &[0xff, 0xfe]].concat()));
    let spoof = "execution reverted: rate limit exceeded, missing trie node";
    node.script(loud, &DECIMALS, ScriptedAnswer::Error(3, spoof));
    let empty = account(4);
    for call in [NAME, SYMBOL, DECIMALS] {
        node.script(empty, &call, ScriptedAnswer::Bytes(vec![]));
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
        let fixture = WorkerFixture::new(database).await;
        let moves = script(&fixture);
        fixture.derive(0..1_000, &moves).await;
        let work = open(&fixture).await;
        let worker = over(&fixture, &work);
        worker.plan().await.expect("a plan");
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(1_000));
        let rows = fixture.dump(ROWS).await;
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
        fixture.node.is_down.store(true, Ordering::SeqCst);
        let requests = fixture.node.requests();
        fixture.run("DELETE FROM token_metadata").await;
        assert_eq!(work.rebuild().await.expect("observations"), 6);
        assert_eq!(fixture.dump(ROWS).await, rows);
        assert_eq!(work.rebuild().await.expect("observations"), 6, "and again");
        assert_eq!(fixture.dump(ROWS).await, rows);
        assert_eq!(fixture.node.requests(), requests);
        // A known token is not asked again, whatever range it is in.
        fixture.derive(1_000..2_000, &[(1_500, paid(account(1)))]).await;
        worker.plan().await.expect("a plan");
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        assert_eq!(fixture.node.requests(), requests);
    });
}

#[test]
fn a_token_that_cannot_be_queried_does_not_delay_others_and_is_retried() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let moves = script(&fixture);
        fixture.node.script(account(2), &NAME, ScriptedAnswer::Nothing);
        fixture.derive(0..1_000, &moves).await;
        let work = open(&fixture).await;
        let worker = over(&fixture, &work);
        worker.plan().await.expect("a plan");
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 1);
        assert_eq!(fixture.dump(ROWS).await.len(), 5, "all but one");
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(0));
        fixture.node.script(account(2), &NAME, ScriptedAnswer::Bytes(string(b"Maker")));
        fixture.pass_time();
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        assert_eq!(fixture.dump(ROWS).await.len(), 6);
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(1_000));
    });
}

#[test]
fn if_two_workers_query_a_token_the_answers_of_one_are_kept() {
    on_both(async |database| {
        let fixture = WorkerFixture::new(database).await;
        let moves = script(&fixture);
        fixture.derive(0..1_000, &moves).await;
        let (one, other) = (open(&fixture).await, open(&fixture).await);
        let range = 0..1_000;
        let ran = tokio::join!(one.run(&range), other.run(&range));
        ran.0.expect("answered");
        ran.1.expect("answered");
        let rows = fixture.dump(ROWS).await;
        let kept = fixture.dump("SELECT count(*), count(DISTINCT subject) FROM observation").await;
        assert_eq!(kept, ["Row([Int(36), Int(36)])"]);
        fixture.run("DELETE FROM token_metadata").await;
        one.rebuild().await.expect("observations");
        assert_eq!(fixture.dump(ROWS).await, rows);
    });
}

#[test]
fn many_tokens_are_read_in_pages() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let token = |number: u16| Address::left_padding_from(&number.to_be_bytes());
        let moves: Vec<(u64, Move)> = (1..=450).map(|number| (7, paid(token(number)))).collect();
        for number in 1..=450 {
            let name = format!("token {number}");
            fixture.node.script(
                token(number),
                &NAME,
                ScriptedAnswer::Bytes(string(name.as_bytes())),
            );
        }
        fixture.derive(0..1_000, &moves).await;
        let work = open(&fixture).await;
        work.run(&(0..1_000)).await.expect("answered");
        let rows = fixture.dump(ROWS).await;
        assert_eq!(rows.len(), 450);
        fixture.run("DELETE FROM token_metadata").await;
        assert_eq!(work.rebuild().await.expect("observations"), 450);
        assert_eq!(fixture.dump(ROWS).await, rows);
    });
}
