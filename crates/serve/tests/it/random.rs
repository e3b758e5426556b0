//! Random filters, compared with a naive scan of all logs.

use alloy_primitives::{Address, B256};
use logmill_chain::{Block, Log};
use logmill_io::{Entropy, SeededEntropy};
use serde_json::{Value, json};

use super::test_server::{TestServer, blocks, log};

const SEED: u64 = 11;
const FILTERS: u64 = 300;

fn draw(entropy: &dyn Entropy, end: u64) -> u8 {
    u8::try_from(entropy.below(end)).expect("small")
}

fn random_log(entropy: &dyn Entropy) -> Log {
    let topics: Vec<u8> = (0..draw(entropy, 5)).map(|_| draw(entropy, 4)).collect();
    log(draw(entropy, 4), &topics, usize::from(draw(entropy, 40)))
}

/// One position of a filter as clients write it, and the values that it allows; `None` allows any.
fn random_terms(entropy: &dyn Entropy) -> (Value, Option<Vec<u8>>) {
    let list = |count| (0..count).map(|_| draw(entropy, 5)).collect::<Vec<u8>>();
    match entropy.below(5) {
        0 => (Value::Null, None),
        1 => (json!([]), None),
        2 => {
            let one = draw(entropy, 5);
            (json!(B256::repeat_byte(one)), Some(vec![one]))
        }
        count => {
            let many = list(count);
            (json!(many.iter().map(|b| B256::repeat_byte(*b)).collect::<Vec<_>>()), Some(many))
        }
    }
}

/// The matching logs by block and log index, computed independently of the index.
fn scan(
    all: &[Block],
    from: u64,
    to: u64,
    address: Option<u8>,
    topics: &[Option<Vec<u8>>],
) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    for block in all.iter().filter(|block| block.at.number >= from && block.at.number <= to) {
        let logs = block.receipts.iter().flat_map(|receipt| &receipt.logs);
        for (index, log) in (0..).zip(logs) {
            let mut matches = address.is_none_or(|byte| log.address == Address::repeat_byte(byte));
            for (position, wanted) in topics.iter().enumerate() {
                matches &= match (log.topics.get(position), wanted) {
                    (None, _) => false,
                    (Some(_), None) => true,
                    (Some(topic), Some(any)) => any.iter().any(|b| *topic == B256::repeat_byte(*b)),
                };
            }
            if matches {
                found.push((block.at.number, index));
            }
        }
    }
    found
}

#[tokio::test]
async fn random_filters_find_what_a_scan_finds() {
    let entropy = SeededEntropy::shared(SEED);
    let all = blocks(None, 60, 1, |_| {
        let transaction = |_| (0..entropy.below(6)).map(|_| random_log(&*entropy)).collect();
        (0..entropy.below(4)).map(transaction).collect()
    });
    let server = TestServer::of(all[..41].to_vec(), all[41..].to_vec()).await;
    let mut results = 0;
    for round in 0..FILTERS {
        let (a, b) = (entropy.below(60), entropy.below(60));
        let (from, to) = (a.min(b), a.max(b));
        let address = (entropy.below(2) == 0).then(|| draw(&*entropy, 5));
        let (written, topics): (Vec<Value>, Vec<_>) =
            (0..entropy.below(5)).map(|_| random_terms(&*entropy)).unzip();
        let filter = json!({
            "fromBlock": format!("0x{from:x}"),
            "toBlock": format!("0x{to:x}"),
            "address": address.map(Address::repeat_byte),
            "topics": written,
        });
        let answer = server.call("eth_getLogs", json!([filter])).await;
        let number = |log: &Value, name: &str| {
            let text = log[name].as_str().expect("a quantity").trim_start_matches("0x");
            u64::from_str_radix(text, 16).expect("hexadecimal")
        };
        let found: Vec<(u64, u64)> = answer
            .as_array()
            .expect("logs")
            .iter()
            .map(|log| (number(log, "blockNumber"), number(log, "logIndex")))
            .collect();
        let expected = scan(&all, from, to, address, &topics);
        assert_eq!(found, expected, "seed {SEED}, round {round}: {filter}");
        results += found.len();
    }
    assert!(results > 1_000, "the filters find something: {results}");
}
