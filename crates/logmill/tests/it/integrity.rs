//! Databases that lost commits, file modes, and secrets at rest, with the program as a process.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use logmill_io::sql::{Execute as _, SqliteSettings};
use logmill_io::{OsEntropy, Sql, SystemClock, params};
use logmill_sim::postgres::PostgresServer;
use serde_json::json;

use crate::process::{Sandbox, at, get, post};

const EVENTS: &str = r#"meter.events={ "api.calls" = { op = "sum" } }"#;
const DATABASES: [&str; 4] = ["work.db", "index.db", "tables.db", "meter.db"];

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

/// A sandbox whose server has stored 200 events and stopped.
fn used(settings: &[&str]) -> Sandbox {
    let sandbox = Sandbox::with(&[&[EVENTS], settings].concat());
    let server = sandbox.serve();
    send(at(&server), 1);
    send(at(&server), 2);
    assert!(server.terminate().success());
    sandbox
}

#[test]
fn a_clean_stop_leaves_no_write_ahead_log_and_the_next_start_finds_everything() {
    for settings in [&[][..], &["database.durability=relaxed"]] {
        let sandbox = used(settings);
        for name in DATABASES {
            let file = sandbox.data().join(name);
            assert!(file.metadata().expect("a database").len() > 4_096, "{name}");
            assert!(!sandbox.data().join(format!("{name}-wal")).exists(), "{name}: {settings:?}");
            assert!(sandbox.data().join(format!("{name}-state")).exists(), "{name}");
        }
        let server = sandbox.serve();
        assert_eq!(listed(at(&server)), 200);
        assert!(server.terminate().success());
    }
}

#[test]
fn a_deleted_or_old_database_refuses_the_start_and_says_what_is_missing() {
    let sandbox = used(&[]);
    let file = sandbox.data().join("meter.db");
    let whole = fs::read(&file).expect("a database");
    fs::remove_file(&file).expect("deleted");
    let refused = sandbox.run(&["run"]);
    refused.assert_refused(1, &["meter.db has stepped back", "missing or empty", "meter.db-state"]);
    for part in ["restore it from a backup", "--accept-loss", "database-stepped-back.md"] {
        assert!(refused.stderr.contains(part), "{part}: {refused:?}");
    }
    assert!(!file.exists(), "no new one was created");

    fs::write(&file, &whole).expect("restored");
    let server = sandbox.serve();
    send(at(&server), 3);
    assert!(server.terminate().success());
    let newest = fs::read(&file).expect("a database");
    fs::write(&file, &whole).expect("an old one");
    sandbox.run(&["run"]).assert_refused(1, &["meter.db has stepped back", "are gone"]);
    sandbox.run(&["meter", "recount"]).assert_refused(1, &["meter.db has stepped back"]);
    fs::remove_file(sandbox.data().join("tables.db")).expect("deleted");
    sandbox.run(&["run"]).assert_refused(
        1,
        &["several databases hold less than they once did", "tables.db", "meter.db"],
    );

    let server = sandbox.serve_with(&["--accept-loss"]);
    assert_eq!(listed(at(&server)), 200);
    assert!(server.log().contains("opening a database that has lost commits"), "{}", server.log());
    send(at(&server), 4);
    // Make more commits than there were before, regardless of the server's periodic commits.
    for number in 0..100 {
        let new = json!({"url": format!("https://example.com/{number}")});
        assert_eq!(post(at(&server), "/webhooks/endpoints", &new).0, 201);
    }
    assert!(server.terminate().success());
    let server = sandbox.serve();
    assert_eq!(listed(at(&server)), 300, "it is forgotten what was lost");
    assert!(server.terminate().success());
    fs::write(&file, newest).expect("the other one");
    sandbox.run(&["run"]).assert_refused(1, &["meter.db has stepped back"]);
}

#[test]
fn one_flipped_bit_in_the_log_of_a_killed_server_refuses_the_start() {
    let sandbox = Sandbox::with(&[EVENTS]);
    let server = sandbox.serve();
    send(at(&server), 1);
    server.kill();
    let log = sandbox.data().join("meter.db-wal");
    let whole = fs::read(&log).expect("a log");
    let mut damaged = whole.clone();
    damaged[32 + 24 + 200] ^= 1;
    fs::write(&log, &damaged).expect("damage");
    let refused = sandbox.run(&["run"]);
    refused.assert_refused(1, &["meter.db has stepped back"]);
    assert!(fs::read(&log).expect("a log") == damaged, "what is left is kept");
    fs::write(&log, &whole).expect("healed");
    let server = sandbox.serve();
    assert_eq!(listed(at(&server)), 100);
    assert!(server.terminate().success());
}

/// Kills at all stages: while the server opens, migrates, records and stops.
#[test]
fn a_killed_server_can_always_start_again() {
    let sandbox = Sandbox::with(&[EVENTS]);
    let mut acknowledged = 0;
    for round in 0..22_u64 {
        if round % 3 == 0 {
            // During its start, a little later each time.
            let server = sandbox.start_server();
            std::thread::sleep(Duration::from_millis(round * 9));
            server.kill();
            continue;
        }
        let server = sandbox.serve();
        for batch in 0..round % 5 {
            send(at(&server), round * 10 + batch);
            acknowledged += 100;
        }
        if round % 7 == 0 {
            // During its stop.
            crate::process::signal("TERM", server.id());
        }
        server.kill();
    }
    assert!(acknowledged > 0 && sandbox.serve().terminate().success());
    let recounted = sandbox.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(acknowledged), &json!(0)));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it is there").permissions().mode() & 0o7777
}

/// Collects every file and folder below, with its mode.
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
fn the_data_folder_is_restricted_to_its_owner_even_if_it_was_not_before() {
    let sandbox = Sandbox::with(&[EVENTS, "database.durability=relaxed"]);
    let server = sandbox.serve();
    send(at(&server), 1);
    let check = |sandbox: &Sandbox| {
        let mut found = Vec::new();
        walk(&sandbox.data(), &mut found);
        assert!(found.len() > 12, "{found:?}");
        for (path, mode) in &found {
            let expected = if path.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(*mode, expected, "{} has {mode:o}", path.display());
        }
        found
    };
    let found = check(&sandbox);
    for name in ["meter.db-wal", "meter.db-state", "secrets.key", "control.sock", "logmill.lock"] {
        assert!(found.iter().any(|(path, _)| path.ends_with(name)), "{name}");
    }
    assert!(server.terminate().success());
    fs::create_dir_all(sandbox.data().join("blobs/old+")).expect("a folder");
    fs::write(sandbox.data().join("blobs/old+/blob"), "x").expect("a blob");
    let mut all = Vec::new();
    walk(&sandbox.data(), &mut all);
    for (path, mode) in &all {
        let wide = if path.is_dir() { 0o755 } else { mode | 0o044 };
        fs::set_permissions(path, fs::Permissions::from_mode(wide)).expect("widened");
    }
    let server = sandbox.serve();
    check(&sandbox);
    assert!(server.log().contains("restricted a folder to its owner"), "{}", server.log());
    assert!(server.terminate().success());
}

/// Neither a server nor a command replaces a missing key: only the endpoints are held, until the key is restored.
/// Returns another key.
fn a_lost_key_is_not_replaced(sandbox: &Sandbox, key: &str) -> String {
    // A restore left the key out, or a crash of an earlier version left an empty file: no other key is made.
    let file = sandbox.data().join("secrets.key");
    for lost in [None, Some("")] {
        fs::remove_file(&file).expect("removed");
        if let Some(text) = lost {
            fs::write(&file, text).expect("written");
        }
        let server = sandbox.serve();
        let shown = get(at(&server), "/webhooks/endpoints").to_string();
        assert!(shown.contains(r#""enabled":false"#), "{shown}");
        assert!(shown.contains("a key that is not configured"), "{shown}");
        assert!(server.log().contains("the key file is missing or empty"), "{}", server.log());
        assert_eq!(listed(at(&server)), 100, "nothing else is disturbed");
        let new = json!({"url": "http://127.0.0.1:9/new", "secret": "another-secret-of-mine"});
        let (status, message) = post(at(&server), "/webhooks/endpoints", &new);
        assert!(
            status >= 400 && message.to_string().contains("secrets generate"),
            "{status} {message}"
        );
        assert!(server.terminate().success());
        let left = fs::read_to_string(&file).ok();
        assert_eq!(left.as_deref(), lost, "no new one was created");
        fs::write(&file, "").expect("written");
    }
    // A command needs no key, and disables nothing.
    sandbox.run(&["meter", "recount"]).answer();
    let other_key = sandbox.run(&["secrets", "generate"]);
    let with_keys = format!("secrets.keys={}", other_key.answer());
    sandbox.run(&["meter", "recount", "--set", &with_keys]).answer();
    fs::write(&file, key).expect("found again");
    let server = sandbox.serve_with(&["--set", &with_keys]);
    let shown = get(at(&server), "/webhooks/endpoints").to_string();
    assert!(shown.contains(r#""enabled":true"#), "the file decrypts beside given keys: {shown}");
    assert!(
        server.log().contains("webhook endpoint enabled: its key is available again"),
        "{}",
        server.log()
    );
    assert!(server.terminate().success());
    other_key.answer().to_owned()
}

#[test]
fn webhook_secrets_are_encrypted_and_a_restore_without_the_key_disables_the_endpoint() {
    let sandbox = Sandbox::with(&[EVENTS, "meter.delivery.allowed=127.0.0.1"]);
    let server = sandbox.serve();
    let new = json!({"url": "http://127.0.0.1:9/hook", "secret": "tell-nobody-about-this"});
    let (status, made) = post(at(&server), "/webhooks/endpoints", &new);
    assert_eq!(status, 201, "{made}");
    send(at(&server), 1);
    assert!(server.terminate().success());
    let key = fs::read_to_string(sandbox.data().join("secrets.key")).expect("a key");
    for entry in fs::read_dir(sandbox.data()).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_file() && !path.ends_with("secrets.key") {
            let bytes = fs::read(&path).expect("a file");
            let holds = |text: &str| bytes.windows(text.len()).any(|part| part == text.as_bytes());
            assert!(!holds("tell-nobody-about-this"), "{}", path.display());
            assert!(!holds(key.lines().last().expect("a line")), "{}", path.display());
        }
    }

    // New key first, then the old one: everything is encrypted again with the new one, and the old one can be removed.
    let new_key = sandbox.run(&["secrets", "generate"]);
    let lines = format!("{}\n{key}", new_key.answer());
    fs::write(sandbox.data().join("secrets.key"), lines).expect("written");
    let rekeyed = sandbox.run(&["secrets", "rekey"]);
    assert!(rekeyed.answer().starts_with("1 secrets encrypted again, 0 already"), "{rekeyed:?}");
    fs::write(sandbox.data().join("secrets.key"), new_key.answer()).expect("written");
    let server = sandbox.serve();
    let shown = get(at(&server), "/webhooks/endpoints").to_string();
    assert!(shown.contains(r#""enabled":true"#), "{shown}");
    assert!(server.terminate().success());

    let file = sandbox.data().join("secrets.key");
    let other_key = a_lost_key_is_not_replaced(&sandbox, new_key.answer());
    fs::write(&file, other_key).expect("the key is lost for good");
    let server = sandbox.serve();
    let shown = get(at(&server), "/webhooks/endpoints").to_string();
    assert!(shown.contains(r#""enabled":false"#), "{shown}");
    assert!(shown.contains("a key that is not configured"), "{shown}");
    assert_eq!(listed(at(&server)), 100, "nothing else is disturbed");
    send(at(&server), 2);
    assert!(!server.log().contains("tell-nobody"), "{}", server.log());
    assert!(server.terminate().success());
    sandbox
        .run(&["secrets", "rekey"])
        .assert_refused(1, &["1 webhook secrets cannot be decrypted"]);
    fs::write(sandbox.data().join("secrets.key"), new_key.answer()).expect("found again");
    let server = sandbox.serve();
    let shown = get(at(&server), "/webhooks/endpoints").to_string();
    assert!(shown.contains(r#""enabled":true"#), "{shown}");
    assert!(server.terminate().success());
}

#[test]
fn no_plain_secret_of_an_earlier_version_is_left_in_a_file() {
    let plain = "tell-nobody-about-this";
    let sandbox = Sandbox::with(&[EVENTS, "meter.delivery.allowed=127.0.0.1"]);
    let server = sandbox.serve();
    for number in 0..40 {
        let new = json!({"url": format!("http://127.0.0.1:9/{number}")});
        assert_eq!(post(at(&server), "/webhooks/endpoints", &new).0, 201);
    }
    assert!(server.terminate().success());
    // In the form of an earlier version; the texts are long, so that page splits leave copies.
    tamper(
        &sandbox,
        &format!("UPDATE webhook_secret SET key_id = NULL, secret = '{plain}' || endpoint_seq"),
    );
    tamper(&sandbox, "UPDATE webhook_secret SET secret = secret || secret || secret");
    let holds = || {
        let entries = fs::read_dir(sandbox.data()).expect("a folder");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        let with = paths.filter(|path| {
            let bytes = fs::read(path).unwrap_or_default();
            bytes.windows(plain.len()).any(|part| part == plain.as_bytes())
        });
        with.collect::<Vec<_>>()
    };
    assert!(!holds().is_empty());
    let server = sandbox.serve();
    assert!(server.log().contains("webhook secrets were encrypted"), "{}", server.log());
    assert_eq!(holds(), Vec::<std::path::PathBuf>::new(), "while the server runs");
    assert!(server.terminate().success());
    assert_eq!(holds(), Vec::<std::path::PathBuf>::new());
}

/// Changes the meter's database directly.
fn tamper(sandbox: &Sandbox, text: &str) {
    let file = SqliteSettings::file(sandbox.data().join("meter.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let sql = Sql::sqlite(&file, SystemClock::shared(), OsEntropy::shared()).await;
        let sql = sql.expect("a database");
        let changed = sql.write(|tx| async move { tx.execute(text, params![]).await }).await;
        assert!(changed.expect("it is changed").changed > 0, "{text}");
    });
}

#[test]
fn a_damaged_event_is_restored_or_marked_as_lost_by_commands() {
    let sandbox = used(&[]);
    let file = sandbox.data().join("meter.db");
    let copy = sandbox.root().join("copy.db");
    fs::copy(&file, &copy).expect("copied");
    // Change one letter of two rows in the file, where source, id and amount are adjacent.
    let mut bytes = fs::read(&file).expect("a database");
    for id in [b"local1-411", b"local2-411"] {
        // A page split may have left a copy.
        let found = |bytes: &[u8]| bytes.windows(id.len()).position(|part| part == id);
        found(&bytes).expect("the row");
        while let Some(at) = found(&bytes) {
            bytes[at] = b'k';
        }
    }
    fs::write(&file, &bytes).expect("damage");
    let server = sandbox.serve();
    let listed = get(at(&server), "/events?limit=1000");
    let entries = listed.as_array().expect("a list");
    assert_eq!(entries.len(), 200);
    let damaged = entries.iter().filter(|entry| entry["damaged"] == true);
    let damaged: Vec<String> = damaged.map(|entry| entry["sequence"].to_string()).collect();
    assert_eq!(damaged.len(), 2, "{damaged:?}");
    assert!(server.terminate().success());
    let (first, second) = (damaged[0].as_str(), damaged[1].as_str());
    sandbox.run(&["meter", "restore-event", first]).assert_refused(1, &["in the archive"]);
    let refused = sandbox.run(&["meter", "mark-lost", first]);
    assert!(refused.code == Some(2) && refused.stderr.contains("--reason"), "{refused:?}");
    let restored =
        sandbox.run(&["meter", "restore-event", first, "--from", &copy.display().to_string()]);
    assert!(restored.answer().contains("is restored"), "{restored:?}");
    let lost = sandbox.run(&["meter", "mark-lost", second, "--reason", "the disk failed"]);
    assert!(lost.answer().contains("is lost; its damaged row was"), "{lost:?}");
    sandbox
        .run(&["meter", "mark-lost", second, "--reason", "again"])
        .assert_refused(1, &["there is no event"]);
    let status = sandbox.run(&["meter", "damaged", "--json"]).json();
    assert_eq!(status["damaged"], 0, "{status}");
    let recounted = sandbox.run(&["meter", "recount", "--json"]).json();
    assert_eq!((&recounted["events"], &recounted["wrong"]), (&json!(199), &json!(0)));
}

/// An earlier version left an empty file if it ended while writing it.
#[test]
fn an_empty_key_file_that_nothing_depends_on_is_replaced() {
    let sandbox = Sandbox::with(&[EVENTS]);
    fs::create_dir(sandbox.data()).expect("a folder");
    fs::write(sandbox.data().join("secrets.key"), "").expect("written");
    assert!(sandbox.serve().terminate().success());
    let key = fs::read_to_string(sandbox.data().join("secrets.key")).expect("a key");
    assert_eq!(key.lines().count(), 2, "a remark and a key");
}

#[test]
fn postgresql_needs_a_key_for_webhooks() {
    let database = PostgresServer::start();
    let url = format!("database.url={}", database.url());
    let base = [EVENTS, &url, "database.schema=logmill_test", "meter.delivery.allowed=127.0.0.1"];
    let sandbox = Sandbox::with(&base);
    let server = sandbox.serve();
    let new = json!({"url": "http://127.0.0.1:9/hook"});
    let (status, answer) = post(at(&server), "/webhooks/endpoints", &new);
    assert_eq!(status, 400, "{answer}");
    assert!(answer.to_string().contains("secrets.key_file"), "{answer}");
    assert!(server.terminate().success());

    let key = sandbox.root().join("key");
    fs::write(&key, sandbox.run(&["secrets", "generate"]).answer()).expect("written");
    let with_key = format!("secrets.key_file={}", key.display());
    let server = sandbox.serve_with(&["--set", &with_key]);
    let (status, answer) = post(at(&server), "/webhooks/endpoints", &new);
    assert_eq!(status, 201, "{answer}");
    assert!(server.terminate().success());
    sandbox.run(&["run"]).assert_refused(2, &["no key to encrypt their secrets"]);
}
