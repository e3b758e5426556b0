//! Real logs: the index returns what a scan over them finds.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use finalized_log_index::{
    Address, B256, BlockLog, Bytes, ChunkEntry, Filter, FinalizedBlock, LogIndex, Settings, Stores,
    Topics,
};
use flate2::read::GzDecoder;
use futures::stream::iter;
use logmill_io::{OsEntropy, SystemClock};
use serde_json::Value;

use super::chain::{Dice, block_hash, scan};
use crate::work::in_real_time;

fn unpacked(path: &Path) -> String {
    let mut text = String::new();
    let file = File::open(path).expect("the file is there");
    GzDecoder::new(file).read_to_string(&mut text).expect("it unpacks");
    text
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

/// Parses a hexadecimal string or a plain number.
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| {
        u64::from_str_radix(text(value).trim_start_matches("0x"), 16).expect("a number")
    })
}

fn index_of(value: &Value) -> u32 {
    u32::try_from(number(value)).expect("a small number")
}

fn word(value: &Value) -> B256 {
    text(value).parse().expect("a word")
}

fn log(value: &Value) -> BlockLog {
    let topics = value["topics"].as_array().expect("a list").iter().map(word);
    BlockLog {
        address: text(&value["address"]).parse().expect("an address"),
        topics: topics.collect::<Topics>(),
        data: text(&value["data"]).parse::<Bytes>().expect("bytes"),
        transaction_hash: word(&value["transactionHash"]),
        transaction_index: index_of(&value["transactionIndex"]),
        log_index: index_of(&value["logIndex"]),
    }
}

/// The 62 blocks as a chain: numbers and parent hashes are ours, with empty blocks in between.
fn mainnet(folder: &Path) -> Vec<FinalizedBlock> {
    let path = folder.join("mainnet_blocks/pevm_reexec_62_blocks_logs.jsonl.gz");
    let mut blocks: Vec<FinalizedBlock> = Vec::new();
    let mut real_number = None;
    let text = unpacked(&path);
    for line in text.lines() {
        let value: Value = serde_json::from_str(line).expect("JSON");
        if real_number != Some(number(&value["blockNumber"])) {
            real_number = Some(number(&value["blockNumber"]));
            let next = blocks.last().map_or(500, |last| last.number + 1);
            let parent_hash = blocks.last().map_or(B256::ZERO, |last| last.hash);
            let hash = block_hash(next, "empty");
            let empty = FinalizedBlock {
                number: next,
                hash,
                parent_hash,
                timestamp: number(&value["blockTimestamp"]) - 1,
                logs: Vec::new(),
                body: None,
            };
            blocks.push(empty);
            blocks.push(FinalizedBlock {
                number: next + 1,
                hash: word(&value["blockHash"]),
                parent_hash: hash,
                timestamp: number(&value["blockTimestamp"]),
                logs: Vec::new(),
                body: None,
            });
        }
        blocks.last_mut().expect("just pushed").logs.push(log(&value));
    }
    blocks
}

/// The chain of the execution API's conformance cases, starting at genesis.
fn execution_apis(folder: &Path) -> Vec<FinalizedBlock> {
    let text = unpacked(&folder.join("execution_apis/blocks_and_receipts.json.gz"));
    let value: Value = serde_json::from_str(&text).expect("JSON");
    let block = |value: &Value| {
        let header = &value["header"];
        let receipts = value["receipts"].as_array().expect("a list").iter();
        FinalizedBlock {
            number: number(&header["number"]),
            hash: word(&header["hash"]),
            parent_hash: word(&header["parentHash"]),
            timestamp: number(&header["timestamp"]),
            logs: receipts
                .flat_map(|receipt| receipt["logs"].as_array().expect("a list").iter().map(log))
                .collect(),
            body: None,
        }
    };
    value.as_array().expect("a list").iter().map(block).collect()
}

/// Many filters derived from real logs.
fn filters(blocks: &[FinalizedBlock], dice: &mut Dice) -> Vec<Filter> {
    let (first, last) = (blocks[0].number, blocks[blocks.len() - 1].number);
    let all = || Filter::range(first..=last);
    let mut filters = vec![all()];
    let logs: Vec<(u64, &BlockLog)> = blocks
        .iter()
        .flat_map(|block| block.logs.iter().map(move |log| (block.number, log)))
        .collect();
    let addresses: BTreeSet<Address> = logs.iter().map(|(_, log)| log.address).collect();
    filters.extend(addresses.into_iter().step_by(29).map(|address| all().address(address)));
    for _ in 0..100 {
        let any =
            |dice: &mut Dice| logs[usize::try_from(dice.below(logs.len() as u64)).expect("small")];
        let (at, log) = any(dice);
        let mut filter = match dice.below(4) {
            0 => all(),
            1 => Filter::range(at..=at),
            2 => Filter::covered(at.saturating_sub(dice.below(9))..=at + dice.below(200)),
            _ => Filter::range(at..=last),
        };
        if dice.one_in(2) {
            filter = filter.address(log.address);
        }
        if dice.one_in(4) {
            filter = filter.address(any(dice).1.address);
        }
        for (position, topic) in log.topics.iter().enumerate() {
            if dice.one_in(2) {
                filter = filter.topic(position, *topic);
                if let Some(other) = any(dice).1.topics.get(position).filter(|_| dice.one_in(3)) {
                    filter = filter.topic(position, *other);
                }
            }
        }
        filters.push(filter);
    }
    filters.extend(blocks.iter().step_by(7).map(|block| Filter::block_hash(block.hash)));
    filters
}

async fn check(index: &LogIndex, blocks: &[FinalizedBlock], seed: u64) {
    for filter in filters(blocks, &mut Dice::new(seed)) {
        let page = index.query_finalized(&filter).await.expect("it is covered");
        assert!(page.logs == scan(blocks, &filter), "seed {seed}: {filter:?}");
    }
    for block in blocks {
        let found = index.block_by_hash(&block.hash).await.expect("it works");
        assert_eq!(found, Some(block.info()));
        let Some(log) = block.logs.last() else {
            continue;
        };
        let logs = index.logs_of_transaction(&log.transaction_hash).await.expect("it works");
        let of_tx = block.logs.iter().filter(|l| l.transaction_hash == log.transaction_hash);
        assert!(logs.iter().map(|log| &log.log).eq(of_tx), "{}", log.transaction_hash);
    }
}

/// Checks the tail, its pieces, the merged chunks, and history built by a worker; the last two must have the same
/// bytes.
async fn index_and_check(blocks: &[FinalizedBlock]) {
    let stores = Stores::memory(SystemClock::shared(), OsEntropy::shared());
    let live = Settings {
        cell_blocks: 64,
        chunk_logs: 6_000,
        piece_logs: 1_500,
        prefix: "live".to_owned(),
        merge_cpu_percent: 100,
        ..Settings::default()
    };
    let index = LogIndex::open(stores.clone(), live.clone()).await.expect("it opens");
    let writer = index.writer("test").await.expect("it is free");
    for some in blocks.chunks(5) {
        writer.ingest_finalized_blocks(some).await.expect("they follow");
    }
    check(&index, blocks, 1).await;
    while writer.seal_next().await.expect("it works") {}
    check(&index, blocks, 2).await;
    writer.maintain().await.expect("it works");
    check(&index, blocks, 3).await;
    let anchors = vec![(blocks[0].number, blocks[0].hash)];
    let history = Settings { prefix: "history".to_owned(), anchors, ..live };
    let built = LogIndex::open(stores, history).await.expect("it opens");
    let range = blocks[0].number..blocks[blocks.len() - 1].number + 1;
    built.build_chunk(range, iter(blocks.iter().cloned().map(Ok))).await.expect("it is free");
    check(&built, blocks, 4).await;
    let whole: Vec<_> = index.chunks().into_iter().filter(|chunk| !chunk.is_piece()).collect();
    assert!(!whole.is_empty(), "a chunk is complete");
    for (sealed, built) in whole.iter().zip(built.chunks()) {
        assert_eq!(sealed.blocks, built.blocks, "the same blocks make the same chunks");
        assert_eq!(sealed.blake3, built.blake3, "the same blocks make the same chunks");
    }
}

#[test]
fn queries_of_real_mainnet_logs_equal_a_scan() {
    let Some(folder) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let blocks = mainnet(&folder);
    let logs: usize = blocks.iter().map(|block| block.logs.len()).sum();
    assert!(logs == 19_355, "{logs} logs");
    in_real_time(index_and_check(&blocks));
}

#[test]
fn queries_of_a_chain_from_genesis_with_a_huge_log_equal_a_scan() {
    let Some(folder) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let mut blocks = execution_apis(&folder);
    assert_eq!(blocks[0].number, 0, "genesis is the first block");
    let largest = blocks.iter().flat_map(|block| &block.logs).map(|log| log.data.len()).max();
    assert!(largest > Some(100_000), "{largest:?}");
    // Enough empty blocks to complete the first cell.
    while blocks.len() < 70 {
        let last = blocks[blocks.len() - 1].info();
        let number = last.number + 1;
        let hash = block_hash(number, "more");
        let timestamp = last.timestamp + 12;
        blocks.push(FinalizedBlock {
            number,
            hash,
            parent_hash: last.hash,
            timestamp,
            logs: Vec::new(),
            body: None,
        });
    }
    in_real_time(index_and_check(&blocks));
}

#[test]
fn a_real_log_takes_at_most_75_bytes_and_an_indexed_value_3_6() {
    let Some(folder) = logmill_sim::test_data() else {
        return logmill_sim::skip("no recorded chain data");
    };
    let blocks = mainnet(&folder);
    in_real_time(async {
        let settings = Settings::default();
        let index =
            LogIndex::open(Stores::memory(SystemClock::shared(), OsEntropy::shared()), settings)
                .await
                .expect("it opens");
        let range = blocks[0].number..blocks[blocks.len() - 1].number + 1;
        let built = index.build_chunk(range, iter(blocks.iter().cloned().map(Ok))).await;
        let built = built.expect("it is free");
        let sum = |part: fn(&ChunkEntry) -> u64| built.iter().map(|entry| part(entry)).sum::<u64>();
        let (bytes, logs) = (sum(|entry| entry.bytes), sum(|entry| u64::from(entry.logs)));
        let (index_bytes, values) = (sum(|entry| entry.index_bytes), sum(|entry| entry.values));
        println!("{bytes} bytes for {logs} logs, {index_bytes} of them for {values} values");
        assert!(bytes <= 75 * logs, "{bytes} bytes for {logs} logs");
        assert!(index_bytes * 10 <= 36 * values, "{index_bytes} bytes for {values} values");
    });
}
