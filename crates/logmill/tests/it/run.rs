//! The server: one per folder, stopped by a signal, started again after a crash.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_work::{NewJob, Queue};

use crate::process::{LOGMILL, READY, Sandbox, Server, command, finish, wait_until};

/// The one kind of job that a server schedules by itself, every ten minutes; so counts may be one higher.
const KIND: &str = "logmill.maintenance";

/// Adds jobs to a folder that no server has used yet.
fn prepare(sandbox: &Sandbox, jobs: usize) {
    std::fs::create_dir_all(sandbox.data()).expect("the folder is made");
    let file = SqliteSettings::file(sandbox.data().join("work.db"));
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let sql = Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await;
        let queue = Queue::open(sql.expect("a database")).await.expect("a queue");
        let jobs: Vec<NewJob> =
            (0..jobs).map(|n| NewJob::new(KIND, format!("{n:06}"), "{}")).collect();
        queue.enqueue_many(&jobs).await.expect("enqueued");
    });
}

#[test]
fn a_second_server_on_the_same_folder_is_refused_with_folder_and_process() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve();
    let refused = sandbox.run(&["run"]);
    let (folder, process) =
        (sandbox.data().display().to_string(), format!("process {}", server.id()));
    refused.assert_refused(1, &[&folder, &process]);
    assert!(server.terminate().success(), "the first was not disturbed");
    assert!(sandbox.serve().terminate().success(), "and the folder is free again");
}

#[test]
fn a_server_waits_for_a_command_that_has_the_folder_for_a_moment() {
    let sandbox = Sandbox::new();
    let held = logmill_io::sql::DataFolder::take(sandbox.data()).expect("the folder is free");
    let mut server = sandbox.start_server();
    server.expect_line("waiting for the data folder");
    drop(held);
    server.expect_line(READY);
    assert!(server.terminate().success());
}

#[test]
fn commands_that_come_at_once_while_a_server_starts_all_succeed() {
    let sandbox = Sandbox::new();
    let commands: Vec<_> =
        (0..12).map(|key| sandbox.start(&["jobs", "enqueue", "k", &key.to_string()])).collect();
    let server = sandbox.serve();
    for mut command in commands {
        assert!(command.wait().expect("it ends").success());
    }
    assert_eq!(sandbox.count("k", "pending"), 12);
    assert!(server.terminate().success());
}

#[test]
fn the_log_line_of_a_ready_server_has_fields() {
    let sandbox = Sandbox::new();
    let data = sandbox.data();
    let mut run = command(LOGMILL, sandbox.root());
    run.args(["run", "--set", "log.format=json", "--data"]).arg(&data);
    let mut child = run.stderr(std::process::Stdio::piped()).spawn().expect("it starts");
    let mut line = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut stderr, &mut line).expect("a line");
    child.kill().expect("killed");
    child.wait().expect("ended");
    let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!(line["message"], "ready");
    assert_eq!(line["pid"], child.id());
    assert_eq!(line["database"], "sqlite");
    assert_eq!(line["control"], data.join("control.sock").display().to_string());
}

#[test]
fn sigterm_ends_the_server_with_0_and_releases_running_jobs() {
    const JOBS: u64 = 5_000;
    let sandbox = Sandbox::new();
    prepare(&sandbox, 5_000);
    let server = sandbox.serve();
    wait_until("the first is done", || sandbox.count(KIND, "done") > 0);
    assert!(server.terminate().success());
    let (done, pending) = (sandbox.count(KIND, "done"), sandbox.count(KIND, "pending"));
    assert_eq!(sandbox.count(KIND, "running"), 0);
    assert!((JOBS..=JOBS + 1).contains(&(done + pending)), "{done} done, {pending} pending");
    assert!(pending > 0, "it was stopped in the middle");
    let left = sandbox.run(&["jobs", "list", KIND, "--state", "pending", "--json"]).json();
    let attempts = |job: &serde_json::Value| job["attempts"].as_i64();
    assert!(left.as_array().expect("a list").iter().all(|job| attempts(job) == Some(0)));
    assert!(!sandbox.data().join("control.sock").exists(), "the socket is gone");
}

#[test]
fn sigint_ends_the_server_with_0() {
    let sandbox = Sandbox::new();
    let mut server = sandbox.serve();
    crate::process::signal("INT", server.id());
    server.expect_line("SIGINT");
    server.expect_line("stopped");
}

#[test]
fn after_kill_9_the_next_server_continues_with_every_job() {
    const JOBS: u64 = 3_000;
    let short = ["database.durability=relaxed", "work.lease_ms=1000", "work.slow_poll_ms=500"];
    let sandbox = Sandbox::with(&short);
    prepare(&sandbox, 3_000);
    let server = sandbox.serve();
    sandbox.run(&["jobs", "enqueue", "other", "kept"]).answer();
    wait_until("the first is done", || sandbox.count(KIND, "done") > 0);
    server.kill();
    let done = sandbox.count(KIND, "done");
    assert!(done < JOBS, "it was killed in the middle");
    assert!(sandbox.data().join("control.sock").exists(), "nobody tidied up");
    // Without a server, a command opens the folder itself and ignores the stale socket.
    assert_eq!(sandbox.run(&["jobs", "enqueue", "other", "alone"]).answer(), "created");
    let server = sandbox.serve();
    wait_until("all are done", || sandbox.count(KIND, "done") >= JOBS);
    assert_eq!(sandbox.run(&["jobs", "enqueue", "other", "through"]).answer(), "created");
    assert_eq!(sandbox.count("other", "pending"), 3);
    assert!(server.terminate().success());
}

#[test]
fn a_stale_control_socket_is_replaced() {
    let sandbox = Sandbox::new();
    std::fs::create_dir_all(sandbox.data()).expect("the folder is made");
    let socket = sandbox.data().join("control.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    assert!(socket.exists(), "a socket that nobody listens on");
    let server = sandbox.serve();
    assert_eq!(sandbox.run(&["jobs", "enqueue", "k", "1"]).answer(), "created");
    let mode = std::fs::metadata(&socket).expect("the socket").permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "for its owner alone");
    assert!(server.terminate().success());
}

#[test]
fn a_data_folder_with_a_long_path_has_its_socket_too() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let data = root.path().join("long".repeat(20)).join("longer".repeat(20));
    let on = |arguments: &[&str], data: &Path| {
        let mut command = command(LOGMILL, root.path());
        command.args(arguments).arg("--data").arg(data);
        command
    };
    let server = Server::start(&mut on(&["run"], &data));
    let enqueued = finish(&mut on(&["jobs", "enqueue", "k", "1"], &data));
    assert_eq!(enqueued.answer(), "created");
    assert!(server.terminate().success());
}

#[test]
fn jobs_done_longer_ago_than_the_retention_are_removed() {
    let sandbox = Sandbox::with(&["database.durability=relaxed", "work.retention_hours=0"]);
    let server = sandbox.serve();
    sandbox.run(&["jobs", "enqueue", KIND, "first"]).answer();
    let mut later = 0;
    wait_until("a later one removed the first", || {
        later += 1;
        sandbox.run(&["jobs", "enqueue", KIND, &format!("later-{later}")]).answer();
        sandbox.run(&["jobs", "show", KIND, "first"]).code == Some(1)
    });
    assert!(server.terminate().success());
}
