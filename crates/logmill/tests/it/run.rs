//! The server: one per folder, stopped by a signal, started again after a crash.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use logmill_io::sql::SqliteSettings;
use logmill_io::{OsEntropy, Sql, SystemClock};
use logmill_work::{NewJob, Queue};

use crate::process::{LOGMILL, Place, READY, Server, command, finish, wait_until};

/// The one kind that a server runs by itself. Every ten minutes its schedule adds a job, so counts may be one higher.
const KIND: &str = "logmill.maintenance";

/// Puts jobs into a folder before any server has it.
fn prepare(place: &Place, jobs: usize) {
    std::fs::create_dir_all(place.data()).expect("the folder is made");
    let file = SqliteSettings::file(place.data().join("work.db"));
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
fn a_second_server_on_the_same_folder_is_refused_by_folder_and_process() {
    let place = Place::new();
    let server = place.serve();
    let refused = place.run(&["run"]);
    let (folder, process) =
        (place.data().display().to_string(), format!("process {}", server.id()));
    refused.refused(1, &[&folder, &process]);
    assert!(server.terminate().success(), "the first was not disturbed");
    assert!(place.serve().terminate().success(), "and the folder is free again");
}

#[test]
fn a_server_waits_for_a_command_that_has_the_folder_for_a_moment() {
    let place = Place::new();
    let held = logmill_io::sql::DataFolder::take(place.data()).expect("the folder is free");
    let mut server = place.start_server();
    server.expect_line("waits for the data folder");
    drop(held);
    server.expect_line(READY);
    assert!(server.terminate().success());
}

#[test]
fn commands_that_come_at_once_while_a_server_starts_all_succeed() {
    let place = Place::new();
    let commands: Vec<_> =
        (0..12).map(|key| place.start(&["jobs", "enqueue", "k", &key.to_string()])).collect();
    let server = place.serve();
    for mut command in commands {
        assert!(command.wait().expect("it ends").success());
    }
    assert_eq!(place.count("k", "pending"), 12);
    assert!(server.terminate().success());
}

#[test]
fn a_server_says_that_it_is_ready_with_fields() {
    let place = Place::new();
    let data = place.data();
    let mut run = command(LOGMILL, place.root());
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
fn sigterm_ends_the_server_with_0_and_gives_back_what_ran() {
    const JOBS: u64 = 5_000;
    let place = Place::new();
    prepare(&place, 5_000);
    let server = place.serve();
    wait_until("the first is done", || place.count(KIND, "done") > 0);
    assert!(server.terminate().success());
    let (done, pending) = (place.count(KIND, "done"), place.count(KIND, "pending"));
    assert_eq!(place.count(KIND, "running"), 0);
    assert!((JOBS..=JOBS + 1).contains(&(done + pending)), "{done} done, {pending} pending");
    assert!(pending > 0, "it was stopped in the middle");
    let left = place.run(&["jobs", "list", KIND, "--state", "pending", "--json"]).json();
    let attempts = |job: &serde_json::Value| job["attempts"].as_i64();
    assert!(left.as_array().expect("a list").iter().all(|job| attempts(job) == Some(0)));
    assert!(!place.data().join("control.sock").exists(), "the socket is gone");
}

#[test]
fn sigint_ends_the_server_with_0() {
    let place = Place::new();
    let mut server = place.serve();
    crate::process::signal("INT", server.id());
    server.expect_line("SIGINT");
    server.expect_line("stopped");
}

#[test]
fn after_kill_9_the_next_server_goes_on_with_every_job() {
    const JOBS: u64 = 3_000;
    let short = ["database.durability=relaxed", "work.lease_ms=1000", "work.slow_poll_ms=500"];
    let place = Place::with(&short);
    prepare(&place, 3_000);
    let server = place.serve();
    place.run(&["jobs", "enqueue", "other", "kept"]).answer();
    wait_until("the first is done", || place.count(KIND, "done") > 0);
    server.kill();
    let done = place.count(KIND, "done");
    assert!(done < JOBS, "it was killed in the middle");
    assert!(place.data().join("control.sock").exists(), "nobody tidied up");
    // Without a server a command takes the folder itself, past the stale socket.
    assert_eq!(place.run(&["jobs", "enqueue", "other", "alone"]).answer(), "created");
    let server = place.serve();
    wait_until("all are done", || place.count(KIND, "done") >= JOBS);
    assert_eq!(place.run(&["jobs", "enqueue", "other", "through"]).answer(), "created");
    assert_eq!(place.count("other", "pending"), 3);
    assert!(server.terminate().success());
}

#[test]
fn a_stale_control_socket_is_replaced() {
    let place = Place::new();
    std::fs::create_dir_all(place.data()).expect("the folder is made");
    let socket = place.data().join("control.sock");
    drop(std::os::unix::net::UnixListener::bind(&socket).expect("bound"));
    assert!(socket.exists(), "a socket that nobody listens on");
    let server = place.serve();
    assert_eq!(place.run(&["jobs", "enqueue", "k", "1"]).answer(), "created");
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
fn what_is_done_and_older_than_the_retention_is_removed() {
    let place = Place::with(&["database.durability=relaxed", "work.retention_hours=0"]);
    let server = place.serve();
    place.run(&["jobs", "enqueue", KIND, "first"]).answer();
    let mut later = 0;
    wait_until("a later one removed the first", || {
        later += 1;
        place.run(&["jobs", "enqueue", KIND, &format!("later-{later}")]).answer();
        place.run(&["jobs", "show", KIND, "first"]).code == Some(1)
    });
    assert!(server.terminate().success());
}
