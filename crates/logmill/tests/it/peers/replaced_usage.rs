//! Usage of a chain that is discarded and stored again: usage follows the new chain, corrected aggregates are
//! announced, and a recount finds deviations.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use alloy_primitives::{B256, U256, keccak256};
use logmill_io::sql::{Execute as _, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::http::{JsonRpc, request};
use serde_json::{Value, json};

use super::anvil_chain::SETTINGS;
use super::market::{COLLECTOR, Market};
use super::usage::{EVENTS, RULES, Sums, added, metered, sums_of};
use crate::process::{Sandbox, Server, wait_until};

const DAY: Duration = Duration::from_secs(86_400);

/// A webhook receiver that accepts everything.
#[derive(Clone, Default)]
struct Inbox(Arc<Mutex<Vec<Value>>>);

impl Inbox {
    fn start() -> (Self, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let at = listener.local_addr().expect("bound");
        let inbox = Self::default();
        let serving = inbox.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let serving = serving.clone();
                std::thread::spawn(move || serving.take(&stream));
            }
        });
        (inbox, at)
    }

    fn take(&self, stream: &TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream);
        loop {
            let mut length = 0;
            loop {
                let mut line = String::new();
                if reader.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                let line = line.trim().to_lowercase();
                if let Some(value) = line.strip_prefix("content-length:") {
                    length = value.trim().parse().ok()?;
                }
                if line.is_empty() {
                    break;
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).ok()?;
            self.0.lock().expect("not poisoned").push(serde_json::from_slice(&body).ok()?);
            let mut stream = stream;
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").ok()?;
        }
    }

    /// Number of received messages of a kind.
    fn count(&self, kind: &str) -> usize {
        let all = self.0.lock().expect("not poisoned");
        all.iter().filter(|message| message.to_string().contains(kind)).count()
    }
}

/// Earnings of integrators, computed from the node's logs.
fn earned(node: JsonRpc) -> Sums {
    let event = keccak256("FeesCollected(address,address,uint256,uint256)");
    let filter = json!([{"fromBlock": "0x0", "toBlock": "latest", "address": COLLECTOR,
        "topics": [event]}]);
    let logs = node.call("eth_getLogs", filter);
    let mut sums = Sums::new();
    for log in logs.as_array().expect("logs") {
        let address = |position: usize| {
            let word: B256 =
                log["topics"][position].as_str().expect("a topic").parse().expect("hex");
            format!("0x{}", alloy_primitives::hex::encode(&word[12..]))
        };
        let data = log["data"].as_str().expect("data");
        let fee = U256::from_str_radix(&data[2..66], 16).expect("a number");
        *sums.entry((address(2), address(1))).or_default() += fee;
    }
    sums.retain(|_, sum| !sum.is_zero());
    sums
}

fn page(ours: JsonRpc) -> Value {
    ours.get(
        "/meters/query?eventType=fees.collected&from=2017-01-01T00:00:00Z&to=2100-01-01T00:00:00Z\
         &groupBy=customerId&groupBy=token",
    )
}

/// Waits until usage is reported as complete. Fails if it is reported too early: complete usage must equal the node's.
fn wait_until_complete(server: &Server, node: JsonRpc) {
    let truth = earned(node);
    wait_until("usage is complete", || {
        let page = page(server.rpc());
        let why = page["provisionalIncomplete"].as_array().cloned().unwrap_or_default();
        let complete = page["provisionalComplete"] == true;
        assert_eq!(complete, why.is_empty(), "{page}");
        if complete {
            let (all, beside) = sums_of(&page);
            assert_eq!(added(&all, &beside), truth, "{page}");
        }
        complete
    });
}

fn post(to: SocketAddr, path: &str, body: &Value) {
    let (status, text) = request(to, "POST", path, &body.to_string()).expect("an answer");
    assert!((200..300).contains(&status), "{status} {text}");
}

/// The state of every aggregate.
fn states(ours: JsonRpc) -> Vec<String> {
    let page = ours.get("/aggregations?period=daily&limit=1000");
    let all = page.as_array().unwrap_or_else(|| panic!("{page}"));
    all.iter().map(|one| one["state"].as_str().unwrap_or_default().to_owned()).collect()
}

/// Changes the meter's database directly.
fn tamper(sandbox: &Sandbox, statements: &[&str]) {
    let file = SqliteSettings::file(sandbox.data().join("meter.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let sql = Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await;
        let sql = sql.expect("a database");
        for text in statements {
            let text = *text;
            let changed = sql.write(|tx| async move { tx.execute(text, params![]).await }).await;
            assert_eq!(changed.expect("it is changed").changed, 1, "{text}");
        }
    });
}

#[test]
fn usage_of_a_chain_that_was_replaced_is_that_of_the_new_chain() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let market = Market::at(Some((now - 3 * DAY).as_secs()));
    market.grow(6, 1);
    market.anvil.mine(30);
    let settings = [
        &SETTINGS[..],
        &[EVENTS, RULES, "meter.periods=daily", "meter.delivery.allowed=127.0.0.1"],
    ]
    .concat();
    let sandbox = Sandbox::with(&settings);
    let node = market.anvil.rpc();
    let serve = || sandbox.serve_with(&["--rpc-url", &node.url()]);
    let server = serve();
    wait_until_complete(&server, node);
    let (inbox, at) = Inbox::start();
    let to = server.rpc().address();
    post(to, "/webhooks/endpoints", &json!({"url": format!("http://{at}/")}));
    // The usage of a day is final once a block of the next day is final.
    node.call("evm_increaseTime", json!([90_000]));
    market.anvil.mine(12);
    wait_until("the day is final", || {
        post(to, "/aggregations/trigger", &Value::Null);
        let states = states(server.rpc());
        !states.is_empty() && states.iter().all(|state| state == "final")
    });
    wait_until("it is announced", || inbox.count("aggregation.completed") > 0);
    assert_eq!(inbox.count("aggregation.corrected"), 0);
    // If no block was replaced, deriving again records, corrects and announces nothing.
    let before = metered(server.rpc());
    sandbox.run(&["rederive", "usage_worker"]).answer();
    wait_until_complete(&server, node);
    assert_eq!(metered(server.rpc()), before);
    assert_eq!(inbox.count("aggregation.corrected"), 0);
    // Usage of blocks made while the server was down is missing until they are derived.
    server.kill();
    market.grow(2, 5);
    let server = serve();
    wait_until_complete(&server, node);
    server.kill();
    // A different, shorter chain.
    let head = node.head();
    market.anvil.rollback(head - 4);
    market.grow(3, 77);
    market.anvil.mine(12);
    assert!(node.head() < head);
    assert_ne!(earned(node), before.0);
    sandbox.run(&["index", "resolve", "rebuild-from", "0"]).answer();
    let server = serve();
    wait_until_complete(&server, node);
    wait_until("all usage is final", || metered(server.rpc()).1.is_empty());
    assert_eq!(metered(server.rpc()).0, earned(node));
    wait_until("the day is corrected", || states(server.rpc()).contains(&"corrected".to_owned()));
    wait_until("it is announced", || inbox.count("aggregation.corrected") > 0);
    assert!(server.terminate().success());
    recount(&sandbox);
}

/// Checks that a recount finds nothing at first, and then every change that is made here.
fn recount(sandbox: &Sandbox) {
    let found = sandbox.run(&["meter", "recount", "--json"]).json();
    assert!(found["wrong"] == 0 && found["chains"]["wrong"] == 0, "{found}");
    assert!(found["chains"]["events"].as_u64() > Some(0), "{found}");
    let one = "seq = (SELECT min(seq) FROM meter_event WHERE state = 0)";
    // Change an event, and repair the figures computed from it, so that the meter is consistent in itself. Remove the
    // event's checksum, because a wrong one would be found without the stored chain.
    tamper(
        sandbox,
        &[&format!("UPDATE meter_event SET amount = '1' || amount, checks = NULL WHERE {one}")],
    );
    sandbox
        .run(&["meter", "recount", "--repair"])
        .assert_refused(1, &["did not match their events"]);
    let wrong = sandbox.run(&["meter", "recount"]);
    wrong.assert_refused(1, &["recorded usage of 1 blocks differs from the stored chain"]);
    assert!(wrong.stdout.contains("is recorded with 1"), "{wrong:?}");
    tamper(sandbox, &[&format!("UPDATE meter_event SET amount = substr(amount, 2) WHERE {one}")]);
    sandbox
        .run(&["meter", "recount", "--repair"])
        .assert_refused(1, &["did not match their events"]);
    sandbox.run(&["meter", "recount"]).answer();
    // A missing event.
    tamper(sandbox, &[&format!("DELETE FROM meter_event WHERE {one}")]);
    sandbox
        .run(&["meter", "recount", "--repair"])
        .assert_refused(1, &["did not match their events"]);
    let wrong = sandbox.run(&["meter", "recount"]);
    wrong.assert_refused(1, &["recorded usage of 1 blocks differs from the stored chain"]);
    assert!(wrong.stdout.contains("is not recorded"), "{wrong:?}");
}
