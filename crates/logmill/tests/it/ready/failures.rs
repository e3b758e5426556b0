//! Failures of parts that cannot continue: the process ends instead of running without them.

use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::failing_sync_shim;

use super::*;
use crate::process::{LOGMILL, command};

/// A server whose syncs fail once the file `armed` exists.
fn serve_with_shim(sandbox: &Sandbox, node: &str) -> Server {
    let shim = failing_sync_shim(sandbox.root());
    let mut run = command(LOGMILL, sandbox.root());
    run.args(["run", "--rpc-url", node, "--data"]).arg(sandbox.data());
    for setting in QUICK.iter().filter(|setting| !setting.starts_with("database.")) {
        run.args(["--set", setting]);
    }
    run.env("LOGMILL_SERVER_LISTEN", "127.0.0.1:0");
    run.env("LD_PRELOAD", shim).env("LOGMILL_FAILING_SYNC", sandbox.root().join("armed"));
    Server::start(&mut run)
}

fn arm(sandbox: &Sandbox) {
    std::fs::write(sandbox.root().join("armed"), "0\n").expect("syncs fail from now on");
}

/// Checks that the server ends by itself, with an error that names the cause.
#[track_caller]
fn ends_with_an_error(mut server: Server) {
    let error = loop {
        let line = server.expect_line("error: ");
        if line.starts_with("error: ") {
            break line;
        }
    };
    assert!(error.contains("an earlier sync to disk failed"), "{error}");
    assert_eq!(server.wait_for_end().code(), Some(1), "{error}");
}

#[test]
fn a_failed_sync_while_usage_is_recorded_ends_the_process_and_loses_no_acknowledged_event() {
    let sandbox = sandbox(&[]);
    let node = start_node(40, 5);
    let server = serve_with_shim(&sandbox, &node.url());
    wait_until_ready(&server);
    for number in 0..5 {
        assert_eq!(send(&server, &format!("before-{number}")), 201);
    }
    arm(&sandbox);
    assert_ne!(send(&server, "lost"), 201, "it is not on the disk");
    ends_with_an_error(server);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    let events = server.rpc().get("/events?limit=100");
    let ids: Vec<&str> =
        events.as_array().expect("a list").iter().filter_map(|e| e["id"].as_str()).collect();
    for number in 0..5 {
        assert!(ids.contains(&format!("before-{number}").as_str()), "{events}");
    }
    assert!(server.terminate().success());
}

#[test]
fn a_failed_sync_while_blocks_are_stored_ends_the_process_and_the_next_one_continues() {
    let sandbox = sandbox(&[]);
    let node = start_node(40, 5);
    let server = serve_with_shim(&sandbox, &node.url());
    wait_until_ready(&server);
    arm(&sandbox);
    node.chain().grow(20);
    ends_with_an_error(server);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    assert_eq!(server.rpc().head(), 60);
    assert!(server.terminate().success());
}

const RULES: &str = "meter.rules=[{ name = \"fees\", event_type = \"api.calls\", \
    event = \"event FeesCollected(address indexed token, address indexed integrator, \
    uint256 integratorFee, uint256 lifiFee)\", \
    contracts = [\"0xbd6c7b0d2f68c2b7805d88388319cfb6ecb50ea9\"], \
    customer = \"integrator\", value = \"integratorFee\" }]";

#[test]
fn usage_of_a_chain_that_is_not_recorded_is_a_warning_and_clients_can_still_send() {
    let sandbox = sandbox(&[RULES]);
    let node = start_node(40, 5);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    let rename = |from: &str, to: &str| {
        let file = SqliteSettings::file(sandbox.data().join("meter.db"));
        let text = format!("ALTER TABLE {from} RENAME TO {to}");
        Runtime::new().expect("a runtime").block_on(async {
            let sql = Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await;
            sql.expect("a database").execute(&text, params![]).await.expect("renamed");
        });
    };
    rename("coverage", "away");
    let warned = || {
        let (status, body) = request(at(&server), "GET", "/ready", "").expect("an answer");
        let body: Value = serde_json::from_str(&body).expect("JSON");
        assert!(!body["reasons"].to_string().contains("usage_not_relayed"), "{body}");
        // On a busy machine the head may be briefly unseen; this test is not about that.
        status == 200 && body["warnings"][0]["code"] == "usage_not_relayed"
    };
    wait_until("it is a warning", warned);
    assert!(server.rpc().get("/status")["warnings"].to_string().contains("usage_not_relayed"));
    assert_eq!(send(&server, "meanwhile"), 201);
    rename("away", "coverage");
    wait_until("the warning is gone", || {
        let (status, body) = request(at(&server), "GET", "/ready", "").expect("an answer");
        status == 200 && !body.contains("usage_not_relayed")
    });
    assert!(server.terminate().success());
}
