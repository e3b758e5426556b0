//! A separate PostgreSQL server: started in a temporary folder on a free loopback port, stopped and removed when
//! dropped, even after an error or a panic.
//!
//! PostgreSQL refuses to run as root; then everything runs as user `postgres`.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Context, bail, ensure};
use tokio_postgres::{Client, NoTls};

/// The user that runs the server if we are root, and its superuser in any case.
const USER: &str = "postgres";

/// Another process may take the port before the server binds it; then another port is tried.
const START_ATTEMPTS_MAX: usize = 5;

/// Server settings that a run may choose.
#[derive(Clone, Debug)]
pub struct Durability {
    pub synchronous_commit: String,
    pub fsync: String,
}

/// Settings that every run shares, besides [`Durability`]. Checkpoints and autovacuum are kept out of the
/// measurements: the harness does their work between phases. An autovacuum that collects statistics in the middle of
/// a backlog changes plans (see `rounds`), and the figures would depend on when it happened to run.
pub const FIXED_SETTINGS: &[(&str, &str)] = &[
    ("max_connections", "200"),
    ("shared_buffers", "512MB"),
    ("max_wal_size", "8GB"),
    ("checkpoint_timeout", "30min"),
    ("autovacuum", "off"),
    ("jit", "off"),
];

pub struct Server {
    programs: Programs,
    // Removes the folder, which must happen after the stop in `drop`.
    _folder: tempfile::TempDir,
    data: PathBuf,
    port: u16,
    postmaster: u32,
}

impl Server {
    /// Creates a cluster below `parent` and starts it.
    pub fn start(parent: &Path, durability: &Durability) -> anyhow::Result<Self> {
        Self::start_with(parent, durability, &[])
    }

    /// Like [`Server::start`], with more settings, which override the shared ones.
    pub fn start_with(
        parent: &Path,
        durability: &Durability,
        more: &[(&str, &str)],
    ) -> anyhow::Result<Self> {
        let programs = Programs::find()?;
        let folder = tempfile::Builder::new()
            .prefix("bench-pg-")
            .tempdir_in(parent)
            .with_context(|| format!("creating a folder in {}", parent.display()))?;
        programs.give(folder.path())?;
        let data = folder.path().join("data");
        let mut initdb = programs.command("initdb");
        initdb.args(["-A", "trust", "-U", USER, "-E", "UTF8", "--locale=C", "-D"]).arg(&data);
        run(&mut initdb)?;
        let (port, postmaster) = start(&programs, folder.path(), &data, durability, more)?;
        Ok(Self { programs, _folder: folder, data, port, postmaster })
    }

    pub async fn create(&self, database: &str) -> anyhow::Result<()> {
        let client = self.connect(USER).await?;
        client.batch_execute(&format!("CREATE DATABASE {database}")).await?;
        Ok(())
    }

    /// Drops a database, even if clients are connected to it.
    pub async fn drop(&self, database: &str) -> anyhow::Result<()> {
        let client = self.connect(USER).await?;
        client.batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)")).await?;
        Ok(())
    }

    /// A connection for the harness itself, closed when the client is dropped.
    pub async fn connect(&self, database: &str) -> anyhow::Result<Client> {
        let (client, connection) = tokio_postgres::connect(&self.url(database), NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }

    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/{database}", self.port)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn postmaster(&self) -> u32 {
        self.postmaster
    }

    /// One of the server's programs, run as its user.
    pub fn command(&self, program: &str) -> Command {
        self.programs.command(program)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let mut stop = self.programs.command("pg_ctl");
        stop.args(["stop", "-s", "-w", "-m", "immediate", "-D"]).arg(&self.data);
        if let Err(error) = run(&mut stop) {
            eprintln!("stopping PostgreSQL (process {}): {error:#}", self.postmaster);
        }
    }
}

/// A transaction that prevents the removal of dead rows until it is dropped.
pub struct IdleTransaction {
    _client: Client,
}

impl IdleTransaction {
    /// Takes a snapshot in `database` and keeps it.
    pub async fn open(server: &Server, database: &str) -> anyhow::Result<Self> {
        let client = server.connect(database).await?;
        client
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1")
            .await?;
        Ok(Self { _client: client })
    }
}

fn start(
    programs: &Programs,
    folder: &Path,
    data: &Path,
    durability: &Durability,
    more: &[(&str, &str)],
) -> anyhow::Result<(u16, u32)> {
    let log = folder.join("log");
    for attempt in 1.. {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        configure(folder, data, port, durability, more)?;
        let mut start = programs.command("pg_ctl");
        start.args(["start", "-s", "-w", "-t", "60", "-l"]).arg(&log).arg("-D").arg(data);
        let Err(error) = run(&mut start) else {
            return Ok((port, read_postmaster(data)?));
        };
        if attempt == START_ATTEMPTS_MAX {
            let log = fs::read_to_string(&log).unwrap_or_default();
            return Err(error.context(format!("starting PostgreSQL; its log:\n{log}")));
        }
    }
    unreachable!("the loop ends by a return")
}

fn configure(
    folder: &Path,
    data: &Path,
    port: u16,
    durability: &Durability,
    more: &[(&str, &str)],
) -> anyhow::Result<()> {
    let mut text = format!(
        "port = {port}\nlisten_addresses = '127.0.0.1'\nunix_socket_directories = '{}'\n\
         synchronous_commit = {}\nfsync = {}\n",
        folder.display(),
        durability.synchronous_commit,
        durability.fsync
    );
    for (name, value) in FIXED_SETTINGS.iter().chain(more) {
        text.push_str(&format!("{name} = '{value}'\n"));
    }
    // Read after all other settings, and rewritten on every attempt.
    fs::write(data.join("postgresql.auto.conf"), text).context("writing the server's settings")
}

fn read_postmaster(data: &Path) -> anyhow::Result<u32> {
    let text = fs::read_to_string(data.join("postmaster.pid")).context("reading postmaster.pid")?;
    let first = text.lines().next().unwrap_or_default();
    first.trim().parse().with_context(|| format!("reading the process id {first:?}"))
}

/// Location of the server's programs, and whether to run them as another user.
struct Programs {
    folder: PathBuf,
    as_user: bool,
}

impl Programs {
    fn find() -> anyhow::Result<Self> {
        let as_user = rustix::process::geteuid().is_root();
        let folder = bin_folder()?;
        ensure!(folder.join("initdb").exists(), "no initdb in {}", folder.display());
        Ok(Self { folder, as_user })
    }

    fn command(&self, program: &str) -> Command {
        let program = self.folder.join(program);
        let mut command = if self.as_user {
            let mut command = Command::new("runuser");
            command.args(["-u", USER, "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        // The caller's settings must not reach the server or its clients, and the current folder must be readable for
        // them.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command.current_dir("/");
        command
    }

    /// Makes the server's user the owner of the folder.
    fn give(&self, folder: &Path) -> anyhow::Result<()> {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
        if self.as_user {
            let id = |flag: &str| -> anyhow::Result<u32> {
                let output = run(Command::new("id").args([flag, USER]))?;
                Ok(String::from_utf8_lossy(&output.stdout).trim().parse()?)
            };
            chown(folder, Some(id("-u")?), Some(id("-g")?))?;
        }
        Ok(())
    }
}

/// The folder reported by `pg_config` if it has the server's programs, else the newest version in Debian's location.
fn bin_folder() -> anyhow::Result<PathBuf> {
    if let Ok(output) = run(Command::new("pg_config").arg("--bindir")) {
        let folder = PathBuf::from(String::from_utf8_lossy(&output.stdout).trim());
        if folder.join("initdb").exists() {
            return Ok(folder);
        }
    }
    let mut versions: Vec<(u32, PathBuf)> = Vec::new();
    for entry in fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten() {
        if let Some(version) = entry.file_name().to_str().and_then(|name| name.parse().ok()) {
            versions.push((version, entry.path().join("bin")));
        }
    }
    versions.sort();
    match versions.pop() {
        Some((_, folder)) => Ok(folder),
        None => bail!("PostgreSQL's programs (initdb, pg_ctl, pgbench) are not installed"),
    }
}

/// Runs a command to its end; an error contains its output.
pub fn run(command: &mut Command) -> anyhow::Result<Output> {
    // `pg_ctl` passes its descriptors on to the server, so waiting for a pipe to close would block.
    let mut out = tempfile::tempfile()?;
    let err = out.try_clone()?;
    let status = command
        .stdin(std::process::Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err)
        .status()
        .with_context(|| format!("running {command:?}"))?;
    let mut stdout = Vec::new();
    std::io::Seek::rewind(&mut out)?;
    std::io::Read::read_to_end(&mut out, &mut stdout)?;
    ensure!(status.success(), "{command:?}: {status}: {}", String::from_utf8_lossy(&stdout).trim());
    Ok(Output { status, stdout, stderr: Vec::new() })
}
