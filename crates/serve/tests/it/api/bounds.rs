//! A page reads a bounded number of rows, and the next one continues where it stopped.

use logmill_io::params;
use logmill_io::sql::Execute;
use logmill_serve::http::take_statements;
use serde_json::Value;

use super::sample_chain::{SampleChain, amount};

/// Number of rows inserted above those that match.
const MANY: i64 = 4_500;

/// Runs a statement for each number from one to [`MANY`], available as `n`.
async fn many(sample: &SampleChain, text: &str, params: Vec<logmill_io::Value>) {
    let text = text.replace(
        "SELECT",
        &format!(
            "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers
             WHERE n < {MANY}) SELECT"
        ),
    );
    sample.derived.tables.sql().execute(&text, params).await.expect("stored");
}

/// Reads a list to its end; returns its items and the number of empty pages.
async fn read(sample: &SampleChain, path: &str) -> (Vec<Value>, usize) {
    let (mut items, mut empty, mut cursor) = (Vec::new(), 0, String::new());
    loop {
        take_statements();
        let page = sample.derived.get(&format!("{path}?limit=10{cursor}")).await;
        assert!(take_statements().len() < 40, "{path}: so many statements");
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
async fn skipped_rows_cost_pages_and_not_time() {
    let sample = SampleChain::from(0).await;
    let holder =
        sample.derived.tables.address_id(sample.holder).await.expect("read").expect("known");
    let transfers = format!("/accounts/{}/transfers", sample.holder);
    let (swaps_before, transfers_before) =
        (sample.derived.all("/swaps", 10).await, sample.derived.all(&transfers, 10).await);
    many(
        &sample,
        "INSERT INTO c1337_g1_defi_events SELECT 100000 + n, 0, 0, 0, $1, $2, 'uniswap_v2',
         'AddLiquidity', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 7
         FROM numbers",
        params![sample.pool.0.as_slice(), holder],
    )
    .await;
    many(
        &sample,
        "INSERT INTO c1337_g1_address_transactions SELECT $1, 100000 + n, 0, 1 FROM numbers",
        params![holder],
    )
    .await;
    let (swaps, empty) = read(&sample, "/swaps").await;
    assert_eq!((swaps, empty > 0), (swaps_before, true));
    let (found, empty) = read(&sample, &transfers).await;
    assert_eq!((found, empty > 0), (transfers_before, true));
}

#[tokio::test]
async fn an_item_with_many_owners_is_listed_once() {
    let sample = SampleChain::from(0).await;
    let (collection, id) = sample.item();
    let collection_id = sample.derived.tables.address_id(collection).await.expect("read");
    let items = format!("/collections/{collection}/items");
    let before = sample.derived.all(&items, 10).await;
    let owners = format!("{items}/{id}/owners");
    let owners_before = sample.derived.all(&owners, 10).await;
    let start = 5_000_000_i64;
    for (first, quantity) in [(start, 0_i64), (start + MANY, 3)] {
        many(
            &sample,
            "INSERT INTO address (id, address) SELECT $1 + n,
             CAST(substr('00000000000000000000' || ($1 + n), -20) AS BLOB) FROM numbers",
            params![first],
        )
        .await;
        many(
            &sample,
            "INSERT INTO c1337_g1_nft_balances SELECT $1, $2, $3 + n, $4, 5 FROM numbers",
            params![collection_id, amount(id), first, logmill_io::Amount::from(quantity)],
        )
        .await;
    }
    let (found, _) = read(&sample, &items).await;
    assert_eq!(found, before);
    let (found, empty) = read(&sample, &owners).await;
    let many = usize::try_from(MANY).expect("small");
    assert_eq!((found.len(), empty > 0), (owners_before.len() + many, true));
}
