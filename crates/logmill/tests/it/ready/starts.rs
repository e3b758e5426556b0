//! Starts: an unreachable node delays nothing else, and an error names whatever a start needs and lacks.

use std::net::TcpListener;

use super::*;

/// Status, head and body of an answer.
#[track_caller]
fn answered(to: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String, String) {
    logmill_sim::http::request_with_head(to, method, path, body).expect("an answer")
}

/// What `/ready` says the nodes' last error was.
fn last_error(server: &Server) -> Option<String> {
    let (_, body) = request(at(server), "GET", "/ready", "").expect("an answer");
    let body: Value = serde_json::from_str(&body).expect("JSON");
    let reasons = body["reasons"].as_array().expect("a list");
    let mut said = reasons.iter().filter_map(|reason| reason["reason"].as_str());
    said.find_map(|reason| Some(reason.split_once("last error: ")?.1.to_owned()))
}

#[test]
fn a_start_without_a_node_still_serves_usage_and_stored_chains() {
    // Accepts connections, and does not answer yet.
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", socket.local_addr().expect("an address"));
    let sandbox = sandbox(&[]);
    // The chain id is not known yet.
    let server = sandbox.serve_with(&["--rpc-url", &url]);
    wait_for(&server, "chain_unknown", &["meter"]);
    assert!(last_error(&server).is_some(), "the start has asked the node");
    let call = r#"{"jsonrpc":"2.0","id":1,"method":"eth_blockNumber","params":[]}"#;
    for path in ["/", "/rpc", "/rpc/1337"] {
        let (status, headers, body) = answered(at(&server), "POST", path, call);
        assert_eq!(status, 503, "{path}: {body}");
        assert!(headers.contains("retry-after: 5"), "{path}: {headers}");
        let body: Value = serde_json::from_str(&body).expect("JSON-RPC");
        assert_eq!((&body["jsonrpc"], &body["error"]["code"]), (&json!("2.0"), &json!(-32_002)));
        let message = body["error"]["message"].as_str().expect("a message");
        assert!(message.contains("the chain id is not known yet"), "{message}");
    }
    let (status, _, body) = answered(at(&server), "GET", "/api/v1/1337/blocks/17", "");
    assert_eq!(status, 503, "{body}");
    assert_eq!(send(&server, "without a chain"), 201);
    let node = SimNodeServer::on(socket, &grown(sparse(5, 5), 40));
    wait_until_ready(&server);
    assert_eq!(server.rpc().head(), 40, "the chain was found and is served");
    let (status, _) = request(at(&server), "GET", "/api/v1/1337/blocks/17", "").expect("an answer");
    assert_eq!(status, 200);
    let (status, _, body) = answered(at(&server), "POST", "/rpc/7", call);
    assert_eq!(status, 404, "another chain is not awaited any more: {body}");
    assert!(server.terminate().success());
    // Now the chain id is stored.
    drop(node);
    let server = sandbox.serve_with(&["--rpc-url", &url]);
    // From the first answer on: ingest asks again only after the start has.
    let status = server.rpc().get("/status").to_string();
    assert!(status.contains("refused"), "{status}");
    wait_for(&server, "node_silent", &["meter"]);
    assert!(last_error(&server).is_some_and(|error| error.contains("refused")));
    assert_eq!(server.rpc().head(), 40, "what is stored is served");
    assert_eq!(send(&server, "without a node"), 201);
    assert!(server.terminate().success());
}

#[test]
fn a_node_of_another_chain_is_refused_at_the_start() {
    let node = start_node(10, 5);
    let refused = sandbox(&["chain.id=5"]).run(&["run", "--rpc-url", &node.url()]);
    refused.assert_refused(1, &["1337", "5"]);
}

#[test]
fn a_preflight_reports_the_result_of_each_check() {
    let mut node = start_node(10, 5);
    let urls = format!("chain.rpc_urls={}", node.url());
    let sandbox = sandbox(&[&urls]);
    let fine = sandbox.run(&["preflight"]);
    let printed = fine.answer();
    for part in
        ["data folder", "disk space", "MiB free", "database", "blob store", "node", "chain 1337"]
    {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    let left: Vec<_> = std::fs::read_dir(sandbox.data()).expect("a folder").flatten().collect();
    assert!(left.iter().all(|file| !file.file_name().to_string_lossy().contains("preflight")));
    let server = sandbox.serve();
    let beside = sandbox.run(&["preflight"]);
    assert!(beside.answer().contains("in use"), "{beside:?}");
    assert!(server.terminate().success());
    node.stop();
    let refused = sandbox.run(&["preflight"]);
    refused.assert_refused(1, &["node"]);
    assert!(refused.stdout.contains("chain.rpc_urls"), "{refused:?}");
}

#[test]
fn low_disk_space_fails_a_preflight_and_is_a_warning_at_the_start() {
    let sandbox = Sandbox::with(&[EVENTS, "ready.free_disk_mib=1073741824"]);
    let refused = sandbox.run(&["preflight"]);
    refused.assert_refused(1, &["disk space"]);
    assert!(refused.stdout.contains("ready.free_disk_mib requires 1073741824"), "{refused:?}");
    let server = sandbox.serve();
    assert!(server.log().contains("disk space is low"), "{}", server.log());
    wait_until("it is not ready", || ready(&server, "").1.contains(&"disk_low".to_owned()));
    assert!(server.terminate().success());
}

#[test]
fn a_preflight_finds_missing_old_and_malformed_databases_and_says_what_to_do() {
    let sandbox = Sandbox::with(&[EVENTS]);
    let server = sandbox.serve();
    assert_eq!(send(&server, "one"), 201);
    assert!(server.terminate().success());
    let fine = sandbox.run(&["preflight"]);
    assert!(fine.answer().contains("meter.db"), "{fine:?}");
    let file = sandbox.data().join("meter.db");
    let whole = std::fs::read(&file).expect("a database");
    let check = |texts: &[&str]| {
        let refused = sandbox.run(&["preflight"]);
        refused.assert_refused(1, &["database"]);
        let shown = refused.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in texts {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    };
    // Deleted.
    std::fs::remove_file(&file).expect("deleted");
    check(&["meter.db has stepped back", "missing or empty", "database-stepped-back.md"]);
    let refused = sandbox.run(&["meter", "recount"]);
    refused.assert_refused(1, &["meter.db has stepped back"]);
    assert!(refused.stderr.contains("database-stepped-back.md"), "{refused:?}");
    assert!(!refused.stderr.contains("creates it"), "{refused:?}");
    // An old one.
    std::fs::write(&file, &whole).expect("restored");
    let server = sandbox.serve();
    assert_eq!(send(&server, "two"), 201);
    assert!(server.terminate().success());
    let newest = std::fs::read(&file).expect("a database");
    std::fs::write(&file, &whole).expect("an old one");
    check(&["meter.db has stepped back", "are gone"]);
    // A garbage page in the middle, and a file that is not a database.
    let mut damaged = newest.clone();
    let pages = damaged.len() / 4_096;
    damaged[pages / 2 * 4_096..][..4_096].fill(0xA5);
    std::fs::write(&file, &damaged).expect("damage");
    check(&["meter.db", "malformed", "damaged-database.md"]);
    std::fs::write(&file, vec![0xA5; 8_192]).expect("damage");
    check(&["meter.db", "not a database", "damaged-database.md"]);
    for command in [&["run"][..], &["meter", "recount"]] {
        let refused = sandbox.run(command);
        refused.assert_refused(1, &["meter.db"]);
        assert!(refused.stderr.contains("damaged-database.md"), "{refused:?}");
    }
    // If two are damaged, the error names both.
    std::fs::remove_file(sandbox.data().join("work.db")).expect("deleted");
    check(&["work.db has stepped back", "meter.db"]);
    std::fs::write(&file, &newest).expect("restored");
}

#[test]
fn low_disk_space_makes_all_services_unready() {
    let sandbox = sandbox(&["ready.free_disk_mib=1073741824"]);
    let server = sandbox.serve();
    wait_for(&server, "disk_low", &[]);
    assert!(server.terminate().success());
}

#[test]
fn a_service_that_is_not_configured_is_unready_only_at_its_own_path() {
    let sandbox = Sandbox::with(&["database.durability=relaxed"]);
    let server = sandbox.serve();
    wait_until_ready(&server);
    assert_eq!(ready(&server, "/meter"), (503, vec!["not_served".to_owned()]));
    assert_eq!(ready(&server, "/rpc"), (503, vec!["not_served".to_owned()]));
    let (status, _) = request(at(&server), "GET", "/ready/elsewhere", "").expect("an answer");
    assert_eq!(status, 404);
    assert!(server.terminate().success());
}
