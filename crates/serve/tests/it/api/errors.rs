//! Bad input gets an error that says what is wrong, in one format, and never causes a server error.

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use logmill_serve::http::Keys;

use super::super::test_server::{CHAIN_ID, TestServer, small};
use super::derived_server::{DerivedServer, Scan, blocks, memory, sim};
use super::sample_chain::SampleChain;
use super::schema::{check, openapi, parameters};

/// Percent-encoded texts that are invalid for every parameter.
const HOSTILE: [&str; 24] = [
    "-1",
    "0x",
    "0x0",
    "0xg000000000000000000000000000000000000000",
    "99999999999999999999999999",
    "18446744073709551616",
    "9223372036854775808",
    "1.5",
    "1e3",
    "NaN",
    "null",
    "%00",
    "%0a",
    "%27%20OR%201=1%20--",
    "1;DROP%20TABLE%20address",
    "%22",
    "%5C",
    "%E2%82%AC",
    "%F0%9F%92%A3",
    "%EF%BC%91",
    "%E2%80%AE1",
    "$1",
    "%7Bname%7D",
    "%25s%25n",
];

/// Variants of a request in which each parameter in turn is replaced by hostile texts.
fn spoilt(template: &str, good: &str) -> Vec<String> {
    let (good, _) = good.split_once('?').unwrap_or((good, ""));
    let (parts, names): (Vec<&str>, Vec<&str>) =
        (good.split('/').collect(), template.split('/').collect());
    let mut all = Vec::new();
    for (place, name) in names.iter().enumerate().filter(|(_, name)| name.starts_with('{')) {
        // An item id may be a 256-bit number.
        let is_item = |text: &str| text == "0x0" || text.bytes().all(|sign| sign.is_ascii_digit());
        for hostile in HOSTILE.into_iter().filter(|text| *name != "{id}" || !is_item(text)) {
            let mut parts = parts.clone();
            parts[place] = hostile;
            all.push(parts.join("/"));
        }
    }
    all
}

#[tokio::test]
async fn hostile_parameters_are_refused_and_never_cause_a_server_error() {
    let sample = SampleChain::from(0).await;
    for (template, good) in sample.requests() {
        for path in spoilt(template, &good) {
            let (status, code, message) = sample.derived.refused(&path).await;
            assert_eq!((status, code.as_str()), (400, "invalid_parameter"), "{path}: {message}");
        }
        let parameters = parameters(openapi(), &format!("/api/v1/{{chain}}{template}"));
        for parameter in parameters.iter().filter(|one| one["in"] == "query") {
            let name = parameter["name"].as_str().expect("text");
            let code = if name == "cursor" { "invalid_cursor" } else { "invalid_parameter" };
            for hostile in HOSTILE.into_iter().chain([""]) {
                let path = spoilt_query(&good, name, hostile);
                let (status, found, message) = sample.derived.refused(&path).await;
                assert_eq!((status, found.as_str()), (400, code), "{path}: {message}");
                assert!(message.starts_with(name), "{path}: {message}");
            }
        }
    }
}

/// The request with one query parameter replaced by this text.
fn spoilt_query(good: &str, name: &str, text: &str) -> String {
    let (path, query) = good.split_once('?').unwrap_or((good, ""));
    let prefix = format!("{name}=");
    let others = query.split('&').filter(|one| !one.is_empty() && !one.starts_with(&prefix));
    let mut all: Vec<&str> = others.collect();
    let spoilt = format!("{name}={text}");
    all.push(&spoilt);
    format!("{path}?{}", all.join("&"))
}

#[tokio::test]
async fn an_invalid_request_gets_an_error_that_explains_it() {
    let sample = SampleChain::from(0).await;
    let (token, nobody) = (sample.pool.1[0], "0x00000000000000000000000000000000000000ff");
    let far = BASE64_URL_SAFE_NO_PAD.encode(r#"["tokens",-9223372036854775808]"#);
    let of_other = sample.derived.get("/transactions?limit=1").await["next"].clone();
    let of_other = of_other.as_str().expect("there is more");
    let (balances, transfers) = (format!("/accounts/{token}/balances"), "/transfers");
    let check = async |path: &str, status: u16, code: &str, says: &str| {
        let refused = sample.derived.refused(path).await;
        assert_eq!((refused.0, refused.1.as_str()), (status, code), "{path}: {}", refused.2);
        assert!(refused.2.contains(says), "{path}: {}", refused.2);
        check(
            openapi(),
            &openapi()["components"]["schemas"]["Error"],
            &sample.derived.ask(path).await.1,
            path,
        );
    };
    for limit in ["0", "101", "-1", "1000000000000000000000", "", "%2B5", "0x10", "ten"] {
        check(&format!("/tokens?limit={limit}"), 400, "invalid_parameter", "1 to 100").await;
    }
    check("/tokens?limit=1&limit=2", 400, "invalid_parameter", "more than once").await;
    check("/tokens?order=up", 400, "invalid_parameter", "order").await;
    check("/blocks/5?limit=3", 400, "invalid_parameter", "unknown parameter").await;
    check("/tokens?%FF=1", 400, "invalid_parameter", "").await;
    check("/tokens/%FF", 400, "invalid_parameter", "UTF-8").await;
    check(
        &format!("/accounts/{token}{transfers}?address={token}"),
        400,
        "invalid_parameter",
        "address",
    )
    .await;
    check(&balances, 400, "invalid_parameter", "token: this parameter is required").await;
    check("/fees?fromBlock=9&toBlock=8", 400, "invalid_parameter", "below fromBlock").await;
    check(&format!("/tokens?cursor={of_other}"), 400, "invalid_cursor", "cursor").await;
    check(&format!("/tokens/{nobody}"), 404, "not_found", "token").await;
    check(&format!("/collections/{nobody}"), 404, "not_found", "collection").await;
    check(&format!("/collections/{nobody}/items/1"), 404, "not_found", "item").await;
    check(&format!("/accounts/{nobody}"), 404, "not_found", "account").await;
    check(&format!("/contracts/{nobody}"), 404, "not_found", "contract").await;
    check(&format!("/pairs/{nobody}"), 404, "not_found", "pool").await;
    check("/staking/validators/9999999999", 404, "not_found", "validator").await;
    check(&format!("/staking/nodes/0x{}", "00".repeat(48)), 404, "not_found", "key").await;
    check(&format!("/transactions/0x{}", "00".repeat(32)), 404, "not_found", "transaction").await;
    check(&format!("/blocks/0x{}", "00".repeat(32)), 404, "not_found", "block").await;
    check("/blocks/1000000", 404, "not_found", "block 1000000 does not exist yet").await;
    check("/blocks/1000000/transactions", 404, "not_found", "does not exist yet").await;
    check("/nothing", 404, "not_found", "no such path").await;
    check("/", 404, "not_found", "no such path").await;
    let page = sample.derived.get(&format!("/tokens?cursor={far}")).await;
    assert_eq!(page["items"], serde_json::json!([]), "behind all of it there is nothing");
    for list in ["transactions", "transfers", "holdings", "nfts"] {
        let page = sample.derived.get(&format!("/accounts/{nobody}/{list}")).await;
        assert_eq!((&page["items"], &page["next"]), (&serde_json::json!([]), &().into()), "{list}");
    }
}

#[tokio::test]
async fn keys_chains_and_methods_have_the_same_errors() {
    let (last, tip) = small();
    let server = TestServer::with(last, tip, |state| {
        state.limits.keys = Keys::parse("me:0123456789abcdef:read").expect("a key");
    })
    .await;
    let code = |body: &str| {
        let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
        body["error"]["code"].as_str().map(str::to_owned)
    };
    let (status, body) = server.get(&format!("/api/v1/{CHAIN_ID}/blocks")).await;
    assert_eq!((status, code(&body).as_deref()), (401, Some("unauthorized")));
    assert_eq!(server.get("/openapi.json").await.0, 200, "what there is, is no secret");
    let asked = async |path: &str| {
        let request = hyper::Request::get(path)
            .header("host", "localhost")
            .header("x-apikey", "0123456789abcdef")
            .body(Default::default());
        let (status, _, body) = server.ask(request.expect("a request")).await;
        (status, code(&String::from_utf8_lossy(&body)))
    };
    assert_eq!(asked(&format!("/api/v1/{CHAIN_ID}/blocks")).await, (200, None));
    for chain in ["7", "0x539", "mainnet", "-1", "99999999999999999999", "%00"] {
        let found = asked(&format!("/api/v1/{chain}/blocks")).await;
        assert_eq!(found, (404, Some("chain_not_served".to_owned())), "{chain}");
    }
    let (status, body) = server.post(&format!("/api/v1/{CHAIN_ID}/blocks"), "").await;
    let body = String::from_utf8_lossy(&body).into_owned();
    assert_eq!((status, code(&body).as_deref()), (405, Some("method_not_allowed")));
}

#[tokio::test]
async fn an_underived_table_names_its_processor_and_other_paths_answer() {
    let sim = sim(4);
    sim.grow(9);
    let last = blocks(&sim, 0..10);
    let hash = last[9].transactions.first().or(last[8].transactions.first()).expect("one").hash;
    let scan = Scan::of(last.clone());
    let account = scan.transfers().last().expect("a transfer").4;
    let derived =
        DerivedServer::with(memory().await, last.clone(), vec![], |name| name == "token_worker")
            .await;
    for (path, processor) in [
        ("/transactions".to_owned(), "evm_worker"),
        (format!("/accounts/{account}"), "accounts_worker"),
        (format!("/accounts/{account}/transfers"), "meta_worker"),
        (format!("/accounts/{account}/holdings"), "ft_holdings_worker"),
        (format!("/accounts/{account}/nfts"), "nft_ownership_worker"),
        ("/swaps".to_owned(), "defi_worker"),
        ("/fees".to_owned(), "fees_worker"),
        ("/staking/events".to_owned(), "staking_worker"),
    ] {
        let (status, code, message) = derived.refused(&path).await;
        assert_eq!((status, code.as_str()), (404, "not_derived"), "{path}");
        assert!(message.contains(processor), "{path}: {message}");
    }
    let tokens = derived.all("/tokens", 3).await;
    assert_eq!(tokens.len(), scan.tokens().len());
    let token = tokens[0]["address"].as_str().expect("text");
    let transfers = derived.all(&format!("/tokens/{token}/transfers"), 50).await;
    assert!(transfers.iter().all(|one| one["transactionHash"].is_null()), "nobody knows them");
    let sent = derived.get(&format!("/transactions/{hash}")).await;
    assert_eq!((&sent["derived"], &sent["hash"]), (&false.into(), &hash.to_string().into()));
    // Without any tables, blocks are still served.
    let server = TestServer::of(last, vec![]).await;
    let ask = async |path: &str| server.get(&format!("/api/v1/{CHAIN_ID}{path}")).await;
    assert_eq!(ask("/blocks/3").await.0, 200);
    assert_eq!(ask("/status").await.0, 200);
    let found: serde_json::Value =
        serde_json::from_str(&ask(&format!("/transactions/{hash}")).await.1).expect("JSON");
    assert_eq!(found["hash"], hash.to_string());
    let (status, body) = ask("/tokens").await;
    assert!(status == 404 && body.contains("token_worker"), "{body}");
}
