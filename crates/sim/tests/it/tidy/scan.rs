//! A scanner for Rust source that separates code from comments and literals, and finds functions and test items.
//!
//! It is not a parser: it knows comments, strings, characters, raw strings and brackets, but no grammar. That is
//! enough for the rules here, and it cannot fall behind the language.
//!
//! Guarantees: [`Scan::code`] and [`Scan::comments`] have the length and the lines of the source, with everything
//! else blanked, so a position in one is valid in the others. Leaves to others: macros are not expanded.

use std::iter;
use std::ops::Range;

/// A source file, split into code and comments.
pub(super) struct Scan {
    /// The source with comments and literals blanked.
    pub(super) code: String,
    /// The source with everything but comments blanked.
    pub(super) comments: String,
}

/// A function with a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Without its type or module.
    pub(super) name: String,
    /// Number of lines from `fn` to the closing brace.
    pub(super) lines: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

impl Scan {
    pub(super) fn new(source: &str) -> Self {
        let mut code = Vec::with_capacity(source.len());
        let mut comments = Vec::with_capacity(source.len());
        let mut at = 0;
        while at < source.len() {
            let (kind, end) = token(source.as_bytes(), at);
            for &byte in &source.as_bytes()[at..end] {
                let blank = if byte == b'\n' { byte } else { b' ' };
                code.push(if kind == Kind::Code { byte } else { blank });
                comments.push(if kind == Kind::Comment { byte } else { blank });
            }
            at = end;
        }
        let text = |bytes| String::from_utf8(bytes).expect("tokens end between characters");
        Self { code: text(code), comments: text(comments) }
    }

    /// Positions of `word` as a whole word of the code.
    pub(super) fn words<'a>(&'a self, word: &'a str) -> impl Iterator<Item = usize> + 'a {
        self.code.match_indices(word).map(|(at, _)| at).filter(move |&at| {
            let before = at.checked_sub(1).map(|before| self.code.as_bytes()[before]);
            let after = self.code.as_bytes().get(at + word.len()).copied();
            !before.is_some_and(is_word) && !after.is_some_and(is_word)
        })
    }

    /// All functions with a body, including nested ones.
    pub(super) fn functions(&self) -> Vec<Function> {
        self.words("fn").filter_map(|at| self.function(at)).collect()
    }

    /// The lines, counted from zero, of items that exist only in tests.
    pub(super) fn test_lines(&self) -> Vec<Range<usize>> {
        let lines = |item: Range<usize>| self.line_of(item.start)..self.line_of(item.end - 1) + 1;
        self.test_items().into_iter().map(lines).collect()
    }

    /// The code with the items that exist only in tests blanked.
    pub(super) fn code_without_tests(&self) -> String {
        let mut code = self.code.clone().into_bytes();
        for item in self.test_items() {
            let blanked = code[item].iter_mut().filter(|byte| **byte != b'\n');
            blanked.for_each(|byte| *byte = b' ');
        }
        String::from_utf8(code).expect("items end between characters")
    }

    /// The items that exist only in tests, with their attribute.
    fn test_items(&self) -> Vec<Range<usize>> {
        let whole_file = self.code.contains("#![cfg(test)]");
        if whole_file {
            return iter::once(0..self.code.len()).collect();
        }
        let attribute = "#[cfg(test)]";
        let starts = self.code.match_indices(attribute).map(|(at, _)| at);
        starts.map(|at| at..self.item_end(at + attribute.len()) + 1).collect()
    }

    /// The contents of all attributes, such as `cfg(test)`.
    pub(super) fn attributes(&self) -> Vec<&str> {
        let opened = self.code.match_indices("#[").map(|(at, _)| at + 1);
        let inside = |at| Some(&self.code[at + 1..self.closing(at)?]);
        opened.filter_map(inside).collect()
    }

    /// The functions that a test attribute makes tests, by their path inside of the file: `tests::it_holds`.
    pub(super) fn tests(&self) -> Vec<String> {
        let attributes = self.code.match_indices("#[").filter_map(|(at, _)| {
            let end = self.closing(at + 1)?;
            is_test_attribute(&self.code[at + 2..end]).then_some(end)
        });
        let modules = self.inline_modules();
        let path = |attribute: usize| {
            let at = self.words_from("fn", attribute).next()?;
            let inside = modules.iter().filter(|(range, _)| range.contains(&at));
            let mut path: Vec<_> = inside.map(|(_, name)| name.as_str()).collect();
            let name = self.word_after(at + "fn".len());
            path.push(&name);
            Some(path.join("::"))
        };
        attributes.filter_map(path).collect()
    }

    /// The words inside of each call of the macro `name`.
    pub(super) fn macro_words(&self, name: &str) -> Vec<String> {
        let calls = self.code.match_indices(name).filter_map(|(at, _)| {
            let open = at + name.len();
            let inside = self.code[open..].starts_with('[').then(|| self.closing(open))??;
            Some(&self.code[open + 1..inside])
        });
        let words = calls.flat_map(|inside| inside.split([',', ' ', '\n']));
        words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
    }

    /// The modules that have their body in this file, outer ones first.
    fn inline_modules(&self) -> Vec<(Range<usize>, String)> {
        let module = |at: usize| {
            let end = self.item_end(at);
            let has_body = self.code.as_bytes().get(end) == Some(&b'}');
            has_body.then(|| (at..end, self.word_after(at + "mod".len())))
        };
        self.words("mod").filter_map(module).collect()
    }

    fn words_from<'a>(&'a self, word: &'a str, from: usize) -> impl Iterator<Item = usize> + 'a {
        self.words(word).skip_while(move |&at| at < from)
    }

    fn word_after(&self, at: usize) -> String {
        let rest = self.code[at..].trim_start();
        rest.chars().take_while(|&letter| letter == '_' || letter.is_alphanumeric()).collect()
    }

    /// The line of position `at`, counted from zero.
    pub(super) fn line_of(&self, at: usize) -> usize {
        self.code.as_bytes()[..at].iter().filter(|&&byte| byte == b'\n').count()
    }

    fn function(&self, at: usize) -> Option<Function> {
        let name: String = self.code[at + "fn".len()..]
            .trim_start()
            .chars()
            .take_while(|&letter| letter == '_' || letter == '#' || letter.is_alphanumeric())
            .collect();
        let end = self.item_end(at);
        let has_body = self.code.as_bytes().get(end) == Some(&b'}');
        let lines = self.line_of(end) - self.line_of(at) + 1;
        (has_body && !name.is_empty()).then_some(Function { name, lines })
    }

    /// The last byte of the item that starts at `at`: its `;` or the end of its first braces, whichever comes first
    /// outside of other brackets. The end of the file if there is neither.
    fn item_end(&self, mut at: usize) -> usize {
        let last = self.code.len().saturating_sub(1);
        while let Some(&byte) = self.code.as_bytes().get(at) {
            match byte {
                b';' => return at,
                b'{' => return self.closing(at).unwrap_or(last),
                b'(' | b'[' => at = self.closing(at).unwrap_or(last),
                _ => {}
            }
            at += 1;
        }
        last
    }

    /// The bracket that closes the one at `open`.
    fn closing(&self, open: usize) -> Option<usize> {
        let mut depth = 0_usize;
        for (at, byte) in self.code.bytes().enumerate().skip(open) {
            match byte {
                b'(' | b'[' | b'{' => depth += 1,
                b')' | b']' | b'}' => depth = depth.checked_sub(1)?,
                _ => {}
            }
            if depth == 0 {
                return Some(at);
            }
        }
        None
    }
}

/// The kind of the token at `at`, and its end. A token of code is a word or a single other character.
fn token(source: &[u8], at: usize) -> (Kind, usize) {
    let rest = &source[at..];
    let (kind, length) = match rest {
        [b'/', b'/', ..] => (Kind::Comment, line_length(rest)),
        [b'/', b'*', ..] => (Kind::Comment, block_comment_length(rest)),
        [b'"', ..] => (Kind::Literal, quoted_length(rest, b'"')),
        [b'\'', ..] => match character_length(rest) {
            Some(length) => (Kind::Literal, length),
            None => (Kind::Code, 1),
        },
        [first, ..] if is_word(*first) => word_or_prefixed_literal(rest),
        _ => (Kind::Code, 1),
    };
    (kind, (at + length).min(source.len()))
}

/// A word, or a literal with a prefix: `r"…"`, `b'…'`, `br#"…"#`, `c"…"`.
fn word_or_prefixed_literal(rest: &[u8]) -> (Kind, usize) {
    let word = rest.iter().take_while(|&&byte| is_word(byte)).count();
    let hashes = rest[word..].iter().take_while(|&&byte| byte == b'#').count();
    let quote = rest.get(word + hashes).copied();
    match (&rest[..word], hashes, quote) {
        (b"r" | b"br" | b"cr", _, Some(b'"')) => {
            (Kind::Literal, word + hashes + raw_length(&rest[word + hashes..], hashes))
        }
        (b"b" | b"c", 0, Some(b'"')) => (Kind::Literal, word + quoted_length(&rest[word..], b'"')),
        (b"b", 0, Some(b'\'')) => (Kind::Literal, word + quoted_length(&rest[word..], b'\'')),
        _ => (Kind::Code, word),
    }
}

fn line_length(rest: &[u8]) -> usize {
    rest.iter().position(|&byte| byte == b'\n').unwrap_or(rest.len())
}

fn block_comment_length(rest: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        match &rest[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// A literal between two `quote`s, in which a backslash escapes the next byte.
fn quoted_length(rest: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == b'\\' { 2 } else { 1 };
    }
    at + 1
}

/// A raw string from its quote on; it ends with a quote and as many `#` as it began with.
fn raw_length(rest: &[u8], hashes: usize) -> usize {
    let mut end = vec![b'"'];
    end.resize(1 + hashes, b'#');
    let inside = &rest[1..];
    let closes = inside.windows(end.len()).position(|window| window == end);
    closes.map_or(rest.len(), |at| 1 + at + end.len())
}

/// A character literal; `None` if the quote starts a lifetime or a label.
fn character_length(rest: &[u8]) -> Option<usize> {
    match rest {
        [_, b'\\', ..] => Some(quoted_length(rest, b'\'')),
        [_, first, ..] => {
            // One UTF-8 character, then the closing quote.
            let width = match first {
                0xf0.. => 4,
                0xe0.. => 3,
                0xc0.. => 2,
                _ => 1,
            };
            (rest.get(1 + width) == Some(&b'\'')).then_some(width + 2)
        }
        _ => None,
    }
}

/// Whether an attribute is `test` or one of its kind, such as `tokio::test(start_paused = true)`.
fn is_test_attribute(inside: &str) -> bool {
    let name = inside.split('(').next().unwrap_or_default().trim();
    name == "test" || name.ends_with("::test")
}

fn is_word(byte: u8) -> bool {
    byte == b'_' || byte.is_ascii_alphanumeric() || !byte.is_ascii()
}

#[cfg(test)]
mod tests;
