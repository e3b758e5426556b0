//! After a process died, or while a database hangs: its leases and jobs are taken over within seconds, and a stop ends.

use std::time::{Duration, Instant};

use logmill_io::meta::SqlMeta;
use logmill_io::sql::{PostgresSettings, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::http::request;
use logmill_sim::node::{SimNodeServer, grown, sparse};
use logmill_sim::postgres::PostgresServer;
use logmill_work::{Lease, LeaseSettings, NewJob, Queue};
use serde_json::json;
use tokio::runtime::Runtime;

use crate::process::{Sandbox, Server, signal, wait_until};

/// Length of a lease that no test waits for.
const HOUR: Duration = Duration::from_secs(3_600);
/// Lease of the aggregation jobs of a server.
const AGGREGATE_LEASE: Duration = Duration::from_secs(120);
/// Time limit for writing and aggregation to resume, with room for a busy machine. Waiting for the leases to end
/// would take 30 and 120 s.
const SQLITE_WITHIN: Duration = Duration::from_secs(20);
const POSTGRES_WITHIN: Duration = Duration::from_secs(20);
/// Usage of three customers.
const EVENTS: u64 = 30;
const METER: &str = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
const AGGREGATES: &str = "meter.aggregate";

fn start_node() -> SimNodeServer {
    SimNodeServer::start(&grown(sparse(41, 5), 20))
}

/// A sandbox whose server follows the node, with the default leases.
fn following(node: &SimNodeServer, more: &[&str]) -> Sandbox {
    let url = format!("chain.rpc_urls={}", node.url());
    let mut settings = vec!["database.durability=relaxed", "ingest.poll_ms=30", &url];
    settings.push("index.cell_blocks=32");
    settings.extend(more);
    Sandbox::with(&settings)
}

fn head(server: &Server) -> u64 {
    server.rpc().get("/status")["chains"][0]["head"]["number"].as_u64().unwrap_or(0)
}

#[track_caller]
fn within(what: &str, since: Instant, limit: Duration) {
    let took = since.elapsed();
    println!("{what} after {took:?}");
    assert!(took < limit, "{what} after {took:?}, not within {limit:?}");
}

#[test]
fn after_kill_9_the_next_server_of_a_folder_writes_at_once() {
    let node = start_node();
    let sandbox = following(&node, &[]);
    let server = sandbox.serve();
    wait_until("it has stored the chain", || head(&server) == 20);
    let killed = Instant::now();
    server.kill();
    node.chain().grow(7);
    let mut server = sandbox.serve();
    wait_until("writing goes on", || head(&server) == 27);
    within("writing went on", killed, SQLITE_WITHIN);
    assert!(server.has_logged("took over leases and jobs from a process that ended"));
    assert!(server.terminate().success());
}

#[test]
fn after_kill_9_another_process_on_the_same_database_writes_within_seconds() {
    let postgres = PostgresServer::start();
    let node = start_node();
    let url = format!("database.url={}", postgres.url());
    let sandbox = following(&node, &[&url]);
    let writer = sandbox.serve();
    wait_until("it has stored the chain", || head(&writer) == 20);
    let mut standby = sandbox.serve();
    // Longer than it takes to notice that a process has ended.
    std::thread::sleep(Duration::from_secs(6));
    assert!(!standby.has_logged("epoch="), "the lease of a process that lives is left alone");
    let killed = Instant::now();
    writer.kill();
    node.chain().grow(7);
    wait_until("writing goes on", || head(&standby) == 27);
    within("another process wrote", killed, POSTGRES_WITHIN);
    // The next process also takes over quickly after the only one died.
    let killed = Instant::now();
    standby.kill();
    node.chain().grow(7);
    let next = sandbox.serve();
    wait_until("writing goes on", || head(&next) == 34);
    within("the next process wrote", killed, POSTGRES_WITHIN);
    assert!(next.terminate().success());
}

/// Opens a database as the process that dies would.
async fn open(sandbox: &Sandbox, postgres: Option<&PostgresServer>, file: &str) -> Sql {
    let (clock, entropy) = (SystemClock::shared(), OsEntropy::shared());
    match postgres {
        Some(postgres) => {
            Sql::postgres(&PostgresSettings::new(postgres.url()), clock, entropy).await
        }
        None => Sql::sqlite(&SqliteSettings::file(sandbox.data().join(file)), clock, entropy).await,
    }
    .expect("a database")
}

#[test]
fn the_next_owner_of_a_folder_takes_over_leases_and_jobs_in_every_database() {
    let sandbox = Sandbox::with(&["database.durability=relaxed", METER]);
    assert!(sandbox.serve().terminate().success(), "everything is made");
    let runtime = Runtime::new().expect("a runtime");
    let files = ["work.db", "index.db", "tables.db", "meter.db"];
    runtime.block_on(async {
        for file in files {
            let sql = open(&sandbox, None, file).await;
            let settings = LeaseSettings { ttl: HOUR, margin: Duration::from_secs(1) };
            let store = SqlMeta::shared(sql.clone());
            let lease = Lease::new(store, SystemClock::shared(), "test", "dead", settings);
            lease.acquire().await.expect("works").expect("free");
            if file != "index.db" {
                let queue = Queue::open(sql).await.expect("a queue");
                queue.enqueue(&NewJob::new("test", "job", "{}")).await.expect("works");
                let claims = queue.claim("test", 1, HOUR, "dead").await.expect("works");
                assert_eq!(claims.len(), 1);
            }
        }
    });
    let server = sandbox.serve();
    runtime.block_on(async {
        for file in files {
            let sql = open(&sandbox, None, file).await;
            let settings = LeaseSettings { ttl: HOUR, margin: Duration::from_secs(1) };
            let store = SqlMeta::shared(sql.clone());
            let lease = Lease::new(store, SystemClock::shared(), "test", "next", settings);
            let held = lease.acquire().await.expect("works");
            let held = held.unwrap_or_else(|| panic!("the lease in {file} is waited for"));
            assert_eq!(held.epoch(), 2, "{file}");
            if file != "index.db" {
                let text = "SELECT state, attempts FROM job WHERE kind = 'test'";
                let found = sql.query(text, params![]).await.expect("works");
                let row = found.row().expect("the job");
                assert_eq!((row.int(0).unwrap(), row.int(1).unwrap()), (0, 1), "{file}");
            }
        }
    });
    assert!(server.terminate().success());
}

/// Sends usage, and claims its aggregation jobs in the name of a process that has died.
fn leave_aggregates_behind(sandbox: &Sandbox, postgres: Option<&PostgresServer>) {
    let server = sandbox.serve();
    let event = |number: u64| {
        json!({
            "eventType": "api.calls", "customerId": format!("c{}", number % 3), "value": 1,
            "id": number.to_string(),
        })
    };
    let batch: serde_json::Value = (0..EVENTS).map(event).collect();
    let to = server.rpc().address();
    let sent = request(to, "POST", "/usagebatch", &batch.to_string()).expect("an answer");
    assert_eq!(sent.0, 201, "{}", sent.1);
    server.kill();
    sandbox.run(&["meter", "trigger"]).answer();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let queue = Queue::open(open(sandbox, postgres, "meter.db").await).await.expect("a queue");
        // The owner is a session that has ended.
        let claims =
            queue.claim(AGGREGATES, 100, AGGREGATE_LEASE, "dead~0000002a").await.expect("works");
        assert!(!claims.is_empty(), "there are aggregates to make");
    });
}

/// Sum of the yearly aggregates of all customers.
fn counted(server: &Server) -> u64 {
    let (_, all) = request(server.rpc().address(), "GET", "/aggregations?period=yearly", "")
        .expect("an answer");
    let all: serde_json::Value = serde_json::from_str(&all).expect("JSON");
    let all = all.as_array().expect("an array").iter();
    all.filter_map(|one| one["events"]["api.calls"].as_u64()).sum()
}

#[test]
fn aggregates_that_a_dead_process_had_begun_are_made_at_once() {
    let sandbox = Sandbox::with(&["database.durability=relaxed", METER, "meter.periods=yearly"]);
    leave_aggregates_behind(&sandbox, None);
    let started = Instant::now();
    let server = sandbox.serve();
    wait_until("all are counted", || counted(&server) == EVENTS);
    within("aggregates were made", started, SQLITE_WITHIN);
    assert!(server.terminate().success());
}

#[test]
fn aggregates_that_a_dead_process_had_begun_are_made_within_seconds_on_postgresql() {
    let postgres = PostgresServer::start();
    let url = format!("database.url={}", postgres.url());
    let sandbox = Sandbox::with(&[&url, METER, "meter.periods=yearly"]);
    leave_aggregates_behind(&sandbox, Some(&postgres));
    let started = Instant::now();
    let server = sandbox.serve();
    wait_until("all are counted", || counted(&server) == EVENTS);
    within("aggregates were made", started, POSTGRES_WITHIN);
    assert!(server.terminate().success());
}

#[test]
fn sigterm_ends_the_server_in_time_while_the_database_hangs() {
    let postgres = PostgresServer::start();
    let node = start_node();
    let url = format!("database.url={}", postgres.url());
    let sandbox = following(&node, &[&url, METER, "work.stop_deadline_ms=3000"]);
    let server = sandbox.serve();
    wait_until("it has stored the chain", || head(&server) == 20);
    postgres.freeze();
    // There are new blocks that cannot be written.
    node.chain().grow(3);
    std::thread::sleep(Duration::from_secs(1));
    let signalled = Instant::now();
    signal("TERM", server.id());
    let (ended, log) = server.wait_for_end_within(Duration::from_secs(30));
    within("it ended", signalled, Duration::from_secs(10));
    postgres.thaw();
    assert_eq!(ended.code(), Some(1), "{log}");
    assert!(log.contains("work.stop_deadline_ms"), "{log}");
}
