//! `/collected` over real sockets: tables of events that this process did not declare.

use std::sync::Arc;

use alloy_primitives::{Address, B256, U256, address};
use logmill_chain::Log;
use logmill_io::sql::SqliteSettings;
use logmill_io::{SeededEntropy, Sql, SystemClock};
use logmill_pipeline::derive::{RangeRows, Rows, Tables};
use logmill_pipeline::ingest::collect::event::event_processor;
use logmill_pipeline::processors::fees::LogPosition;
use serde_json::{Value, json};

use super::test_server::TestServer;

const CONTRACT: Address = address!("0x00000000000000000000000000000000000000c0");
const PAYER: Address = address!("0x1aC3EF0ECF4E0ed23D62cab448f3169064230624");
const SIGNATURE: &str = "event Paid(address indexed payer, int256 value, string note)";
/// 2024-01-30T00:00:00Z.
const FIRST_TIME: u64 = 1_706_572_800;

/// A table of an event with one row in each of twelve blocks.
async fn tables() -> (Tables, String) {
    let (clock, entropy) = (SystemClock::shared(), SeededEntropy::shared(1));
    let sql = Sql::sqlite(&SqliteSettings::memory(), clock, entropy).await.expect("a database");
    let tables = Tables::open(sql).await.expect("tables");
    let event = event_processor(5, &[CONTRACT], SIGNATURE).expect("an event");
    let processor = Arc::clone(&event).as_processor();
    let generations = tables.generations(5, &[Arc::clone(&processor)]).await.expect("a generation");
    let mut rows = Rows::new(processor.tables());
    for number in 0..12_u64 {
        let payer = if number.is_multiple_of(3) { PAYER } else { Address::ZERO };
        let value = U256::MAX - U256::from(number);
        let mut data =
            [value, U256::from(64), U256::from(3)].map(|word| word.to_be_bytes::<32>()).concat();
        data.extend(b"=A1");
        data.resize(128, 0);
        let topics = event.filter().topics.into_iter().chain([payer.into_word()]);
        let log = Log { address: CONTRACT, topics: topics.collect(), data: data.into() };
        let position = LogPosition {
            block: 100 + number,
            timestamp: FIRST_TIME + number * 3_600,
            transaction_index: 1,
            transaction_hash: B256::repeat_byte(7),
            log_index: 4,
        };
        rows.at_block(position.block);
        event.process_log(&position, &log, &mut rows).expect("a row");
    }
    let part = RangeRows { generation: generations[0].clone(), range: 0..200, rows };
    tables.commit(None, vec![part]).await.expect("stored");
    (tables, processor.tables()[0].name.to_owned())
}

async fn get(server: &TestServer, path: &str) -> Value {
    let (status, body) = server.get(path).await;
    assert_eq!(status, 200, "{path}: {body}");
    serde_json::from_str(&body).expect("JSON")
}

fn blocks(answer: &Value) -> Vec<u64> {
    let data = answer["data"].as_array().expect("a list");
    data.iter().map(|row| row["block_height"].as_u64().expect("a number")).collect()
}

#[tokio::test]
async fn collected_events_are_listed_paged_and_filtered() {
    let (tables, table) = tables().await;
    let server =
        TestServer::with(Vec::new(), Vec::new(), |state| state.tables = Some(tables)).await;
    let listed = get(&server, "/collected").await;
    assert_eq!(listed["data"][0]["table"], table);
    assert_eq!(listed["data"][0]["lastBlock"], 199);
    let columns = &listed["data"][0]["columns"];
    assert_eq!(columns[6], json!({"name": "payer", "type": "address"}));
    assert_eq!(columns[7], json!({"name": "value", "type": "amount"}));
    let path = format!("/collected/{table}");
    let page = get(&server, &format!("{path}?limit=5")).await;
    assert_eq!(blocks(&page), [111, 110, 109, 108, 107]);
    assert_eq!(page["pagination"], json!({"page": 1, "limit": 5, "total": 12, "totalPages": 3}));
    let expected = json!({
        "chain_id": 5, "block_height": 111, "event_index": 4, "tx_index": 1,
        "tx_hash": format!("0x{}", "07".repeat(32)), "timestamp": FIRST_TIME + 11 * 3_600,
        "contract": format!("{CONTRACT:#x}"), "payer": format!("{:#x}", Address::ZERO),
        "value": "-12", "note": "=A1", "final": true,
    });
    assert_eq!(page["data"][0], expected);
    let mut seen = Vec::new();
    let mut cursor = String::new();
    for _ in 0..5 {
        let answer = get(&server, &format!("{path}?limit=5&cursor={cursor}")).await;
        seen.extend(blocks(&answer));
        let Some(next) = answer["pagination"]["nextCursor"].as_str() else { break };
        cursor = next.to_owned();
    }
    assert_eq!(seen, (100..112).rev().collect::<Vec<_>>());
    for (query, expected) in [
        (format!("payer={PAYER}"), vec![109, 106, 103, 100]),
        (format!("payer={PAYER}&fromBlock=101&toBlock=106"), vec![106, 103]),
        (format!("payer=0x{}", "ee".repeat(20)), vec![]),
        (format!("contract={CONTRACT}&toTime={}", FIRST_TIME + 3_600), vec![100]),
        ("chainId=0x5&fromBlock=111".to_owned(), vec![111]),
    ] {
        assert_eq!(blocks(&get(&server, &format!("{path}?{query}")).await), expected, "{query}");
    }
    let (_, csv) = server.get(&format!("{path}?format=csv&limit=1")).await;
    let mut lines = csv.lines();
    let head = "chain_id,block_height,event_index,tx_index,tx_hash,timestamp,contract,payer,value,note,final";
    assert_eq!(lines.next(), Some(head));
    assert!(lines.next().is_some_and(|line| line.ends_with(",-12,'=A1,true")), "{csv}");
    for (query, status) in [
        ("value=5", 400),
        ("nothing=5", 400),
        ("payer=me", 400),
        ("limit=5&format=xml", 400),
        ("fromBlock=x", 400),
        ("chainId=6", 404),
    ] {
        let (found, body) = server.get(&format!("{path}?{query}")).await;
        assert_eq!(found, status, "{query}: {body}");
    }
    let (status, body) = server.get("/collected/fee_events").await;
    assert_eq!(status, 404);
    assert!(body.contains("/collected lists"), "{body}");
    let unreadable = json!({"error": "the table name must be percent-encoded UTF-8"});
    let (status, body) = server.get("/collected/%ff").await;
    assert_eq!((status, body), (400, unreadable.to_string()));
    let (status, body) = server.get("/ready/%ff").await;
    assert_eq!(status, 404);
    assert!(body.contains("the services are rpc, tables and meter"), "{body}");
}

#[tokio::test]
async fn without_tables_nothing_is_collected() {
    let server = TestServer::with(Vec::new(), Vec::new(), |_| {}).await;
    for path in ["/collected", "/collected/x"] {
        assert_eq!(server.get(path).await.0, 404, "{path}");
    }
}
