//! Anvil, an EVM node that mines on request: an independent chain to compare with.
//!
//! Guarantees: it listens only on loopback, on a free port, and ends when its handle is dropped or the test process
//! dies; its folder holds its state as of the last stop. Leaves to others: what is sent to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::JsonRpc;
use crate::paths::workspace_root;
use crate::postgres::free_port;

/// How often a starting node is polled.
const START_CHECKS_MAX: u32 = 600;
const START_CHECK_WAIT: Duration = Duration::from_millis(25);
/// How many free ports are tried.
const PORTS_MAX: usize = 5;

/// Chain id unless another one is given.
const CHAIN_ID: u64 = 31_337;

/// Gas limit of a transaction, more than any of ours needs.
const GAS: &str = "0x3b9aca00";

/// A running node, which mines only on request.
#[derive(Debug)]
pub struct Anvil {
    folder: TempDir,
    port: u16,
    /// Timestamp of its first block, in seconds; the current time if none.
    genesis: Option<u64>,
    /// The id of its chain.
    chain_id: u64,
    process: Option<Child>,
}

impl Anvil {
    /// Starts a node with a chain that has only its first block. An epoch has four blocks: the newest safe block is
    /// four below the head, the newest final one eight.
    ///
    /// # Panics
    /// If it cannot be installed, or does not start.
    pub fn start() -> Self {
        Self::start_at(None)
    }

    /// Like [`Anvil::start`], with this chain id.
    ///
    /// # Panics
    /// If it cannot be installed, or does not start.
    pub fn start_as(chain_id: u64) -> Self {
        Self::start_with(None, chain_id)
    }

    /// Like [`Anvil::start`], with this timestamp of the first block; the node's clock continues from there.
    ///
    /// # Panics
    /// If it cannot be installed, or does not start.
    pub fn start_at(genesis: Option<u64>) -> Self {
        Self::start_with(genesis, CHAIN_ID)
    }

    fn start_with(genesis: Option<u64>, chain_id: u64) -> Self {
        let folder = tempfile::Builder::new().prefix("logmill-anvil-").tempdir();
        let folder = folder.expect("a temporary folder");
        let mut anvil = Self { folder, port: 0, genesis, chain_id, process: None };
        anvil.start_on_free_port();
        anvil
    }

    /// Starts another node with the same chain; from here on the two are independent.
    ///
    /// # Panics
    /// If it does not start.
    pub fn fork(&mut self) -> Self {
        self.stop();
        let folder = tempfile::Builder::new().prefix("logmill-anvil-").tempdir();
        let folder = folder.expect("a temporary folder");
        std::fs::copy(self.state(), folder.path().join("state.json")).expect("it was stopped");
        self.resume();
        let (genesis, chain_id) = (self.genesis, self.chain_id);
        let mut other = Self { folder, port: 0, genesis, chain_id, process: None };
        other.start_on_free_port();
        other
    }

    /// Another process may take a free port before the node does; then another port is tried.
    fn start_on_free_port(&mut self) {
        for _ in 0..PORTS_MAX {
            self.port = free_port();
            if self.comes_up() {
                return;
            }
        }
        panic!("anvil did not start");
    }

    /// Starts it again after [`Anvil::stop`], on the same port, with its state.
    ///
    /// # Panics
    /// If it does not start.
    pub fn resume(&mut self) {
        assert!(self.comes_up(), "anvil did not come up");
    }

    /// Starts it; false if it ends or does not answer.
    fn comes_up(&mut self) -> bool {
        let state = self.state();
        let mut anvil = Command::new("setpriv");
        anvil
            .args(["--pdeathsig", "KILL"])
            .arg(peer("@foundry-rs/anvil-linux-amd64/bin/anvil"))
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string(), "--silent"])
            .args(["--gas-limit", "3000000000", "--slots-in-an-epoch", "4", "--no-mining"])
            .args(["--order", "fifo", "--preserve-historical-states"])
            .args(["--chain-id", &self.chain_id.to_string()])
            .arg("--dump-state")
            .arg(&state)
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if state.exists() {
            anvil.arg("--load-state").arg(&state);
        } else if let Some(genesis) = self.genesis {
            anvil.args(["--timestamp", &genesis.to_string()]);
        }
        let mut process = anvil.spawn().expect("anvil starts");
        let mut up = false;
        for _ in 0..START_CHECKS_MAX {
            // What answers on the port of a node that has ended is not this node.
            if process.try_wait().expect("it is asked").is_some() {
                break;
            }
            up = self.rpc().ask("eth_chainId", &json!([])).is_ok();
            if up {
                break;
            }
            std::thread::sleep(START_CHECK_WAIT);
        }
        if up {
            self.process = Some(process);
        } else {
            let _ = process.kill();
            let _ = process.wait();
        }
        up
    }

    /// Stops it and keeps its state.
    ///
    /// # Panics
    /// If it cannot be stopped.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let stopped = Command::new("kill").args(["-TERM", &process.id().to_string()]).status();
            assert!(stopped.expect("kill runs").success(), "anvil receives the signal");
            process.wait().expect("it ends");
        }
    }

    pub fn rpc(&self) -> JsonRpc {
        JsonRpc::at(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)))
    }

    /// Mines blocks; the first contains all pending transactions.
    #[track_caller]
    pub fn mine(&self, blocks: u64) {
        self.rpc().call("anvil_mine", json!([format!("{blocks:#x}")]));
    }

    /// The accounts that it signs for.
    #[track_caller]
    pub fn accounts(&self) -> Vec<String> {
        let accounts = self.rpc().call("eth_accounts", json!([]));
        serde_json::from_value(accounts).expect("a list of accounts")
    }

    /// Sends a transaction, which stays pending until a block is mined, and returns its hash.
    #[track_caller]
    pub fn send(&self, from: &str, to: Option<&str>, data: &str) -> String {
        let sent = self.rpc().call("eth_sendTransaction", json!([transaction(from, to, data)]));
        sent.as_str().expect("a hash").to_owned()
    }

    /// Replaces the last `depth` blocks by as many others, with these transactions in the first of them.
    #[track_caller]
    pub fn reorg(&self, depth: u64, transactions: &[Value]) {
        let placed: Value = transactions.iter().map(|tx| json!([tx, 0])).collect();
        self.rpc().call("anvil_reorg", json!([depth, placed]));
    }

    /// Removes the last `depth` blocks.
    #[track_caller]
    pub fn rollback(&self, depth: u64) {
        self.rpc().call("anvil_rollback", json!([depth]));
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state.json")
    }
}

impl Drop for Anvil {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // It may have ended; its state is no longer needed.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A transaction for the node to sign; without `to` it creates a contract.
pub fn transaction(from: &str, to: Option<&str>, data: &str) -> Value {
    let mut transaction = json!({"from": from, "data": data, "gas": GAS});
    if let Some(to) = to {
        transaction["to"] = json!(to);
    }
    transaction
}

/// A file of the npm packages; installs them on first use.
///
/// # Panics
/// If they cannot be installed.
pub fn peer(path: &str) -> PathBuf {
    let root = workspace_root();
    let installed = Command::new(root.join("tools/node.sh")).status().expect("the script runs");
    let file = root.join(".tools/node/node_modules").join(path);
    assert!(installed.success() && file.exists(), "tools/node.sh installs {path}");
    file
}
