//! A development node with transactions of impersonated accounts (`anvil_impersonateAccount`).
//!
//! Guarantees: on Anvil's own chain id, and on an id without a profile, such blocks are followed and served as the node
//! returns them. On an id of Ethereum, such as that of a mainnet fork, they are rejected with an error that names the
//! transaction and the setting that helps; with that setting they are served.

use logmill_sim::anvil::Anvil;
use serde_json::{Value, json};

use super::answers::{assert_same_blocks, assert_same_logs};
use super::anvil_chain::{BURST, SETTINGS, calldata, wait_for_all};
use crate::process::{Sandbox, wait_until};

const ACCOUNT: &str = "0xaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// A node with this chain id, and a contract that an impersonated account created, and that it and a normal account
/// call.
fn node(chain_id: u64) -> Anvil {
    let anvil = Anvil::start_as(chain_id);
    let rpc = anvil.rpc();
    rpc.call("anvil_setBalance", json!([ACCOUNT, "0xde0b6b3a7640000000"]));
    anvil.mine(2);
    rpc.call("anvil_impersonateAccount", json!([ACCOUNT]));
    let build: Value = serde_json::from_str(BURST).expect("a build");
    let made = anvil.send(ACCOUNT, None, build["bytecode"].as_str().expect("the code"));
    anvil.mine(1);
    let receipt = rpc.call("eth_getTransactionReceipt", json!([made]));
    let contract = receipt["contractAddress"].as_str().expect("a contract").to_owned();
    let signer = anvil.accounts().swap_remove(0);
    for round in 0..4 {
        for from in [ACCOUNT, signer.as_str()] {
            let data = calldata("transfer(address,uint256)", &[0xbb, round]);
            anvil.send(from, Some(&contract), &data);
        }
        anvil.mine(4);
    }
    anvil
}

#[test]
fn transactions_of_impersonated_accounts_are_served_or_refused_with_the_setting_that_helps() {
    for (chain_id, setting) in [(31_337, None), (4_242, None), (1, Some("chain.verify=bloom"))] {
        let anvil = node(chain_id);
        let (node, url) = (anvil.rpc(), anvil.rpc().url());
        let sandbox = Sandbox::with(&SETTINGS);
        let mut more = vec!["--rpc-url", url.as_str()];
        if let Some(setting) = setting {
            let server = sandbox.serve_with(&more);
            let mut status = Value::Null;
            wait_until("the block is refused", || {
                status = server.rpc().get("/status");
                let message = status["chains"][0]["nodes"][0]["last_error"].as_str();
                message.is_some_and(|message| message.contains("set `verify = \"bloom\"`"))
            });
            let of_node = &status["chains"][0]["nodes"][0];
            assert_eq!(of_node["lies"], json!(0), "{status:#}");
            let message = of_node["last_error"].as_str().expect("text");
            assert!(message.contains(": transaction 0 has an `r` and an `s`"), "{message}");
            assert!(server.terminate().success());
            more.extend(["--set", setting]);
        }
        let server = sandbox.serve_with(&more);
        let ours = server.rpc();
        wait_for_all(ours, node);
        assert_eq!(assert_same_logs(ours, node), 8, "chain {chain_id}");
        if setting.is_none() {
            assert_same_blocks(ours, node);
        }
        // With an id of Ethereum, node fields are not kept.
        for number in 0..=node.head() {
            let params = json!([format!("{number:#x}"), true]);
            let got = ours.call("eth_getBlockByNumber", params.clone());
            let expected = node.call("eth_getBlockByNumber", params);
            assert_eq!(got["transactions"], expected["transactions"], "chain {chain_id}");
        }
        let status = ours.get("/status");
        assert_eq!(status["chains"][0]["ingest"]["checks"]["verify"], "bloom", "{status:#}");
        assert_eq!(status["chains"][0]["nodes"][0]["lies"], json!(0), "{status:#}");
        assert!(server.terminate().success());
    }
}
