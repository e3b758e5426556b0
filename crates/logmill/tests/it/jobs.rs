//! `logmill jobs …`: the same answers with a server and without one.

use crate::process::Place;

#[test]
fn every_change_works_through_a_server_and_without_one() {
    for with_server in [true, false] {
        let place = Place::new();
        let server = with_server.then(|| place.serve());
        change_everything(&place);
        if let Some(server) = server {
            assert!(server.terminate().success());
        }
    }
}

fn change_everything(place: &Place) {
    let answer = |arguments: &[&str]| place.run(arguments).answer().to_owned();
    let enqueue = ["jobs", "enqueue", "k", "a/1", "--payload", "{\"x\": 1.50}", "--priority", "-7"];
    assert_eq!(answer(&enqueue), "created");
    assert_eq!(answer(&enqueue), "exists already, left alone");
    let shown = place.run(&["jobs", "show", "k", "a/1", "--json"]).json();
    assert_eq!(shown["payload"], "{\"x\": 1.50}");
    assert_eq!((&shown["priority"], &shown["position"]), (&(-7).into(), &1.into()));
    assert!(answer(&["jobs", "show", "k", "a/1"]).contains("but nobody runs this kind"));
    assert_eq!(answer(&["jobs", "cancel", "k", "a/1"]), "cancelled");
    assert_eq!(answer(&["jobs", "cancel", "k", "a/1"]), "finished already, left alone");
    assert_eq!(answer(&["jobs", "redrive", "k", "a/1"]), "1 redriven");
    assert_eq!(answer(&["jobs", "redrive", "k"]), "0 redriven");
    assert_eq!(answer(&["jobs", "pause", "k"]), "paused");
    let status = place.run(&["jobs", "status", "--json"]).json();
    assert_eq!(status["paused"], serde_json::json!(["k"]));
    assert!(answer(&["jobs", "status"]).ends_with("paused: k"));
    assert_eq!(answer(&["jobs", "resume", "k"]), "resumed");
    assert_eq!(answer(&["jobs", "enqueue", "k", "a/2"]), "created");
    assert_eq!(answer(&["jobs", "cancel", "k", "a/1"]), "cancelled");
    let listed = place.run(&["jobs", "list", "k", "--state", "cancelled", "--json"]).json();
    assert_eq!(listed[0]["key"], "a/1");
    assert_eq!(listed.as_array().map(Vec::len), Some(1));
    let purge = ["jobs", "purge", "k", "--state", "cancelled", "--older-than"];
    assert_eq!(answer(&[&purge[..], &["1h"]].concat()), "0 removed");
    assert_eq!(answer(&[&purge[..], &["0s"]].concat()), "1 removed");
    assert_eq!(place.count("k", "pending"), 1);
}

#[test]
fn status_reads_beside_a_running_server() {
    let place = Place::new();
    let server = place.serve();
    assert_eq!(place.run(&["jobs", "status"]).answer(), "no jobs");
    for key in ["1", "2", "3"] {
        place.run(&["jobs", "enqueue", "k", key]).answer();
    }
    assert_eq!(place.count("k", "pending"), 3);
    let table = place.run(&["jobs", "status"]);
    let rows: Vec<Vec<&str>> =
        table.answer().lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["KIND", "STATE", "JOBS", "OLDEST"]);
    assert_eq!(rows[1][..3], ["k", "pending", "3"]);
    assert!(server.terminate().success());
}

#[test]
fn what_makes_no_sense_is_refused() {
    let place = Place::new();
    let server = place.serve();
    let refused =
        |arguments: &[&str], code: i32, said: &[&str]| place.run(arguments).refused(code, said);
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
fn a_mistyped_folder_is_not_made_by_commands_that_expect_one() {
    let place = Place::new();
    for arguments in [
        &["jobs", "status"][..],
        &["jobs", "show", "k", "1"],
        &["jobs", "cancel", "k", "1"],
        &["jobs", "pause", "k"],
    ] {
        place.run(arguments).refused(1, &["no database", &place.data().display().to_string()]);
    }
    assert!(!place.data().exists());
}

#[test]
fn who_has_the_folder_but_does_not_answer_is_named() {
    let place = Place::new();
    let _held = logmill_io::sql::DataFolder::take(place.data()).expect("the folder is free");
    let refused = place.run(&["jobs", "enqueue", "k", "1"]);
    let (folder, process) =
        (place.data().display().to_string(), format!("process {}", std::process::id()));
    refused.refused(1, &[&folder, &process, "control socket"]);
}
