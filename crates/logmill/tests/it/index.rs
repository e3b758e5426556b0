//! `logmill index …`: status, upkeep and repair of an index.

mod damage;
pub(crate) mod fixture;
mod upkeep;

use finalized_log_index::{Filter, FinalizedBlock};
use logmill_io::sql::DataFolder;
use serde_json::{Value, json};

use crate::process::{LOGMILL, Sandbox, command, finish};
use fixture::{CHAIN, FIRST, IndexFixture, blocks, open_with, scan};

/// The logs that a command printed, as (block, log index).
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

/// Queries a range of blocks with the command, and compares with a scan.
#[track_caller]
pub(crate) fn check_logs(sandbox: &Sandbox, blocks: &[FinalizedBlock], from: u64, to: u64) {
    let listed = sandbox.run(&ask(&range(from, to), &[])).json();
    assert_eq!(positions(&listed), scan(blocks, &Filter::range(from..=to)));
    let hashes = listed["logs"].as_array().expect("a list").iter().map(|log| &log["blockHash"]);
    for ((number, _), hash) in positions(&listed).into_iter().zip(hashes) {
        let block = blocks.iter().find(|block| block.number == number).expect("of the chain");
        assert_eq!(*hash, format!("{:#x}", block.hash));
    }
}

#[test]
fn an_index_can_be_read_beside_its_writer() {
    let fixture = IndexFixture::new();
    let blocks = blocks(40);
    let (first, last) = (FIRST, FIRST + 39);
    fixture.ingest(&blocks);
    fixture.with(async |writer| {
        let _folder = DataFolder::take(fixture.sandbox.data()).expect("it is free");
        let sandbox = &fixture.sandbox;
        let status = sandbox.run(&["index", "status", "--json"]).json();
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
        let table = sandbox.run(&["index", "status"]);
        for row in [
            "state                 healthy",
            "final head            139",
            "covered final blocks  100 to 139",
            "tail blocks",
            "logs of final blocks  ",
        ] {
            assert!(table.answer().contains(row), "{row}: {table:?}");
        }
        check_logs(sandbox, &blocks, first, last);
        check_logs(sandbox, &blocks, 110, 110);
        // The error of a command that writes names the process that holds the index.
        let refused = sandbox.run(&["index", "gc"]);
        let process = format!("process {}", std::process::id());
        refused.assert_refused(1, &[&process, "needs exclusive access"]);
        assert!(refused.stderr.contains("hint: stop it, or wait"), "{refused:?}");
    });
}

#[test]
fn logs_are_found_by_address_and_topics_and_page_by_page() {
    let fixture = IndexFixture::new();
    let blocks = blocks(40);
    fixture.ingest(&blocks);
    let sandbox = &fixture.sandbox;
    let log = blocks.iter().flat_map(|block| &block.logs).find(|log| log.topics.len() > 1);
    let log = log.expect("one with topics").clone();
    let all = range(FIRST, FIRST + 39);
    let filter = || Filter::range(FIRST..=FIRST + 39);
    let address = format!("{:#x}", log.address);
    let topics = [format!("0={:#x}", log.topics[0]), format!("1={:#x}", log.topics[1])];
    let find = |more: &[&str]| positions(&sandbox.run(&ask(&all, more)).json());
    let found = find(&["--address", &address]);
    assert_eq!(found, scan(&blocks, &filter().address(log.address)));
    let found = find(&["--topic", &topics[1]]);
    assert_eq!(found, scan(&blocks, &filter().topic(1, log.topics[1])));
    let found = find(&["--address", &address, "--topic", &topics[0], "--topic", &topics[1]]);
    let both = filter().address(log.address).topic(0, log.topics[0]).topic(1, log.topics[1]);
    assert_eq!(found, scan(&blocks, &both));
    assert!(!found.is_empty());
    // Pages together have the same logs.
    let (mut from, mut paged) = (FIRST, Vec::new());
    loop {
        let page = sandbox.run(&ask(&range(from, FIRST + 39), &["--limit", "30"])).json();
        paged.extend(positions(&page));
        let Some(next) = page["next"].as_u64() else { break };
        assert!(next > from);
        from = next;
    }
    assert_eq!(paged, scan(&blocks, &filter()));
    let explained = sandbox.run(&ask(&all, &["--topic", &topics[1], "--explain"])).json();
    assert_eq!(explained["results"], scan(&blocks, &filter().topic(1, log.topics[1])).len());
    assert!(explained["sources"].as_array().is_some_and(|sources| sources.len() > 1));
    let plain = ["index", "logs", "--from", &all[0], "--to", &all[1], "--topic", &topics[1]];
    let table = sandbox.run(&plain);
    assert!(table.answer().starts_with("BLOCK"), "{table:?}");
    assert!(table.stderr.contains("logs; there are no more"), "{table:?}");
    let table = sandbox.run(&[&plain[..], &["--explain"]].concat());
    assert!(table.answer().contains("nothing can match"), "{table:?}");
}

#[test]
fn invalid_arguments_are_refused_before_anything_is_changed() {
    let fixture = IndexFixture::new();
    fixture.ingest(&blocks(20));
    let topic = format!("4=0x{}", "ab".repeat(32));
    let few = ["index", "logs", "--from", "100", "--to", "110"];
    let logs = |more: &[&str]| fixture.sandbox.run(&[&few[..], more].concat());
    logs(&["--address", "0x12"]).assert_refused(2, &["--address", "40 hexadecimal digits"]);
    logs(&["--topic", "0x12"]).assert_refused(2, &["--topic", "0 to 3"]);
    logs(&["--topic", &topic]).assert_refused(2, &["--topic", "0 to 3"]);
    logs(&["--limit", "0"]).assert_refused(2, &["--limit", "1 to 1000000"]);
    logs(&["--chain", "5"]).assert_refused(1, &["no log index of chain 5; there are indexes of 1"]);
    let refused = |arguments: &[&str], code: i32, message: &[&str]| {
        fixture.sandbox.run(&[&["index"], arguments].concat()).assert_refused(code, message);
    };
    refused(&["logs", "--from", "110", "--to", "100"], 2, &["starts at 110 and ends at 100"]);
    refused(&["logs", "--from", "110", "--to", "120"], 1, &["110 to 120", "covered: 100 to 119"]);
    refused(&["logs", "--from", "1"], 2, &["required arguments"]);
    refused(&["prune", "--below", "120"], 2, &["--below", "the head is 119"]);
    refused(&["prune"], 2, &["required arguments"]);
    refused(&["resolve", "rebuild-from", "120"], 2, &["BLOCK", "above the head 119"]);
    refused(&["resolve", "discard", "12"], 2, &["sixteen hexadecimal digits"]);
    refused(
        &["resolve", "discard", &"0".repeat(16)],
        1,
        &["no chunk with the token 0000000000000000"],
    );
    refused(&["resolve", "keep", "--chain", "x"], 2, &["--chain"]);
    let kept = fixture.sandbox.run(&["index", "resolve", "keep"]);
    assert!(kept.answer().contains("nothing to resolve"), "{kept:?}");
    check_logs(&fixture.sandbox, &blocks(20), 100, 119);
}

#[test]
fn a_reader_takes_the_bounds_of_the_store_and_a_writer_with_others_is_refused() {
    let fixture = IndexFixture::new();
    fixture.ingest(&blocks(20));
    // Without the settings of the fixture, whose bounds differ from the defaults.
    let run = |arguments: &[&str]| {
        let mut other = command(LOGMILL, fixture.sandbox.root());
        other.args(arguments).arg("--data").arg(fixture.sandbox.data());
        finish(&mut other)
    };
    let expected = fixture.sandbox.run(&["index", "status", "--json"]).json();
    assert_eq!(run(&["index", "status", "--json"]).json(), expected);
    run(&["index", "gc"]).assert_refused(1, &["chain 1", "cell_blocks = 16", "cell_blocks = 8192"]);
}

#[test]
fn commands_do_not_create_a_mistyped_folder() {
    let sandbox = Sandbox::new();
    for arguments in [
        &["index", "status"][..],
        &["index", "logs", "--from", "1", "--to", "2"],
        &["index", "gc", "--dry-run"],
        &["index", "prune", "--below", "7"],
        &["index", "resolve", "keep"],
    ] {
        sandbox
            .run(arguments)
            .assert_refused(1, &["no log index", &sandbox.data().display().to_string()]);
    }
    assert!(!sandbox.data().exists());
}

#[test]
fn indexes_of_several_chains_are_distinguished() {
    let fixture = IndexFixture::new();
    let blocks = blocks(20);
    for chain in [10, CHAIN, 137] {
        fixture.with_chain(chain, async |writer| {
            writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
        });
    }
    let status = fixture.sandbox.run(&["index", "status", "--json"]).json();
    let chains = status["indexes"].as_array().expect("a list").iter();
    let chains: Vec<u64> = chains.filter_map(|index| index["chain"].as_u64()).collect();
    assert_eq!(chains, [1, 10, 137]);
    let ask = ["index", "logs", "--from", "100", "--to", "119"];
    let refused = fixture.sandbox.run(&ask);
    refused.assert_refused(2, &["several chains: 1, 10, 137"]);
    assert!(refused.stderr.contains("--chain"), "{refused:?}");
    fixture.sandbox.run(&["index", "gc"]).assert_refused(2, &["several chains"]);
    fixture.sandbox.run(&[&ask[..], &["--chain", "10"]].concat()).answer();
    let one = fixture.sandbox.run(&["index", "status", "--chain", "10", "--json"]).json();
    assert_eq!(one["indexes"].as_array().map(Vec::len), Some(1));
}

#[test]
fn an_index_in_postgresql_is_written_by_one_process() {
    let server = logmill_sim::postgres::PostgresServer::start();
    let fixture = IndexFixture::on_postgres(&server.url());
    let blocks = blocks(40);
    fixture.sandbox.run(&["index", "status"]).assert_refused(1, &["no log index", "PostgreSQL"]);
    fixture.ingest(&blocks);
    fixture.with(async |_writer| {
        check_logs(&fixture.sandbox, &blocks, FIRST, FIRST + 39);
        let refused = fixture.sandbox.run(&["index", "gc"]);
        refused.assert_refused(1, &["written by another process"]);
        assert!(refused.stderr.contains("hint: stop the process"), "{refused:?}");
    });
    fixture.sandbox.run(&["index", "gc"]).answer();
    check_logs(&fixture.sandbox, &blocks, FIRST, FIRST + 39);
}

#[test]
fn the_lease_of_a_dead_writer_is_taken_over_at_once() {
    let fixture = IndexFixture::new();
    let blocks = blocks(20);
    fixture.run(async {
        let index = open_with(&fixture, CHAIN).await;
        let writer = index.writer("it dies").await.expect("free");
        writer.ingest_finalized_blocks(&blocks).await.expect("they follow");
        // Dropped without releasing the lease.
        drop(writer);
    });
    let collected = fixture.sandbox.run(&["index", "gc"]);
    assert!(collected.answer().ends_with("yes"), "{collected:?}");
    assert!(!collected.stderr.contains("waiting for the lease"), "{collected:?}");
}

#[test]
fn verifying_no_blocks_is_an_error() {
    let fixture = IndexFixture::new();
    fixture.ingest(&blocks(20));
    let arguments = ["verify", "--from", "5000", "--to", "6000"];
    fixture.sandbox.run(&arguments).assert_refused(1, &["nothing was verified"]);
}
