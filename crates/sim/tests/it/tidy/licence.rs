//! Licence expressions of packages, and which of them we may use.
//!
//! Guarantees: an expression that cannot be parsed is not allowed. Leaves to others: where the expressions come from
//! ([`super::dependencies`]).

use std::iter::Peekable;

/// Licences that require no more than a notice or, like MPL-2.0, only the publication of changes to their own files.
const ALLOWED: [&str; 13] = [
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MPL-2.0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Exceptions allowed after `WITH`: they remove an obligation.
const ALLOWED_WITH: [&str; 1] = ["LLVM-exception"];

/// Whether the SPDX `expression` allows use: one side of an `OR`, or both sides of an `AND`.
pub(super) fn is_allowed(expression: &str) -> bool {
    // Before SPDX, `OR` was written as a slash.
    let spaced = expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    let mut words = spaced.split_whitespace().peekable();
    any(&mut words) == Some(true) && words.next().is_none()
}

/// `all OR all …`; `None` if it is malformed.
fn any<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Option<bool> {
    let mut allowed = all(words)?;
    while words.next_if_eq(&"OR").is_some() {
        allowed |= all(words)?;
    }
    Some(allowed)
}

/// `one AND one …`, which binds tighter.
fn all<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Option<bool> {
    let mut allowed = one(words)?;
    while words.next_if_eq(&"AND").is_some() {
        allowed &= one(words)?;
    }
    Some(allowed)
}

/// A licence, or an expression in parentheses.
fn one<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>) -> Option<bool> {
    let word = words.next()?;
    if word == "(" {
        let allowed = any(words)?;
        return words.next_if_eq(&")").map(|_| allowed);
    }
    let mut allowed = ALLOWED.contains(&word);
    if words.next_if_eq(&"WITH").is_some() {
        allowed &= ALLOWED_WITH.contains(&words.next()?);
    }
    Some(allowed)
}

#[test]
fn licence_expressions_follow_spdx() {
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0-only", false),
        ("MIT OR GPL-3.0-only", true),
        ("GPL-3.0-only OR MIT", true),
        ("MIT AND GPL-3.0-only", false),
        ("MIT/Apache-2.0", true),
        ("Apache-2.0 / MIT", true),
        ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
        ("(MIT OR Apache-2.0) AND GPL-3.0-only", false),
        ("GPL-3.0-only AND MIT OR ISC", true),
        ("GPL-3.0-only AND (MIT OR ISC)", false),
        ("Apache-2.0 WITH LLVM-exception OR Apache-2.0 OR MIT", true),
        ("Apache-2.0 WITH some-other-exception", false),
        ("", false),
        ("MIT OR", false),
        ("(MIT", false),
        ("MIT)", false),
        ("MIT MIT", false),
    ] {
        assert_eq!(is_allowed(expression), expected, "{expression:?}");
    }
}
