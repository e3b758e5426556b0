//! Nodes that die, hang or go back, and damaged stored data.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;

#[test]
fn a_node_that_hangs_or_dies_makes_the_chain_unready_but_not_the_meter() {
    let mut node = start_node(40, 5);
    let sandbox = sandbox(&[]);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    assert_eq!(server.rpc().get("/status")["chains"][0]["ingest"]["ingest"]["role"], "writer");
    // No new block for longer than the head may be unseen: it is enough that a node answers.
    let requests = node.node().requests();
    wait_until("the node was asked often", || node.node().requests() > requests + 60);
    wait_until_ready(&server);
    node.node()
        .set_faults(NodeFaults { delay: Duration::from_secs(3_600), ..NodeFaults::default() });
    wait_for(&server, "node_silent", &["meter"]);
    assert_eq!(send(&server, "while the node hangs"), 201);
    let status = server.rpc().get("/status");
    assert_eq!((&status["ready"], &status["chains"][0]["ready"]), (&json!(false), &json!(false)));
    assert_eq!(status["services"], json!({"rpc": false, "tables": false, "meter": true}));
    // The metrics come from the last round of checks, which may lag behind the answers.
    for line in [
        r#"logmill_ready{service="all"} 0"#,
        r#"logmill_ready{service="meter"} 1"#,
        r#"logmill_not_ready{code="node_silent"} 1"#,
        r#"logmill_not_ready{code="disk_low"} 0"#,
    ] {
        wait_until(line, || {
            let (_, metrics) = request(at(&server), "GET", "/metrics", "").expect("an answer");
            metrics.lines().any(|found| found == line)
        });
    }
    node.node().set_faults(NodeFaults::default());
    wait_until_ready(&server);
    node.stop();
    wait_for(&server, "node_silent", &["meter"]);
    assert_eq!(send(&server, "while the node is dead"), 201);
    assert_eq!(server.rpc().head(), 40, "what is stored is served");
    assert!(server.terminate().success());
}

#[test]
fn a_head_that_goes_back_is_followed_and_is_a_reason_below_final_blocks() {
    let node = start_node(40, 20);
    let sandbox = sandbox(&[]);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    node.node().set_faults(NodeFaults { behind: 12, ..NodeFaults::default() });
    wait_until("it is followed", || server.rpc().head() == 28);
    wait_until_ready(&server);
    // Block 20 is final. One node that lags by two blocks would not be a reason.
    for behind in [22, 35] {
        node.node().set_faults(NodeFaults { behind, ..NodeFaults::default() });
        wait_for(&server, "head_went_back", &["meter"]);
        wait_until("the others are removed", || server.rpc().head() == 20);
    }
    node.node().set_faults(NodeFaults::default());
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
fn stopped_ingest_and_a_lagging_view_are_reasons() {
    let node = start_node(60, 50);
    let sandbox = sandbox(&["ingest.max_unfinal_blocks=10"]);
    let mut server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_for(&server, "ingest_stopped", &["meter"]);
    wait_for(&server, "behind", &["meter"]);
    let requests = node.node().requests();
    wait_until("the node was asked often", || node.node().requests() > requests + 20);
    assert!(server.has_logged("forward ingest is stalled"));
    assert_eq!(server.log().matches("forward ingest is stalled").count(), 1, "{}", server.log());
    node.chain().set_finality_lag(Some(5));
    wait_until_ready(&server);
    assert!(server.terminate().success());
}

#[test]
fn damage_found_by_the_audit_is_a_reason_and_shown_in_the_index_status() {
    let node = start_node(80, 5);
    let sandbox = sandbox(&["ingest.audit_blocks_per_second=10000"]);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    wait_until("history is complete", || {
        server.rpc().call("logmill_coverage", json!([]))["complete"] == true
    });
    let healthy = sandbox.run(&["index", "status"]);
    assert!(healthy.answer().contains("healthy"), "{healthy:?}");
    assert!(server.terminate().success());
    assert!(damage(&sandbox.data().join("blobs")) > 0, "something is sealed");
    // If the node had these blocks, the auditor would fetch them again.
    node.node().set_faults(NodeFaults { floor: 70, ..NodeFaults::default() });
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until("damage is a reason", || {
        ready(&server, "").1.contains(&"blocks_damaged".to_owned())
    });
    assert_eq!((ready(&server, "/rpc").0, ready(&server, "/meter").0), (503, 200));
    wait_until("the index says so too", || {
        let status = sandbox.run(&["index", "status", "--json"]).json();
        status["indexes"][0]["damaged_blocks"].as_u64().is_some_and(|damaged| damaged > 0)
    });
    let status = sandbox.run(&["index", "status"]);
    assert!(!status.answer().contains("healthy"), "{status:?}");
    let (code, message) =
        server.rpc().refusal("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "0x8"}]));
    assert_eq!(code, -32_603, "{message}");
    assert!(message.contains("blocks"), "what is damaged is named: {message}");
    assert!(server.terminate().success());
}

#[test]
fn a_degraded_index_and_an_unreadable_chain_are_reasons() {
    use crate::index::fixture::{IndexFixture, blocks, fork};
    let fixture = IndexFixture::new();
    let ours = blocks(60);
    fixture.ingest(&ours[..50]);
    let wrong = fork(&ours, 130)[30].clone();
    fixture.with(async |writer| {
        writer.ingest_finalized_block(wrong).await.expect_err("it contradicts");
    });
    let server = fixture.sandbox.serve();
    wait_for(&server, "index_degraded", &[]);
    wait_for(&server, "chain_unreadable", &[]);
    assert!(server.terminate().success());
    assert!(fixture.sandbox.run(&["index", "resolve", "keep"]).answer().contains("done"));
    let server = fixture.sandbox.serve();
    wait_until("it is readable", || {
        let codes = ready(&server, "").1;
        !codes.iter().any(|code| ["index_degraded", "chain_unreadable"].contains(&code.as_str()))
    });
    assert!(server.terminate().success());
}

/// Flips bits of every blob; returns the number of blobs.
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
        // Replaced, because blobs are read-only files.
        std::fs::remove_file(&path).expect("removed");
        std::fs::write(&path, bytes.iter().map(|byte| byte ^ 0x55).collect::<Vec<_>>())
            .expect("written");
        damaged += 1;
    }
    damaged
}
