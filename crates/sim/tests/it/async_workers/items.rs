//! What items are called: by contracts, by servers of all sorts, and by observations alone.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use alloy_primitives::{Address, B256, U256};
use logmill_io::SystemClock;
use logmill_io::wire::{GuardedClient, GuardedSettings};
use logmill_pipeline::async_workers::nft_items::uri::Gateways;
use logmill_pipeline::async_workers::nft_items::{Clients, ItemSettings, NftItems, item_kind};
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker, Jobs, RangeWork};
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use logmill_work::State;

use super::fake::Says;
use super::ground::{CHAIN, Ground, Move, account, data, string};
use super::web::Web;
use crate::work::{in_real_time, simulate};

const TOKEN_URI: [u8; 4] = [0xc8, 0x7b, 0x56, 0xdd];
const URI: [u8; 4] = [0x0e, 0x89, 0x34, 0x1c];
const APES: Address = Address::repeat_byte(1);
const MULTI: Address = Address::repeat_byte(2);
const ROWS: &str =
    "SELECT nft_id, uri, name, image, traits, metadata_error, retries, observed_height
    FROM nft_items ORDER BY contract_address, nft_id";

async fn open(ground: &Ground, web: &Web, attempts: u32) -> NftItems {
    let gateways = Gateways { ipfs: vec![web.url("/")], arweave: vec![] };
    let timeout = Duration::from_millis(300);
    let settings = ItemSettings { gateways, timeout, attempts, ..ItemSettings::default() };
    let tables = ground.tables.clone();
    NftItems::open(tables, CHAIN, ground.state(), web.clients(), settings).await.expect("tables")
}

/// Discovers the items of what is derived, and tries each of them once; gives how many failed.
async fn go(ground: &Ground, items: &NftItems) -> usize {
    let settings = AsyncSettings::default();
    let worker = AsyncWorker::new(Arc::new(items.clone()), ground.tables.clone(), CHAIN, settings);
    worker.plan().await.expect("a plan");
    assert_eq!(ground.work(&worker.kind(), &worker).await, 0);
    ground.work(&item_kind(CHAIN), items).await
}

/// An item whose contract says this.
fn item(ground: &Ground, id: u64, says: Says) -> (u64, Move) {
    let id = U256::from(id);
    ground.node.tell(APES, &data(TOKEN_URI, &[B256::from(id)]), says);
    (10, Move::Nft { contract: APES, id, to: account(9) })
}

fn says(uri: &str) -> Says {
    Says::Bytes(string(uri.as_bytes()))
}

/// The rows of items whose error has this in it, or whose row has.
fn find<'a>(rows: &'a [String], part: &str) -> &'a str {
    rows.iter().find(|row| row.contains(part)).unwrap_or_else(|| panic!("no {part} in {rows:#?}"))
}

async fn all_sorts(database: Database) {
    let ground = Ground::new(database).await;
    let web = Web::start().await;
    let cid = "QmeSjSinHpPnmXmspMjwiXyN6zS4E9zccariGR3jxcaWtq";
    let mut moves = vec![
        item(&ground, 1, says(&web.url("/ape"))),
        item(&ground, 2, says(r#"data:application/json,{"name":"Here","attributes":[{"a":1}]}"#)),
        item(&ground, 3, says(&format!("ipfs://{cid}/3"))),
        item(&ground, 4, Says::Error(3, "execution reverted: nonexistent token")),
        item(&ground, 5, Says::Bytes(vec![])),
        item(&ground, 6, says("gopher://x/y")),
        item(&ground, 7, says(&web.url("/large"))),
        item(&ground, 8, says("data:application/json,<svg>")),
        item(&ground, 9, Says::Bytes(vec![7; 3 << 20])),
    ];
    // ERC-1155: one address for all, with the id in it.
    let id = U256::MAX;
    let all = web.url("/multi/{id}.json");
    ground.node.tell(MULTI, &data(URI, &[B256::from(id)]), says(&all));
    moves.push((11, Move::Batch { contract: MULTI, id, to: account(9), quantity: 3 }));
    ground.derive(0..1_000, &moves).await;
    let items = open(&ground, &web, 20).await;
    assert_eq!(go(&ground, &items).await, 0);
    let rows = ground.dump(ROWS).await;
    assert_eq!(rows.len(), 10, "{rows:#?}");
    // The picture is named, and not asked for.
    assert!(find(&rows, "\"Ape\"").contains("http://169.254.169.254/x.png"));
    assert!(find(&rows, "\"Here\"").contains(r#"[{\"a\":1}]"#));
    find(&rows, &format!("\"/ipfs/{cid}/3\""));
    find(&rows, &format!("\"/multi/{}.json\"", "f".repeat(64)));
    for error in [
        "the contract reverts",
        "the contract gives nothing",
        "the contract gives too much",
        "the address is of no kind that is known",
        "the document is too large",
        "the document is no JSON",
    ] {
        find(&rows, error);
    }
    // Without a node, without the web, and without the table.
    let (asked, fetched) = (ground.node.asked(), web.asked());
    ground.node.is_down.store(true, Ordering::SeqCst);
    drop(web);
    ground.run("DELETE FROM nft_items").await;
    assert_eq!(items.rebuild().await.expect("observations"), 10);
    assert_eq!(ground.dump(ROWS).await, rows);
    assert_eq!((ground.node.asked(), fetched), (asked, 4), "one for each document");
}

#[test]
fn items_are_learnt_from_contracts_and_servers_and_again_from_observations() {
    in_real_time(async { all_sorts(Database::memory().await).await });
    let server = PostgresServer::start();
    in_real_time(async { all_sorts(Database::postgres(&server)).await });
}

#[test]
fn what_goes_wrong_is_kept_tried_ever_later_and_a_dead_letter_in_the_end() {
    in_real_time(async {
        let ground = Ground::new(Database::memory().await).await;
        let web = Web::start().await;
        let moves = [
            item(&ground, 1, says(&web.url("/to-private"))),
            item(&ground, 2, says(&web.url("/html"))),
            item(&ground, 3, says(&web.url("/gone"))),
            item(&ground, 4, says(&web.url("/slow"))),
            item(&ground, 5, says("http://169.254.169.254/latest/meta-data")),
            item(&ground, 6, says(&format!("http://user:secret@{}/ape", web.at))),
            item(&ground, 7, Says::Error(-32_000, "header not found")),
        ];
        ground.derive(0..1_000, &moves).await;
        let items = open(&ground, &web, 3).await;
        assert_eq!(go(&ground, &items).await, 7);
        let rows = ground.dump(ROWS).await;
        for error in [
            "127.0.0.2 is not a public one",
            "the document is no JSON",
            "http status 404",
            "no answer within 300 ms",
            "169.254.169.254 is not a public one",
            "credentials",
            "header not found",
        ] {
            assert!(find(&rows, error).contains("Int(1)"), "one attempt: {error}");
        }
        assert!(!format!("{rows:?}").contains("secret"));
        let waits = "SELECT min(refetch_after) > 1790000000000 FROM nft_items";
        assert_eq!(ground.dump(waits).await, ["Row([Int(1)])"]);
        // Nothing is due before its time.
        let kind = item_kind(CHAIN);
        assert_eq!(ground.work(&kind, &items).await, 0);
        for _ in 0..2 {
            ground.pass_time();
            assert_eq!(ground.work(&kind, &items).await, 7);
        }
        let dead = ground.queue().list(&kind, State::Dead, None, 100).await.expect("a queue");
        assert_eq!(dead.len(), 7);
        let ended = "SELECT count(*) FROM nft_items WHERE retries = 3 AND refetch_after IS NULL";
        assert_eq!(ground.dump(ended).await, ["Row([Int(7)])"]);
        let kept = "SELECT count(*) FROM observation WHERE kind = 'nft_document'";
        assert_eq!(ground.dump(kept).await, ["Row([Int(0)])"], "none of that is a document");
        // The node was asked once for each address it told, however often the web was.
        assert_eq!(ground.node.asked(), 6 + 3);
    });
}

#[test]
fn a_server_that_asks_for_rest_gets_it_and_what_works_in_the_end_is_as_if_it_always_had() {
    in_real_time(async {
        let ground = Ground::new(Database::memory().await).await;
        let web = Web::start().await;
        ground.derive(0..1_000, &[item(&ground, 1, says(&web.url("/busy")))]).await;
        let items = open(&ground, &web, 20).await;
        assert_eq!(go(&ground, &items).await, 1);
        let kind = item_kind(CHAIN);
        let waits = "SELECT refetch_after FROM nft_items";
        let before = ground.dump(waits).await;
        // The backoff would have been over by then.
        ground.database.advance(Duration::from_secs(2_000), &[ground.sql()]);
        assert_eq!(ground.work(&kind, &items).await, 0);
        assert_eq!(ground.dump(waits).await, before, "its time is not over");
        // Another worker learns of the document by other means.
        ground.run("DELETE FROM observation").await;
        let id = B256::from(U256::from(1));
        ground.node.tell(APES, &data(TOKEN_URI, &[id]), says(&web.url("/ape")));
        ground.pass_time();
        assert_eq!(ground.work(&kind, &items).await, 0);
        let rows = ground.dump(ROWS).await;
        assert!(rows[0].contains("\"Ape\"") && rows[0].contains("Null, Int(0)"), "{rows:?}");
        assert_eq!(ground.dump(waits).await, ["Row([Null])"]);
    });
}

#[test]
fn many_items_are_found_in_pages_and_each_has_one_job() {
    in_real_time(async {
        let ground = Ground::new(Database::memory().await).await;
        let web = Web::start().await;
        let moved = |id: u64| {
            let id = U256::from(id) << 200;
            (10, Move::Nft { contract: APES, id, to: account(9) })
        };
        let moves: Vec<(u64, Move)> = (0..2_500).map(moved).collect();
        ground.derive(0..1_000, &moves).await;
        // Moved again, in another range.
        ground.derive(1_000..2_000, &[(1_001, moved(5).1), (1_002, moved(5).1)]).await;
        let items = open(&ground, &web, 20).await;
        for range in [0..1_000, 1_000..2_000, 0..1_000] {
            RangeWork::run(&items, &range).await.expect("found");
        }
        let counts = ground.queue().counts().await.expect("a queue");
        let kind = item_kind(CHAIN);
        let jobs: u64 = counts.iter().filter(|c| c.kind == kind).map(|c| c.jobs).sum();
        assert_eq!(jobs, 2_500);
    });
}

#[test]
fn ranges_and_items_run_by_themselves_and_say_how_far_they_are() {
    simulate(async {
        let ground = Ground::new(Database::memory().await).await;
        let moves: Vec<(u64, Move)> = (1..=30)
            .map(|id| item(&ground, id, says(&format!(r#"data:,{{"name":"Ape {id}"}}"#))))
            .collect();
        ground.derive(0..2_500, &moves).await;
        let nobody = GuardedClient::new(SystemClock::shared(), GuardedSettings::default());
        let nobody = nobody.expect("a client");
        let clients = Clients { web: nobody.clone(), gateways: nobody };
        let (tables, settings) = (ground.tables.clone(), ItemSettings::default());
        let items = NftItems::open(tables, CHAIN, ground.state(), clients, settings).await;
        let items = items.expect("tables");
        let work = Arc::new(items.clone());
        let worker = AsyncWorker::new(work, ground.tables.clone(), CHAIN, AsyncSettings::default());
        let clock = Arc::clone(ground.sql().clock());
        let stop = || clock.sleep(Duration::from_secs(60));
        let runner = items.runner("me").expect("a runner");
        let (ranges, single) = tokio::join!(worker.run("me", stop()), runner.run(stop()));
        ranges.expect("no trouble");
        single.expect("no trouble");
        let standing = worker.standing().await.expect("a database");
        assert_eq!((standing.checkpoint, standing.missing), (Some(2_500), 0));
        assert_eq!((standing.jobs, standing.items), (Jobs::default(), Some(Jobs::default())));
        let named = "SELECT count(DISTINCT name) FROM nft_items WHERE metadata_error IS NULL";
        assert_eq!(ground.dump(named).await, ["Row([Int(30)])"]);
    });
}
