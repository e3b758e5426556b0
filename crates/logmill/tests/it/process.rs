//! Processes under test: commands that end, and servers that run until they are stopped.
//!
//! Guarantees: a process does not see the settings of the machine it runs on, and a server is killed when its handle is
//! dropped. Polling waits end after [`WAIT_MAX`]. Leaves to others: the expectations.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use logmill_sim::http::{JsonRpc, request};
use serde_json::Value;
use tempfile::TempDir;

/// Time limit of a wait.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK_WAIT: Duration = Duration::from_millis(20);
/// Maximum unread lines of a server's log.
const LINES_MAX: usize = 100_000;

/// Part of the log line of a server that is ready.
pub(crate) const READY: &str = " ready ";
pub(crate) const LOGMILL: &str = env!("CARGO_BIN_EXE_logmill");

/// The outcome of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl CommandOutput {
    /// The standard output of a command that must have succeeded.
    #[track_caller]
    pub(crate) fn answer(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout.trim()
    }

    /// The output as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.answer()).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks the exit code, and that the error contains all of these texts.
    #[track_caller]
    pub(crate) fn assert_refused(&self, code: i32, texts: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let error = self.stderr.lines().find(|line| line.starts_with("error: "));
        let error = error.unwrap_or_else(|| panic!("no error line: {self:?}"));
        for part in texts {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

/// A command without the environment of this machine, run in `folder`. Its servers listen on free ports.
pub(crate) fn command(program: impl AsRef<OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(folder).stdin(Stdio::null());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    // Other tests and unrelated servers run at the same time.
    command.env("LOGMILL_SERVER_LISTEN", "127.0.0.1:0").env("LOGMILL_COLLECT_API_PORT", "0");
    command
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> CommandOutput {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    CommandOutput {
        code: output.status.code(),
        stdout: text(&output.stdout),
        stderr: text(&output.stderr),
    }
}

/// A temporary data folder, with commands and servers that use it.
pub(crate) struct Sandbox {
    folder: TempDir,
    settings: Vec<String>,
}

impl Sandbox {
    /// SQLite in a folder that does not exist yet.
    pub(crate) fn new() -> Self {
        // No test simulates a power failure.
        Self::with(&["database.durability=relaxed"])
    }

    /// The same with only these settings.
    pub(crate) fn with(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder, settings: settings.iter().map(|setting| (*setting).to_owned()).collect() }
    }

    /// The working folder of commands; it contains the data folder.
    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(LOGMILL, self.folder.path());
        command.args(arguments).arg("--data").arg(self.data());
        // The disk of the machine is no business of these tests; those that are about it set another limit.
        command.args(["--set", "ready.free_disk_mib=0"]);
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> CommandOutput {
        finish(&mut self.command(arguments))
    }

    /// Starts a command without waiting for its end.
    pub(crate) fn start(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdout(Stdio::null()).spawn().expect("it starts")
    }

    /// Starts a server and waits until it is ready.
    pub(crate) fn serve(&self) -> Server {
        Server::start(&mut self.command(&["run"]))
    }

    /// Starts a server with arguments and waits until it is ready.
    pub(crate) fn serve_with(&self, arguments: &[&str]) -> Server {
        Server::start(&mut self.command(&[&["run"], arguments].concat()))
    }

    /// Starts another command that runs until it is stopped, and waits until it is ready.
    pub(crate) fn start_with(&self, arguments: &[&str]) -> Server {
        Server::start(&mut self.command(arguments))
    }

    /// Starts a server without waiting.
    pub(crate) fn start_server(&self) -> Server {
        Server::spawn(&mut self.command(&["run"]))
    }

    /// Number of jobs of a kind in a state.
    #[track_caller]
    pub(crate) fn count(&self, kind: &str, state: &str) -> u64 {
        let status = self.run(&["jobs", "status", "--json"]).json();
        let kinds = status["kinds"].as_array().expect("a list");
        let found = kinds.iter().find(|row| row["kind"] == kind && row["state"] == state);
        found.map_or(0, |row| row["jobs"].as_u64().expect("a number"))
    }
}

/// A running server; it is killed on drop.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    log: String,
    /// Where in `log` the next [`Server::expect_line`] begins.
    expected_until: usize,
    http: Option<SocketAddr>,
}

impl Server {
    /// Starts it and waits until it logs that it is ready.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut server = Self::spawn(command);
        let ready = server.expect_line(READY);
        server.http = address(&ready);
        // Other lines may come before this one as well as after it.
        server.expected_until = 0;
        server
    }

    /// A client of its HTTP address.
    pub(crate) fn rpc(&self) -> JsonRpc {
        JsonRpc::at(self.http.expect("it serves HTTP"))
    }

    fn spawn(command: &mut Command) -> Self {
        let mut child =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = sync_channel(LINES_MAX);
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Self { child, lines, log: String::new(), expected_until: 0, http: None }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a log line that contains `part`, after the line that was expected before.
    pub(crate) fn expect_line(&mut self, part: &str) -> String {
        let end = Instant::now() + WAIT_MAX;
        loop {
            let rest = &self.log[self.expected_until..];
            if let Some(line) = rest.lines().find(|line| line.contains(part)) {
                let line = line.to_owned();
                self.expected_until += rest.find(&line).expect("it is there") + line.len();
                return line;
            }
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => self.log.extend([&line, "\n"]),
                Err(RecvTimeoutError::Timeout) => panic!("{part:?} was not logged: {}", self.log),
                Err(RecvTimeoutError::Disconnected) => panic!("it ended: {}", self.log),
            }
        }
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) fn terminate(mut self) -> ExitStatus {
        signal("TERM", self.id());
        let ended = self.child.wait().expect("it ends");
        if !ended.success() {
            self.log.extend(self.lines.iter().flat_map(|line| [line, "\n".to_owned()]));
            eprintln!("ended with {ended}: {}", self.log);
        }
        ended
    }

    /// Whether it has logged a line that contains `part`.
    pub(crate) fn has_logged(&mut self, part: &str) -> bool {
        self.log.extend(self.lines.try_iter().flat_map(|line| [line, "\n".to_owned()]));
        self.log.contains(part)
    }

    /// Waits at most `limit` for the end of a server that is stopping; returns its log too.
    pub(crate) fn wait_for_end_within(mut self, limit: Duration) -> (ExitStatus, String) {
        let end = Instant::now() + limit;
        let ended = loop {
            match self.child.try_wait().expect("it is ours") {
                Some(ended) => break ended,
                None => assert!(Instant::now() < end, "it did not end within {limit:?}"),
            }
            std::thread::sleep(LOOK_WAIT);
        };
        self.log.extend(self.lines.iter().flat_map(|line| [line, "\n".to_owned()]));
        (ended, std::mem::take(&mut self.log))
    }

    /// The log, as far as it has been read.
    pub(crate) fn log(&self) -> &str {
        &self.log
    }

    /// Waits for the end of a server that is stopping.
    pub(crate) fn wait_for_end(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Sends SIGKILL, as the kernel does when memory runs out.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The HTTP address in the log line of a server that is ready.
fn address(line: &str) -> Option<SocketAddr> {
    line.split_once("http=\"")?.1.split('"').next()?.parse().ok()
}

pub(crate) fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Polls until `holds` returns true.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < end, "not within {WAIT_MAX:?}: {what}");
        std::thread::sleep(LOOK_WAIT);
    }
}

pub(crate) fn at(server: &Server) -> SocketAddr {
    server.rpc().address()
}

/// Sends a `POST` with JSON; returns the status and the JSON of the answer.
#[track_caller]
pub(crate) fn post(to: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = request(to, "POST", path, &body.to_string()).expect("an answer");
    (status, serde_json::from_str(&answer).expect("JSON"))
}

/// Sends a `GET`, whose answer must have status 200; returns its JSON.
#[track_caller]
pub(crate) fn get(to: SocketAddr, path: &str) -> Value {
    let (status, answer) = request(to, "GET", path, "").expect("an answer");
    assert_eq!(status, 200, "{path}: {answer}");
    serde_json::from_str(&answer).expect("JSON")
}
