//! Text of strangers, made fit to be shown.
//!
//! Names of tokens come from whoever made them, and some are made to deceive: characters that turn the direction of
//! what follows, that are not seen, or that a terminal obeys.
//!
//! Guarantees: [`plain`] gives no control characters, none that change the direction of text, none that are not
//! seen (but for joiners, which scripts and emoji need), nothing longer than asked; to do it twice changes
//! nothing. Leaves to others: letters that look like others.

/// The most characters of a name.
pub const NAME_CHARS_MAX: usize = 256;

/// Text as it may be shown; none if nothing is left of it.
pub fn plain(text: &str, chars_max: usize) -> Option<String> {
    let shown: String = text.chars().filter_map(shown).collect();
    let cut: String = shown.trim_start().chars().take(chars_max).collect();
    let cut = cut.trim_end();
    (!cut.is_empty()).then(|| cut.to_owned())
}

/// The same of bytes that should be UTF-8; what is not is shown as a replacement.
pub fn plain_bytes(bytes: &[u8], chars_max: usize) -> Option<String> {
    // No character has more than four bytes, and some of what comes first may not be shown.
    let enough = bytes.len().min(chars_max.saturating_mul(16));
    plain(&String::from_utf8_lossy(&bytes[..enough]), chars_max)
}

/// A character as it is shown; none if it is left out.
fn shown(letter: char) -> Option<char> {
    match letter {
        // Words that stood on lines of their own stay apart.
        '\t' | '\n' | '\r' | '\u{2028}' | '\u{2029}' => Some(' '),
        letter if letter.is_control() || is_hidden(letter) => None,
        letter => Some(letter),
    }
}

/// Whether a character is not seen, or changes how others are.
fn is_hidden(letter: char) -> bool {
    matches!(letter,
        // Marks, embeddings, overrides and isolates of direction.
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        // Spaces of no width, soft hyphens, fillers, invisible operators, old format controls.
        | '\u{00ad}' | '\u{034f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        // Musical and shorthand format controls, tags.
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        // What has no meaning but the one that two programs agree on.
        | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_not_to_be_seen_is_taken_out() {
        let check = |text: &str, expected: Option<&str>| {
            assert_eq!(plain(text, NAME_CHARS_MAX).as_deref(), expected, "{text:?}");
        };
        check("Tether USD", Some("Tether USD"));
        check("  Maker\0\0\0 ", Some("Maker"));
        check("USD\u{202e}C\u{202c}", Some("USDC"));
        check("US\u{200b}D\u{feff}C", Some("USDC"));
        check("two\nlines\tand\r\nmore", Some("two lines and  more"));
        check("\u{1b}[31mred\u{7}", Some("[31mred"));
        check("\u{9b}31mred", Some("31mred"));
        check("日本円 €", Some("日本円 €"));
        check("👩\u{200d}👧", Some("👩\u{200d}👧"));
        check("\u{e0041}\u{e000}x", Some("x"));
        check(" \u{202e}\n ", None);
        check("", None);
    }

    #[test]
    fn text_is_cut_by_characters_and_bad_bytes_are_shown_as_such() {
        let long = "é".repeat(1_000);
        assert_eq!(plain(&long, 256), Some("é".repeat(256)));
        assert_eq!(plain("ab   cd", 4), Some("ab".to_owned()));
        assert_eq!(plain_bytes(b"a\xffb", 256), Some("a\u{fffd}b".to_owned()));
        assert_eq!(plain_bytes(&vec![0; 1 << 20], 256), None);
        assert_eq!(plain_bytes(&vec![b'x'; 1 << 20], 3), Some("xxx".to_owned()));
    }

    proptest! {
        #[test]
        fn what_is_shown_has_nothing_hidden_and_does_not_change_any_more(
            text in "\\PC{0,20}|[\\x00-\\x1f\u{202a}-\u{202e} a\u{200d}\u{fffd}]{0,40}|.{0,40}", most in 0..40_usize,
        ) {
            let once = plain(&text, most);
            let shown = once.clone().unwrap_or_default();
            prop_assert!(!shown.chars().any(|letter| letter.is_control() || is_hidden(letter)));
            prop_assert!(shown.chars().count() <= most);
            prop_assert_eq!(plain(&shown, most), once);
        }

        #[test]
        fn any_bytes_become_text_that_is_shown(bytes: Vec<u8>) {
            let shown = plain_bytes(&bytes, 64).unwrap_or_default();
            prop_assert!(!shown.chars().any(|letter| letter.is_control() || is_hidden(letter)));
            prop_assert_eq!(plain(&shown, 64).unwrap_or_default(), shown);
        }
    }
}
