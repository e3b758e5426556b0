//! A page looks at a bounded number of rows, and the next one goes on where it stopped.

use logmill_io::params;
use logmill_io::sql::Execute;
use serde_json::Value;

use super::rich::{Rich, amount};
use crate::http::api::plans::taken;

/// Rows that are put above those that are looked for.
const MANY: i64 = 4_500;

/// Runs a statement for each number from one to [`MANY`], which it calls `n`.
async fn many(rich: &Rich, text: &str, params: Vec<logmill_io::Value>) {
    let text = text.replace(
        "SELECT",
        &format!(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers
             WHERE n < {MANY}) SELECT"
        ),
    );
    rich.world.tables.sql().execute(&text, params).await.expect("stored");
}

/// Reads a list to its end; gives its items, and how many pages were empty.
async fn read(rich: &Rich, path: &str) -> (Vec<Value>, usize) {
    let (mut items, mut empty, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        taken();
        let page = rich.world.get(&format!("{path}?limit=10{cursor}")).await;
        assert!(taken().len() < 40, "{path}: so many statements");
        let found = page["items"].as_array().expect("a list");
        empty += usize::from(found.is_empty());
        items.extend(found.clone());
        match page["next"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return (items, empty),
        }
    }
}

#[tokio::test]
async fn what_is_left_out_costs_pages_and_not_time() {
    let rich = Rich::from(0).await;
    let holder = rich.world.tables.address_id(rich.holder).await.expect("read").expect("known");
    let transfers = format!("/accounts/{}/transfers", rich.holder);
    let (swaps_before, transfers_before) =
        (rich.world.all("/swaps", 10).await, rich.world.all(&transfers, 10).await);
    many(
        &rich,
        "INSERT INTO c1337_g1_defi_events SELECT 100000 + n, 0, 0, 0, $1, $2, 'uniswap_v2',
         'AddLiquidity', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 7
         FROM numbers",
        params![rich.pool.0.as_slice(), holder],
    )
    .await;
    many(
        &rich,
        "INSERT INTO c1337_g1_address_transactions SELECT $1, 100000 + n, 0, 1 FROM numbers",
        params![holder],
    )
    .await;
    let (swaps, empty) = read(&rich, "/swaps").await;
    assert_eq!((swaps, empty > 0), (swaps_before, true));
    let (found, empty) = read(&rich, &transfers).await;
    assert_eq!((found, empty > 0), (transfers_before, true));
}

#[tokio::test]
async fn an_item_of_many_owners_is_one_item() {
    let rich = Rich::from(0).await;
    let (collection, id) = rich.item();
    let collection_id = rich.world.tables.address_id(collection).await.expect("read");
    let items = format!("/collections/{collection}/items");
    let before = rich.world.all(&items, 10).await;
    let owners = format!("{items}/{id}/owners");
    let owners_before = rich.world.all(&owners, 10).await;
    let start = 5_000_000_i64;
    for (first, quantity) in [(start, 0_i64), (start + MANY, 3)] {
        many(
            &rich,
            "INSERT INTO address (id, address) SELECT $1 + n,
             CAST(substr('00000000000000000000' || ($1 + n), -20) AS BLOB) FROM numbers",
            params![first],
        )
        .await;
        many(
            &rich,
            "INSERT INTO c1337_g1_nft_balances SELECT $1, $2, $3 + n, $4, 5 FROM numbers",
            params![collection_id, amount(id), first, logmill_io::Amount::from(quantity)],
        )
        .await;
    }
    let (found, _) = read(&rich, &items).await;
    assert_eq!(found, before);
    let (found, empty) = read(&rich, &owners).await;
    let many = usize::try_from(MANY).expect("small");
    assert_eq!((found.len(), empty > 0), (owners_before.len() + many, true));
}
