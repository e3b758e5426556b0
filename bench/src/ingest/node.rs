//! A node that answers from memory: the JSON of every block and of its receipts is generated before it starts, so
//! that serving is little more than copying. It runs in a separate process, whose CPU is counted separately.

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

use anyhow::Context;
use logmill_chain::sim::{SimChain, rpc};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::net::{TcpListener, TcpStream};

use super::chain;
use super::settings::Settings;
use crate::http::{self, Connection};

/// Methods whose answers are generated beforehand; the first parameter is a block number.
const MADE: [&str; 2] = ["eth_getBlockByNumber", "eth_getBlockReceipts"];

/// A node in a separate process, which ends when this is dropped.
#[derive(Debug)]
pub struct Node {
    child: Child,
    /// The node answers until this is closed.
    _input: Option<ChildStdin>,
    pub address: String,
}

impl Node {
    /// Starts this program again as the node, and waits until it answers.
    pub async fn start(settings: &Settings) -> anyhow::Result<Self> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program)
            .arg("--be-node")
            .args(["--node-blocks", &settings.node_blocks.to_string()])
            .args(["--logs-per-block", &settings.logs_per_block.to_string()])
            .args(["--seed", &settings.seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("starting the node")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("the node's output")?;
        let mut node = Self { child, _input: input, address: String::new() };
        let line = move || std::io::BufReader::new(output).lines().next().transpose();
        let line = tokio::task::spawn_blocking(line).await??;
        node.address = line.context("the node ended before it answered")?;
        Ok(node)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the node: generates the chain and its JSON, prints the address, answers until standard input ends.
pub async fn run(settings: &Settings) -> anyhow::Result<()> {
    let made = Arc::new(PreparedAnswers::new(settings)?);
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    loop {
        let (stream, _) = listener.accept().await?;
        let made = Arc::clone(&made);
        tokio::spawn(async move {
            if let Err(error) = serve(stream, &made).await {
                eprintln!("the node lost a connection: {error:#}");
            }
        });
    }
}

async fn serve(stream: TcpStream, made: &PreparedAnswers) -> anyhow::Result<()> {
    let mut connection = Connection::of(stream)?;
    while let Some(request) = connection.receive().await? {
        let answer = made.answer(&request)?;
        connection.send(&http::ok(answer.len())).await?;
        connection.send(&answer).await?;
    }
    Ok(())
}

/// The generated answers.
struct PreparedAnswers {
    chain: SimChain,
    /// Results without the JSON-RPC envelope, by method and block number.
    results: [HashMap<String, Box<str>>; 2],
}

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(borrow)]
    id: &'a RawValue,
    method: &'a str,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

impl PreparedAnswers {
    fn new(settings: &Settings) -> anyhow::Result<Self> {
        let chain = SimChain::with(chain::sim(settings));
        let mut results = [HashMap::new(), HashMap::new()];
        for number in 0..settings.node_blocks {
            if number > 0 {
                chain.grow(1);
            }
            for (method, results) in MADE.iter().zip(&mut results) {
                let number = format!("{number:#x}");
                let request = format!(
                    r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":["{number}",true]}}"#
                );
                let answer = rpc::answer(&chain, &request);
                let answer: HashMap<&str, &RawValue> = serde_json::from_str(&answer)?;
                let result = answer.get("result").context("the simulated chain has no answer")?;
                results.insert(number, result.get().into());
            }
        }
        Ok(Self { chain, results })
    }

    fn answer(&self, request: &[u8]) -> anyhow::Result<Vec<u8>> {
        let mut out = Vec::new();
        if request.first() == Some(&b'[') {
            let requests: Vec<&RawValue> = serde_json::from_slice(request)?;
            for (position, request) in requests.into_iter().enumerate() {
                out.push(if position == 0 { b'[' } else { b',' });
                self.one(request.get(), &mut out)?;
            }
            out.push(b']');
        } else {
            self.one(std::str::from_utf8(request)?, &mut out)?;
        }
        Ok(out)
    }

    fn one(&self, request: &str, out: &mut Vec<u8>) -> anyhow::Result<()> {
        let parsed: Request<'_> = serde_json::from_str(request)?;
        let params: Vec<Value> = match parsed.params {
            Some(params) => serde_json::from_str(params.get())?,
            None => Vec::new(),
        };
        let method = MADE.iter().position(|method| *method == parsed.method);
        let whole = params.get(1) != Some(&Value::Bool(false));
        let number = params.first().and_then(Value::as_str).filter(|_| whole);
        let made = method.zip(number).and_then(|(at, number)| self.results[at].get(number));
        let Some(made) = made else {
            out.extend_from_slice(rpc::answer(&self.chain, request).as_bytes());
            return Ok(());
        };
        out.extend_from_slice(br#"{"jsonrpc":"2.0","id":"#);
        out.extend_from_slice(parsed.id.get().as_bytes());
        out.extend_from_slice(br#","result":"#);
        out.extend_from_slice(made.as_bytes());
        out.push(b'}');
        Ok(())
    }
}
