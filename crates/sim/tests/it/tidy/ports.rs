//! No test listens on a fixed port: two tests, or a test and a running Logmill, would use the same one.
//!
//! Guarantees: finds a `bind` to a literal port other than 0, and settings that make a server listen on one, in tests
//! and in their support code. Leaves to others: computed ports.

use super::assert_none;
use super::scan::Scan;
use super::tree::{TextFile, rust_files};

/// Parses settings but opens no port.
const EXEMPT: [&str; 2] =
    ["crates/logmill/src/config/tests.rs", "crates/sim/tests/it/tidy/ports.rs"];

/// Settings that make a server listen, on a command line or in a variable.
const LISTENERS: [&str; 6] = [
    "server.listen=",
    "health_listen=",
    "_listen\", \"",
    "api_port=",
    "api_port\", \"",
    "--port\", \"",
];

#[test]
fn tests_listen_on_free_ports_only() {
    let mut faults = Vec::new();
    for file in rust_files().into_iter().filter(|file| !EXEMPT.contains(&file.path.as_str())) {
        let lines: Vec<&str> = file.text.lines().collect();
        let fixed = test_lines(&file).into_iter().filter(|&line| takes_fixed_port(lines[line]));
        faults.extend(fixed.map(|line| format!("{}:{}", file.path, line + 1)));
    }
    assert_none(&faults, "listen on port 0 and ask for the assigned port:");
}

/// The lines of a file, counted from zero, that are part of tests or of their support code.
fn test_lines(file: &TextFile) -> Vec<usize> {
    let lines = file.text.lines().count();
    if file.is_test() || file.path.starts_with("crates/sim/") || file.path.starts_with("bench/") {
        return (0..lines).collect();
    }
    let tests = Scan::new(&file.text).test_lines();
    tests.into_iter().flatten().filter(|line| *line < lines).collect()
}

fn takes_fixed_port(line: &str) -> bool {
    let lower = line.to_ascii_lowercase();
    let bound = lower.match_indices("bind(").any(|(at, found)| {
        let argument = &lower[at + found.len()..];
        let end = argument.find(".await").or_else(|| argument.find(')'));
        has_port(&argument[..end.unwrap_or(argument.len())])
    });
    bound
        || LISTENERS.iter().any(|listener| {
            lower.match_indices(listener).any(|(at, found)| {
                let value = &lower[at + found.len()..];
                has_port(&format!(":{}", value.split('"').next().unwrap_or_default()))
            })
        })
}

/// Whether a text has a number other than 0 at the position of a port: after its last colon or comma.
fn has_port(text: &str) -> bool {
    let Some((_, port)) = text.rsplit_once([':', ',']) else { return false };
    let digits: String = port.trim().chars().take_while(char::is_ascii_digit).collect();
    digits.parse::<u16>().is_ok_and(|port| port != 0)
}

#[test]
fn fixed_ports_are_recognised() {
    for (line, expected) in [
        ("TcpListener::bind(\"127.0.0.1:0\").await", false),
        ("TcpListener::bind(\"127.0.0.1:8645\").await", true),
        ("TcpListener::bind((\"127.0.0.1\", 0)).await", false),
        ("TcpListener::bind((Ipv4Addr::LOCALHOST, 8645))", true),
        ("TcpListener::bind(address)", false),
        (".env(\"LOGMILL_SERVER_LISTEN\", \"127.0.0.1:0\")", false),
        (".env(\"LOGMILL_SERVER_LISTEN\", \"127.0.0.1:8645\")", true),
        ("\"server.listen=127.0.0.1:8645\",", true),
        ("\"collect.api_port=0\",", false),
        ("\"collect.api_port=9999\",", true),
        ("(\"API_PORT\", \"0\"),", false),
        ("(\"API_PORT\", \"8080\"),", true),
        (".args([\"--port\", \"8545\"])", true),
        (".args([\"--port\", &self.port.to_string()])", false),
    ] {
        assert_eq!(takes_fixed_port(line), expected, "{line}");
    }
}
