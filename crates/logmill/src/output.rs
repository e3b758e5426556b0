//! Output: the one place that writes to the terminal.
//!
//! Guarantees: what a command answers goes to standard output, everything else to standard error; an error is
//! one line that starts with `error:`, with all its causes, and maybe one with a `hint:`. Leaves to others:
//! what is said.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use logmill_io::Timestamp;
use serde::Serialize;

use crate::error::{Error, Result};

/// How much of a long error is kept at its start and at its end.
const HEAD_BYTES: usize = 120;
const TAIL_BYTES: usize = 280;

/// Prints an answer, with a newline.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Error::Output)
}

/// Prints an answer as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    line(&text.map_err(|error| Error::Internal { what: error.to_string() })?)
}

/// Prints rows with their columns below each other; the first row is the head.
pub(crate) fn table(rows: &[Vec<String>]) -> Result<()> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widths: Vec<usize> = (0..columns)
        .map(|column| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0))
        .collect();
    rows.iter().try_for_each(|row| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end())
    })
}

/// Tells the person at the terminal what goes on; not part of the answer.
pub(crate) fn note(text: &str) {
    // Who closed standard error does not want to hear of it.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Progress: one line that changes in place on a terminal, plain lines elsewhere.
pub(crate) fn progress(text: &str, last: bool) {
    let mut err = std::io::stderr().lock();
    let _ = match (err.is_terminal(), last) {
        (true, false) => write!(err, "\r\x1b[K{text}").and_then(|()| err.flush()),
        (true, true) => writeln!(err, "\r\x1b[K{text}"),
        (false, _) => writeln!(err, "{text}"),
    };
}

/// Prints an error where it ends.
pub(crate) fn error(error: &Error) {
    note(&format!("error: {}", brief(&logmill_io::chain(error))));
    if let Some(hint) = error.hint() {
        note(&format!("hint: {hint}"));
    }
}

/// Text from elsewhere, such as a key or an error, so that it can not draw on the terminal.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().map(|sign| if sign.is_control() { '\u{fffd}' } else { sign }).collect()
}

/// An error on one line without its middle if that is long: what was being done comes first, why it failed
/// last, and a whole statement of SQL may stand between.
pub(crate) fn brief(chain: &str) -> String {
    let line = one_line(chain);
    let (head, tail) =
        (line.floor_char_boundary(HEAD_BYTES), line.len().saturating_sub(TAIL_BYTES));
    let tail = line.ceil_char_boundary(tail);
    if tail <= head { line } else { format!("{} … {}", &line[..head], &line[tail..]) }
}

/// How long, for people.
pub(crate) fn duration(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    format!("{:#}", jiff::SignedDuration::from_secs(seconds))
}

/// When, for people.
pub(crate) fn moment(at: Timestamp) -> String {
    let moment = jiff::Timestamp::from_millisecond(at.millis());
    moment.map_or_else(|_| format!("{at:?}"), |moment| moment.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_moments_read_well() {
        for (ms, said) in [(0, "0ms"), (999, "999ms"), (1_500, "1s"), (3_723_000, "1h 2m 3s")] {
            assert_eq!(duration(Duration::from_millis(ms)), said);
        }
        assert_eq!(moment(Timestamp(1_790_000_000_000)), "2026-09-21T14:13:20Z");
        assert_eq!(moment(Timestamp(i64::MAX)), format!("{}ms", i64::MAX));
    }

    #[test]
    fn foreign_text_stays_on_its_line() {
        assert_eq!(one_line("SELECT 1\n   FROM x"), "SELECT 1 FROM x");
        assert_eq!(one_line("a\u{1b}[2Jb"), "a\u{fffd}[2Jb");
    }

    #[test]
    fn a_long_error_keeps_its_start_and_its_end() {
        let short = "ü".repeat(200);
        assert_eq!(brief(&short), short);
        let long = format!("insert {} disk full", "ü".repeat(500));
        let shown = brief(&long);
        assert!(shown.starts_with("insert ü") && shown.ends_with("ü disk full"), "{shown}");
        assert!(shown.contains(" … ") && shown.len() < 420, "{shown}");
    }
}
