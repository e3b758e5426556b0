//! Answers about single objects.

use alloy_primitives::{Address, hex, keccak256};
use logmill_io::params;
use logmill_io::sql::Execute;
use serde_json::{Value, json};

use super::sample_chain::{CODE, FACTORY, PROXY, SIMULATED, SampleChain};
use super::schema::openapi;

fn lower(address: Address) -> Value {
    address.to_string().to_lowercase().into()
}

#[tokio::test]
async fn every_path_of_the_document_answers_as_documented() {
    let sample = SampleChain::from(0).await;
    let requests = sample.requests();
    // Metering tests cover their own paths.
    let paths = openapi()["paths"].as_object().expect("paths").keys();
    let paths: Vec<&str> = paths.filter_map(|path| path.strip_prefix("/api/v1/{chain}")).collect();
    assert_eq!(requests.len(), paths.len());
    for path in paths {
        let request = requests.get(path).unwrap_or_else(|| panic!("nobody asks for {path}"));
        let answer = sample.derived.get(request).await;
        if let Some(items) = answer["items"].as_array() {
            assert!(!items.is_empty(), "{request} is empty, and so shows nothing");
        }
    }
    let (status, served) = sample.derived.server.get("/openapi.json").await;
    assert_eq!((status, served.as_str()), (200, logmill_serve::http::document()));
}

#[tokio::test]
async fn a_transaction_has_all_its_details() {
    let sample = SampleChain::from(0).await;
    for decoded in sample.scan.blocks.iter().filter(|block| !block.transactions.is_empty()) {
        let sent = &decoded.transactions[0];
        let found = sample.derived.get(&format!("/transactions/{}", sent.hash)).await;
        assert_eq!(found["blockNumber"], decoded.number());
        assert_eq!(found["blockHash"], json!(decoded.at().hash));
        assert_eq!(found["final"], decoded.number() <= SIMULATED);
        assert_eq!(found["value"], sent.value.to_string());
        assert_eq!(found["metrics"]["logCount"], sent.log_count);
        assert_eq!(found["metrics"]["gasUsed"], json!(sent.gas_used));
        let of = |found: &Value| found.as_array().expect("a list").len();
        let ft = decoded.tokens.ft.iter().filter(|one| one.transaction_index == 0).count();
        let nft = decoded.tokens.nft.iter().filter(|one| one.transaction_index == 0).count();
        assert_eq!((of(&found["tokenTransfers"]), of(&found["nftTransfers"])), (ft, nft));
        let transfers = found["tokenTransfers"].as_array().expect("a list");
        assert!(transfers.iter().all(|one| one["transactionHash"] == found["hash"]));
        if ft > 0 {
            assert!(of(&found["tags"]) > 0 && of(&found["contracts"]) > 0, "{found}");
        }
    }
}

#[tokio::test]
async fn metadata_is_shown_where_a_worker_has_fetched_it() {
    let sample = SampleChain::from(0).await;
    let token = sample.pool.1[0];
    let found = sample.derived.get(&format!("/tokens/{token}")).await;
    let named = [&found["name"], &found["symbol"], &found["decimals"]];
    assert_eq!(named, [&json!("Some Token"), &json!("SOME"), &json!(6)]);
    let transfers = sample.derived.get(&format!("/tokens/{token}/transfers")).await;
    let items = transfers["items"].as_array().expect("a list");
    assert!(items.iter().all(|one| one["decimals"] == 6 && one["symbol"] == "SOME"));
    let other = sample.derived.get(&format!("/tokens/{}", sample.born)).await;
    assert!(other["decimals"].is_null() && other["name"].is_null());
    let (collection, id) = sample.item();
    let item = sample.derived.get(&format!("/collections/{collection}/items/{id}")).await;
    assert_eq!(
        (&item["name"], &item["metadata"]["name"]),
        (&json!("Some Item"), &json!("Some Item"))
    );
    assert_eq!(item["standard"], "erc1155");
    assert!(item["owners"].as_array().is_some_and(|owners| !owners.is_empty()), "{item}");
    let hex = sample.derived.get(&format!("/collections/{collection}/items/0x{id:x}")).await;
    assert_eq!(hex["id"], item["id"]);
}

#[tokio::test]
async fn a_pool_is_shown_with_its_announcements() {
    let sample = SampleChain::from(0).await;
    let (pool, [one, other]) = sample.pool;
    let pair = sample.derived.get(&format!("/pairs/{pool}")).await;
    let announced = &pair["announcements"][0];
    assert_eq!(announced["factory"], lower(FACTORY));
    assert_eq!((&announced["asset0"], &announced["asset1"]), (&lower(one), &lower(other)));
    assert_eq!(announced["createdBlock"], SIMULATED);
    assert_eq!(pair["pools"][0]["contract"], lower(pool));
    let events = sample.derived.all(&format!("/pairs/{pool}/events"), 2).await;
    assert!(!events.is_empty());
    for event in &events {
        assert_eq!((&event["asset0"], &event["asset0Decimals"]), (&lower(one), &json!(6)));
        assert_eq!((&event["asset1"], &event["asset1Decimals"]), (&lower(other), &Value::Null));
    }
    let pools = sample.derived.all("/pairs", 1).await;
    let known = |pool: &&Value| !pool["announcements"].as_array().expect("a list").is_empty();
    assert_eq!(pools.iter().filter(known).count(), 1);
}

#[tokio::test]
async fn a_contract_is_shown_with_its_code_changes() {
    let sample = SampleChain::from(0).await;
    let proxy = sample.derived.get(&format!("/contracts/{PROXY}")).await;
    assert!(proxy["deployment"].is_null(), "no block tells");
    let versions = sample.derived.all(&format!("/contracts/{PROXY}/versions"), 3).await;
    assert_eq!(proxy["versions"], json!(versions));
    let heights: Vec<u64> = versions.iter().filter_map(|one| one["blockNumber"].as_u64()).collect();
    assert_eq!(heights, (SIMULATED..SIMULATED + 4).rev().collect::<Vec<_>>());
    assert!(versions.iter().all(|one| one["implementation"] == lower(FACTORY)));
    let born = sample.derived.get(&format!("/contracts/{}", sample.born)).await;
    assert_eq!(born["versions"][0]["kind"], "DEPLOYED");
    assert_eq!(born["deployment"]["transactionHash"], born["versions"][0]["transactionHash"]);
    let account = sample.derived.get(&format!("/accounts/{}", sample.born)).await;
    assert_eq!((&account["isContract"], &account["hasKey"]), (&true.into(), &false.into()));
    let account = sample.derived.get(&format!("/accounts/{}", sample.holder)).await;
    assert_eq!((&account["isContract"], &account["hasKey"]), (&false.into(), &true.into()));
    assert!(account["stats"]["sentCount"].as_u64().is_some_and(|sent| sent > 0), "{account}");
}

#[tokio::test]
async fn code_is_shown_with_its_hash_and_the_block_at_which_it_was_observed() {
    let sample = SampleChain::from(0).await;
    let (path, sql) = (format!("/contracts/{}", sample.born), sample.derived.tables.sql());
    let born = sample.derived.get(&path).await;
    let facts = json!({"hash": keccak256(CODE), "bytes": CODE.len(), "observedBlock": 3});
    assert_eq!(born["code"], facts);
    let whole = sample.derived.get(&format!("{path}/code")).await;
    assert_eq!(whole["code"], hex::encode_prefixed(CODE));
    assert_eq!((&whole["hash"], &whole["address"]), (&facts["hash"], &lower(sample.born)));
    // A contract whose code was never fetched.
    let proxy = sample.derived.get(&format!("/contracts/{PROXY}")).await;
    assert!(proxy["code"].is_null());
    let (status, code, _) = sample.derived.refused(&format!("/contracts/{PROXY}/code")).await;
    assert_eq!((status, code.as_str()), (404, "not_found"));
    // Later observations count: empty code, code too large to store, code too large to show.
    let empty = json!(keccak256([]));
    let larger = vec![0xfe; 256 * 1024 + 1];
    for (block, status, value, hash, bytes, code) in [
        (5_i64, 2_i64, &[][..], empty, json!(0), json!("0x")),
        (6, 3, &[][..], Value::Null, Value::Null, Value::Null),
        (7, 0, &larger[..], json!(keccak256(&larger)), json!(larger.len()), Value::Null),
    ] {
        let text = "INSERT INTO observation VALUES (1337, 'code', $1, $2, $3, $4, 0)";
        let params = params![sample.born.as_slice(), block, status, value];
        sql.execute(text, params).await.expect("stored");
        let whole = sample.derived.get(&format!("{path}/code")).await;
        assert_eq!(whole["observedBlock"], block);
        assert_eq!((&whole["hash"], &whole["bytes"], &whole["code"]), (&hash, &bytes, &code));
        assert_eq!(sample.derived.get(&path).await["code"]["bytes"], bytes);
    }
}
