//! anvil and Logmill, each as a separate process that ends with its handle, and a sequential client.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::http::{self, Connection};

/// Time limits of a server to answer, to catch up and to stop.
const START_MAX: Duration = Duration::from_secs(120);
const CATCH_UP_MAX: Duration = Duration::from_secs(300);
const STOP_MAX: Duration = Duration::from_secs(20);
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time for Logmill to seal its blocks after it has caught up.
const SETTLE: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct Server {
    child: Child,
    pub address: String,
}

impl Server {
    /// Starts a node with an empty chain whose blocks become final soon.
    pub async fn anvil(program: &Path, folder: &Path) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command.args(["--host", "127.0.0.1", "--port", &port.to_string()]).args([
            "--silent",
            "--gas-limit",
            "3000000000",
            "--slots-in-an-epoch",
            "4",
        ]);
        Self::start(command, port, &folder.join("anvil.log")).await
    }

    /// Starts Logmill with its data in one folder and its log in another; `more` has further arguments, such as the
    /// node.
    pub async fn logmill(
        program: &Path,
        data: &Path,
        folder: &Path,
        more: &[String],
    ) -> anyhow::Result<Self> {
        let port = free_port()?;
        let mut command = Command::new(program);
        command
            .args(["run", "--listen", &format!("127.0.0.1:{port}")])
            .arg("--data")
            .arg(data)
            .args(more);
        Self::start(command, port, &folder.join("logmill.log")).await
    }

    /// Starts a server that will listen on this port; its output goes to a file.
    pub async fn start(mut command: Command, port: u16, log: &Path) -> anyhow::Result<Self> {
        let output = File::create(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("starting {program}"))?;
        let address = format!("127.0.0.1:{port}");
        let mut server = Self { child, address };
        let start = Instant::now();
        while Connection::open(&server.address).await.is_err() {
            let ended = server.child.try_wait()?;
            if ended.is_some() || start.elapsed() > START_MAX {
                let output = std::fs::read_to_string(log).unwrap_or_default();
                bail!("{program} does not answer: {output}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(server)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Fails if the process has ended.
    pub fn expect_running(&mut self) -> anyhow::Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("the server has ended: {status}"),
            None => Ok(()),
        }
    }

    /// Returns the JSON at a path.
    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let mut connection = Connection::open(&self.address).await?;
        connection.send(&http::get(&self.address, path)).await?;
        let answer = connection.receive().await?.context("no answer")?;
        Ok(serde_json::from_slice(&answer)?)
    }

    /// Waits until Logmill has all blocks up to `head`, those up to `last` as final, and has had time to seal them.
    pub async fn catch_up(&self, head: u64, last: u64) -> anyhow::Result<Duration> {
        let start = Instant::now();
        loop {
            let status = self.get("/status").await?;
            let chain = &status["chains"][0];
            let covered = &chain["covered"];
            let all = covered.as_array().is_some_and(|ranges| ranges.len() == 1)
                && covered[0]["start"] == 0
                && covered[0]["end"].as_u64() > Some(head);
            if all && chain["finalized"]["number"].as_u64() >= Some(last) {
                break;
            }
            if start.elapsed() > CATCH_UP_MAX {
                bail!("Logmill does not catch up: {status}");
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        let took = start.elapsed();
        tokio::time::sleep(SETTLE).await;
        Ok(took)
    }

    /// Sends SIGTERM and waits for the end of the process.
    pub fn stop(mut self) -> anyhow::Result<()> {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("no process")?, Signal::TERM)?;
        let start = Instant::now();
        while start.elapsed() < STOP_MAX {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(LOOK_EVERY);
        }
        bail!("the server does not stop")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends one request at a time.
#[derive(Debug)]
pub struct Client {
    connection: Connection,
    address: String,
}

impl Client {
    pub async fn open(address: &str) -> anyhow::Result<Self> {
        Ok(Self { connection: Connection::open(address).await?, address: address.to_owned() })
    }

    pub async fn call(&mut self, method: &str, params: Value) -> anyhow::Result<Value> {
        let mut answers = self.batch(vec![(method, params)]).await?;
        answers.pop().context("no answer")
    }

    /// Sends several calls at once; returns the results in order.
    pub async fn batch(&mut self, calls: Vec<(&str, Value)>) -> anyhow::Result<Vec<Value>> {
        let count = calls.len();
        let requests = calls.iter().enumerate().map(|(id, (method, params))| {
            json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        });
        let body = Value::Array(requests.collect()).to_string();
        self.connection.send(&http::post(&self.address, &body)).await?;
        let answer = self.connection.receive().await?.context("the connection was closed")?;
        let mut answers: Vec<Value> = serde_json::from_slice(&answer)?;
        answers.sort_by_key(|answer| answer["id"].as_u64());
        anyhow::ensure!(answers.len() == count, "{} answers to {count} calls", answers.len());
        let results = answers.into_iter().map(|mut answer| match answer.get("error") {
            Some(error) => Err(anyhow::anyhow!("the server returned an error: {error}")),
            None => Ok(answer["result"].take()),
        });
        results.collect()
    }
}

/// A port that was free just now.
pub fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
