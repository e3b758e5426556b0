//! Clients that others wrote, unmodified: viem, ethers and cast.
//!
//! Guarantees: what they read through us is what they read from the node, and what they watch survives a
//! reorganization. The scripts are in `tests/clients`.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use logmill_sim::anvil::peer;
use logmill_sim::http::JsonRpc;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::answers::without_oddities;
use super::scene::{SETTINGS, Town, hex, wait_for_all};
use crate::process::{Place, finish};

/// The scripts, beside the packages that they import.
struct Scripts {
    folder: TempDir,
}

impl Scripts {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let packages = peer("viem").parent().expect("a folder").to_owned();
        std::os::unix::fs::symlink(packages, folder.path().join("node_modules")).expect("linked");
        let from = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
        for name in ["viem.mjs", "ethers.mjs"] {
            std::fs::copy(from.join(name), folder.path().join(name)).expect("copied");
        }
        Self { folder }
    }

    fn command(&self, script: &str, what: &str, of: JsonRpc, contract: &str) -> Command {
        let mut node = Command::new("node");
        node.arg(self.folder.path().join(script));
        node.args([what, &of.url(), &of.ws_url(), contract]);
        node
    }

    fn read(&self, script: &str, of: JsonRpc, contract: &str) -> Value {
        finish(&mut self.command(script, "read", of, contract)).json()
    }

    fn watch(&self, script: &str, of: JsonRpc, contract: &str) -> Watcher {
        let mut command = self.command(script, "watch", of, contract);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("node runs");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut watcher = Watcher { child, input, output, heard: Vec::new() };
        watcher.hear_until(|heard| heard.last() == Some(&json!("watching")));
        watcher.heard.clear();
        watcher
    }
}

/// A client that watches.
struct Watcher {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    heard: Vec<Value>,
}

impl Watcher {
    /// Reads until it has heard enough. A client that never does is ended by the time limit of the test.
    fn hear_until(&mut self, enough: impl Fn(&[Value]) -> bool) {
        while !enough(&self.heard) {
            let mut line = String::new();
            let read = self.output.read_line(&mut line).expect("a line");
            assert!(read > 0, "it ended: {:?}", self.heard);
            let line: Value = serde_json::from_str(&line).expect("JSON");
            assert!(line.get("error").is_none(), "{line}");
            self.heard.push(line);
        }
    }

    /// Waits until it has heard of a value, both by polling and by its socket.
    fn hear_of(&mut self, value: u64) {
        let value = json!(value.to_string());
        for by in ["http", "ws"] {
            let heard = |line: &Value| line["by"] == by && line["value"] == value;
            self.hear_until(|lines| {
                lines.iter().any(|line| heard(line) && line["removed"] != true)
            });
        }
    }

    /// What it heard of logs, by polling or by its socket.
    fn logs(&self, by: &str) -> Vec<(String, String, bool)> {
        let lines = self.heard.iter().filter(|line| line["by"] == by);
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        lines
            .map(|line| (text(&line["value"]), text(&line["blockHash"]), line["removed"] == true))
            .collect()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        drop(self.input.take());
        // It ends by itself; and if not, it is ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn cast(arguments: &[&str], of: JsonRpc) -> String {
    let cast = peer("@foundry-rs/cast-linux-amd64/bin/cast");
    let ended = finish(Command::new(cast).args(arguments).args(["--rpc-url", &of.url()]));
    ended.answer().to_owned()
}

fn assert_cast_reads_the_same(town: &Town, ours: JsonRpc, transaction: &str) {
    let (node, contract) = (town.rpc(), town.contracts[0].as_str());
    let (head, number) = (node.head().to_string(), (node.head() - 1).to_string());
    let hash = node.call("eth_getBlockByNumber", json!([hex(1), false]))["hash"].clone();
    let hash = hash.as_str().expect("a hash");
    for arguments in [
        &["logs", "--from-block", "0", "--to-block", &head, "--address", contract, "--json"][..],
        &[
            "logs",
            "--from-block",
            "1",
            "--json",
            "Transfer(address indexed,address indexed,uint256)",
        ],
        &["block", &number, "--json", "--full"],
        &["block", hash, "--json"],
        &["block", "finalized", "--json"],
        &["tx", transaction, "--json"],
        &["receipt", transaction, "--json"],
        &["block-number"],
        &["chain-id"],
    ] {
        let said = |of: JsonRpc| {
            let json: Value = serde_json::from_str(&cast(arguments, of)).expect("JSON");
            without_oddities(json)
        };
        assert_eq!(said(ours), said(node), "cast {arguments:?}");
    }
}

#[test]
fn viem_ethers_and_cast_read_and_watch_through_us_as_from_the_node() {
    let town = Town::new(6);
    town.grow(70);
    let transaction = town.send(&town.transfer(0xaa, 5));
    town.anvil.mine(1);
    let place = Place::with(&SETTINGS);
    let server = town.serve(&place);
    let (ours, node) = (server.rpc(), town.rpc());
    wait_for_all(ours, node);
    let scripts = Scripts::new();
    let contract = town.contracts[0].as_str();
    for script in ["viem.mjs", "ethers.mjs"] {
        let read = scripts.read(script, ours, contract);
        let (read, expected) = (without_oddities(read), scripts.read(script, node, contract));
        assert_eq!(read, without_oddities(expected), "{script}");
        assert!(read["logs"].as_array().is_some_and(|logs| logs.len() > 20), "{script}: {read}");
    }
    assert_cast_reads_the_same(&town, ours, &transaction);
    for script in ["viem.mjs", "ethers.mjs"] {
        let mut through_us = scripts.watch(script, ours, contract);
        let mut from_node = scripts.watch(script, node, contract);
        for value in 1_000..1_003 {
            town.send(&town.transfer(0xaa, value));
            town.anvil.mine(1);
            through_us.hear_of(value);
            from_node.hear_of(value);
        }
        for by in ["http", "ws"] {
            assert_eq!(through_us.logs(by), from_node.logs(by), "{script} by {by}");
        }
        // The node itself never says that logs are gone. We do; ethers keeps it from who listens to a filter.
        let dead = through_us.logs("ws").last().cloned().expect("a log");
        town.anvil.reorg(1, &[town.transfer(0xbb, 2_000)]);
        town.send(&town.transfer(0xaa, 2_001));
        town.anvil.mine(1);
        through_us.hear_of(2_000);
        through_us.hear_of(2_001);
        let removed = (dead.0, dead.1, true);
        for by in ["http", "ws"] {
            let logs = through_us.logs(by);
            let gone = logs.iter().position(|log| *log == removed);
            let new = logs.iter().position(|log| log.0 == "2000" && !log.2);
            let told =
                if script == "viem.mjs" { gone.is_some() && gone < new } else { gone.is_none() };
            assert!(told && new.is_some(), "{script} by {by}: {logs:?}");
        }
        // Clients ask for the blocks that they hear of, so that these come later than their logs.
        let head = json!(node.head().to_string());
        through_us.hear_until(|lines| {
            let blocks = || lines.iter().filter(|line| line["by"] == "blocks");
            blocks().count() >= 4 && blocks().any(|block| block["number"] == head)
        });
    }
}
