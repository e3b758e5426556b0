//! Parts that cannot go on: the process ends, and never lingers without them.

use logmill_io::sql::{Execute, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::failing_sync_shim;

use super::*;
use crate::process::{LOGMILL, command};

/// A server whose syncs fail once the file `armed` exists.
fn serve_with_shim(place: &Place, node: &str) -> Server {
    let shim = failing_sync_shim(place.root());
    let mut run = command(LOGMILL, place.root());
    run.args(["run", "--rpc-url", node, "--data"]).arg(place.data());
    for setting in QUICK.iter().filter(|setting| !setting.starts_with("database.")) {
        run.args(["--set", setting]);
    }
    run.env("LOGMILL_SERVER_LISTEN", "127.0.0.1:0");
    run.env("LD_PRELOAD", shim).env("LOGMILL_FAILING_SYNC", place.root().join("armed"));
    Server::start(&mut run)
}

fn arm(place: &Place) {
    std::fs::write(place.root().join("armed"), "0\n").expect("syncs fail from now on");
}

/// It must end by itself, with an error that says why.
#[track_caller]
fn ends_with_an_error(mut server: Server) {
    let error = loop {
        let line = server.expect_line("error: ");
        if line.starts_with("error: ") {
            break line;
        }
    };
    assert!(error.contains("an earlier sync to disk failed"), "{error}");
    assert_eq!(server.ended().code(), Some(1), "{error}");
}

#[test]
fn a_failed_sync_while_usage_is_recorded_ends_the_process_and_loses_nothing_acknowledged() {
    let place = place(&[]);
    let node = Node::start(40, 5);
    let server = serve_with_shim(&place, &node.url());
    wait_until_ready(&server);
    for number in 0..5 {
        assert_eq!(send(&server, &format!("before-{number}")), 201);
    }
    arm(&place);
    assert_ne!(send(&server, "lost"), 201, "it is not on the disk");
    ends_with_an_error(server);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
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
fn a_failed_sync_while_blocks_are_stored_ends_the_process_and_the_next_one_goes_on() {
    let place = place(&[]);
    let node = Node::start(40, 5);
    let server = serve_with_shim(&place, &node.url());
    wait_until_ready(&server);
    arm(&place);
    node.chain().grow(20);
    ends_with_an_error(server);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
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
fn usage_of_a_chain_that_is_not_recorded_is_a_reason_and_clients_may_go_on() {
    let place = place(&[RULES]);
    let node = Node::start(40, 5);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    let rename = |from: &str, to: &str| {
        let file = SqliteSettings::file(place.data().join("meter.db"));
        let text = format!("ALTER TABLE {from} RENAME TO {to}");
        Runtime::new().expect("a runtime").block_on(async {
            let sql = Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await;
            sql.expect("a database").execute(&text, params![]).await.expect("renamed");
        });
    };
    rename("coverage", "away");
    wait_for(&server, "usage_not_relayed", &["rpc", "tables", "meter"]);
    assert_eq!(send(&server, "meanwhile"), 201);
    rename("away", "coverage");
    wait_until_ready(&server);
    assert!(server.terminate().success());
}
