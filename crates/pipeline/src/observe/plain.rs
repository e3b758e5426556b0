//! Makes untrusted text safe to display.
//!
//! A token's name is chosen by its creator, and some are meant to deceive: with characters that reverse the direction
//! of text, that are invisible, or that a terminal interprets.
//!
//! Guarantees: the result of `plain` has no control characters, no characters that change the direction of text, no
//! invisible ones (except joiners, which scripts and emoji need), and at most the requested length; applying it twice
//! changes nothing. Leaves to others: letters that look alike.

/// Maximum length of a name, in characters.
pub(crate) const NAME_CHARS_MAX: usize = 256;

/// The displayable part of a text; none if nothing is left.
pub(crate) fn plain(text: &str, chars_max: usize) -> Option<String> {
    let shown: String = text.chars().filter_map(shown).collect();
    let cut: String = shown.trim_start().chars().take(chars_max).collect();
    let cut = cut.trim_end();
    (!cut.is_empty()).then(|| cut.to_owned())
}

/// The same for bytes that should be UTF-8; invalid ones become the replacement character.
pub(crate) fn plain_bytes(bytes: &[u8], chars_max: usize) -> Option<String> {
    // A character has at most four bytes; the factor leaves room for characters that are removed.
    let enough = bytes.len().min(chars_max.saturating_mul(16));
    plain(&String::from_utf8_lossy(&bytes[..enough]), chars_max)
}

/// The displayed form of a character; none if it is removed.
fn shown(letter: char) -> Option<char> {
    match letter {
        // Keeps words of separate lines apart.
        '\t' | '\n' | '\r' | '\u{2028}' | '\u{2029}' => Some(' '),
        letter if letter.is_control() || is_hidden(letter) => None,
        letter => Some(letter),
    }
}

/// Whether a character is invisible, or changes how others are displayed.
fn is_hidden(letter: char) -> bool {
    matches!(letter,
        // Direction marks, embeddings, overrides and isolates.
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        // Zero-width spaces, soft hyphens, fillers, invisible operators, deprecated format controls.
        | '\u{00ad}' | '\u{034f}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}' | '\u{2060}'..='\u{2065}' | '\u{206a}'..='\u{206f}'
        | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
        // Musical and shorthand format controls, tags.
        | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
        // Private use.
        | '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{10ffff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn hidden_characters_are_removed() {
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
    fn text_is_cut_by_characters_and_invalid_bytes_are_replaced() {
        let long = "é".repeat(1_000);
        assert_eq!(plain(&long, 256), Some("é".repeat(256)));
        assert_eq!(plain("ab   cd", 4), Some("ab".to_owned()));
        assert_eq!(plain_bytes(b"a\xffb", 256), Some("a\u{fffd}b".to_owned()));
        assert_eq!(plain_bytes(&vec![0; 1 << 20], 256), None);
        assert_eq!(plain_bytes(&vec![b'x'; 1 << 20], 3), Some("xxx".to_owned()));
    }

    proptest! {
        #[test]
        fn plain_text_has_no_hidden_characters_and_is_stable(
            text in "\\PC{0,20}|[\\x00-\\x1f\u{202a}-\u{202e} a\u{200d}\u{fffd}]{0,40}|.{0,40}", most in 0..40_usize,
        ) {
            let once = plain(&text, most);
            let shown = once.clone().unwrap_or_default();
            prop_assert!(!shown.chars().any(|letter| letter.is_control() || is_hidden(letter)));
            prop_assert!(shown.chars().count() <= most);
            prop_assert_eq!(plain(&shown, most), once);
        }

        #[test]
        fn any_bytes_become_plain_text(bytes: Vec<u8>) {
            let shown = plain_bytes(&bytes, 64).unwrap_or_default();
            prop_assert!(!shown.chars().any(|letter| letter.is_control() || is_hidden(letter)));
            prop_assert_eq!(plain(&shown, 64).unwrap_or_default(), shown);
        }
    }
}
