//! Leases, claims, coverage and the retry of jobs belong to `work`: no other crate implements them.
//!
//! Guarantees: outside of `work`, code that is not a test claims through a `Runner` or a `ClaimKeeper`, holds leases
//! through a `LeaseKeeper`, leaves the tables of `work` to it, and draws no delays between attempts except in the
//! listed files, each of which must need its exception. Leaves to others: `io`, which stands below `work` and retries
//! single transactions; retries after a constant delay.

use super::assert_none;
use super::scan::Scan;
use super::tree::{TextFile, rust_files};

/// Crates that may: the kernel itself, the one below it, and those of tests and benchmarks.
const FREE: [&str; 4] = ["crates/work/", "crates/io/", "crates/sim/", "bench/"];

/// Parts of the kernel that others use only through its keepers.
const PARTS: [&str; 6] = ["Claimer", "HeldLease", "Reclaimer", "next_due", "reap", "release_many"];

/// Methods that, called with an argument, prolong a claim or a lease.
const RENEWALS: [&str; 2] = [".heartbeat(", ".renew("];

/// Tables of the kernel.
const TABLES: [&str; 6] = ["coverage", "coverage_claim", "cron", "job", "job_kind", "job_runner"];

/// The file that may use those parts: it shows a take-over step by step.
const EXCEPTION: &str = "crates/logmill/src/commands/demo/lease.rs";

/// Files that draw delays between attempts, with what is attempted.
const DELAYS: [(&str, &str); 8] = [
    ("crates/chain/src/evm/head_waker.rs", "opening the socket of a node"),
    ("crates/chain/src/evm/health.rs", "asking a node that failed"),
    ("crates/logmill/src/server/chains.rs", "asking nodes for their chain, at the start"),
    ("crates/logmill/src/stores/preflight.rs", "opening stores, at the start"),
    ("crates/logmill/src/server.rs", "asking nodes for their chain, while it is unknown"),
    ("crates/meter/src/webhooks/verdict.rs", "a delivery: recorded, and applied by the queue"),
    ("crates/pipeline/src/async_workers/nft_items.rs", "an item: recorded, applied by the queue"),
    ("crates/pipeline/src/ingest/collect/scan.rs", "a range: returned to the queue"),
];

#[test]
fn only_work_implements_leases_and_claims() {
    let mut faults = Vec::new();
    for file in bound_files() {
        if file.path == EXCEPTION {
            continue;
        }
        let scan = Scan::new(&file.text);
        let words = PARTS.iter().flat_map(|part| scan.words(part));
        let renewals = RENEWALS.iter().flat_map(|call| {
            let found = scan.code.match_indices(call);
            found.filter(|(at, _)| has_argument(&scan.code[at + call.len()..])).map(|(at, _)| at)
        });
        faults.extend(places(&file, &scan, words.chain(renewals)));
    }
    assert_none(&faults, "use `Runner`, `ClaimKeeper` or `LeaseKeeper` of `work`:");
}

#[test]
fn only_work_writes_its_tables() {
    let mut faults = Vec::new();
    for file in bound_files() {
        let writes = ["DELETE FROM ", "INSERT INTO ", "UPDATE "].into_iter().flat_map(|verb| {
            let found = file.text.match_indices(verb);
            found.filter(|(at, _)| names_table(&file.text[at + verb.len()..])).map(|(at, _)| at)
        });
        faults.extend(places(&file, &Scan::new(&file.text), writes));
    }
    assert_none(&faults, "change jobs and coverage through `Queue` and `Coverage`:");
}

#[test]
fn delays_between_attempts_are_drawn_in_the_listed_places_only() {
    let mut faults = Vec::new();
    for file in bound_files() {
        let scan = Scan::new(&file.text);
        let drawn = scan.code.match_indices(".wait(").map(|(at, _)| at);
        let drawn = drawn.filter(|&at| draws_delay(&scan.code[at..]));
        let doubled = scan.code.match_indices("wait * 2").map(|(at, _)| at);
        let found = places(&file, &scan, drawn.chain(doubled));
        let is_listed = DELAYS.iter().any(|(path, _)| *path == file.path);
        match (is_listed, found.is_empty()) {
            (false, _) => faults.extend(found),
            (true, true) => faults.push(format!("{}: remove it from the list", file.path)),
            (true, false) => {}
        }
    }
    assert_none(&faults, "let the queue retry, or say in the list what is attempted:");
}

/// Files to which the rules apply.
fn bound_files() -> Vec<TextFile> {
    let is_free = |file: &TextFile| FREE.iter().any(|folder| file.path.starts_with(folder));
    rust_files().into_iter().filter(|file| !is_free(file) && !file.is_test()).collect()
}

/// The lines of these positions that are not in tests.
fn places(file: &TextFile, scan: &Scan, found: impl Iterator<Item = usize>) -> Vec<String> {
    let tests = scan.test_lines();
    let lines = found.map(|at| scan.line_of(at));
    let lines = lines.filter(|line| !tests.iter().any(|tests| tests.contains(line)));
    lines.map(|line| format!("{}:{}", file.path, line + 1)).collect()
}

fn has_argument(call: &str) -> bool {
    !call.trim_start().starts_with(')')
}

/// Whether the code draws a delay of a `Backoff`, whose second argument is the entropy.
fn draws_delay(code: &str) -> bool {
    let statement = code.split([';', '{']).next().unwrap_or_default();
    statement.to_ascii_lowercase().contains("entropy")
}

fn names_table(text: &str) -> bool {
    let end = text.find(|sign: char| sign != '_' && !sign.is_alphanumeric());
    TABLES.contains(&&text[..end.unwrap_or(text.len())])
}

#[test]
fn violations_are_recognised() {
    assert!(has_argument("&held)") && has_argument("\n    &held)") && !has_argument(")"));
    for (code, expected) in [
        (".wait(failed, &*entropy)).await;", true),
        (".wait(failed, &**self.tables.sql().entropy());", true),
        (".wait(failed,\n    &OsEntropy);", true),
        (".wait(&self.gate); let entropy = 1;", false),
    ] {
        assert_eq!(draws_delay(code), expected, "{code}");
    }
    for (text, expected) in [("job SET state = 1", true), ("job", true), ("job_view", false)] {
        assert_eq!(names_table(text), expected, "{text}");
    }
}
