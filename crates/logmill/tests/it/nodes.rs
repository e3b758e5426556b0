//! Quirks of real nodes: late receipts, limits on batches, a late start; and another Logmill as a node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use logmill_chain::sim::rpc::{Reply, SimNode};
use logmill_chain::sim::{SimChain, SimSettings};
use logmill_sim::http::quantity;
use logmill_sim::node::{Hook, SimNodeServer, grown, sparse};
use serde_json::{Value, json};
use tokio::net::TcpSocket;
use tokio::runtime::Runtime;

use crate::process::{Sandbox, Server, wait_until};

/// Small cells and short polls; the delays after errors are the defaults.
const QUICK: [&str; 5] = [
    "database.durability=relaxed",
    "index.cell_blocks=16",
    "index.piece_logs=40",
    "ingest.poll_ms=50",
    "log.level=info",
];

fn chain(blocks: u64) -> SimChain {
    grown(sparse(8, 30), blocks)
}

/// Applies `change` to each answer in a reply, with its call.
fn each(request: &str, reply: Reply, change: impl Fn(&Value, &mut Value)) -> Reply {
    let Reply::Json(answer) = reply else { return reply };
    let request: Value = serde_json::from_str(request).expect("JSON");
    let mut answer: Value = serde_json::from_str(&answer).expect("JSON");
    match (&request, &mut answer) {
        (Value::Array(calls), Value::Array(answers)) => {
            calls.iter().zip(answers).for_each(|(call, answer)| change(call, answer));
        }
        (call, answer) => change(call, answer),
    }
    Reply::Json(answer.to_string())
}

#[track_caller]
fn wait_for_head(server: &Server, number: u64, within: Duration) {
    let end = Instant::now() + within;
    while !is_at(server, number) {
        if Instant::now() > end {
            panic!("not at {number}: {:#}", server.rpc().get("/status"));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Whether the newest block has this number; false while there is no block.
fn is_at(server: &Server, number: u64) -> bool {
    let head = server.rpc().ask("eth_blockNumber", &json!([]));
    head.is_ok_and(|answer| answer["result"] == format!("{number:#x}"))
}

#[test]
fn receipts_that_are_300_ms_late_do_not_delay_ingest() {
    let first: Mutex<BTreeMap<u64, Instant>> = Mutex::default();
    // Depending on the block number, one of the three ways in which nodes report that receipts are not available yet.
    let hook: Hook = Arc::new(move |request, reply| {
        each(request, reply, |call, answer| {
            let is_it = call["method"] == "eth_getBlockReceipts";
            if !is_it || quantity(&call["params"][0]) <= 40 {
                return;
            }
            let number = quantity(&call["params"][0]);
            let mut first = first.lock().expect("fine");
            if first.entry(number).or_insert_with(Instant::now).elapsed()
                >= Duration::from_millis(300)
            {
                return;
            }
            let id = call["id"].clone();
            *answer = match number % 3 {
                0 => json!({"jsonrpc": "2.0", "id": id, "result": null}),
                1 => json!({"jsonrpc": "2.0", "id": id, "result": []}),
                _ => {
                    let error = json!({"code": -32_000, "message": "header not found"});
                    json!({"jsonrpc": "2.0", "id": id, "error": error})
                }
            };
        })
    });
    let chain = chain(40);
    let node = SimNodeServer::hooked(&chain, hook);
    let sandbox = Sandbox::with(&QUICK);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_for_head(&server, 40, Duration::from_secs(60));
    for _ in 0..10 {
        chain.grow(1);
        std::thread::sleep(Duration::from_millis(500));
    }
    let behind = 50 - server.rpc().head();
    println!("behind after 10 blocks: {behind}");
    // After an error, ingest would pause for ten seconds.
    wait_for_head(&server, 50, Duration::from_secs(5));
    assert!(behind <= 4, "{behind} blocks behind after 10");
    let status = server.rpc().get("/status");
    let of_node = &status["chains"][0]["nodes"][0];
    assert_eq!((&of_node["failures"], &of_node["lies"]), (&json!(0), &json!(0)), "{status:#}");
    assert!(server.terminate().success());
}

/// Rejects batches of more than three calls in the given way.
fn of_three(refuse: impl Fn(&[Value], Reply) -> Reply + Send + Sync + 'static) -> Hook {
    Arc::new(move |request, reply| {
        let request: Value = serde_json::from_str(request).expect("JSON");
        match request.as_array() {
            Some(calls) if calls.len() > 3 => refuse(calls, reply),
            _ => reply,
        }
    })
}

#[test]
fn a_start_adapts_to_the_node_and_waits_for_it() {
    let error = json!({"jsonrpc": "2.0", "id": null,
        "error": {"code": -32_000, "message": "too many in one go"}});
    let left = AtomicU64::new(3);
    let hooks: Vec<(&str, Hook)> = vec![
        ("three", of_three(|_, _| Reply::Status(413))),
        ("an error for all", of_three(move |_, _| Reply::Json(error.to_string()))),
        (
            "an error for each beyond",
            of_three(|calls, reply| {
                let Reply::Json(answer) = reply else { return reply };
                let mut answers: Vec<Value> = serde_json::from_str(&answer).expect("JSON");
                for (call, answer) in calls.iter().zip(&mut answers).skip(3) {
                    let error = json!({"code": -32_005, "message": "batch limit is 3"});
                    *answer = json!({"jsonrpc": "2.0", "id": call["id"], "error": error});
                }
                Reply::Json(json!(answers).to_string())
            }),
        ),
        (
            "none at all",
            Arc::new(|request, reply| match request.starts_with('[') {
                true => Reply::Status(403),
                false => reply,
            }),
        ),
        (
            "fails at first",
            Arc::new(move |_, reply| {
                let is_left = |left: u64| left.checked_sub(1);
                match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, is_left) {
                    Ok(_) => Reply::Status(500),
                    Err(_) => reply,
                }
            }),
        ),
    ];
    for (what, hook) in hooks {
        let node = SimNodeServer::hooked(&chain(40), hook);
        let sandbox = Sandbox::with(&QUICK);
        let mut server = sandbox.serve_with(&["--rpc-url", &node.url()]);
        wait_until(what, || is_at(&server, 40));
        assert!(!server.has_logged("cannot follow the chain"), "{what}: {}", server.log());
        assert!(server.terminate().success(), "{what}");
    }
}

#[test]
fn a_node_that_is_not_up_yet_is_waited_for() {
    // The port is bound, but nothing listens on it yet.
    let socket = TcpSocket::new_v4().expect("a socket");
    socket.bind(SocketAddr::from(([127, 0, 0, 1], 0))).expect("a port");
    let address = socket.local_addr().expect("an address");
    let sandbox = Sandbox::with(&QUICK);
    let server = sandbox.serve_with(&["--rpc-url", &format!("http://{address}/")]);
    let runtime = Runtime::new().expect("a runtime");
    let listener = runtime.block_on(async { socket.listen(64)?.into_std() });
    let _node = SimNodeServer::on(listener.expect("it listens"), &chain(40));
    wait_until("the chain is served", || is_at(&server, 40));
    assert!(server.terminate().success());
}

/// All blocks and logs that a server returns.
fn all(of: SocketAddr, head: u64) -> Vec<Value> {
    let rpc = logmill_sim::http::JsonRpc::at(of);
    let logs = json!([{"fromBlock": "0x0", "toBlock": "latest"}]);
    let mut calls = vec![("eth_getLogs".to_owned(), logs)];
    for number in 0..=head {
        let number = json!(format!("{number:#x}"));
        calls.push(("eth_getBlockByNumber".to_owned(), json!([number, true])));
        calls.push(("eth_getBlockReceipts".to_owned(), json!([number])));
    }
    rpc.call_all(&calls)
}

#[test]
fn a_server_can_follow_another_logmill_server() {
    let chain = chain(60);
    let node = SimNodeServer::start(&chain);
    let (sandbox, other) = (Sandbox::with(&QUICK), Sandbox::with(&QUICK));
    let first = sandbox.serve_with(&["--rpc-url", &node.url()]);
    let is_complete = |of: &Server| {
        let coverage = of.rpc().ask("logmill_coverage", &json!([]));
        coverage.is_ok_and(|answer| answer["result"]["complete"] == true)
    };
    wait_until("all of it", || is_complete(&first) && is_at(&first, 60));
    // The first server notifies it of new blocks; its own poll runs every ten seconds.
    let slowly = ["--set", "ingest.poll_ms=10000"];
    let url = first.rpc().ws_url();
    let second = other.serve_with(&[&["--rpc-url", url.as_str()][..], &slowly].concat());
    wait_until("all of it", || is_complete(&second) && is_at(&second, 60));
    let status = second.rpc().get("/status");
    let of_node = &status["chains"][0]["nodes"][0];
    assert_eq!((&of_node["failures"], &of_node["lies"]), (&json!(0), &json!(0)), "{status:#}");
    chain.grow(3);
    wait_for_head(&second, 63, Duration::from_secs(8));
    chain.reorg(2, 4).expect("not final");
    wait_for_head(&second, 65, Duration::from_secs(8));
    assert_eq!(all(second.rpc().address(), 65), all(first.rpc().address(), 65));
    assert!(second.terminate().success());
    assert!(first.terminate().success());
}

#[test]
fn reorgs_of_blocks_that_a_development_node_reported_as_final_are_followed() {
    // As on Hardhat: the newest block is safe and final, until the node reverts to a snapshot.
    let chain = grown(SimSettings { chain_id: 31_337, finality_lag: None, ..sparse(8, 0) }, 100);
    let honest = SimNode::new(chain.clone());
    let at_head: Hook = Arc::new(move |request, reply| {
        each(request, reply, |call, answer| {
            let is_tag = matches!(call["params"][0].as_str(), Some("safe" | "finalized"));
            if call["method"] == "eth_getBlockByNumber" && is_tag {
                let latest =
                    json!({"id": 1, "method": "eth_getBlockByNumber", "params": ["latest", false]});
                let Reply::Json(latest) = honest.answer(&latest.to_string()) else { return };
                let mut latest: Value = serde_json::from_str(&latest).expect("JSON");
                *answer =
                    json!({"jsonrpc": "2.0", "id": call["id"], "result": latest["result"].take()});
            }
        })
    });
    let node = SimNodeServer::hooked(&chain, at_head);
    let sandbox = Sandbox::with(&QUICK);
    let server = sandbox.serve_with(&["--rpc-url", &node.url()]);
    wait_for_head(&server, 100, Duration::from_secs(60));
    let finalized = || {
        let at = server.rpc().call("eth_getBlockByNumber", json!(["finalized", false]));
        quantity(&at["number"])
    };
    wait_until("64 blocks stay open", || finalized() == 36);
    chain.reorg(40, 45).expect("not final for the chain itself");
    wait_for_head(&server, 105, Duration::from_secs(60));
    let hash = |number: u64| {
        let at = server.rpc().call("eth_getBlockByNumber", json!([format!("{number:#x}"), false]));
        at["hash"].as_str().expect("a hash").to_owned()
    };
    for number in [36, 60, 61, 105] {
        assert_eq!(hash(number), chain.at(number).expect("grown").hash.to_string());
    }
    let status = server.rpc().get("/status");
    assert_eq!(status["chains"][0]["nodes"][0]["lies"], json!(0), "{status:#}");
    assert!(server.terminate().success());
}
