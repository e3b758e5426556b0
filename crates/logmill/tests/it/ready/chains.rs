//! Nodes that die, hang or go back, and what is stored that is damaged.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

#[test]
fn a_node_that_hangs_or_dies_takes_the_chain_away_and_leaves_the_meter() {
    let mut node = Node::start(40, 5);
    let place = place(&[]);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    assert_eq!(server.rpc().get("/status")["chains"][0]["ingest"]["ingest"]["role"], "writer");
    // No block comes for longer than the head may be unseen: a node that answers is enough.
    let requests = node.node.requests();
    wait_until("the node was asked often", || node.node.requests() > requests + 60);
    assert_eq!(ready(&server, "").0, 200);
    node.set_faults(NodeFaults { delay: Duration::from_secs(3_600), ..NodeFaults::default() });
    wait_for(&server, "node_silent", &["meter"]);
    assert_eq!(send(&server, "while the node hangs"), 201);
    let status = server.rpc().get("/status");
    assert_eq!((&status["ready"], &status["chains"][0]["ready"]), (&json!(false), &json!(false)));
    assert_eq!(status["services"], json!({"rpc": false, "tables": false, "meter": true}));
    let (_, metrics) = request(at(&server), "GET", "/metrics", "").expect("an answer");
    for line in [
        r#"logmill_ready{service="all"} 0"#,
        r#"logmill_ready{service="meter"} 1"#,
        r#"logmill_not_ready{code="node_silent"} 1"#,
        r#"logmill_not_ready{code="disk_low"} 0"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "{line} is not in {metrics}");
    }
    node.set_faults(NodeFaults::default());
    wait_until_ready(&server);
    node.kill();
    wait_for(&server, "node_silent", &["meter"]);
    assert_eq!(send(&server, "while the node is dead"), 201);
    assert_eq!(server.rpc().head(), 40, "what is stored is served");
    assert!(server.terminate().success());
}

#[test]
fn a_head_that_goes_back_without_a_reorg_is_a_reason_and_a_reorg_is_none() {
    let node = Node::start(40, 20);
    let place = place(&[]);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    node.set_faults(NodeFaults { behind: 12, ..NodeFaults::default() });
    wait_for(&server, "head_went_back", &["meter"]);
    node.set_faults(NodeFaults::default());
    wait_until_ready(&server);
    node.chain().reorg(8, 9).expect("not final");
    let hash = json!(node.chain().latest().hash);
    let ours =
        || server.rpc().call("eth_getBlockByNumber", json!(["latest", false]))["hash"].take();
    wait_until("the other branch is stored", || ours() == hash);
    wait_until_ready(&server);
    assert!(server.terminate().success());
}

#[test]
fn ingest_that_has_stopped_and_a_view_that_lags_are_reasons() {
    let node = Node::start(60, 50);
    let place = place(&["ingest.max_unfinal_blocks=10"]);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_for(&server, "ingest_stopped", &["meter"]);
    wait_for(&server, "behind", &["meter"]);
    node.chain().set_finality_lag(Some(5));
    wait_until_ready(&server);
    assert!(server.terminate().success());
}

#[test]
fn damage_that_the_audit_finds_is_a_reason_and_in_the_status_of_the_index() {
    let node = Node::start(80, 5);
    let place = place(&["ingest.audit_blocks_per_second=10000"]);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    wait_until("history is complete", || {
        server.rpc().call("logmill_coverage", json!([]))["complete"] == true
    });
    let healthy = place.run(&["index", "status"]);
    assert!(healthy.answer().contains("healthy"), "{healthy:?}");
    assert!(server.terminate().success());
    assert!(damage(&place.data().join("blobs")) > 0, "something is sealed");
    // A node that has these blocks would let the auditor refill them.
    node.set_faults(NodeFaults { floor: 70, ..NodeFaults::default() });
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_until("damage is a reason", || {
        ready(&server, "").1.contains(&"blocks_damaged".to_owned())
    });
    assert_eq!((ready(&server, "/rpc").0, ready(&server, "/meter").0), (503, 200));
    wait_until("the index says so too", || {
        let status = place.run(&["index", "status", "--json"]).json();
        status["indexes"][0]["damaged_blocks"].as_u64().is_some_and(|damaged| damaged > 0)
    });
    let status = place.run(&["index", "status"]);
    assert!(!status.answer().contains("healthy"), "{status:?}");
    let (code, message) =
        server.rpc().refusal("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "0x8"}]));
    assert_eq!(code, -32_603, "{message}");
    assert!(message.contains("blocks"), "what is damaged is named: {message}");
    assert!(server.terminate().success());
}

#[test]
fn an_index_that_is_degraded_is_a_reason_and_a_chain_that_cannot_be_read_another() {
    use crate::index::ground::{Ground, blocks, fork};
    let ground = Ground::new();
    let ours = blocks(60);
    ground.ingest(&ours[..50]);
    let wrong = fork(&ours, 130)[30].clone();
    ground.with(async |writer| {
        writer.ingest_finalized_block(wrong).await.expect_err("it contradicts");
    });
    let server = ground.place.serve();
    wait_for(&server, "index_degraded", &[]);
    wait_for(&server, "chain_unreadable", &[]);
    assert!(server.terminate().success());
    assert!(ground.place.run(&["index", "resolve", "keep"]).answer().contains("done"));
    let server = ground.place.serve();
    wait_until("it is readable", || {
        let codes = ready(&server, "").1;
        !codes.iter().any(|code| ["index_degraded", "chain_unreadable"].contains(&code.as_str()))
    });
    assert!(server.terminate().success());
}

/// Flips the bits of every blob; gives how many there were.
fn damage(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths: Vec<PathBuf> = entries.map(|entry| entry.expect("read").path()).collect();
    let mut damaged = 0;
    for path in paths {
        if path.is_dir() {
            damaged += damage(&path);
            continue;
        }
        let bytes = std::fs::read(&path).expect("read");
        // Replaced: blobs are read-only files.
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, bytes.iter().map(|byte| byte ^ 0x55).collect::<Vec<_>>())
            .expect("written");
        damaged += 1;
    }
    damaged
}
