//! Output: the one place that writes to the terminal.
//!
//! Guarantees: the result of a command goes to standard output, everything else to standard error. An error is one line
//! that starts with `error:` and contains all its causes; a line with a `hint:` may follow. Leaves to others: the
//! texts.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use logmill_io::Timestamp;
use serde::Serialize;

use crate::error::{Error, Result};

/// How much of a long error is kept at its start and at its end.
const HEAD_BYTES: usize = 120;
const TAIL_BYTES: usize = 280;

/// Prints a result, with a newline.
pub(crate) fn line(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}").and_then(|()| out.flush()).map_err(Error::Output)
}

/// Prints a result as JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value);
    line(&text.map_err(|error| Error::Internal { what: error.to_string() })?)
}

/// Prints rows in aligned columns.
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

/// Prints a note for the person at the terminal; it is not part of the result.
pub(crate) fn note(text: &str) {
    // If standard error is closed, nobody reads the note.
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Prints progress: on a terminal one line that is overwritten, elsewhere plain lines.
pub(crate) fn progress(text: &str, last: bool) {
    let mut err = std::io::stderr().lock();
    let _ = match (err.is_terminal(), last) {
        (true, false) => write!(err, "\r\x1b[K{text}").and_then(|()| err.flush()),
        (true, true) => writeln!(err, "\r\x1b[K{text}"),
        (false, _) => writeln!(err, "{text}"),
    };
}

/// Prints an error and its hint.
pub(crate) fn error(error: &Error) {
    note(&format!("error: {}", brief(&logmill_io::error_chain(error))));
    if let Some(hint) = error.hint() {
        note(&format!("hint: {hint}"));
    }
}

/// Text from elsewhere, such as a key or an error, on one line and without control characters, so that it cannot
/// manipulate the terminal.
pub(crate) fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// An error on one line, without its middle if it is long: it begins with what was being done and ends with the reason
/// for the failure; a whole SQL statement may stand between.
pub(crate) fn brief(chain: &str) -> String {
    let line = one_line(chain);
    let (head, tail) =
        (line.floor_char_boundary(HEAD_BYTES), line.len().saturating_sub(TAIL_BYTES));
    let tail = line.ceil_char_boundary(tail);
    if tail <= head { line } else { format!("{} … {}", &line[..head], &line[tail..]) }
}

/// A duration in human-readable form.
pub(crate) fn duration(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let seconds = i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    format!("{:#}", jiff::SignedDuration::from_secs(seconds))
}

/// A time in human-readable form.
pub(crate) fn moment(at: Timestamp) -> String {
    let moment = jiff::Timestamp::from_millisecond(at.millis());
    moment.map_or_else(|_| format!("{at:?}"), |moment| moment.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_human_readable() {
        for (ms, text) in [(0, "0ms"), (999, "999ms"), (1_500, "1s"), (3_723_000, "1h 2m 3s")] {
            assert_eq!(duration(Duration::from_millis(ms)), text);
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
