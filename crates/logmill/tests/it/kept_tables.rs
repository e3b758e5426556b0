//! A server restarted with settings that would empty a table.

use logmill_chain::sim::{Shape, SimSettings, WETH};
use logmill_sim::node::{SimNodeServer, grown, sparse};

use crate::process::{Sandbox, Server, wait_until};

const QUICK: [&str; 4] = [
    "database.durability=relaxed",
    "index.cell_blocks=16",
    "ingest.poll_ms=30",
    "ingest.error_wait_ms=200",
];

#[test]
fn a_start_with_the_wrong_contract_keeps_the_old_fees_until_an_operator_allows_empty_tables() {
    let shape = Shape { transactions: 4, logs: 8, ..Shape::sparse() };
    let node = SimNodeServer::start(&grown(SimSettings { shape, ..sparse(41, 5) }, 60));
    let sandbox = Sandbox::with(&QUICK);
    // A contract that collects no fees; without the setting, the known contracts count.
    let (url, wrong) = (node.url(), format!("collect.contract_address={WETH}"));
    let fees = |server: &Server| server.rpc().get("/fees?chainId=1337&limit=100");
    let total = |server: &Server| fees(server)["pagination"]["total"].as_u64().expect("a number");
    let derived = |server: &Server, name: &str| {
        let status = server.rpc().get("/api/v1/1337/status");
        let rows = status["checkpoints"].as_array().expect("a list").clone();
        rows.iter().any(|row| row["processor"] == name && row["missing"] == 0 && row["ranges"] == 1)
    };
    let server = sandbox.serve_with(&["--rpc-url", &url]);
    wait_until("fees are derived", || derived(&server, "fees_worker") && total(&server) > 5);
    let of_final = || {
        let fees = fees(&server);
        let rows = fees["data"].as_array().expect("a list");
        rows.iter().filter(|row| row["final"] == true).count() as u64
    };
    let before = of_final();
    assert!(before > 5, "only {before} fees");
    assert!(server.terminate().success());

    let mut server = sandbox.serve_with(&["--rpc-url", &url, "--set", &wrong]);
    server.expect_line("the rebuilt tables cannot replace the serving ones");
    let kept = fees(&server);
    assert_eq!(kept["complete"], false, "{kept}");
    let why = kept["reason"].as_str().expect("why");
    for part in ["collect.contract_address", "rederive fees_worker --allow-empty"] {
        assert!(why.contains(part), "{why}");
    }
    assert!(kept["pagination"]["total"].as_u64() >= Some(before), "{kept}");
    wait_until("readiness says so", || {
        server.rpc().get("/ready").to_string().contains("tables_kept")
    });
    let status = server.rpc().get("/api/v1/1337/status").to_string();
    assert!(status.contains("--allow-empty"), "{status}");
    let refused = sandbox.run(&["rederive", "fees_worker"]);
    refused.assert_refused(1, &["--allow-empty"]);
    assert!(total(&server) >= before);
    assert!(server.terminate().success());

    // The old settings restore everything.
    let server = sandbox.serve_with(&["--rpc-url", &url]);
    wait_until("nothing is wrong", || {
        fees(&server)["complete"].is_null() && total(&server) >= before
    });
    assert!(server.terminate().success());

    let mut server = sandbox.serve_with(&["--rpc-url", &url, "--set", &wrong]);
    // The refusal of before is recorded when the permission comes.
    server.expect_line("the rebuilt tables cannot replace the serving ones");
    sandbox.run(&["rederive", "fees_worker", "--allow-empty"]).answer();
    let emptied = fees(&server);
    assert_eq!((&emptied["pagination"]["total"], &emptied["complete"]), (&0.into(), &().into()));
    assert!(server.terminate().success());
}
