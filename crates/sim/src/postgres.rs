//! A separate PostgreSQL server for one test.
//!
//! Guarantees: it listens only on loopback, on a free port, in a temporary folder, and ends when its handle is
//! dropped or the test process dies. Leaves to others: installing PostgreSQL (`make test` does).

use std::fmt;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// How often a starting server is polled.
const START_CHECKS_MAX: u32 = 600;
const START_CHECK_WAIT: Duration = Duration::from_millis(50);
/// Number of ports tried for a new server.
const PORTS_MAX: u32 = 5;

pub struct PostgresServer {
    binaries: PathBuf,
    folder: TempDir,
    port: u16,
    password: bool,
    process: Option<Child>,
}

impl fmt::Debug for PostgresServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PostgresServer(port {})", self.port)
    }
}

impl PostgresServer {
    /// Starts a server that trusts all connections from this machine.
    ///
    /// # Panics
    /// If PostgreSQL is not installed or does not start.
    pub fn start() -> Self {
        Self::start_with(false)
    }

    /// Starts a server that requires the password `right` for the user `postgres`.
    pub fn start_with_password() -> Self {
        Self::start_with(true)
    }

    fn start_with(password: bool) -> Self {
        let binaries = binaries().expect("PostgreSQL is installed (tools/postgres.sh installs it)");
        let folder =
            tempfile::Builder::new().prefix("logmill-pg-").tempdir().expect("a temporary folder");
        if is_root() {
            run(Command::new("chown").arg("postgres").arg(folder.path()));
        }
        let mut server = Self { binaries, folder, port: 0, password, process: None };
        server.init();
        // Another process may take the port before the server binds it.
        let up = (0..PORTS_MAX).any(|_| {
            server.port = free_port();
            server.try_resume()
        });
        assert!(up, "postgres did not start: {}", server.log());
        server
    }

    fn init(&self) {
        let mut initdb = self.command("initdb");
        initdb.arg("-D").arg(self.data()).args(["-U", "postgres", "--no-sync", "-E", "UTF8"]);
        if self.password {
            let file = self.folder.path().join("password");
            std::fs::write(&file, "right\n").expect("the password is written");
            if is_root() {
                run(Command::new("chown").arg("postgres").arg(&file));
            }
            initdb.args(["-A", "scram-sha-256"]).arg(format!("--pwfile={}", file.display()));
        } else {
            initdb.args(["-A", "trust"]);
        }
        run(&mut initdb);
    }

    /// Starts the server again after [`PostgresServer::stop`], on the same port and data.
    ///
    /// # Panics
    /// If it does not start.
    pub fn resume(&mut self) {
        assert!(self.try_resume(), "postgres did not start: {}", self.log());
    }

    /// Starts the server; returns whether it came up.
    fn try_resume(&mut self) -> bool {
        let log = std::fs::File::create(self.folder.path().join("log")).expect("a log file");
        let mut postgres = self.command("postgres");
        postgres
            .arg("-D")
            .arg(self.data())
            .args(["-p", &self.port.to_string()])
            .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="])
            // Safe: tests stop the server, but the machine stays up.
            .args(["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "max_connections=200"])
            .stderr(log)
            .stdout(Stdio::null());
        let mut process = postgres.spawn().expect("postgres starts");
        for _ in 0..START_CHECKS_MAX {
            // Check this first: once our server has ended, another one may answer on the port.
            if process.try_wait().expect("it is ours").is_some() {
                return false;
            }
            let mut ready = Command::new(self.binaries.join("pg_isready"));
            ready.args(["-q", "-h", "127.0.0.1", "-p", &self.port.to_string()]);
            if self.has_port() && ready.status().is_ok_and(|status| status.success()) {
                self.process = Some(process);
                return true;
            }
            std::thread::sleep(START_CHECK_WAIT);
        }
        // Killing it is safe, since it is our child.
        let _ = process.kill();
        let _ = process.wait();
        false
    }

    /// Whether our server reports that it accepts connections: its pid file has the status `ready`.
    fn has_port(&self) -> bool {
        let file = std::fs::read_to_string(self.data().join("postmaster.pid")).unwrap_or_default();
        file.lines().nth(7).is_some_and(|status| status.trim() == "ready")
    }

    /// Suspends the server and all of its processes, like a machine that hangs, until [`PostgresServer::thaw`].
    ///
    /// # Panics
    /// If a process cannot be signalled.
    pub fn freeze(&self) {
        self.signal_all("STOP");
    }

    /// Resumes a suspended server.
    ///
    /// # Panics
    /// If a process cannot be signalled.
    pub fn thaw(&self) {
        self.signal_all("CONT");
    }

    fn signal_all(&self, name: &str) {
        let process = self.process.as_ref().expect("it runs");
        let id = process.id().to_string();
        let children = Command::new("pgrep").args(["-P", &id]).output().expect("pgrep runs");
        let children = String::from_utf8(children.stdout).expect("numbers");
        // The parent first, so that it starts no further processes.
        run(Command::new("kill").arg(format!("-{name}")).arg(&id));
        for child in children.split_whitespace() {
            // The process of a connection that has just closed is gone.
            let _ = Command::new("kill").arg(format!("-{name}")).arg(child).status();
        }
    }

    /// Stops the server immediately, like a crash.
    ///
    /// # Panics
    /// If it cannot be stopped.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A suspended process would not receive the signal.
            run(Command::new("kill").args(["-CONT", &process.id().to_string()]));
            // SIGQUIT is PostgreSQL's immediate shutdown: clients are not notified.
            run(Command::new("kill").args(["-QUIT", &process.id().to_string()]));
            process.wait().expect("it ends");
        }
    }

    /// URL for any client.
    pub fn url(&self) -> String {
        self.url_with_password("right")
    }

    /// URL with another password.
    pub fn url_with_password(&self, password: &str) -> String {
        format!("postgresql://postgres:{password}@127.0.0.1:{}/postgres", self.port)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A PostgreSQL program, run as a user that may run it; it ends with this process.
    fn command(&self, program: &str) -> Command {
        let program = self.binaries.join(program);
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "QUIT"]);
        if is_root() {
            command.args(["--reuid", "postgres", "--regid", "postgres", "--clear-groups"]);
        }
        command.arg(program).current_dir(self.folder.path());
        command
    }
}

impl Drop for PostgresServer {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A port on loopback that is free right now.
///
/// # Panics
/// If there is none.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Whether a process listens on a loopback port.
pub fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn binaries() -> Option<PathBuf> {
    let debian = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> = debian.map(|version| version.path().join("bin")).collect();
    // The newest version last.
    found.sort();
    let in_path = std::env::var_os("PATH").unwrap_or_default();
    found.splice(0..0, std::env::split_paths(&in_path));
    found.into_iter().rev().find(|folder| folder.join("postgres").is_file() && has_initdb(folder))
}

fn has_initdb(folder: &Path) -> bool {
    folder.join("initdb").is_file()
}

fn is_root() -> bool {
    // The owner of our process folder is our user.
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {said}");
}
