//! Skipping: how a test says that it can not run here.
//!
//! A test that lacks a server, data or privileges calls [`skip`] and returns. It then counts as skipped, not
//! as passed: `tools/test.sh` names a file in `LOGMILL_SKIPS`, each skip appends one line to it, and the
//! counts at the end of `make test` are corrected by the tests named there. With `CI=true` a skip fails the
//! run, unless its reason starts with `proof:`, which says that `make proof` runs it.
//!
//! Guarantees: one line per call, whole, also when many test processes write at once. Leaves to others:
//! counting, and the decision whether a skip is acceptable.

use std::env;
use std::fs::OpenOptions;
use std::io::Write;
use std::thread;

/// Says that the running test can not run here, and why. The caller returns right after.
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
/// When the file named by `LOGMILL_SKIPS` can not be written: an uncounted skip would look like a pass.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
    let Some(file) = env::var_os("LOGMILL_SKIPS") else { return };
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .expect("the file named by LOGMILL_SKIPS can be opened");
    // One write of one line in append mode: lines of other processes do not mix with it.
    file.write_all(line(&test_name(), reason).as_bytes())
        .expect("the file named by LOGMILL_SKIPS can be written");
}

/// Test and reason, with a tab between them and on one line.
fn line(test: &str, reason: &str) -> String {
    let reason = reason.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{test}\t{reason}\n")
}

/// Binary and test as nextest names them; without nextest the test's thread carries its name.
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
