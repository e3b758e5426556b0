//! `/fees` and `/fees/summary` over real sockets: the seed's exact answers, filters, sums, and unusual requests.

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256, address, b256};
use logmill_chain::{BlockRef, Log};
use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{Fault, Faults, SeededEntropy, Sql, SystemClock};
use logmill_pipeline::async_workers::token_metadata;
use logmill_pipeline::derive::{Processor, RangeRows, Reader, Rows, Tables, TipBlocks, TipChange};
use logmill_pipeline::processors::fees::{COLLECTOR, FEES_COLLECTED, Fees, LogPosition};
use logmill_serve::rpc::ChainStatus;
use serde_json::{Value, json};

use super::test_server::{CHAIN_ID, TestServer};

const POLYGON: u64 = 137;
const SAMPLE_BLOCK: u64 = 52_661_448;
const INTEGRATOR: Address = address!("0x1aC3EF0ECF4E0ed23D62cab448f3169064230624");
const OTHER: Address = address!("0x00000000000000000000000000000000000000aa");
const TOKEN: Address = address!("0xc2132D05D31c914a87C6611C10748AEb04B58e8F");
/// Block and time of the first generated event: 2024-01-30T00:00:00Z.
const FIRST_BLOCK: u64 = 52_700_000;
const FIRST_TIME: u64 = 1_706_572_800;

#[derive(Clone, Debug)]
struct Event {
    position: LogPosition,
    token: Address,
    integrator: Address,
    theirs: U256,
    ours: U256,
}

/// A real event on Polygon.
fn sample() -> Event {
    Event {
        position: LogPosition {
            block: SAMPLE_BLOCK,
            timestamp: 1_705_918_271,
            transaction_index: 82,
            transaction_hash: b256!(
                "0x851b602d5c75f5253d3bb0884ee2df434ee67312d97fbcab29da66b4e370fdbd"
            ),
            log_index: 377,
        },
        token: Address::ZERO,
        integrator: INTEGRATOR,
        theirs: U256::from(17_000_000_000_000_000_u64),
        ours: U256::from(3_000_000_000_000_000_u64),
    }
}

/// Generated events, two per block, six hours apart, some with the largest possible amounts.
fn made_up() -> Vec<Event> {
    let event = |number: u64| Event {
        position: LogPosition {
            block: FIRST_BLOCK + number / 2,
            timestamp: FIRST_TIME + number / 2 * 21_600,
            transaction_index: 3,
            transaction_hash: B256::left_padding_from(&number.to_be_bytes()),
            log_index: usize::try_from(number % 2 * 5).expect("small"),
        },
        token: if number.is_multiple_of(3) { Address::ZERO } else { TOKEN },
        integrator: if number.is_multiple_of(4) { OTHER } else { INTEGRATOR },
        theirs: if number == 7 { U256::MAX } else { U256::from(number) },
        ours: U256::from(number * 10),
    };
    (0..45).map(event).collect()
}

fn all() -> Vec<Event> {
    let mut all = made_up();
    all.insert(0, sample());
    all
}

fn rows(fees: &Fees, events: &[Event]) -> Rows {
    let mut rows = Rows::new(fees.tables());
    for event in events {
        let words = [event.theirs, event.ours].map(|word| word.to_be_bytes::<32>());
        let topics = [FEES_COLLECTED, event.token.into_word(), event.integrator.into_word()];
        let log = Log {
            address: fees.collectors[0],
            topics: topics.into_iter().collect(),
            data: words.concat().into(),
        };
        rows.at_block(event.position.block);
        fees.process_log(&event.position, &log, &mut rows).expect("a row");
    }
    rows
}

/// Tables with these events; the blocks from `tip` on are not final.
async fn tables(chain: u64, events: &[Event], tip: u64) -> Tables {
    let (clock, entropy) = (SystemClock::shared(), SeededEntropy::shared(1));
    let sql = Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await.expect("a database");
    let tables = Tables::open(sql).await.expect("tables");
    fill(&tables, chain, events, tip).await;
    tables
}

async fn fill(tables: &Tables, chain: u64, events: &[Event], tip: u64) {
    let fees = Arc::new(Fees::of_chain(chain));
    assert!(chain != POLYGON || fees.collectors == [COLLECTOR]);
    let generations = tables
        .generations(chain, &[fees.clone() as Arc<dyn Processor>])
        .await
        .expect("a generation");
    let is_final = |event: &&Event| event.position.block < tip;
    let done: Vec<Event> = events.iter().filter(is_final).cloned().collect();
    let part =
        RangeRows { generation: generations[0].clone(), range: 0..tip, rows: rows(&fees, &done) };
    tables.commit(None, vec![part]).await.expect("stored");
    let mut unfinal: Vec<u64> = events.iter().map(|event| event.position.block).collect();
    unfinal.retain(|block| *block >= tip);
    unfinal.dedup();
    let added = unfinal.iter().map(|number| {
        let of_block: Vec<Event> =
            events.iter().filter(|event| event.position.block == *number).cloned().collect();
        let hash = B256::repeat_byte(1);
        let at = BlockRef { number: *number, hash, parent_hash: hash, timestamp: 0 };
        (at, rows(&fees, &of_block))
    });
    let added: Vec<_> = added.collect();
    let after = TipBlocks(added.iter().map(|(at, _)| (at.number, at.hash)).collect());
    let before = TipBlocks::default();
    let part = TipChange { generation: generations[0].clone(), before, added, after };
    tables.commit_tip(None, vec![part]).await.expect("stored");
}

async fn server() -> TestServer {
    let tables = tables(POLYGON, &all(), FIRST_BLOCK + 15).await;
    serving(tables).await
}

async fn serving(tables: Tables) -> TestServer {
    TestServer::with(Vec::new(), Vec::new(), |state| state.tables = Some(tables)).await
}

async fn get(server: &TestServer, path: &str) -> Value {
    let (status, body) = server.get(path).await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

/// Block and log index of every event in an answer.
fn places(answer: &Value) -> Vec<(u64, u64)> {
    let data = answer["data"].as_array().expect("a list");
    let number = |value: &Value| value.as_u64().expect("a number");
    data.iter().map(|event| (number(&event["blockNumber"]), number(&event["logIndex"]))).collect()
}

/// Block and log index of events, newest first.
fn newest_first<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<(u64, u64)> {
    let mut places: Vec<(u64, u64)> = events
        .into_iter()
        .map(|event| (event.position.block, event.position.log_index as u64))
        .collect();
    places.sort_unstable_by(|one, two| two.cmp(one));
    places
}

#[tokio::test]
async fn an_event_and_its_page_have_the_seeds_format() {
    let server = serving(tables(POLYGON, &[sample()], u64::MAX >> 20).await).await;
    let expected = json!({
        "data": [{
            "chainId": 137,
            "transactionHash": "0x851b602d5c75f5253d3bb0884ee2df434ee67312d97fbcab29da66b4e370fdbd",
            "logIndex": 377,
            "blockNumber": 52_661_448,
            "token": "0x0000000000000000000000000000000000000000",
            "eventIntegrator": "0x1aC3EF0ECF4E0ed23D62cab448f3169064230624",
            "integratorFee": "17000000000000000",
            "lifiFee": "3000000000000000",
            "createdAt": "2024-01-22T10:11:11.000Z",
            // Not in the seed.
            "final": true,
            "symbol": null,
            "decimals": 18,
        }],
        "pagination": { "page": 1, "limit": 20, "total": 1, "totalPages": 1 },
    });
    for path in ["/fees", "/fees?integrator=137", "/fees?integrator=0x89", "/fees?chainId=137"] {
        assert_eq!(get(&server, path).await, expected, "{path}");
    }
    let empty = json!({
        "data": [],
        "pagination": { "page": 1, "limit": 20, "total": 0, "totalPages": 0 },
        // Not in the seed.
        "complete": false,
        "reason": "no fees of chain 1 are collected here; the chains with fees are 137",
    });
    assert_eq!(get(&server, "/fees?integrator=1").await, empty);
    assert_eq!(server.get("/").await, (200, "Api Running".to_owned()));
}

/// The status of a chain whose fee collector is assumed.
#[derive(Debug)]
struct Assumed;

impl ChainStatus for Assumed {
    fn status_json(&self) -> Value {
        Value::Null
    }

    fn reported_head(&self) -> Option<u64> {
        None
    }

    fn assumed_fees(&self) -> Option<String> {
        Some("no fee collector is known".to_owned())
    }
}

#[tokio::test]
async fn no_fees_at_an_assumed_contract_are_not_called_complete() {
    let unknown = Address::repeat_byte(0x77);
    for (events, is_complete) in [(Vec::new(), false), (vec![sample()], true)] {
        let tables = tables(CHAIN_ID, &events, SAMPLE_BLOCK + 1).await;
        let server = TestServer::with(Vec::new(), Vec::new(), |state| {
            let served = state.chains.get_mut(&CHAIN_ID).expect("it");
            served.status = Arc::new(Assumed);
            served.reader = Some(Reader::new(tables.clone(), CHAIN_ID));
            state.tables = Some(tables);
        })
        .await;
        let reason = if is_complete { Value::Null } else { json!("no fee collector is known") };
        for path in [
            "/fees".to_owned(),
            "/fees?page=2".to_owned(),
            "/fees?cursor=".to_owned(),
            format!("/fees?token={unknown}"),
            "/fees/summary".to_owned(),
            format!("/fees/summary?integratorAddress={unknown}"),
        ] {
            let answer = get(&server, &path).await;
            assert_eq!(answer["reason"], reason, "{path}");
            assert_eq!(answer.get("complete"), (!is_complete).then_some(&json!(false)), "{path}");
        }
        let answer = get(&server, &format!("/api/v1/{CHAIN_ID}/fees")).await;
        let as_of = &answer["asOf"];
        assert_eq!((&as_of["complete"], &as_of["reason"]), (&json!(is_complete), &reason));
    }
}

#[tokio::test]
async fn pages_go_from_the_newest_to_the_oldest_and_end() {
    let server = server().await;
    let expected = newest_first(&all());
    let mut seen = Vec::new();
    for page in 1..=6 {
        let answer = get(&server, &format!("/fees?page={page}&limit=10")).await;
        let pages = json!({ "page": page, "limit": 10, "total": 46, "totalPages": 5 });
        assert_eq!(answer["pagination"], pages);
        seen.extend(places(&answer));
    }
    assert_eq!(seen, expected);
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for _ in 0..10 {
        let answer = get(&server, &format!("/fees?limit=7&cursor={cursor}")).await;
        seen.extend(places(&answer));
        match answer["pagination"]["nextCursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, expected, "by the cursor, too");
    assert_eq!(places(&get(&server, "/fees?limit=1000").await).len(), 46);
    assert_eq!(places(&get(&server, "/fees?limit=0").await).len(), 1);
    assert_eq!(places(&get(&server, "/fees?page=18446744073709551615").await), []);
}

#[tokio::test]
async fn filtered_fees_equal_those_of_a_scan() {
    let server = server().await;
    let check = async |query: String, wanted: &dyn Fn(&Event) -> bool| {
        let all = all();
        let expected = newest_first(all.iter().filter(|event| wanted(event)));
        assert!(expected.len() < all.len(), "{query} filters something");
        let answer = get(&server, &format!("/fees?limit=100&{query}")).await;
        assert_eq!(places(&answer), expected, "{query}");
        assert_eq!(answer["pagination"]["total"], expected.len(), "{query}");
    };
    check(format!("integratorAddress={OTHER}"), &|event| event.integrator == OTHER).await;
    let lower = format!("{INTEGRATOR:?}").to_lowercase();
    check(format!("eventIntegrator={lower}"), &|event| event.integrator == INTEGRATOR).await;
    check(format!("token={TOKEN}"), &|event| event.token == TOKEN).await;
    check(format!("token={COLLECTOR}&integratorAddress={OTHER}"), &|_| false).await;
    check(format!("token=0x{}", "ff".repeat(20)), &|_| false).await;
    let (from, to) = (FIRST_BLOCK + 3, FIRST_BLOCK + 17);
    check(format!("fromBlock={from}&toBlock={to:#x}&token={TOKEN}"), &|event| {
        (from..=to).contains(&event.position.block) && event.token == TOKEN
    })
    .await;
    check("fromTime=2024-01-31&toTime=2024-02-02".to_owned(), &|event| {
        (FIRST_TIME + 86_400..FIRST_TIME + 3 * 86_400).contains(&event.position.timestamp)
    })
    .await;
    check(format!("toTime={FIRST_TIME}"), &|event| event.position.timestamp < FIRST_TIME).await;
    check(format!("fromTime=-5&fromBlock={from}"), &|event| event.position.block >= from).await;
}

#[tokio::test]
async fn sums_are_exact_for_every_integrator_token_and_period() {
    let server = server().await;
    for (period, of) in [
        ("all", (|_: u64| "all".to_owned()) as fn(u64) -> String),
        ("day", |seconds| format!("{}", jiff_of(seconds).strftime("%Y-%m-%d"))),
        ("month", |seconds| format!("{}", jiff_of(seconds).strftime("%Y-%m"))),
    ] {
        let mut expected = std::collections::BTreeMap::new();
        for event in all() {
            let key = (of(event.position.timestamp), event.integrator.to_string(), event.token);
            let sum = expected.entry(key).or_insert((0_u64, String::new(), Vec::new()));
            sum.0 += 1;
            sum.2.push((event.theirs, event.ours));
        }
        let mut shown: Vec<Value> = expected
            .into_iter()
            .map(|((period, integrator, token), (events, _, fees))| {
                json!({
                    "chainId": 137, "period": period, "eventIntegrator": integrator, "token": token.to_string(),
                    "events": events,
                    "integratorFee": total(fees.iter().map(|fee| fee.0)),
                    "lifiFee": total(fees.iter().map(|fee| fee.1)),
                    "symbol": null,
                    "decimals": if token.is_zero() { json!(18) } else { Value::Null },
                })
            })
            .collect();
        let mut answer = get(&server, &format!("/fees/summary?period={period}")).await;
        let order = |sum: &Value| sum.to_string();
        let found = answer["data"].as_array_mut().expect("a list");
        found.sort_by_key(order);
        shown.sort_by_key(order);
        assert_eq!(*found, shown, "{period}");
    }
    let filtered = get(&server, &format!("/fees/summary?integratorAddress={OTHER}")).await;
    let sums = filtered["data"].as_array().expect("a list");
    assert!(
        sums.len() == 2
            && sums.iter().all(|sum| sum["eventIntegrator"] == json!(OTHER.to_string()))
    );
    let unknown = get(&server, "/fees/summary?chainId=5").await;
    assert_eq!((&unknown["data"], &unknown["complete"]), (&json!([]), &json!(false)));
}

/// A sum that may exceed 256 bits.
fn total(amounts: impl Iterator<Item = U256>) -> String {
    let amounts = amounts.map(|amount| {
        logmill_io::Amount::from_be_bytes(&amount.to_be_bytes::<32>()).expect("it fits")
    });
    amounts.fold(logmill_io::Amount::ZERO, logmill_io::Amount::saturating_add).to_string()
}

fn jiff_of(seconds: u64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(i64::try_from(seconds).expect("small")).expect("a time")
}

#[tokio::test]
async fn invalid_requests_get_an_error_that_names_the_parameter_and_break_nothing() {
    let server = server().await;
    let (status, body) = server.get("/fees?integrator=polygon").await;
    let seeds = r#"{"error":"Invalid integrator value. Expected numeric chain id."}"#;
    assert_eq!((status, body.as_str()), (400, seeds));
    for query in [
        "integrator=1e3",
        "integrator=%20",
        "chainId=x",
        "integratorAddress=me",
        "token=0x1",
        "fromBlock=1.5",
        "toTime=then",
        "cursor=x",
        "integratorAddress=%00",
        "token=%ff%fe",
        "bogus=1",
        "period=day",
    ] {
        let (status, body) = server.get(&format!("/fees?{query}")).await;
        assert_eq!(status, 400, "{query}: {body}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert!(body["error"].is_string(), "{query}");
    }
    for query in ["page=Infinity", "limit=-3", "page=1&page=2", "page=1.5&limit=2.5", "&&==&"] {
        let (status, body) = server.get(&format!("/fees?{query}")).await;
        assert_eq!(status, 200, "{query}: {body}");
    }
    for path in ["/fees?bogus=1", "/fees/summary?bogus=1"] {
        let (status, body) = server.get(path).await;
        assert!(status == 400 && body.contains("bogus"), "{path}: {status} {body}");
    }
    assert_eq!(server.get("/fees/summary?period=week").await.0, 400);
    assert_eq!(server.get("/fees/none").await.0, 404);
    assert_eq!(server.post("/fees", "{}").await.0, 405);
}

#[tokio::test]
async fn a_failing_database_is_the_500_of_the_seed() {
    let tables = tables(POLYGON, &[sample()], u64::MAX >> 20).await;
    let gone = Faults::at(0, Fault::CrashBefore);
    let server = serving(tables.through(tables.sql().with_faults(gone))).await;
    let seeds = r#"{"error":"Internal server error"}"#;
    for path in ["/fees", "/fees?chainId=137", "/fees/summary?chainId=137"] {
        let (status, body) = server.get(path).await;
        assert_eq!((status, body.as_str()), (500, seeds), "{path}");
    }
}

#[tokio::test]
async fn without_a_chain_parameter_the_only_chain_or_the_seeds_default_is_used() {
    let event = Event { position: LogPosition { block: 5, ..sample().position }, ..sample() };
    let tables = tables(10, std::slice::from_ref(&event), 100).await;
    let server = serving(tables.clone()).await;
    assert_eq!(get(&server, "/fees").await["data"][0]["chainId"], 10);
    fill(&tables, 1, std::slice::from_ref(&event), 100).await;
    assert_eq!(get(&server, "/fees").await["pagination"]["total"], 0);
    fill(&tables, POLYGON, &[sample()], u64::MAX >> 20).await;
    assert_eq!(get(&server, "/fees").await["data"][0]["chainId"], 137);
    assert_eq!(get(&server, "/fees?chainId=1").await["data"][0]["chainId"], 1);
}

#[tokio::test]
async fn without_collected_fees_the_answer_is_404_and_configured_keys_are_required() {
    let server = TestServer::with(Vec::new(), Vec::new(), |_| {}).await;
    assert_eq!(server.get("/fees").await.0, 404);
    let tables = tables(POLYGON, &[sample()], u64::MAX >> 20).await;
    let server = TestServer::with(Vec::new(), Vec::new(), |state| {
        state.tables = Some(tables);
        state.limits.keys =
            logmill_serve::http::Keys::parse("me:0123456789abcdef:read").expect("a key");
    })
    .await;
    for path in ["/fees", "/fees/summary"] {
        assert_eq!(server.get(path).await.0, 401, "{path}");
    }
}

#[tokio::test]
async fn rows_and_sums_have_finality_symbol_and_decimals_in_json_and_csv() {
    let tables = tables(POLYGON, &all(), FIRST_BLOCK + 15).await;
    tables.sql().migrate(&token_metadata::MIGRATIONS).await.expect("a table");
    let text = "INSERT INTO token_metadata VALUES (137, $1, 'Tether', '=1+1,\"x\"', 6, 'erc20', 1)";
    let row = logmill_io::params![TOKEN.as_slice()];
    tables.sql().execute(text, row).await.expect("a token");
    let server = serving(tables).await;
    let answer = get(&server, "/fees?limit=100").await;
    let rows = answer["data"].as_array().expect("a list");
    for row in rows {
        let is_final = row["blockNumber"].as_u64() < Some(FIRST_BLOCK + 15);
        assert_eq!(row["final"], is_final, "{row}");
        let is_token = row["token"] == TOKEN.to_string();
        let expected = if is_token { (json!("=1+1,\"x\""), 6) } else { (Value::Null, 18) };
        assert_eq!(
            (row["symbol"].clone(), row["decimals"].as_i64()),
            (expected.0, Some(expected.1))
        );
    }
    let sums = get(&server, &format!("/fees/summary?token={TOKEN}")).await;
    assert_eq!(
        (&sums["data"][0]["symbol"], &sums["data"][0]["decimals"]),
        (&json!("=1+1,\"x\""), &json!(6))
    );
    // The same rows, with one that looks like a formula.
    let (status, csv) = server.get("/fees?limit=100&format=csv").await;
    assert_eq!(status, 200);
    let mut lines = csv.split("\r\n");
    let head = "chainId,blockNumber,logIndex,transactionHash,createdAt,final,eventIntegrator,token,symbol,decimals,\
        integratorFee,lifiFee";
    assert_eq!(lines.next(), Some(head));
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    assert_eq!(lines.len(), rows.len());
    for (line, row) in lines.iter().zip(rows) {
        let cell = |name: &str| row[name].to_string().trim_matches('"').to_owned();
        assert!(line.starts_with(&format!("137,{},{},", cell("blockNumber"), cell("logIndex"))));
        assert!(
            line.ends_with(&format!(",{},{}", cell("integratorFee"), cell("lifiFee"))),
            "{line}"
        );
        assert_eq!(
            line.contains(",\"'=1+1,\"\"x\"\"\",6,"),
            cell("token") == TOKEN.to_string(),
            "{line}"
        );
    }
    let (_, accepted) = server.get_with("/fees?limit=100", &[("accept", "text/csv")]).await;
    assert_eq!(accepted, csv);
    let (_, sums) = server.get("/fees/summary?format=csv&period=month").await;
    assert!(
        sums.starts_with("chainId,period,eventIntegrator,token,symbol,decimals,events,"),
        "{sums}"
    );
    assert_eq!(server.get("/fees?format=xml").await.0, 400);
    // More rows than a JSON page may have.
    let request =
        hyper::Request::get("/fees?format=csv&limit=45&cursor=").header("host", "localhost");
    let request = request.body(http_body_util::Full::default()).expect("a request");
    let (status, headers, body) = server.ask(request).await;
    assert_eq!((status, body.iter().filter(|byte| **byte == b'\n').count()), (200, 46));
    assert!(headers["content-type"].to_str().is_ok_and(|kind| kind.starts_with("text/csv")));
    assert!(headers.contains_key("x-next-cursor"));
}
