//! Processes under test: commands that end, and servers that run until they are told.
//!
//! Guarantees: a process sees no setting of the machine it runs on, and a server dies with its handle. Nothing
//! waits longer than [`WAIT_MAX`]. Leaves to others: what is expected.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use logmill_sim::http::JsonRpc;
use serde_json::Value;
use tempfile::TempDir;

/// How long anything may take.
const WAIT_MAX: Duration = Duration::from_secs(60);
const LOOK_WAIT: Duration = Duration::from_millis(20);
/// Lines of a server's log that are kept until somebody reads them.
const LINES_MAX: usize = 100_000;

/// What is in the line by which a server says that it is ready.
pub(crate) const READY: &str = " ready ";
/// The program.
pub(crate) const LOGMILL: &str = env!("CARGO_BIN_EXE_logmill");

/// What a command did.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ended {
    /// What it answered; it must have gone well.
    #[track_caller]
    pub(crate) fn answer(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.stdout.trim()
    }

    /// The answer as JSON.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(self.answer()).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// It must have ended with this code and an error that holds all of these.
    #[track_caller]
    pub(crate) fn refused(&self, code: i32, said: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        let error = self.stderr.lines().find(|line| line.starts_with("error: "));
        let error = error.unwrap_or_else(|| panic!("no error line: {self:?}"));
        for part in said {
            assert!(error.contains(part), "{part:?} is not in {error:?}");
        }
    }
}

/// The program with nothing of this machine around it; `folder` is where it runs. What it serves, it serves on a port
/// that is free.
pub(crate) fn command(program: impl AsRef<OsStr>, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().current_dir(folder).stdin(Stdio::null());
    command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
    // Other tests, and servers that have nothing to do with tests, run at the same time.
    command.env("LOGMILL_SERVER_LISTEN", "127.0.0.1:0").env("LOGMILL_COLLECT_API_PORT", "0");
    command
}

/// Runs a command to its end.
#[track_caller]
pub(crate) fn finish(command: &mut Command) -> Ended {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// A data folder, and commands and servers on it.
pub(crate) struct Place {
    folder: TempDir,
    settings: Vec<String>,
}

impl Place {
    /// SQLite in a folder that does not exist yet.
    pub(crate) fn new() -> Self {
        // Durability is not the point: no test cuts the power.
        Self::with(&["database.durability=relaxed"])
    }

    /// The same with settings of its own.
    pub(crate) fn with(settings: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder, settings: settings.iter().map(|setting| (*setting).to_owned()).collect() }
    }

    /// Where commands run; the data folder is below.
    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn data(&self) -> std::path::PathBuf {
        self.folder.path().join("data")
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(LOGMILL, self.folder.path());
        command.args(arguments).arg("--data").arg(self.data());
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command
    }

    /// Runs a command to its end.
    #[track_caller]
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        finish(&mut self.command(arguments))
    }

    /// Starts a command that is waited for later.
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

    /// Starts another command that runs until it is told to stop, and waits until it is ready.
    pub(crate) fn start_with(&self, arguments: &[&str]) -> Server {
        Server::start(&mut self.command(arguments))
    }

    /// Starts a server and does not wait.
    pub(crate) fn start_server(&self) -> Server {
        Server::spawn(&mut self.command(&["run"]))
    }

    /// How many jobs of a kind are in a state.
    #[track_caller]
    pub(crate) fn count(&self, kind: &str, state: &str) -> u64 {
        let status = self.run(&["jobs", "status", "--json"]).json();
        let kinds = status["kinds"].as_array().expect("a list");
        let found = kinds.iter().find(|row| row["kind"] == kind && row["state"] == state);
        found.map_or(0, |row| row["jobs"].as_u64().expect("a number"))
    }
}

/// A running server.
pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    log: String,
    http: Option<SocketAddr>,
}

impl Server {
    /// Starts it and waits until it says that it is ready.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut server = Self::spawn(command);
        let ready = server.expect_line(READY);
        server.http = address(&ready);
        server
    }

    /// Where it serves HTTP.
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
        Self { child, lines, log: String::new(), http: None }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits for a line of the log that holds `part`.
    pub(crate) fn expect_line(&mut self, part: &str) -> String {
        let end = Instant::now() + WAIT_MAX;
        loop {
            match self.lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    self.log.push_str(&line);
                    self.log.push('\n');
                    if line.contains(part) {
                        return line;
                    }
                }
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

    /// Whether it has logged a line that holds `part`.
    pub(crate) fn saw(&mut self, part: &str) -> bool {
        self.log.extend(self.lines.try_iter().flat_map(|line| [line, "\n".to_owned()]));
        self.log.contains(part)
    }

    /// Waits for the end of a server that was told to stop, for as long as this; returns its log too.
    pub(crate) fn ended_within(mut self, limit: Duration) -> (ExitStatus, String) {
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

    /// What it has logged, as far as it was waited for.
    pub(crate) fn log(&self) -> &str {
        &self.log
    }

    /// Waits for the end of a server that was told to stop.
    pub(crate) fn ended(mut self) -> ExitStatus {
        self.child.wait().expect("it ends")
    }

    /// Sends SIGKILL, as the operating system does to a process that takes too much.
    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it is killed");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The address in the line of a server that is ready.
fn address(line: &str) -> Option<SocketAddr> {
    line.split_once("http=\"")?.1.split('"').next()?.parse().ok()
}

pub(crate) fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.expect("kill runs").success());
}

/// Looks until `holds`.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + WAIT_MAX;
    while !holds() {
        assert!(Instant::now() < end, "not within {WAIT_MAX:?}: {what}");
        std::thread::sleep(LOOK_WAIT);
    }
}
