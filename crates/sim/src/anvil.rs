//! Anvil, an EVM node that mines what it is told: a chain that others made, to be compared with.
//!
//! Guarantees: it listens on loopback alone, on a free port, and is gone when its handle is, or when the test process
//! dies; its folder holds what it knew when it was stopped. Leaves to others: what is sent to it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::http::JsonRpc;
use crate::place::workspace_root;
use crate::postgres::free_port;

/// How often a starting node is asked whether it is up.
const START_CHECKS_MAX: u32 = 600;
const START_CHECK_WAIT: Duration = Duration::from_millis(25);

/// The gas of a transaction, more than any of ours needs.
const GAS: &str = "0x3b9aca00";

/// A running node, which mines only when it is told to.
#[derive(Debug)]
pub struct Anvil {
    folder: TempDir,
    port: u16,
    /// The time of its first block, in seconds; now if none is given.
    genesis: Option<u64>,
    process: Option<Child>,
}

impl Anvil {
    /// A node with a chain that has its first block only. Four blocks are an epoch: the newest safe block is four below
    /// the head, the newest final one eight.
    ///
    /// # Panics
    /// If it can not be installed, or does not start.
    pub fn start() -> Self {
        Self::start_at(None)
    }

    /// The same, with a first block of this time; its clock goes on from there.
    ///
    /// # Panics
    /// If it can not be installed, or does not start.
    pub fn start_at(genesis: Option<u64>) -> Self {
        let folder = tempfile::Builder::new().prefix("logmill-anvil-").tempdir();
        let folder = folder.expect("a temporary folder");
        let mut anvil = Self { folder, port: free_port(), genesis, process: None };
        anvil.resume();
        anvil
    }

    /// Another node that knows the same chain; from here each goes its own way.
    ///
    /// # Panics
    /// If it does not start.
    pub fn fork(&mut self) -> Self {
        self.stop();
        let folder = tempfile::Builder::new().prefix("logmill-anvil-").tempdir();
        let folder = folder.expect("a temporary folder");
        std::fs::copy(self.state(), folder.path().join("state.json")).expect("it was stopped");
        self.resume();
        let genesis = self.genesis;
        let mut other = Self { folder, port: free_port(), genesis, process: None };
        other.resume();
        other
    }

    /// Starts it again after [`Anvil::stop`], on the same port, with what it knew.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn resume(&mut self) {
        let state = self.state();
        let mut anvil = Command::new("setpriv");
        anvil
            .args(["--pdeathsig", "KILL"])
            .arg(peer("@foundry-rs/anvil-linux-amd64/bin/anvil"))
            .args(["--host", "127.0.0.1", "--port", &self.port.to_string(), "--silent"])
            .args(["--gas-limit", "3000000000", "--slots-in-an-epoch", "4", "--no-mining"])
            .args(["--order", "fifo", "--preserve-historical-states"])
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
        self.process = Some(anvil.spawn().expect("anvil starts"));
        let up = (0..START_CHECKS_MAX).any(|_| {
            let up = self.rpc().ask("eth_chainId", &json!([])).is_ok();
            if !up {
                std::thread::sleep(START_CHECK_WAIT);
            }
            up
        });
        assert!(up, "anvil did not come up");
    }

    /// Stops it; what it knows is kept.
    ///
    /// # Panics
    /// If it can not be stopped.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            let told = Command::new("kill").args(["-TERM", &process.id().to_string()]).status();
            assert!(told.expect("kill runs").success(), "anvil is told to stop");
            process.wait().expect("it ends");
        }
    }

    /// Where it answers.
    pub fn rpc(&self) -> JsonRpc {
        JsonRpc::at(SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)))
    }

    /// Makes blocks; the first holds all that was sent.
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

    /// Sends a transaction, and gives its hash; it waits to be mined.
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
            // It may have ended; what it knows is not needed any more.
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// A transaction for a node that signs it; without a receiver it makes a contract.
pub fn transaction(from: &str, to: Option<&str>, data: &str) -> Value {
    let mut transaction = json!({"from": from, "data": data, "gas": GAS});
    if let Some(to) = to {
        transaction["to"] = json!(to);
    }
    transaction
}

/// A file of the packages of npm; installs them on first use.
///
/// # Panics
/// If they can not be installed.
pub fn peer(path: &str) -> PathBuf {
    let root = workspace_root();
    let installed = Command::new(root.join("tools/node.sh")).status().expect("the script runs");
    let file = root.join(".tools/node/node_modules").join(path);
    assert!(installed.success() && file.exists(), "tools/node.sh installs {path}");
    file
}
