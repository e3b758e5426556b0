//! Errors and foreign text on one line, for logs, terminals and responses.
//!
//! Guarantees: one line without control characters, so that it cannot manipulate a terminal. Leaves to others: the
//! texts.

/// How much of a long error is kept at its start and at its end.
const HEAD_BYTES: usize = 120;
const TAIL_BYTES: usize = 280;

/// Text from elsewhere, such as a key or an error, on one line and without control characters, so that it cannot
/// manipulate the terminal.
pub fn one_line(text: &str) -> String {
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    words.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// An error on one line, without its middle if it is long: it begins with what was being done and ends with the reason
/// for the failure; a whole SQL statement may stand between.
pub fn brief(chain: &str) -> String {
    let line = one_line(chain);
    let (head, tail) =
        (line.floor_char_boundary(HEAD_BYTES), line.len().saturating_sub(TAIL_BYTES));
    let tail = line.ceil_char_boundary(tail);
    if tail <= head { line } else { format!("{} … {}", &line[..head], &line[tail..]) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
