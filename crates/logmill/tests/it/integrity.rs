//! Databases that hold less than they once did, modes of files, and secrets at rest, with the program as a process.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use logmill_sim::http::request;
use logmill_sim::postgres::PostgresServer;
use serde_json::{Value, json};

use crate::process::{Place, Server};

const EVENTS: &str = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
const DATABASES: [&str; 4] = ["work.db", "index.db", "tables.db", "meter.db"];

fn at(server: &Server) -> SocketAddr {
    server.rpc().address()
}

#[track_caller]
fn post(to: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    let (status, answer) = request(to, "POST", path, &body.to_string()).expect("an answer");
    (status, serde_json::from_str(&answer).expect("JSON"))
}

#[track_caller]
fn get(to: SocketAddr, path: &str) -> Value {
    let (status, answer) = request(to, "GET", path, "").expect("an answer");
    assert_eq!(status, 200, "{path}: {answer}");
    serde_json::from_str(&answer).expect("JSON")
}

fn send(to: SocketAddr, batch: u64) {
    let event = |index: u64| {
        let id = format!("{batch}-{index}");
        json!({"eventType": "api.calls", "customerId": "acme", "value": 1, "id": id})
    };
    let (status, answer) = post(to, "/usagebatch", &(0..100).map(event).collect());
    assert_eq!(status, 201, "{answer}");
}

fn listed(to: SocketAddr) -> usize {
    get(to, "/events?limit=1000").as_array().expect("a list").len()
}

/// A place whose server ran, stored 200 events and stopped.
fn used(settings: &[&str]) -> Place {
    let place = Place::with(&[&[EVENTS], settings].concat());
    let server = place.serve();
    send(at(&server), 1);
    send(at(&server), 2);
    assert!(server.terminate().success());
    place
}

#[test]
fn a_clean_stop_leaves_no_write_ahead_log_and_the_next_start_finds_everything() {
    for settings in [&[][..], &["database.durability=relaxed"]] {
        let place = used(settings);
        for name in DATABASES {
            let file = place.data().join(name);
            assert!(file.metadata().expect("a database").len() > 4_096, "{name}");
            assert!(!place.data().join(format!("{name}-wal")).exists(), "{name}: {settings:?}");
            assert!(place.data().join(format!("{name}-state")).exists(), "{name}");
        }
        let server = place.serve();
        assert_eq!(listed(at(&server)), 200);
        assert!(server.terminate().success());
    }
}

#[test]
fn a_deleted_or_old_database_refuses_the_start_and_says_what_is_missing() {
    let place = used(&[]);
    let file = place.data().join("meter.db");
    let whole = fs::read(&file).expect("a database");
    fs::remove_file(&file).expect("deleted");
    let refused = place.run(&["run"]);
    refused.refused(1, &["meter.db has stepped back", "missing or empty", "meter.db-state"]);
    for part in ["restore it from a backup", "--accept-loss", "database-stepped-back.md"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    assert!(!file.exists(), "nothing is made in its place");

    fs::write(&file, &whole).expect("restored");
    let server = place.serve();
    send(at(&server), 3);
    assert!(server.terminate().success());
    let newest = fs::read(&file).expect("a database");
    fs::write(&file, &whole).expect("an old one");
    place.run(&["run"]).refused(1, &["meter.db has stepped back", "are gone"]);
    place.run(&["meter", "recount"]).refused(1, &["meter.db has stepped back"]);
    fs::remove_file(place.data().join("tables.db")).expect("deleted");
    place.run(&["run"]).refused(1, &["databases have stepped back", "tables.db", "meter.db"]);

    let server = place.serve_with(&["--accept-loss"]);
    assert_eq!(listed(at(&server)), 200);
    assert!(server.log().contains("the loss is accepted"), "{}", server.log());
    send(at(&server), 4);
    assert!(server.terminate().success());
    let server = place.serve();
    assert_eq!(listed(at(&server)), 300, "it is forgotten what was lost");
    assert!(server.terminate().success());
    fs::write(&file, newest).expect("the other one");
    place.run(&["run"]).refused(1, &["meter.db has stepped back"]);
}

#[test]
fn one_flipped_bit_in_the_log_of_a_killed_server_refuses_the_start() {
    let place = Place::with(&[EVENTS]);
    let server = place.serve();
    send(at(&server), 1);
    server.kill();
    let log = place.data().join("meter.db-wal");
    let whole = fs::read(&log).expect("a log");
    let mut damaged = whole.clone();
    damaged[32 + 24 + 200] ^= 1;
    fs::write(&log, &damaged).expect("damage");
    let refused = place.run(&["run"]);
    refused.refused(1, &["meter.db has stepped back"]);
    assert!(fs::read(&log).expect("a log") == damaged, "what is left is kept");
    fs::write(&log, &whole).expect("healed");
    let server = place.serve();
    assert_eq!(listed(at(&server)), 100);
    assert!(server.terminate().success());
}

/// At moments of all kinds: while it opens, migrates, records and stops.
#[test]
fn no_kill_ever_leads_to_a_refusal() {
    let place = Place::with(&[EVENTS]);
    let mut acknowledged = 0;
    for round in 0..22_u64 {
        if round % 3 == 0 {
            // In the middle of its start, a little later each time.
            let server = place.start_server();
            std::thread::sleep(Duration::from_millis(round * 9));
            server.kill();
            continue;
        }
        let server = place.serve();
        for batch in 0..round % 5 {
            send(at(&server), round * 10 + batch);
            acknowledged += 100;
        }
        if round % 7 == 0 {
            // In the middle of its stop.
            crate::process::signal("TERM", server.id());
        }
        server.kill();
    }
    assert!(acknowledged > 0 && place.serve().terminate().success());
    let recounted = place.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(acknowledged), &json!(0)));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// Every file and folder below, with what others may do with it.
fn walk(folder: &Path, found: &mut Vec<(std::path::PathBuf, u32)>) {
    found.push((folder.to_owned(), mode(folder)));
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            walk(&path, found);
        } else {
            found.push((path.clone(), mode(&path)));
        }
    }
}

#[test]
fn the_data_folder_is_its_owners_alone_also_if_it_was_not() {
    let place = Place::with(&[EVENTS, "database.durability=relaxed"]);
    let server = place.serve();
    send(at(&server), 1);
    let check = |place: &Place| {
        let mut found = Vec::new();
        walk(&place.data(), &mut found);
        assert!(found.len() > 12, "{found:?}");
        for (path, mode) in &found {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(*mode, expected, "{} has {mode:o}", path.display());
        }
        found
    };
    let found = check(&place);
    for name in ["meter.db-wal", "meter.db-state", "secrets.key", "control.sock", "logmill.lock"] {
        assert!(found.iter().any(|(path, _)| path.ends_with(name)), "{name}");
    }
    assert!(server.terminate().success());
    fs::create_dir_all(place.data().join("blobs/old+")).expect("a folder");
    fs::write(place.data().join("blobs/old+/blob"), "x").expect("a blob");
    let mut all = Vec::new();
    walk(&place.data(), &mut all);
    for (path, mode) in &all {
        let wide = if path.is_dir() { 0o755 } else { mode | 0o044 };
        fs::set_permissions(path, fs::Permissions::from_mode(wide)).expect("widened");
    }
    let server = place.serve();
    check(&place);
    assert!(server.log().contains("other users could look into this folder"), "{}", server.log());
    assert!(server.terminate().success());
}

#[test]
fn webhook_secrets_are_encrypted_and_a_restore_without_the_key_disables_the_endpoint() {
    let place = Place::with(&[EVENTS, "meter.delivery.allowed=127.0.0.1"]);
    let server = place.serve();
    let new = json!({"url": "http://127.0.0.1:9/hook", "secret": "tell-nobody-about-this"});
    let (status, made) = post(at(&server), "/webhooks/endpoints", &new);
    assert_eq!(status, 201, "{made}");
    send(at(&server), 1);
    assert!(server.terminate().success());
    let key = fs::read_to_string(place.data().join("secrets.key")).expect("a key");
    for entry in fs::read_dir(place.data()).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_file() && !path.ends_with("secrets.key") {
            let bytes = fs::read(&path).expect("a file");
            let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(!holds("tell-nobody-about-this"), "{}", path.display());
            assert!(!holds(key.lines().last().expect("a line")), "{}", path.display());
        }
    }

    // A new key first, then the old one: all is encrypted with the new one, and the old one may go.
    let new_key = place.run(&["secrets", "generate"]);
    let lines = format!("{}\n{key}", new_key.answer());
    fs::write(place.data().join("secrets.key"), lines).expect("written");
    let rekeyed = place.run(&["secrets", "rekey"]);
    assert!(rekeyed.answer().starts_with("1 secrets encrypted again, 0 already"), "{rekeyed:?}");
    fs::write(place.data().join("secrets.key"), new_key.answer()).expect("written");
    let server = place.serve();
    let shown = get(at(&server), "/webhooks/endpoints").to_string();
    assert!(shown.contains(r#""enabled":true"#), "{shown}");
    assert!(server.terminate().success());

    fs::remove_file(place.data().join("secrets.key")).expect("a restore leaves it out");
    let server = place.serve();
    let shown = get(at(&server), "/webhooks/endpoints").to_string();
    assert!(shown.contains(r#""enabled":false"#), "{shown}");
    assert!(shown.contains("a key that is not configured"), "{shown}");
    assert_eq!(listed(at(&server)), 100, "nothing else is disturbed");
    send(at(&server), 2);
    assert!(!server.log().contains("tell-nobody"), "{}", server.log());
    assert!(server.terminate().success());
    place.run(&["secrets", "rekey"]).refused(1, &["1 secrets of webhooks cannot be decrypted"]);
    fs::write(place.data().join("secrets.key"), new_key.answer()).expect("found again");
    let server = place.serve();
    let shown = get(at(&server), "/webhooks/endpoints").to_string();
    assert!(shown.contains(r#""enabled":true"#), "{shown}");
    assert!(server.terminate().success());
}

#[test]
fn postgresql_needs_a_key_for_webhooks() {
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let base = [EVENTS, &url, "database.schema=logmill_test", "meter.delivery.allowed=127.0.0.1"];
    let place = Place::with(&base);
    let server = place.serve();
    let new = json!({"url": "http://127.0.0.1:9/hook"});
    let (status, answer) = post(at(&server), "/webhooks/endpoints", &new);
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("secrets.key_file"), "{answer}");
    assert!(server.terminate().success());

    let key = place.root().join("key");
    fs::write(&key, place.run(&["secrets", "generate"]).answer()).expect("written");
    let with_key = format!("secrets.key_file={}", key.display());
    let server = place.serve_with(&["--set", &with_key]);
    let (status, answer) = post(at(&server), "/webhooks/endpoints", &new);
    assert_eq!(status, 201, "{answer}");
    assert!(server.terminate().success());
    place.run(&["run"]).refused(2, &["no key to encrypt their secrets with"]);
}
