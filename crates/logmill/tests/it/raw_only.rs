//! `RAW_ONLY`: blocks are stored, and nothing is derived.

use logmill_sim::http::request;
use logmill_sim::node::{SimNodeServer, grown, sparse};

use crate::process::{LOGMILL, Sandbox, Server, command, wait_until};

/// A server that has stored the whole chain, with this value of `RAW_ONLY`.
fn served(sandbox: &Sandbox, node: &str, raw_only: &str) -> Server {
    let mut run = command(LOGMILL, sandbox.root());
    run.args(["run", "--rpc-url", node, "--data"]).arg(sandbox.data());
    for setting in ["database.durability=relaxed", "index.cell_blocks=32", "ingest.poll_ms=30"] {
        run.args(["--set", setting]);
    }
    run.env("RAW_ONLY", raw_only);
    let server = Server::start(&mut run);
    wait_until("everything is stored", || {
        let chain = server.rpc().get("/status")["chains"][0].take();
        chain["covered"][0]["from"] == 0 && chain["head"]["number"] == 40
    });
    server
}

fn status_of(server: &Server, path: &str) -> (u16, String) {
    request(server.rpc().address(), "GET", path, "").expect("an answer")
}

#[test]
fn with_raw_only_blocks_are_stored_and_nothing_is_derived() {
    let node = SimNodeServer::start(&grown(sparse(31, 5), 40));
    let sandbox = Sandbox::new();
    let server = served(&sandbox, &node.url(), "true");
    assert_eq!(status_of(&server, "/api/v1/1337/blocks/17").0, 200, "blocks are there");
    let (status, body) = status_of(&server, "/api/v1/1337/tokens");
    assert!(status == 404 && body.contains("not_derived"), "{body}");
    assert!(!sandbox.data().join("tables.db").exists(), "not even a table");
    assert!(server.terminate().success());
    // Without it, tables are derived in the same folder.
    let server = served(&sandbox, &node.url(), "false");
    wait_until("tokens are derived", || status_of(&server, "/api/v1/1337/tokens").0 == 200);
    assert!(server.terminate().success());
}
