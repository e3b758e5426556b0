//! Output: the one place that writes to the terminal.
//!
//! Guarantees: the result of a command goes to standard output, everything else to standard error. An error is one line
//! that starts with `error:` and contains all its causes; a line with a `hint:` may follow. Leaves to others: the
//! texts.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use logmill_io::Timestamp;
pub(crate) use logmill_serve::one_line::{brief, one_line};
use serde::Serialize;

use crate::error::{Error, Result};

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
}
