//! Stores that others share: PostgreSQL with several processes, and a bucket.

use logmill_sim::moto::Moto;
use logmill_sim::postgres::PostgresServer;

use super::*;
use crate::process::signal;

fn on_postgres(database: &PostgresServer, more: &[&str]) -> Place {
    let url = format!("database.url={}", database.url());
    place(&[&[url.as_str(), "database.schema=logmill_test"], more].concat())
}

fn role(server: &Server) -> String {
    let status = server.rpc().get("/status");
    status["chains"][0]["ingest"]["ingest"]["role"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn processes_that_do_not_write_are_as_ready_as_the_one_that_does() {
    let database = PostgresServer::start();
    let place = on_postgres(&database, &[]);
    let node = Node::start(40, 5);
    let start = || place.serve_with(&["--rpc-url", &node.url()]);
    let mut servers = vec![start(), start(), start()];
    servers.iter().for_each(wait_until_ready);
    let writers = || servers.iter().filter(|server| role(server) == "writer").count();
    wait_until("one of them writes", || writers() == 1);
    // The one that writes is held up until another has taken its place, and goes on.
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
    // Nobody reaches the chain: no process keeps the figure that it had.
    node.set_faults(NodeFaults {
        delay: std::time::Duration::from_secs(3_600),
        ..NodeFaults::default()
    });
    wait_for(&old, "head_not_seen", &["meter"]);
    for server in &servers {
        let code = if role(server) == "writer" { "node_silent" } else { "head_not_seen" };
        wait_for(server, code, &["meter"]);
    }
    node.set_faults(NodeFaults::default());
    servers.push(old);
    servers.iter().for_each(wait_until_ready);
    for server in servers {
        assert!(server.terminate().success());
    }
}

#[test]
fn a_postgresql_that_is_gone_takes_everything_away_and_gives_it_back() {
    let mut database = PostgresServer::start();
    let place = on_postgres(&database, &[]);
    let node = Node::start(40, 5);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
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
fn tables_that_no_process_derives_are_behind_and_leave_the_rest() {
    let database = PostgresServer::start();
    let place = on_postgres(&database, &["derive.live=false", "derive.history=false"]);
    let node = Node::start(40, 5);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_for(&server, "tables_behind", &["rpc", "meter"]);
    assert!(server.terminate().success());
}

#[test]
fn a_missing_bucket_ends_the_start_by_name_and_one_that_is_lost_is_a_reason() {
    let moto = Moto::start();
    let runtime = Runtime::new().expect("a runtime");
    let endpoint = format!("blobs.endpoint={}", moto.endpoint());
    let place = place(&[
        "blobs.kind=s3",
        "blobs.bucket=logmill-ready",
        "blobs.access_key=key",
        "blobs.secret_key=secret",
        "blobs.allow_http=true",
        &endpoint,
        "ready.start_wait_ms=1000",
    ]);
    let refused = place.run(&["run"]);
    refused.refused(1, &["the bucket \"logmill-ready\" does not exist", "blobs.bucket"]);
    assert!(refused.stderr.contains("hint: create the bucket"), "{refused:?}");
    let refused = place.run(&["preflight"]);
    refused.refused(1, &["blob store"]);
    assert!(refused.stdout.contains("create the bucket"), "{refused:?}");
    runtime.block_on(moto.create_bucket("logmill-ready"));
    place.run(&["preflight"]).answer();
    let node = Node::start(10, 8);
    let server = place.serve_with(&["--rpc-url", &node.url()]);
    wait_until_ready(&server);
    runtime.block_on(moto.delete_bucket("logmill-ready"));
    wait_for(&server, "blobs_silent", &[]);
    runtime.block_on(moto.create_bucket("logmill-ready"));
    wait_until_ready(&server);
    assert!(server.terminate().success());
}
