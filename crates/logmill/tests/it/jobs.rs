//! `logmill jobs …`: the same answers with and without a running server.

use crate::process::{Sandbox, wait_until};

#[test]
fn every_change_works_through_a_server_and_without_one() {
    for with_server in [true, false] {
        let sandbox = Sandbox::new();
        let server = with_server.then(|| sandbox.serve());
        change_everything(&sandbox);
        if let Some(server) = server {
            assert!(server.terminate().success());
        }
    }
}

fn change_everything(sandbox: &Sandbox) {
    let answer = |arguments: &[&str]| sandbox.run(arguments).answer().to_owned();
    let enqueue = ["jobs", "enqueue", "k", "a/1", "--payload", "{\"x\": 1.50}", "--priority", "-7"];
    assert_eq!(answer(&enqueue), "created");
    assert_eq!(answer(&enqueue), "already exists, unchanged");
    let shown = sandbox.run(&["jobs", "show", "k", "a/1", "--json"]).json();
    assert_eq!(shown["payload"], "{\"x\": 1.50}");
    assert_eq!((&shown["priority"], &shown["position"]), (&(-7).into(), &1.into()));
    assert!(answer(&["jobs", "show", "k", "a/1"]).contains("but no process runs this kind"));
    assert_eq!(answer(&["jobs", "cancel", "k", "a/1"]), "cancelled");
    assert_eq!(answer(&["jobs", "cancel", "k", "a/1"]), "already finished, unchanged");
    assert_eq!(answer(&["jobs", "redrive", "k", "a/1"]), "1 redriven");
    assert_eq!(answer(&["jobs", "redrive", "k"]), "0 redriven");
    for arguments in [
        &["jobs", "pause", "nosuch"][..],
        &["jobs", "resume", "nosuch"],
        &["jobs", "redrive", "nosuch"],
        &["jobs", "purge", "nosuch", "--state", "done", "--older-than", "0s"],
        &["jobs", "list", "nosuch", "--state", "dead"],
        &["jobs", "list", "nosuch", "--state", "dead", "--json"],
    ] {
        sandbox.run(arguments).assert_refused(1, &["nosuch", "jobs status"]);
    }
    let listed = sandbox.run(&["jobs", "list", "k", "--state", "dead", "--json"]).json();
    assert_eq!(listed, serde_json::json!([]), "a kind that is known may have none");
    assert_eq!(answer(&["jobs", "pause", "k"]), "paused");
    let status = sandbox.run(&["jobs", "status", "--json"]).json();
    assert_eq!(status["paused"], serde_json::json!(["k"]));
    assert!(answer(&["jobs", "status"]).ends_with("paused: k"));
    assert_eq!(answer(&["jobs", "resume", "k"]), "resumed");
    assert_eq!(answer(&["jobs", "enqueue", "k", "a/2"]), "created");
    assert_eq!(answer(&["jobs", "cancel", "k", "a/1"]), "cancelled");
    let listed = sandbox.run(&["jobs", "list", "k", "--state", "cancelled", "--json"]).json();
    assert_eq!(listed[0]["key"], "a/1");
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    let purge = ["jobs", "purge", "k", "--state", "cancelled", "--older-than"];
    assert_eq!(answer(&[&purge[..], &["1h"]].concat()), "0 removed");
    assert_eq!(answer(&[&purge[..], &["0s"]].concat()), "1 removed");
    assert_eq!(sandbox.count("k", "pending"), 1);
}

#[test]
fn a_job_of_a_kind_that_no_process_runs_is_enqueued_with_a_warning() {
    let sandbox = Sandbox::new();
    let warned = |kind: &str| {
        let output = sandbox.run(&["jobs", "enqueue", kind, "1"]);
        output.answer();
        let warning = format!("warning: no process runs jobs of the kind {kind:?} now");
        output.stderr.contains(&warning)
    };
    assert!(warned("nosuch"), "without a server");
    let server = sandbox.serve();
    assert!(warned("nosuch"), "through a server, and although the kind has a job");
    wait_until("its runner has announced itself", || !warned("logmill.maintenance"));
    assert!(server.terminate().success());
}

#[test]
fn status_reads_beside_a_running_server() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve();
    assert_eq!(sandbox.run(&["jobs", "status"]).answer(), "no jobs");
    for key in ["1", "2", "3"] {
        sandbox.run(&["jobs", "enqueue", "k", key]).answer();
    }
    assert_eq!(sandbox.count("k", "pending"), 3);
    let table = sandbox.run(&["jobs", "status"]);
    let rows: Vec<Vec<&str>> =
        table.answer().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["KIND", "STATE", "JOBS", "OLDEST"]);
    assert_eq!(rows[1][..3], ["k", "pending", "3"]);
    assert!(server.terminate().success());
}

#[test]
fn invalid_arguments_are_refused() {
    let sandbox = Sandbox::new();
    let server = sandbox.serve();
    let refused = |arguments: &[&str], code: i32, message: &[&str]| {
        sandbox.run(arguments).assert_refused(code, message);
    };
    refused(&["jobs", "show", "k", "none"], 1, &["no job k/none"]);
    refused(&["jobs", "cancel", "k", "none"], 1, &["no job k/none"]);
    refused(&["jobs", "redrive", "k", "none"], 1, &["no job k/none"]);
    refused(&["jobs", "enqueue", "k", ""], 1, &["1 to 512 bytes"]);
    refused(&["jobs", "enqueue", "k", "1", "--payload", "{"], 2, &["--payload", "not JSON"]);
    refused(
        &["jobs", "purge", "k", "--state", "running", "--older-than", "1h"],
        1,
        &["cancel them"],
    );
    refused(
        &["jobs", "purge", "k", "--state", "odd", "--older-than", "1h"],
        2,
        &["pending, running"],
    );
    refused(&["jobs", "purge", "k", "--state", "done", "--older-than", "old"], 2, &["1h30m"]);
    refused(&["jobs", "list", "k", "--state", "done", "--limit", "0"], 2, &["from 1 to 1000"]);
    assert!(server.terminate().success());
}

#[test]
fn commands_do_not_create_a_mistyped_folder() {
    let sandbox = Sandbox::new();
    for arguments in [
        &["jobs", "status"][..],
        &["jobs", "show", "k", "1"],
        &["jobs", "cancel", "k", "1"],
        &["jobs", "pause", "k"],
    ] {
        sandbox
            .run(arguments)
            .assert_refused(1, &["no database", &sandbox.data().display().to_string()]);
    }
    assert!(!sandbox.data().exists());
}

#[test]
fn a_process_that_holds_the_folder_but_does_not_answer_is_named() {
    let sandbox = Sandbox::new();
    let _held = logmill_io::sql::DataFolder::take(sandbox.data()).expect("the folder is free");
    let refused = sandbox.run(&["jobs", "enqueue", "k", "1"]);
    let (folder, process) =
        (sandbox.data().display().to_string(), format!("process {}", std::process::id()));
    refused.assert_refused(1, &[&folder, &process, "control socket"]);
}
