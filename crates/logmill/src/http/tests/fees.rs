//! `/fees` and `/fees/summary` over real sockets: the seed's answers to the letter, filters, sums, and odd questions.

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256, address, b256};
use logmill_chain::{BlockRef, Log};
use logmill_io::sql::SqliteSettings;
use logmill_io::{Fault, Faults, SeededEntropy, Sql, SystemClock};
use logmill_pipeline::derive::{Part, Processor, Rows, Tables, TipBlocks, TipPart};
use logmill_pipeline::processors::fees::{COLLECTOR, FEES_COLLECTED, Fees, LogPlace};
use serde_json::{Value, json};

use super::ground::Ground;

const POLYGON: u64 = 137;
const SAMPLE_BLOCK: u64 = 52_661_448;
const INTEGRATOR: Address = address!("0x1aC3EF0ECF4E0ed23D62cab448f3169064230624");
const OTHER: Address = address!("0x00000000000000000000000000000000000000aa");
const TOKEN: Address = address!("0xc2132D05D31c914a87C6611C10748AEb04B58e8F");
/// The block of the first made-up event, and its time: 2024-01-30T00:00:00Z.
const FIRST_BLOCK: u64 = 52_700_000;
const FIRST_TIME: u64 = 1_706_572_800;

/// An event that is collected.
#[derive(Clone, Debug)]
struct Event {
    place: LogPlace,
    token: Address,
    integrator: Address,
    theirs: U256,
    ours: U256,
}

/// The real one of Polygon.
fn sample() -> Event {
    Event {
        place: LogPlace {
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

/// Made-up events, two a block, six hours apart, some as large as can be.
fn made_up() -> Vec<Event> {
    let event = |number: u64| Event {
        place: LogPlace {
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
        rows.at_block(event.place.block);
        fees.process_log(&event.place, &log, &mut rows).expect("a row");
    }
    rows
}

/// Tables with these events, of which the blocks from `tip` on are not final.
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
    let lines = tables.lines(chain, &[fees.clone() as Arc<dyn Processor>]).await.expect("a line");
    let is_final = |event: &&Event| event.place.block < tip;
    let done: Vec<Event> = events.iter().filter(is_final).cloned().collect();
    let part = Part { line: lines[0].clone(), range: 0..tip, rows: rows(&fees, &done) };
    tables.commit(None, vec![part]).await.expect("stored");
    let mut unfinal: Vec<u64> = events.iter().map(|event| event.place.block).collect();
    unfinal.retain(|block| *block >= tip);
    unfinal.dedup();
    let added = unfinal.iter().map(|number| {
        let of_block: Vec<Event> =
            events.iter().filter(|event| event.place.block == *number).cloned().collect();
        let hash = B256::repeat_byte(1);
        let at = BlockRef { number: *number, hash, parent_hash: hash, timestamp: 0 };
        (at, rows(&fees, &of_block))
    });
    let added: Vec<_> = added.collect();
    let after = TipBlocks(added.iter().map(|(at, _)| (at.number, at.hash)).collect());
    let before = TipBlocks::default();
    let part = TipPart { line: lines[0].clone(), before, added, after };
    tables.commit_tip(None, vec![part]).await.expect("stored");
}

async fn ground() -> Ground {
    let tables = tables(POLYGON, &all(), FIRST_BLOCK + 15).await;
    serving(tables).await
}

async fn serving(tables: Tables) -> Ground {
    Ground::with(Vec::new(), Vec::new(), |state| state.tables = Some(tables)).await
}

async fn get(ground: &Ground, path: &str) -> Value {
    let (status, body) = ground.get(path).await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

/// Block and log of every event of an answer.
fn places(answer: &Value) -> Vec<(u64, u64)> {
    let data = answer["data"].as_array().expect("a list");
    let number = |value: &Value| value.as_u64().expect("a number");
    data.iter().map(|event| (number(&event["blockNumber"]), number(&event["logIndex"]))).collect()
}

/// The same of events, newest first.
fn newest_first<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<(u64, u64)> {
    let mut places: Vec<(u64, u64)> =
        events.into_iter().map(|event| (event.place.block, event.place.log_index as u64)).collect();
    places.sort_unstable_by(|one, two| two.cmp(one));
    places
}

#[tokio::test]
async fn an_event_and_its_page_are_what_the_seed_shows() {
    let ground = serving(tables(POLYGON, &[sample()], u64::MAX >> 20).await).await;
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
        }],
        "pagination": { "page": 1, "limit": 20, "total": 1, "totalPages": 1 },
    });
    for path in ["/fees", "/fees?integrator=137", "/fees?integrator=0x89", "/fees?chainId=137"] {
        assert_eq!(get(&ground, path).await, expected, "{path}");
    }
    let empty = json!({
        "data": [],
        "pagination": { "page": 1, "limit": 20, "total": 0, "totalPages": 0 },
    });
    assert_eq!(get(&ground, "/fees?integrator=1").await, empty);
    assert_eq!(ground.get("/").await, (200, "Api Running".to_owned()));
}

#[tokio::test]
async fn pages_go_from_the_newest_to_the_oldest_and_end() {
    let ground = ground().await;
    let expected = newest_first(&all());
    let mut seen = Vec::new();
    for page in 1..=6 {
        let answer = get(&ground, &format!("/fees?page={page}&limit=10")).await;
        let pages = json!({ "page": page, "limit": 10, "total": 46, "totalPages": 5 });
        assert_eq!(answer["pagination"], pages);
        seen.extend(places(&answer));
    }
    assert_eq!(seen, expected);
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for _ in 0..10 {
        let answer = get(&ground, &format!("/fees?limit=7&cursor={cursor}")).await;
        seen.extend(places(&answer));
        match answer["pagination"]["nextCursor"].as_str() {
            Some(next) => cursor = next.to_owned(),
            None => break,
        }
    }
    assert_eq!(seen, expected, "by the cursor, too");
    assert_eq!(places(&get(&ground, "/fees?limit=1000").await).len(), 46);
    assert_eq!(places(&get(&ground, "/fees?limit=0").await).len(), 1);
    assert_eq!(places(&get(&ground, "/fees?page=18446744073709551615").await), []);
}

#[tokio::test]
async fn filters_are_those_of_a_scan() {
    let ground = ground().await;
    let check = async |query: String, wanted: &dyn Fn(&Event) -> bool| {
        let all = all();
        let expected = newest_first(all.iter().filter(|event| wanted(event)));
        assert!(expected.len() < all.len(), "{query} filters something");
        let answer = get(&ground, &format!("/fees?limit=100&{query}")).await;
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
        (from..=to).contains(&event.place.block) && event.token == TOKEN
    })
    .await;
    check("fromTime=2024-01-31&toTime=2024-02-02".to_owned(), &|event| {
        (FIRST_TIME + 86_400..FIRST_TIME + 3 * 86_400).contains(&event.place.timestamp)
    })
    .await;
    check(format!("toTime={FIRST_TIME}"), &|event| event.place.timestamp < FIRST_TIME).await;
    check(format!("fromTime=-5&fromBlock={from}"), &|event| event.place.block >= from).await;
}

#[tokio::test]
async fn sums_are_exact_for_every_integrator_token_and_period() {
    let ground = ground().await;
    for (period, of) in [
        ("all", (|_: u64| "all".to_owned()) as fn(u64) -> String),
        ("day", |seconds| format!("{}", jiff_of(seconds).strftime("%Y-%m-%d"))),
        ("month", |seconds| format!("{}", jiff_of(seconds).strftime("%Y-%m"))),
    ] {
        let mut expected = std::collections::BTreeMap::new();
        for event in all() {
            let key = (of(event.place.timestamp), event.integrator.to_string(), event.token);
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
                })
            })
            .collect();
        let mut answer = get(&ground, &format!("/fees/summary?period={period}")).await;
        let order = |sum: &Value| sum.to_string();
        let found = answer["data"].as_array_mut().expect("a list");
        found.sort_by_key(order);
        shown.sort_by_key(order);
        assert_eq!(*found, shown, "{period}");
    }
    let filtered = get(&ground, &format!("/fees/summary?integratorAddress={OTHER}")).await;
    let sums = filtered["data"].as_array().expect("a list");
    assert!(
        sums.len() == 2
            && sums.iter().all(|sum| sum["eventIntegrator"] == json!(OTHER.to_string()))
    );
    assert_eq!(get(&ground, "/fees/summary?chainId=5").await, json!({ "data": [] }));
}

/// A sum that may have more than 256 bits.
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
async fn bad_questions_are_told_what_is_wrong_and_never_break_anything() {
    let ground = ground().await;
    let (status, body) = ground.get("/fees?integrator=polygon").await;
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
    ] {
        let (status, body) = ground.get(&format!("/fees?{query}")).await;
        assert_eq!(status, 400, "{query}: {body}");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert!(body["error"].is_string(), "{query}");
    }
    for query in
        ["page=Infinity", "limit=-3", "page=1&page=2", "unknown=1", "page=1.5&limit=2.5", "&&==&"]
    {
        let (status, body) = ground.get(&format!("/fees?{query}")).await;
        assert_eq!(status, 200, "{query}: {body}");
    }
    assert_eq!(ground.get("/fees/summary?period=week").await.0, 400);
    assert_eq!(ground.get("/fees/none").await.0, 404);
    assert_eq!(ground.post("/fees", "{}").await.0, 405);
}

#[tokio::test]
async fn a_database_that_fails_is_the_500_of_the_seed() {
    let tables = tables(POLYGON, &[sample()], u64::MAX >> 20).await;
    let gone = Faults::at(0, Fault::CrashBefore);
    let ground = serving(tables.through(tables.sql().with_faults(gone))).await;
    let seeds = r#"{"error":"Internal server error"}"#;
    for path in ["/fees", "/fees?chainId=137", "/fees/summary?chainId=137"] {
        let (status, body) = ground.get(path).await;
        assert_eq!((status, body.as_str()), (500, seeds), "{path}");
    }
}

#[tokio::test]
async fn without_a_word_about_the_chain_it_is_the_only_one_or_the_seeds() {
    let event = Event { place: LogPlace { block: 5, ..sample().place }, ..sample() };
    let tables = tables(10, std::slice::from_ref(&event), 100).await;
    let ground = serving(tables.clone()).await;
    assert_eq!(get(&ground, "/fees").await["data"][0]["chainId"], 10);
    fill(&tables, 1, std::slice::from_ref(&event), 100).await;
    assert_eq!(get(&ground, "/fees").await["pagination"]["total"], 0);
    fill(&tables, POLYGON, &[sample()], u64::MAX >> 20).await;
    assert_eq!(get(&ground, "/fees").await["data"][0]["chainId"], 137);
    assert_eq!(get(&ground, "/fees?chainId=1").await["data"][0]["chainId"], 1);
}

#[tokio::test]
async fn where_nothing_is_collected_that_is_said_and_a_key_is_needed_where_there_are_keys() {
    let ground = Ground::with(Vec::new(), Vec::new(), |_| {}).await;
    assert_eq!(ground.get("/fees").await.0, 404);
    let tables = tables(POLYGON, &[sample()], u64::MAX >> 20).await;
    let ground = Ground::with(Vec::new(), Vec::new(), |state| {
        state.tables = Some(tables);
        state.limits.keys = crate::http::Keys::parse("me:0123456789abcdef:read").expect("a key");
    })
    .await;
    for path in ["/fees", "/fees/summary"] {
        assert_eq!(ground.get(path).await.0, 401, "{path}");
    }
}
