//! Metadata of items: from contracts, from servers of all kinds, and from observations alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use logmill_io::SystemClock;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_pipeline::async_workers::nft_items::uri::Gateways;
use logmill_pipeline::async_workers::nft_items::{Clients, ItemSettings, NftItems, item_kind};
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, JobCounts, RangeWork};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_sim::scripted_node::ScriptedAnswer;
use logmill_work::State;

use super::fixture::{CHAIN, Move, WorkerFixture, account, data, string};
use super::web::Web;
use crate::work::{in_real_time, simulate};

const TOKEN_URI: [u8; 4] = [0xc8, 0x7b, 0x56, 0xdd];
const URI: [u8; 4] = [0x0e, 0x89, 0x34, 0x1c];
const APES: Address = Address::repeat_byte(1);
const MULTI: Address = Address::repeat_byte(2);
const ROWS: &str =
    "SELECT nft_id, uri, name, image, traits, metadata_error, retries, observed_height
    FROM nft_items ORDER BY contract_address, nft_id";

async fn open(fixture: &WorkerFixture, web: &Web, attempts: u32) -> NftItems {
    let gateways = Gateways { ipfs: vec![web.url("/")], arweave: vec![] };
    let timeout = Duration::from_millis(300);
    let settings = ItemSettings { gateways, timeout, attempts, ..ItemSettings::default() };
    let tables = fixture.tables.clone();
    NftItems::open(tables, CHAIN, fixture.state(), web.clients(), settings).await.expect("tables")
}

/// Discovers the items in the derived tables, and tries each once; returns how many failed.
async fn go(fixture: &WorkerFixture, items: &NftItems) -> usize {
    let settings = AsyncSettings::default();
    let worker = AsyncWorker::new(Arc::new(items.clone()), fixture.tables.clone(), CHAIN, settings);
    worker.plan().await.expect("a plan");
    assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
    fixture.work(&item_kind(CHAIN), items).await
}

/// An item whose contract returns this answer.
fn item(fixture: &WorkerFixture, id: u64, answer: ScriptedAnswer) -> (u64, Move) {
    let id = U256::from(id);
    fixture.node.script(APES, &data(TOKEN_URI, &[B256::from(id)]), answer);
    (10, Move::Nft { contract: APES, id, to: account(9) })
}

fn answer(uri: &str) -> ScriptedAnswer {
    ScriptedAnswer::Bytes(string(uri.as_bytes()))
}

/// The first row that contains `part`.
fn find<'a>(rows: &'a [String], part: &str) -> &'a str {
    rows.iter().find(|row| row.contains(part)).unwrap_or_else(|| panic!("no {part} in {rows:#?}"))
}

async fn all_sorts(database: Database) {
    let fixture = WorkerFixture::new(database).await;
    let web = Web::start().await;
    let cid = "QmeSjSinHpPnmXmspMjwiXyN6zS4E9zccariGR3jxcaWtq";
    let mut moves = vec![
        item(&fixture, 1, answer(&web.url("/ape"))),
        item(
            &fixture,
            2,
            answer(r#"data:application/json,{"name":"Here","attributes":[{"a":1}]}"#),
        ),
        item(&fixture, 3, answer(&format!("ipfs://{cid}/3"))),
        item(&fixture, 4, ScriptedAnswer::Error(3, "execution reverted: nonexistent token")),
        item(&fixture, 5, ScriptedAnswer::Bytes(vec![])),
        item(&fixture, 6, answer("gopher://x/y")),
        item(&fixture, 7, answer(&web.url("/large"))),
        item(&fixture, 8, answer("data:application/json,<svg>")),
        item(&fixture, 9, ScriptedAnswer::Bytes(vec![7; 3 << 20])),
    ];
    // ERC-1155: one URI for all items, with a placeholder for the id.
    let id = U256::MAX;
    let all = web.url("/multi/{id}.json");
    fixture.node.script(MULTI, &data(URI, &[B256::from(id)]), answer(&all));
    moves.push((11, Move::Batch { contract: MULTI, id, to: account(9), quantity: 3 }));
    fixture.derive(0..1_000, &moves).await;
    let items = open(&fixture, &web, 20).await;
    assert_eq!(go(&fixture, &items).await, 0);
    let rows = fixture.dump(ROWS).await;
    assert_eq!(rows.len(), 10, "{rows:#?}");
    // The image is recorded but not fetched.
    assert!(find(&rows, "\"Ape\"").contains("http://169.254.169.254/x.png"));
    assert!(find(&rows, "\"Here\"").contains(r#"[{\"a\":1}]"#));
    find(&rows, &format!("\"/ipfs/{cid}/3\""));
    find(&rows, &format!("\"/multi/{}.json\"", "f".repeat(64)));
    for error in [
        "the contract reverts",
        "the contract returns nothing",
        "the contract returns too much data",
        "the URI has an unknown scheme",
        "the document is too large",
        "the document is not JSON",
    ] {
        find(&rows, error);
    }
    // Without a node, without the web, and without the table.
    let (requests, fetched) = (fixture.node.requests(), web.requests());
    fixture.node.is_down.store(true, Ordering::SeqCst);
    drop(web);
    fixture.run("DELETE FROM nft_items").await;
    assert_eq!(items.rebuild().await.expect("observations"), 10);
    assert_eq!(fixture.dump(ROWS).await, rows);
    assert_eq!((fixture.node.requests(), fetched), (requests, 4), "one for each document");
}

#[test]
fn items_are_read_from_contracts_and_servers_and_rebuilt_from_observations() {
    in_real_time(async { all_sorts(Database::memory().await).await });
    let server = PostgresServer::start();
    in_real_time(async { all_sorts(Database::postgres(&server)).await });
}

#[test]
fn failures_are_recorded_retried_with_backoff_and_end_as_dead_letters() {
    in_real_time(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let web = Web::start().await;
        let moves = [
            item(&fixture, 1, answer(&web.url("/to-private"))),
            item(&fixture, 2, answer(&web.url("/html"))),
            item(&fixture, 3, answer(&web.url("/gone"))),
            item(&fixture, 4, answer(&web.url("/slow"))),
            item(&fixture, 5, answer("http://169.254.169.254/latest/meta-data")),
            item(&fixture, 6, answer(&format!("http://user:secret@{}/ape", web.at))),
            item(&fixture, 7, ScriptedAnswer::Error(-32_000, "header not found")),
        ];
        fixture.derive(0..1_000, &moves).await;
        let items = open(&fixture, &web, 3).await;
        assert_eq!(go(&fixture, &items).await, 7);
        let rows = fixture.dump(ROWS).await;
        for error in [
            "127.0.0.2 is not public",
            "the document is not JSON",
            "http status 404",
            "no answer within 300 ms",
            "169.254.169.254 is not public",
            "credentials",
            "header not found",
        ] {
            assert!(find(&rows, error).contains("Int(1)"), "one attempt: {error}");
        }
        assert!(!format!("{rows:?}").contains("secret"));
        let waits = "SELECT min(refetch_after) > 1790000000000 FROM nft_items";
        assert_eq!(fixture.dump(waits).await, ["Row([Int(1)])"]);
        // Nothing is due yet.
        let kind = item_kind(CHAIN);
        assert_eq!(fixture.work(&kind, &items).await, 0);
        for _ in 0..2 {
            fixture.pass_time();
            assert_eq!(fixture.work(&kind, &items).await, 7);
        }
        let dead = fixture.queue().list(&kind, State::Dead, None, 100).await.expect("a queue");
        assert_eq!(dead.len(), 7);
        let ended = "SELECT count(*) FROM nft_items WHERE retries = 3 AND refetch_after IS NULL";
        assert_eq!(fixture.dump(ended).await, ["Row([Int(7)])"]);
        let kept = "SELECT count(*) FROM observation WHERE kind = 'nft_document'";
        assert_eq!(fixture.dump(kept).await, ["Row([Int(0)])"], "none of that is a document");
        // The node was asked once for each URI it returned, however often the web was.
        assert_eq!(fixture.node.requests(), 6 + 3);
    });
}

#[test]
fn a_retry_after_is_respected_and_a_later_success_clears_the_error() {
    in_real_time(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let web = Web::start().await;
        fixture.derive(0..1_000, &[item(&fixture, 1, answer(&web.url("/busy")))]).await;
        let items = open(&fixture, &web, 20).await;
        assert_eq!(go(&fixture, &items).await, 1);
        let kind = item_kind(CHAIN);
        let waits = "SELECT refetch_after FROM nft_items";
        let before = fixture.dump(waits).await;
        // The ordinary backoff would have ended by then.
        fixture.database.advance(Duration::from_secs(2_000), &[fixture.sql()]);
        assert_eq!(fixture.work(&kind, &items).await, 0);
        assert_eq!(fixture.dump(waits).await, before, "its time is not over");
        // The contract names another document.
        fixture.run("DELETE FROM observation").await;
        let id = B256::from(U256::from(1));
        fixture.node.script(APES, &data(TOKEN_URI, &[id]), answer(&web.url("/ape")));
        fixture.pass_time();
        assert_eq!(fixture.work(&kind, &items).await, 0);
        let rows = fixture.dump(ROWS).await;
        assert!(rows[0].contains("\"Ape\"") && rows[0].contains("Null, Int(0)"), "{rows:?}");
        assert_eq!(fixture.dump(waits).await, ["Row([Null])"]);
    });
}

#[test]
fn many_items_are_found_in_pages_and_each_has_one_job() {
    in_real_time(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let web = Web::start().await;
        let moved = |id: u64| {
            let id = U256::from(id) << 200;
            (10, Move::Nft { contract: APES, id, to: account(9) })
        };
        let moves: Vec<(u64, Move)> = (0..2_500).map(moved).collect();
        fixture.derive(0..1_000, &moves).await;
        // Transferred again, in another range.
        fixture.derive(1_000..2_000, &[(1_001, moved(5).1), (1_002, moved(5).1)]).await;
        let items = open(&fixture, &web, 20).await;
        for range in [0..1_000, 1_000..2_000, 0..1_000] {
            RangeWork::run(&items, &range).await.expect("found");
        }
        let counts = fixture.queue().counts().await.expect("a queue");
        let kind = item_kind(CHAIN);
        let jobs: u64 = counts.iter().filter(|c| c.kind == kind).map(|c| c.jobs).sum();
        assert_eq!(jobs, 2_500);
    });
}

#[test]
fn ranges_and_items_run_by_themselves_and_report_their_progress() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let moves: Vec<(u64, Move)> = (1..=30)
            .map(|id| item(&fixture, id, answer(&format!(r#"data:,{{"name":"Ape {id}"}}"#))))
            .collect();
        fixture.derive(0..2_500, &moves).await;
        let nobody = GuardedClient::new(SystemClock::shared(), GuardedSettings::default());
        let nobody = nobody.expect("a client");
        let clients = Clients { web: nobody.clone(), gateways: nobody };
        let (tables, settings) = (fixture.tables.clone(), ItemSettings::default());
        let items = NftItems::open(tables, CHAIN, fixture.state(), clients, settings).await;
        let items = items.expect("tables");
        let work = Arc::new(items.clone());
        let worker =
            AsyncWorker::new(work, fixture.tables.clone(), CHAIN, AsyncSettings::default());
        let clock = Arc::clone(fixture.sql().clock());
        let stop = || clock.sleep(Duration::from_secs(60));
        let runner = items.runner("me").expect("a runner");
        let (ranges, single) = tokio::join!(worker.run("me", stop()), runner.run(stop()));
        ranges.expect("no trouble");
        single.expect("no trouble");
        let progress = worker.progress().await.expect("a database");
        assert_eq!((progress.checkpoint, progress.missing), (Some(2_500), 0));
        assert_eq!(
            (progress.jobs, progress.items),
            (JobCounts::default(), Some(JobCounts::default()))
        );
        let named = "SELECT count(DISTINCT name) FROM nft_items WHERE metadata_error IS NULL";
        assert_eq!(fixture.dump(named).await, ["Row([Int(30)])"]);
        let checkpoint = "SELECT from_height, last_height FROM indexing_checkpoints
            WHERE service_name = 'nft_item_metadata_worker'";
        assert_eq!(fixture.dump(checkpoint).await, ["Row([Int(0), Int(2499)])"]);
    });
}
