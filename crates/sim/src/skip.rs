//! Skipping: how a test reports that it cannot run in this environment.
//!
//! A test that lacks a server, data or privileges calls [`skip`] and returns. It then counts as skipped, not as
//! passed: `tools/test.sh` sets `LOGMILL_SKIPS` to a file, each skip appends one line to it, and the counts at the
//! end of `make test` are corrected by the tests listed there. With `CI=true` a skip fails the run, unless its reason
//! starts with `proof:`, which means that `make proof` runs the test.
//!
//! Guarantees: each call writes one complete line, even if many test processes write concurrently. Leaves to others:
//! counting, and deciding whether a skip is acceptable.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

/// Reports that the running test cannot run here, and why. The caller must return right after.
///
/// ```no_run
/// let Some(data) = logmill_sim::test_data() else {
///     return logmill_sim::skip("no recorded chain data");
/// };
/// # drop(data);
/// ```
///
/// # Panics
///
/// If the file named by `LOGMILL_SKIPS` cannot be written: an uncounted skip would look like a pass.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
    let Some(file) = env::var_os("LOGMILL_SKIPS") else { return };
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .expect("the file named by LOGMILL_SKIPS can be opened");
    // One write of one line in append mode does not mix with lines of other processes.
    file.write_all(line(&test_name(), reason).as_bytes())
        .expect("the file named by LOGMILL_SKIPS can be written");
}

/// Test and reason on one line, separated by a tab.
fn line(test: &str, reason: &str) -> String {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{test}\t{reason}\n")
}

/// Binary and test as nextest names them; without nextest, the name of the test's thread.
fn test_name() -> String {
    let binary = env::var("NEXTEST_BINARY_ID");
    let test = env::var("NEXTEST_TEST_NAME");
    if let (Ok(binary), Ok(test)) = (binary, test) {
        return format!("{binary} {test}");
    }
    thread::current().name().unwrap_or("unnamed test").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_one_line_whatever_its_reason_looks_like() {
        assert_eq!(line("it a::b", "no\tserver\n here"), "it a::b\tno server here\n");
    }
}
