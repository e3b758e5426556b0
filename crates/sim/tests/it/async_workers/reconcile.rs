//! Compares tables with what contracts return.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use alloy_primitives::{Address, B256, U256};
use logmill_pipeline::async_workers::reconcile::{ReconcileSettings, Reconciler};
use logmill_pipeline::async_workers::{AsyncSettings, AsyncWorker};
use logmill_sim::Database;
use logmill_sim::scripted_node::ScriptedAnswer;

use super::fixture::{CHAIN, Move, WorkerFixture, account, data, word};
use crate::work::{on_both, simulate};

const OWNER_OF: [u8; 4] = [0x63, 0x52, 0x21, 0x1e];
const BALANCE_OF: [u8; 4] = [0x70, 0xa0, 0x82, 0x31];
const BALANCE_OF_ITEM: [u8; 4] = [0x00, 0xfd, 0xd5, 0x8e];
const FLAGS: &str = "SELECT kind, verdict, expected, observed, block FROM reconciliation
    ORDER BY kind, verdict, expected";
const FOLDS: &str = "SELECT nft_id, owner, last_height FROM nft_ownership ORDER BY nft_id";

async fn worker(fixture: &WorkerFixture) -> AsyncWorker {
    let settings = ReconcileSettings::default();
    let work = Reconciler::open(fixture.tables.clone(), CHAIN, fixture.state(), settings).await;
    let work = Arc::new(work.expect("tables"));
    AsyncWorker::new(work, fixture.tables.clone(), CHAIN, AsyncSettings::default())
}

fn id(id: u64) -> B256 {
    B256::from(U256::from(id))
}

/// Items and balances, some of which differ from their logs.
fn script(fixture: &WorkerFixture) -> Vec<(u64, Move)> {
    let (apes, multi, coin) = (account(1), account(2), account(3));
    let (good, bad) = (account(8), account(9));
    let node = &fixture.node;
    let ape = |id: u64, to: Address| (5, Move::Nft { contract: apes, id: U256::from(id), to });
    node.script(apes, &data(OWNER_OF, &[id(1)]), ScriptedAnswer::Bytes(good.into_word().to_vec()));
    node.script(apes, &data(OWNER_OF, &[id(2)]), ScriptedAnswer::Bytes(bad.into_word().to_vec()));
    node.script(apes, &data(OWNER_OF, &[id(3)]), ScriptedAnswer::Error(3, "execution reverted"));
    let of_item = data(BALANCE_OF_ITEM, &[good.into_word(), id(1)]);
    node.script(multi, &of_item, ScriptedAnswer::Bytes(word(4)));
    node.script(coin, &data(BALANCE_OF, &[good.into_word()]), ScriptedAnswer::Bytes(word(100)));
    node.script(coin, &data(BALANCE_OF, &[bad.into_word()]), ScriptedAnswer::Bytes(word(95)));
    let item = |quantity| Move::Batch { contract: multi, id: U256::ONE, to: good, quantity };
    let paid = |to, amount| Move::Ft { token: coin, to, amount };
    vec![
        ape(1, good),
        ape(2, good),
        ape(3, good),
        ape(4, Address::ZERO),
        (6, item(1)),
        (6, item(3)),
        (7, paid(good, 60)),
        (7, paid(good, 40)),
        (7, paid(bad, 100)),
    ]
}

#[test]
fn answers_of_contracts_are_compared_and_differences_flagged_without_changing_tables() {
    on_both(async |database| {
        let fixture = WorkerFixture::new(database).await;
        let moves = script(&fixture);
        fixture.derive(0..900, &moves).await;
        let folds = fixture.dump(FOLDS).await;
        let worker = worker(&fixture).await;
        worker.plan().await.expect("a plan");
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        let (good, bad) = (format!("{:#x}", account(8)), format!("{:#x}", account(9)));
        let row = |kind: &str, verdict: &str, expected: &str, observed: Option<&str>| {
            let observed =
                observed.map_or_else(|| "Null".to_owned(), |text| format!("Text({text:?})"));
            format!(
                "Row([Text({kind:?}), Text({verdict:?}), Text({expected:?}), {observed}, Int(899)])"
            )
        };
        let zero = format!("{:#x}", Address::ZERO);
        let expected = [
            row("ft_balance", "agrees", "100", Some("100")),
            row("ft_balance", "differs", "100", Some("95")),
            row("nft_balance", "agrees", "4", Some("4")),
            // Burnt: there is no owner.
            row("nft_owner", "agrees", &zero, None),
            row("nft_owner", "agrees", &good, Some(&good)),
            row("nft_owner", "differs", &good, Some(&bad)),
            row("nft_owner", "reverts", &good, None),
        ];
        assert_eq!(fixture.dump(FLAGS).await, expected);
        assert_eq!(fixture.dump(FOLDS).await, folds);
        let kept = fixture.dump("SELECT count(*) FROM observation WHERE block = 899").await;
        assert_eq!(kept, ["Row([Int(7)])"]);
    });
}

/// The stored comparisons, each as kind, since, block, expected, observed and verdict.
const ROWS: &str = "SELECT kind, since, block, expected, observed, verdict FROM reconciliation
    ORDER BY block, kind, expected, observed";

fn flag(kind: &str, since: Option<u64>, expected: &str, observed: &str, verdict: &str) -> String {
    let since = since.map_or_else(|| "Null".to_owned(), |since| format!("Int({since})"));
    format!(
        "Row([Text({kind:?}), {since}, Int(899), Text({expected:?}), Text({observed:?}), Text({verdict:?})])"
    )
}

#[test]
fn within_coverage_the_difference_of_two_heights_is_compared() {
    on_both(async |database| {
        let fixture = WorkerFixture::new(database).await;
        let worker = worker(&fixture).await;
        let (apes, multi, coin) = (account(1), account(2), account(3));
        let (good, bad, poor) = (account(8), account(9), account(10));
        let balance = |of: Address| data(BALANCE_OF, &[of.into_word()]);
        let item = data(BALANCE_OF_ITEM, &[good.into_word(), id(1)]);
        let node = &fixture.node;
        // Each had a balance before the covered blocks.
        for (contract, call, before, after) in [
            (coin, balance(good), 1_000, 1_100),
            (coin, balance(bad), 500, 595),
            (multi, item, 6, 10),
        ] {
            node.script_until(499, contract, &call, ScriptedAnswer::Bytes(word(before)));
            node.script(contract, &call, ScriptedAnswer::Bytes(word(after)));
        }
        // One token was created only then, so an earlier balance is not a number.
        let young = account(4);
        node.create(young, 600);
        node.script(young, &balance(good), ScriptedAnswer::Bytes(word(9)));
        let reverted = ScriptedAnswer::Error(3, "execution reverted");
        node.script_until(499, coin, &balance(poor), reverted);
        node.script(coin, &balance(poor), ScriptedAnswer::Bytes(word(1)));
        let owned = ScriptedAnswer::Bytes(good.into_word().to_vec());
        node.script(apes, &data(OWNER_OF, &[id(1)]), owned);
        let paid = |token, to, amount| Move::Ft { token, to, amount };
        let ape = |to| Move::Nft { contract: apes, id: U256::ONE, to };
        let some = |quantity| Move::Batch { contract: multi, id: U256::ONE, to: good, quantity };
        let moves = [
            (600, paid(coin, good, 60)),
            (700, paid(coin, good, 40)),
            (700, paid(coin, bad, 100)),
            (700, paid(coin, poor, 1)),
            (700, paid(young, good, 9)),
            (701, ape(bad)),
            (702, ape(good)),
            (703, some(1)),
            (703, some(3)),
        ];
        // History is filled elsewhere; transfers there belong to other blocks.
        fixture.derive(5..10, &[(7, paid(coin, good, 77)), (8, some(5))]).await;
        fixture.derive(500..900, &moves).await;
        let folds = fixture.dump(FOLDS).await;
        worker.plan().await.expect("a plan");
        fixture.node.floor.store(400, Ordering::SeqCst);
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        let owner = format!("{good:#x}");
        let mut rows = fixture.dump(ROWS).await;
        let gone: Vec<String> = rows.extract_if(.., |row| row.contains("no_state")).collect();
        let unclear: Vec<String> = rows.extract_if(.., |row| row.contains("unclear")).collect();
        assert_eq!(
            rows,
            [
                flag("ft_balance", Some(499), "1100", "1100", "agrees"),
                flag("ft_balance", Some(499), "600", "595", "differs"),
                flag("ft_balance", Some(499), "9", "9", "agrees"),
                flag("nft_balance", Some(499), "10", "10", "agrees"),
                flag("nft_owner", None, &owner, &owner, "agrees"),
            ]
        );
        assert_eq!(unclear.len(), 1, "what was no number before: {unclear:?}");
        // The state of the older range is gone: reported once for each kind of token that moved there.
        assert_eq!(gone.len(), 2, "{gone:?}");
        assert!(gone.iter().all(|row| row.contains("Int(4), Int(9), Null, Null")), "{gone:?}");
        assert_eq!(fixture.dump(FOLDS).await, folds);
        assert_eq!(worker.progress().await.expect("a database").jobs.dead, 0);
    });
}

#[test]
fn once_a_gap_is_filled_the_tables_themselves_are_compared() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let worker = worker(&fixture).await;
        let moves = script(&fixture);
        // Blocks above a gap count in the tables too, so only the transfers of the range are compared.
        fixture.derive(0..900, &moves).await;
        let more = [(950, Move::Ft { token: account(3), to: account(8), amount: 7 })];
        fixture.derive(950..960, &more).await;
        worker.plan().await.expect("a plan");
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        let of_good = "SELECT block, since, expected, verdict FROM reconciliation
            WHERE kind = 'ft_balance' AND expected <> '100' ORDER BY block";
        // The node answers 100 at any block: right at block 899, and 7 too few at block 959.
        let differs = r#"Row([Int(959), Int(949), Text("107"), Text("differs")])"#;
        assert_eq!(fixture.dump(of_good).await, [differs]);
        fixture.derive(900..950, &[(940, moves[6].1.clone())]).await;
        assert_eq!(worker.plan().await.expect("a plan"), 1);
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        let whole = r#"Row([Int(959), Null, Text("167"), Text("differs")])"#;
        assert_eq!(fixture.dump(of_good).await, [whole]);
        let checkpoint = "SELECT from_height, last_height FROM indexing_checkpoints
            WHERE service_name = 'nft_ownership_reconciler'";
        assert_eq!(fixture.dump(checkpoint).await, ["Row([Int(0), Int(959)])"]);
    });
}

#[test]
fn the_state_of_another_block_proves_nothing() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let worker = worker(&fixture).await;
        let moves = script(&fixture);
        fixture.derive(0..900, &moves).await;
        fixture.node.floor.store(50_000, Ordering::SeqCst);
        worker.plan().await.expect("a plan");
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 0);
        let verdicts = "SELECT DISTINCT verdict, observed FROM reconciliation";
        assert_eq!(fixture.dump(verdicts).await, [r#"Row([Text("no_state"), Null])"#]);
        assert_eq!(fixture.node.requests(), 3, "of each sort one is enough to know");
        assert_eq!(fixture.dump("SELECT * FROM observation").await, Vec::<String>::new());
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(900));
    });
}

#[test]
fn a_node_that_cannot_be_reached_is_asked_again() {
    simulate(async {
        let fixture = WorkerFixture::new(Database::memory().await).await;
        let worker = worker(&fixture).await;
        let moves = script(&fixture);
        fixture.derive(1..900, &moves).await;
        fixture.node.is_down.store(true, Ordering::SeqCst);
        worker.plan().await.expect("a plan");
        assert_eq!(fixture.work(&worker.kind(), &worker).await, 1);
        assert_eq!(fixture.dump(FLAGS).await, Vec::<String>::new());
        assert_eq!(worker.progress().await.expect("a database").checkpoint, Some(1));
    });
}
