//! PostgreSQL: commands connect to it directly, connection errors do not contain the password, and a process has no
//! more connections than configured.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use logmill_io::sql::{Execute as _, PostgresSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::node::{SimNodeServer, grown, sparse};
use logmill_sim::postgres::{PostgresServer, free_port};
use serde_json::json;

use crate::process::{Sandbox, at, get, post, signal, wait_until};

fn sandbox(url: &str) -> Sandbox {
    Sandbox::with(&[&format!("database.url={url}"), "database.schema=logmill_test"])
}

#[test]
fn commands_and_servers_share_a_database() {
    let server = PostgresServer::start();
    let sandbox = sandbox(&server.url());
    assert_eq!(sandbox.run(&["jobs", "enqueue", "k", "1"]).answer(), "created");
    let (one, two) = (sandbox.serve(), sandbox.serve());
    assert_eq!(sandbox.run(&["jobs", "enqueue", "logmill.maintenance", "now"]).answer(), "created");
    wait_until("one of them did it", || sandbox.count("logmill.maintenance", "done") > 0);
    assert_eq!(sandbox.run(&["jobs", "cancel", "k", "1"]).answer(), "cancelled");
    assert_eq!(sandbox.count("k", "cancelled"), 1);
    assert!(one.terminate().success());
    assert!(two.terminate().success());
    assert!(!sandbox.data().join("logmill.lock").exists(), "the folder is nobody's");
}

#[test]
fn a_wrong_password_is_reported_without_printing_it() {
    let server = PostgresServer::start_with_password();
    assert_eq!(sandbox(&server.url()).run(&["jobs", "enqueue", "k", "1"]).answer(), "created");
    let sandbox = sandbox(&server.url_with_password("sesame"));
    for arguments in [&["run"][..], &["jobs", "status"], &["jobs", "enqueue", "k", "2"]] {
        let refused = sandbox.run(arguments);
        refused.assert_refused(1, &["password authentication failed"]);
        assert!(refused.stderr.contains("hint: check user and password"), "{refused:?}");
        assert!(!format!("{refused:?}").contains("sesame"), "{refused:?}");
    }
}

#[test]
fn an_unreachable_database_is_reported() {
    let url = format!("database.url=postgresql://me:sesame@127.0.0.1:{}/none", free_port());
    let sandbox = Sandbox::with(&[&url, "database.schema=logmill_test", "ready.start_wait_ms=600"]);
    for arguments in [&["run"][..], &["jobs", "status"], &["jobs", "enqueue", "k", "1"]] {
        let refused = sandbox.run(arguments);
        refused.assert_refused(1, &["postgresql", "refused"]);
        assert!(refused.stderr.contains("hint: check that PostgreSQL runs"), "{refused:?}");
        assert!(!format!("{refused:?}").contains("sesame"), "{refused:?}");
    }
}

#[test]
fn a_server_carries_out_an_operators_decision_about_its_index() {
    let database = PostgresServer::start();
    let chain = grown(sparse(5, 5), 60);
    let (chain_id, node) = (chain.settings().chain_id, SimNodeServer::start(&chain));
    let sandbox = Sandbox::with(&[
        &format!("database.url={}", database.url()),
        "database.schema=logmill_test",
        "index.cell_blocks=16",
        "ingest.poll_ms=30",
    ]);
    let url = node.url();
    let serve = || sandbox.serve_with(&["--rpc-url", &url]);
    // One server writes; the other only reads.
    let (one, two) = (serve(), serve());
    let is_served = || {
        [&one, &two].iter().all(|server| {
            let ask = |method: &str, params| {
                server.rpc().ask(method, &params).expect("an answer")["result"].take()
            };
            let latest = ask("eth_getBlockByNumber", json!(["latest", false]));
            let logs = ask("eth_getLogs", json!([{"fromBlock": "0x0", "toBlock": "latest"}]));
            latest["hash"] == json!(chain.latest().hash)
                && logs.as_array().is_some_and(|logs| !logs.is_empty())
        })
    };
    wait_until("all is served", is_served);
    let resolved = sandbox.run(&["index", "resolve", "rebuild-from", "20"]);
    let message: Vec<&str> = resolved.answer().lines().collect();
    assert!(message[0].starts_with("plan: discard all blocks from 16 on"), "{resolved:?}");
    assert!(message[1].starts_with("done: "), "{resolved:?}");
    assert!(message[2].starts_with("next: let ingest continue with block 16"), "{resolved:?}");
    assert_eq!(sandbox.count(&format!("resolve-{chain_id}"), "done"), 1);
    chain.grow(3);
    wait_until("all is served again", is_served);
    assert!(one.terminate().success());
    assert!(two.terminate().success());
}

#[test]
fn a_signal_ends_a_start_that_hangs_after_the_database_was_reached() {
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let events = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
    let sandbox = Sandbox::with(&[&url, "database.schema=logmill_test", events]);
    assert!(sandbox.serve().terminate().success());
    let settings = PostgresSettings {
        schema: Some("logmill_test".to_owned()),
        ..PostgresSettings::new(database.url())
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let sandbox = &sandbox;
    let ended = runtime.block_on(async {
        let sql = Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()).await;
        let sql = &sql.expect("a database");
        // The meter locks this row when it opens, after everything else is open.
        let held = sql.write(|tx| async move {
            tx.execute("SELECT id FROM meter_head FOR UPDATE", params![]).await?;
            let mut child = sandbox.start(&["run"]);
            loop {
                let text = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";
                let sql = sql.clone();
                // In a task of its own: a transaction must not ask for another connection.
                let waiting = tokio::spawn(async move { sql.query(text, params![]).await });
                let waiting = waiting.await.expect("no panic").expect("an answer");
                if waiting.row().and_then(|row| row.int(0)).expect("a number") > 0 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            signal("TERM", child.id());
            let asked = Instant::now();
            let ended = tokio::task::spawn_blocking(move || child.wait()).await;
            let ended = ended.expect("it is waited for").expect("it ends");
            Ok::<_, logmill_io::Error>((ended, asked.elapsed()))
        });
        held.await.expect("the row is held meanwhile")
    });
    assert!(ended.0.success(), "{ended:?}");
    assert!(ended.1 < Duration::from_secs(60), "{ended:?}");
}

/// Clients that send usage at the same time.
const CLIENTS: u64 = 6;
/// Batches of each client, and events of a batch.
const BATCHES: u64 = 8;
const BATCH: u64 = 10;

/// Follows a chain, derives its tables and meters usage of many clients; returns the largest number of connections
/// that the server had for longer than a moment. One that was closed by the server may still be listed for a moment.
fn most_connections(database: &PostgresServer, connections: usize) -> usize {
    let chain = grown(sparse(5, 5), 40);
    let node = SimNodeServer::start(&chain);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let sandbox = Sandbox::with(&[
        &format!("database.url={}", database.url()),
        &format!("database.schema=with_{connections}"),
        &format!("database.connections={connections}"),
        "index.cell_blocks=16",
        "ingest.poll_ms=30",
        r#"meter.events={ "api.calls" = { op = "sum" } }"#,
        "meter.periods=daily,yearly",
    ]);
    let settings = PostgresSettings::new(format!("{}?application_name=test", database.url()));
    let sql = runtime
        .block_on(Sql::postgres(&settings, SystemClock::shared(), OsEntropy::shared()))
        .expect("a database");
    let text = "SELECT pid FROM pg_stat_activity WHERE application_name = 'logmill'";
    let sessions = || -> BTreeSet<i64> {
        let found = runtime.block_on(sql.query(text, params![])).expect("an answer");
        found.rows.iter().map(|row| row.int(0).expect("a number")).collect()
    };
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    let (to, rpc) = (at(&server), server.rpc());
    let (mut before, mut most) = (sessions(), 0);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                for number in 0..BATCHES {
                    let event = |index| {
                        json!({"eventType": "api.calls", "customerId": format!("c{client}"), "value": 1,
                            "id": format!("{client}-{number}-{index}")})
                    };
                    let batch = (0..BATCH).map(event).collect();
                    assert_eq!(post(to, "/usagebatch", &batch).0, 201);
                }
            });
        }
        wait_until("all is served and counted", || {
            let now = sessions();
            most = most.max(now.intersection(&before).count());
            before = now;
            if chain.latest().number < 60 {
                chain.grow(1);
            }
            post(to, "/aggregations/trigger", &serde_json::Value::Null);
            let all = get(to, "/aggregations?period=yearly");
            let all = all.as_array().expect("an array").iter();
            let counted: u64 = all.filter_map(|one| one["events"]["api.calls"].as_u64()).sum();
            let latest = rpc.ask("eth_getBlockByNumber", &json!(["latest", false]));
            let is_latest =
                latest.expect("an answer")["result"]["hash"] == json!(chain.latest().hash);
            counted == CLIENTS * BATCHES * BATCH && is_latest && chain.latest().number >= 60
        });
    });
    assert!(server.terminate().success());
    most
}

#[test]
fn a_server_has_the_configured_number_of_connections_and_one_session() {
    let database = PostgresServer::start();
    for connections in [1, 2, 8] {
        let most = most_connections(&database, connections);
        assert!((2..=connections + 1).contains(&most), "{most} with a pool of {connections}");
    }
}
