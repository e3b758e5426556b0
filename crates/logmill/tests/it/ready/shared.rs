//! Shared stores: PostgreSQL with several processes, and a bucket.

use logmill_sim::moto::Moto;
use logmill_sim::postgres::PostgresServer;

use super::*;
use crate::process::signal;

fn on_postgres(database: &PostgresServer, more: &[&str]) -> Sandbox {
    let url = format!("database.url={}", database.url());
    sandbox(&[&[url.as_str(), "database.schema=logmill_test"], more].concat())
}

fn role(server: &Server) -> String {
    let status = server.rpc().get("/status");
    status["chains"][0]["ingest"]["ingest"]["role"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn processes_that_do_not_write_are_as_ready_as_the_one_that_does() {
    let database = PostgresServer::start();
    let sandbox = on_postgres(&database, &[]);
    let node = start_node(40, 5);
    let start = || sandbox.serve_with(&["--rpc-url", &node.url()]);
    let mut servers = vec![start(), start(), start()];
    servers.iter().for_each(wait_until_ready);
    let writers = || servers.iter().filter(|server| role(server) == "writer").count();
    wait_until("one of them writes", || writers() == 1);
    // Suspend the writer until another process has taken over, then resume it.
    let at = servers.iter().position(|server| role(server) == "writer").expect("one writes");
    let old = servers.remove(at);
    signal("STOP", old.id());
    wait_until("another writes", || servers.iter().any(|server| role(server) == "writer"));
    node.chain().grow(10);
    servers.iter().for_each(wait_until_ready);
    signal("CONT", old.id());
    wait_until("it follows", || role(&old) == "follower");
    wait_until_ready(&old);
    assert_eq!(old.rpc().head(), 50);
    // No process reaches the node: none keeps reporting its last figure.
    node.node().set_faults(NodeFaults {
        delay: std::time::Duration::from_secs(3_600),
        ..NodeFaults::default()
    });
    wait_for(&old, "head_not_seen", &["meter"]);
    for server in &servers {
        let code = if role(server) == "writer" { "node_silent" } else { "head_not_seen" };
        wait_for(server, code, &["meter"]);
    }
    node.node().set_faults(NodeFaults::default());
    servers.push(old);
    servers.iter().for_each(wait_until_ready);
    for server in servers {
        assert!(server.terminate().success());
    }
}

#[test]
fn all_services_are_unready_while_postgresql_is_down() {
    let mut database = PostgresServer::start();
    let sandbox = on_postgres(&database, &[]);
    let node = start_node(40, 5);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    database.stop();
    for code in
        ["jobs_store_silent", "index_store_silent", "tables_store_silent", "meter_store_silent"]
    {
        wait_for(&server, code, &[]);
    }
    database.resume();
    wait_until_ready(&server);
    assert_eq!(send(&server, "afterwards"), 201);
    assert!(server.terminate().success());
}

#[test]
fn tables_that_no_process_derives_make_only_tables_unready() {
    let database = PostgresServer::start();
    let sandbox = on_postgres(&database, &["derive.live=false", "derive.history=false"]);
    let node = start_node(40, 5);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_for(&server, "tables_behind", &["rpc", "meter"]);
    assert!(server.terminate().success());
}

#[test]
fn a_missing_bucket_fails_the_start_and_one_that_is_lost_later_is_a_reason() {
    let moto = Moto::start();
    let runtime = Runtime::new().expect("a runtime");
    let endpoint = format!("blobs.endpoint={}", moto.endpoint());
    let sandbox = sandbox(&[
        "blobs.kind=s3",
        "blobs.bucket=logmill-ready",
        "blobs.access_key=key",
        "blobs.secret_key=secret",
        "blobs.allow_http=true",
        &endpoint,
        "ready.start_wait_ms=1000",
    ]);
    let refused = sandbox.run(&["run"]);
    refused.assert_refused(1, &["the bucket \"logmill-ready\" does not exist", "blobs.bucket"]);
    assert!(refused.stderr.contains("hint: create the bucket"), "{refused:?}");
    let refused = sandbox.run(&["preflight"]);
    refused.assert_refused(1, &["blob store"]);
    assert!(refused.stdout.contains("create the bucket"), "{refused:?}");
    runtime.block_on(moto.create_bucket("logmill-ready"));
    sandbox.run(&["preflight"]).answer();
    let node = start_node(10, 8);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    runtime.block_on(moto.delete_bucket("logmill-ready"));
    wait_for(&server, "blobs_silent", &[]);
    runtime.block_on(moto.create_bucket("logmill-ready"));
    wait_until_ready(&server);
    assert!(server.terminate().success());
}
