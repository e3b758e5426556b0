//! Removes the secrets of an address from texts.
//!
//! | part of the address | where it is removed from a text |
//! |---|---|
//! | a key: long, or with digits or both cases in it | everywhere, even inside a word or truncated at the end |
//! | a shorter or plainer part of path, query or login | as a whole word |
//! | a part too short to differ from other words | next to its login or its name: `user:password`, `name=value` |
//!
//! Guarantees: no word is replaced in part, and no key is shown. Leaves to others: which texts are shown.

use reqwest::Url;

/// Replaces a secret.
const HIDDEN: &str = "***";

/// Parts of this length are always keys.
const KEY_LENGTH_MIN: usize = 16;

/// Parts of this length are keys if they do not look like words.
const MIXED_KEY_LENGTH_MIN: usize = 8;

/// Shorter parts of a path, a query or a login are not removed as single words.
const PATH_LENGTH_MIN: usize = 6;
const QUERY_LENGTH_MIN: usize = 4;
const LOGIN_LENGTH_MIN: usize = 3;

/// A truncated key is recognized by this many characters.
const CUT_LENGTH_MIN: usize = 4;

#[derive(Debug, Default)]
pub(super) struct Secrets {
    /// Removed wherever they occur, longest first.
    anywhere: Vec<String>,
    /// Removed as whole words, longest first.
    words: Vec<String>,
}

impl Secrets {
    pub(super) fn of(url: &Url) -> Self {
        let mut secrets = Self::default();
        for part in url.path_segments().into_iter().flatten() {
            secrets.add(part, PATH_LENGTH_MIN);
        }
        for (name, value) in url.query_pairs() {
            secrets.add(&value, QUERY_LENGTH_MIN);
            if !value.is_empty() {
                secrets.words.push(format!("{name}={value}"));
            }
        }
        for pair in url.query().into_iter().flat_map(|query| query.split('&')) {
            // The encoded form, which may differ from the decoded value.
            secrets.add(pair.split_once('=').map_or(pair, |(_, value)| value), QUERY_LENGTH_MIN);
        }
        let (user, password) = (url.username(), url.password().unwrap_or_default());
        secrets.add(user, LOGIN_LENGTH_MIN);
        secrets.add(password, LOGIN_LENGTH_MIN);
        if !password.is_empty() {
            secrets.words.push(format!("{user}:{password}"));
            secrets.words.push(format!("{}:{}", decoded(user), decoded(password)));
        }
        // Longest first, because one may be part of another.
        for list in [&mut secrets.anywhere, &mut secrets.words] {
            list.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
            list.dedup();
        }
        secrets
    }

    /// Adds a part in its encoded and its decoded form.
    fn add(&mut self, part: &str, word_length_min: usize) {
        for part in [part.to_owned(), decoded(part)] {
            if is_key(&part) {
                self.anywhere.push(part);
            } else if part.chars().count() >= word_length_min {
                self.words.push(part);
            }
        }
    }

    pub(super) fn redact(&self, text: &str) -> String {
        let text = self.words.iter().fold(text.to_owned(), |text, word| without_word(&text, word));
        let text = self.anywhere.iter().fold(text, |text, key| text.replace(key, HIDDEN));
        self.without_cut_key(text)
    }

    /// Removes the beginning of a key from the end of a text: long texts are truncated before they come here.
    fn without_cut_key(&self, mut text: String) -> String {
        let cut = self.anywhere.iter().filter_map(|key| {
            let lengths = key.char_indices().map(|(at, _)| at).rev();
            let mut begun = lengths.filter(|at| key[..*at].chars().count() >= CUT_LENGTH_MIN);
            begun.find(|at| {
                let begun = &key[..*at];
                let is_long = begun.chars().count() >= MIXED_KEY_LENGTH_MIN;
                ends_with_word(&text, begun) || (is_long && text.ends_with(begun))
            })
        });
        if let Some(length) = cut.max() {
            text.truncate(text.len() - length);
            text.push_str(HIDDEN);
        }
        text
    }
}

/// Whether a part does not look like an ordinary word.
fn is_key(part: &str) -> bool {
    let has = |kind: fn(&char) -> bool| part.chars().any(|c| kind(&c));
    let is_mixed = (has(char::is_ascii_digit) && has(char::is_ascii_alphabetic))
        || (has(char::is_ascii_lowercase) && part.chars().skip(1).any(|c| c.is_ascii_uppercase()));
    let length = part.chars().count();
    length >= KEY_LENGTH_MIN || (length >= MIXED_KEY_LENGTH_MIN && is_mixed)
}

/// Replaces a word where it occurs as a whole word.
fn without_word(text: &str, word: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        let (before, found) = rest.split_at(at);
        let after = &found[word.len()..];
        out.push_str(before);
        let starts = !(is_inside(out.chars().next_back()) && is_inside(word.chars().next()));
        let ends = !(is_inside(after.chars().next()) && is_inside(word.chars().next_back()));
        if starts && ends {
            out.push_str(HIDDEN);
            rest = after;
        } else {
            // One character on: the word may start again within itself.
            let step = found.chars().next().map_or(found.len(), char::len_utf8);
            out.push_str(&found[..step]);
            rest = &found[step..];
        }
    }
    out.push_str(rest);
    out
}

/// Whether a text ends with `word` as a whole word.
fn ends_with_word(text: &str, word: &str) -> bool {
    text.strip_suffix(word).is_some_and(|before| !is_inside(before.chars().next_back()))
}

/// Whether a character is part of a word.
fn is_inside(character: Option<char>) -> bool {
    character.is_some_and(|c| c.is_alphanumeric() || c == '_')
}

/// Removes percent-encoding.
fn decoded(part: &str) -> String {
    let mut bytes = Vec::with_capacity(part.len());
    let mut rest = part.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        let byte = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()).filter(|_| *first == b'%');
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| part.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn redact(address: &str, text: &str) -> String {
        Secrets::of(&Url::parse(address).expect("a URL")).redact(text)
    }

    #[test]
    fn words_are_never_replaced_in_part() {
        let address = "https://u:p@node.example/mainnet/v2?net=est&tag=late";
        for text in [
            "bad request: the upstream is unhealthy",
            "a request to mainnets of the latest",
            "invalid project id",
            "up",
        ] {
            assert_eq!(redact(address, text), text);
        }
        assert_eq!(redact("https://user:pass@h/", "users passed"), "users passed");
        assert_eq!(redact("https://h/ethereum/", "ethereumjs"), "ethereumjs");
    }

    #[test]
    fn whole_words_are_removed() {
        for (address, text, shown) in [
            ("https://user:pass@h/", "no user with pass here", "no *** with *** here"),
            ("https://user:pass@h/", "user:pass@h", "***@h"),
            ("https://u:p@h/", "https://u:p@h/ is down", "https://***@h/ is down"),
            ("https://h/?k=v1", "GET /?k=v1 failed", "GET /?*** failed"),
            ("https://h/secretpath", "no /secretpath, secretpaths", "no /***, secretpaths"),
            ("https://h/a%20secret%20path/", "no 'a secret path'", "no '***'"),
            ("https://h/?t=a%2Fbcd", "bad a/bcd and a%2Fbcd", "bad *** and ***"),
            ("https://aaaa:b@h/", "aaaaa aaaa", "aaaaa ***"),
        ] {
            assert_eq!(redact(address, text), shown, "{address}");
        }
    }

    #[test]
    fn a_key_is_removed_wherever_it_occurs() {
        let address = "https://h/v3/0a1b2c3d4e5f6a7b8c9d?t=AbCdEfGh";
        for (text, shown) in [
            ("project_0a1b2c3d4e5f6a7b8c9d_x", "project_***_x"),
            ("t0a1b2c3d4e5f6a7b8c9d", "t***"),
            ("xAbCdEfGhx", "x***x"),
            // Truncated.
            ("no project 0a1b2c3d4e5f6a7b8c9", "no project ***"),
            ("no project 0a1b", "no project ***"),
            ("project_0a1b2c3d4e", "project_***"),
            ("it has 10a1b", "it has 10a1b"),
        ] {
            assert_eq!(redact(address, text), shown);
        }
    }

    proptest! {
        #[test]
        fn no_key_is_left_and_no_other_word_is_changed(
            key in "[a-z]{2}[0-9]{2}[a-zA-Z0-9]{8,28}", user in "[a-z]{1,2}", before in "[a-z ,.]{0,30}",
            after in "[a-z ,.]{0,30}", glue in "[ _:/=]?",
        ) {
            let address = format!("https://{user}:{user}@h.example/v3/{key}");
            let said = redact(&address, &format!("{before}{glue}{key}{glue}{after}"));
            prop_assert_eq!(said, format!("{before}{glue}{HIDDEN}{glue}{after}"));
        }
    }
}
