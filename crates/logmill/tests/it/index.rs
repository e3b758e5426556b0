//! `logmill index …`: what is told about an index, how it is looked after, and how it is healed.

mod damage;
pub(crate) mod ground;
mod upkeep;

use finalized_log_index::{Filter, FinalizedBlock};
use logmill_io::sql::DataFolder;
use serde_json::{Value, json};

use crate::process::{LOGMILL, Place, command, finish};
use ground::{CHAIN, FIRST, Ground, blocks, open_with, scan};

/// The logs that a command lists, as (block, log index).
pub(crate) fn positions(listed: &Value) -> Vec<(u64, u64)> {
    let number = |log: &Value, key: &str| {
        let text = log[key].as_str().and_then(|text| text.strip_prefix("0x")).expect("hex");
        u64::from_str_radix(text, 16).expect("a number")
    };
    let logs = listed["logs"].as_array().expect("a list");
    logs.iter().map(|log| (number(log, "blockNumber"), number(log, "logIndex"))).collect()
}

fn ask<'a>(range: &'a [String; 2], more: &[&'a str]) -> Vec<&'a str> {
    let start = ["index", "logs", "--json", "--from", &range[0], "--to", &range[1]];
    [&start[..], more].concat()
}

fn range(from: u64, to: u64) -> [String; 2] {
    [from.to_string(), to.to_string()]
}

/// Asks the command for a range of blocks, and compares with a scan.
#[track_caller]
pub(crate) fn check_logs(place: &Place, blocks: &[FinalizedBlock], from: u64, to: u64) {
    let listed = place.run(&ask(&range(from, to), &[])).json();
    assert_eq!(positions(&listed), scan(blocks, &Filter::range(from..=to)));
    let hashes = listed["logs"].as_array().expect("a list").iter().map(|log| &log["blockHash"]);
    for ((number, _), hash) in positions(&listed).into_iter().zip(hashes) {
        let block = blocks.iter().find(|block| block.number == number).expect("of the chain");
        assert_eq!(*hash, format!("{:#x}", block.hash));
    }
}

#[test]
fn an_index_is_looked_at_beside_its_writer() {
    let ground = Ground::new();
    let blocks = blocks(40);
    let (first, last) = (FIRST, FIRST + 39);
    ground.ingest(&blocks);
    ground.with(async |writer| {
        let _folder = DataFolder::take(ground.place.data()).expect("it is free");
        let place = &ground.place;
        let status = place.run(&["index", "status", "--json"]).json();
        let health = writer.index().health();
        assert!(health.chunks > 0 && health.tail_blocks > 0, "{health:?}");
        let total: usize = blocks.iter().map(|block| block.logs.len()).sum();
        let expected = json!({ "indexes": [{
            "chain": CHAIN, "degraded": null, "damaged_blocks": 0, "head_seen": null, "head": last,
            "coverage": [{ "from": first, "to": last }], "pruned_below": 0,
            "chunks": health.chunks, "chunks_unanchored": 0,
            "tail_blocks": health.tail_blocks, "writer_epoch": health.writer_epoch,
            "logs": total, "bytes": health.bytes,
        }] });
        assert_eq!(status, expected);
        let table = place.run(&["index", "status"]);
        for row in ["state              healthy", "head               139", "tail blocks"] {
            assert!(table.answer().contains(row), "{row}: {table:?}");
        }
        check_logs(place, &blocks, first, last);
        check_logs(place, &blocks, 110, 110);
        // Who wants to change something is told who is in the way.
        let refused = place.run(&["index", "gc"]);
        let process = format!("process {}", std::process::id());
        refused.refused(1, &[&process, "needs it for itself"]);
        assert!(refused.stderr.contains("hint: stop it, or wait"), "{refused:?}");
    });
}

#[test]
fn logs_are_found_by_address_and_topics_and_page_by_page() {
    let ground = Ground::new();
    let blocks = blocks(40);
    ground.ingest(&blocks);
    let place = &ground.place;
    let log = blocks.iter().flat_map(|block| &block.logs).find(|log| log.topics.len() > 1);
    let log = log.expect("one with topics").clone();
    let all = range(FIRST, FIRST + 39);
    let filter = || Filter::range(FIRST..=FIRST + 39);
    let address = format!("{:#x}", log.address);
    let topics = [format!("0={:#x}", log.topics[0]), format!("1={:#x}", log.topics[1])];
    let find = |more: &[&str]| positions(&place.run(&ask(&all, more)).json());
    let found = find(&["--address", &address]);
    assert_eq!(found, scan(&blocks, &filter().address(log.address)));
    let found = find(&["--topic", &topics[1]]);
    assert_eq!(found, scan(&blocks, &filter().topic(1, log.topics[1])));
    let found = find(&["--address", &address, "--topic", &topics[0], "--topic", &topics[1]]);
    let both = filter().address(log.address).topic(0, log.topics[0]).topic(1, log.topics[1]);
    assert_eq!(found, scan(&blocks, &both));
    assert!(!found.is_empty());
    // Page by page it is the same.
    let (mut from, mut paged) = (FIRST, Vec::new());
    loop {
        let page = place.run(&ask(&range(from, FIRST + 39), &["--limit", "30"])).json();
        paged.extend(positions(&page));
        let Some(next) = page["next"].as_u64() else { break };
        assert!(next > from);
        from = next;
    }
    assert_eq!(paged, scan(&blocks, &filter()));
    let explained = place.run(&ask(&all, &["--topic", &topics[1], "--explain"])).json();
    assert_eq!(explained["results"], scan(&blocks, &filter().topic(1, log.topics[1])).len());
    assert!(explained["sources"].as_array().is_some_and(|sources| sources.len() > 1));
    let plain = ["index", "logs", "--from", &all[0], "--to", &all[1], "--topic", &topics[1]];
    let table = place.run(&plain);
    assert!(table.answer().starts_with("BLOCK"), "{table:?}");
    assert!(table.stderr.contains("logs, and no more"), "{table:?}");
    let table = place.run(&[&plain[..], &["--explain"]].concat());
    assert!(table.answer().contains("nothing can match"), "{table:?}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_happens() {
    let ground = Ground::new();
    ground.ingest(&blocks(20));
    let topic = format!("4=0x{}", "ab".repeat(32));
    let few = ["index", "logs", "--from", "100", "--to", "110"];
    let logs = |more: &[&str]| ground.place.run(&[&few[..], more].concat());
    logs(&["--address", "0x12"]).refused(2, &["--address", "40 hexadecimal digits"]);
    logs(&["--topic", "0x12"]).refused(2, &["--topic", "0 to 3"]);
    logs(&["--topic", &topic]).refused(2, &["--topic", "0 to 3"]);
    logs(&["--limit", "0"]).refused(2, &["--limit", "1 to 1000000"]);
    logs(&["--chain", "5"]).refused(1, &["no log index of chain 5, but of 1"]);
    let refused = |arguments: &[&str], code: i32, said: &[&str]| {
        ground.place.run(&[&["index"], arguments].concat()).refused(code, said);
    };
    refused(&["logs", "--from", "110", "--to", "100"], 2, &["starts at 110 and ends at 100"]);
    refused(&["logs", "--from", "110", "--to", "120"], 1, &["110 to 120", "covered: 100 to 119"]);
    refused(&["logs", "--from", "1"], 2, &["required arguments"]);
    refused(&["prune", "--below", "120"], 2, &["--below", "the head is 119"]);
    refused(&["prune"], 2, &["required arguments"]);
    refused(&["resolve", "rebuild-from", "120"], 2, &["BLOCK", "above the head 119"]);
    refused(&["resolve", "discard", "12"], 2, &["sixteen hexadecimal digits"]);
    refused(&["resolve", "discard", &"0".repeat(16)], 1, &["no chunk of attempt 0000000000000000"]);
    refused(&["resolve", "keep", "--chain", "x"], 2, &["--chain"]);
    let kept = ground.place.run(&["index", "resolve", "keep"]);
    assert!(kept.answer().contains("nothing to resolve"), "{kept:?}");
    check_logs(&ground.place, &blocks(20), 100, 119);
}

#[test]
fn an_index_that_was_made_otherwise_is_refused() {
    let ground = Ground::new();
    ground.ingest(&blocks(20));
    let mut other = command(LOGMILL, ground.place.root());
    other.args(["index", "status", "--data"]).arg(ground.place.data());
    finish(&mut other).refused(1, &["chain 1", "cell_blocks: 16", "cell_blocks: 8192"]);
}

#[test]
fn a_mistyped_folder_is_not_made() {
    let place = Place::new();
    for arguments in [
        &["index", "status"][..],
        &["index", "logs", "--from", "1", "--to", "2"],
        &["index", "gc", "--dry-run"],
        &["index", "prune", "--below", "7"],
        &["index", "resolve", "keep"],
    ] {
        place.run(arguments).refused(1, &["no log index", &place.data().display().to_string()]);
    }
    assert!(!place.data().exists());
}

#[test]
fn indexes_of_several_chains_are_told_apart() {
    let ground = Ground::new();
    let blocks = blocks(20);
    for chain in [10, CHAIN, 137] {
        ground.with_chain(chain, async |writer| {
            writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
        });
    }
    let status = ground.place.run(&["index", "status", "--json"]).json();
    let chains = status["indexes"].as_array().expect("a list").iter();
    let chains: Vec<u64> = chains.filter_map(|index| index["chain"].as_u64()).collect();
    assert_eq!(chains, [1, 10, 137]);
    let ask = ["index", "logs", "--from", "100", "--to", "119"];
    let refused = ground.place.run(&ask);
    refused.refused(2, &["several chains: 1, 10, 137"]);
    assert!(refused.stderr.contains("--chain"), "{refused:?}");
    ground.place.run(&["index", "gc"]).refused(2, &["several chains"]);
    ground.place.run(&[&ask[..], &["--chain", "10"]].concat()).answer();
    let one = ground.place.run(&["index", "status", "--chain", "10", "--json"]).json();
    assert_eq!(one["indexes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_index_in_postgresql_is_written_by_one_process() {
    let server = logmill_sim::postgres::PostgresServer::start();
    let ground = Ground::on_postgres(&server.url());
    let blocks = blocks(40);
    ground.place.run(&["index", "status"]).refused(1, &["no log index", "PostgreSQL"]);
    ground.ingest(&blocks);
    ground.with(async |_writer| {
        check_logs(&ground.place, &blocks, FIRST, FIRST + 39);
        let refused = ground.place.run(&["index", "gc"]);
        refused.refused(1, &["written by another process"]);
        assert!(refused.stderr.contains("hint: stop the process"), "{refused:?}");
    });
    ground.place.run(&["index", "gc"]).answer();
    check_logs(&ground.place, &blocks, FIRST, FIRST + 39);
}

#[test]
fn the_lease_of_a_writer_that_died_is_not_waited_for() {
    let ground = Ground::new();
    let blocks = blocks(20);
    ground.run(async {
        let index = open_with(&ground, CHAIN).await;
        let writer = index.writer("it dies").await.expect("free");
        writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
        // Not released.
        drop(writer);
    });
    let collected = ground.place.run(&["index", "gc"]);
    assert!(collected.answer().ends_with("yes"), "{collected:?}");
    assert!(!collected.stderr.contains("waits for the lease"), "{collected:?}");
}
