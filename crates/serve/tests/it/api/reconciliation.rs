//! Comparisons of tables with contracts: pages, verdicts, and chains without comparisons.

use alloy_primitives::{Address, B256};
use logmill_io::sql::Execute;
use logmill_io::{Sql, params};
use logmill_pipeline::async_workers::reconcile;
use logmill_sim::Database;
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};

use super::super::test_server::CHAIN_ID;
use super::derived_server::{DerivedServer, blocks, memory, sim};

const CONTRACT: Address = Address::repeat_byte(0x11);

/// Kind, account, block, since, expected, observed, verdict.
type Comparison =
    (&'static str, u8, i64, Option<i64>, Option<&'static str>, Option<&'static str>, &'static str);

/// Comparisons, newest first.
const STORED: [Comparison; 6] = [
    ("nft_owner", 1, 9, None, Some("0x01"), Some("0x01"), "agrees"),
    ("nft_balance", 2, 9, Some(4), Some("7"), None, "reverts"),
    ("ft_balance", 2, 9, Some(4), Some("7"), Some("6"), "differs"),
    ("ft_balance", 1, 9, Some(4), None, None, "no_state"),
    ("ft_balance", 2, 4, None, Some("3"), Some("2"), "differs"),
    ("ft_balance", 1, 4, None, Some("3"), Some("3"), "agrees"),
];

async fn put(sql: &Sql) {
    sql.migrate(&reconcile::MIGRATIONS).await.expect("a table");
    for (chain, block) in [(i64::try_from(CHAIN_ID).expect("small"), 0), (99, 1)] {
        for (kind, whose, at, since, expected, observed, verdict) in STORED {
            let (item, who) = (B256::with_last_byte(5), Address::repeat_byte(whose));
            let subject = match kind {
                "nft_owner" => [CONTRACT.as_slice(), item.as_slice()].concat(),
                "nft_balance" => [CONTRACT.as_slice(), item.as_slice(), who.as_slice()].concat(),
                _ => [CONTRACT.as_slice(), who.as_slice()].concat(),
            };
            let text = "INSERT INTO reconciliation
                    (chain_id, kind, subject, block, since, expected, observed, verdict)
                VALUES ($1, $2, $3, $4, $5, $6, $7, $8)";
            let row = params![chain, kind, subject, at + block, since, expected, observed, verdict];
            sql.execute(text, row).await.expect("a row");
        }
    }
}

/// Fields of an item, in the order of the columns.
fn brief(item: &Value) -> Value {
    let names = ["kind", "account", "blockNumber", "sinceBlock", "expected", "observed", "verdict"];
    names.map(|name| item[name].clone()).into_iter().collect()
}

async fn check(sql: Sql) {
    let chain = sim(5);
    chain.grow(11);
    let derived = DerivedServer::with(sql, blocks(&chain, 0..12), Vec::new(), |_| true).await;
    let (status, code, message) = derived.refused("/reconciliation").await;
    assert_eq!((status, code.as_str()), (404, "not_derived"));
    assert!(message.contains("nft_ownership_reconciler"), "{message}");
    put(derived.tables.sql()).await;
    let expected: Vec<Value> = STORED
        .iter()
        .map(|(kind, whose, block, since, expected, observed, verdict)| {
            let who = (*kind != "nft_owner").then(|| Address::repeat_byte(*whose));
            json!([
                kind,
                who.map(|who| format!("{who:#x}")),
                block,
                since,
                expected,
                observed,
                verdict
            ])
        })
        .collect();
    for limit in [1, 2, 4, 100] {
        let items = derived.all("/reconciliation", limit).await;
        assert_eq!(items.iter().map(brief).collect::<Vec<_>>(), expected, "pages of {limit}");
        assert!(items.iter().all(|item| item["contract"] == json!(format!("{CONTRACT:#x}"))));
        assert_eq!((&items[0]["itemId"], &items[2]["itemId"]), (&json!("5"), &Value::Null));
        for verdict in ["agrees", "differs", "reverts", "unclear", "no_state"] {
            let some = derived.all(&format!("/reconciliation?verdict={verdict}"), limit).await;
            let of: Vec<&Value> = expected.iter().filter(|one| one[6] == verdict).collect();
            assert_eq!(
                some.iter().map(brief).collect::<Vec<_>>(),
                of.into_iter().cloned().collect::<Vec<_>>()
            );
        }
    }
    let (status, code, _) = derived.refused("/reconciliation?verdict=fine").await;
    assert_eq!((status, code.as_str()), (400, "invalid_parameter"));
    let (status, code, _) = derived.refused("/reconciliation?cursor=WzFd").await;
    assert_eq!((status, code.as_str()), (400, "invalid_cursor"));
}

#[tokio::test]
async fn on_sqlite_every_comparison_is_in_one_page() {
    check(memory().await).await;
}

#[tokio::test]
async fn on_postgresql_every_comparison_is_in_one_page() {
    let server = PostgresServer::start();
    check(Database::postgres(&server).open().await).await;
}
