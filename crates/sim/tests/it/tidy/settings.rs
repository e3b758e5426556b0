//! The rule about `config.default.toml`: every key is explained.
//!
//! Guarantees: finds keys without a comment directly above, including keys that are commented out because they have
//! no default. Leaves to others: that the file has every key that the program reads (the binary's own tests).

use super::assert_none;
use super::tree::get_text;

const DEFAULTS: &str = "crates/logmill/config.default.toml";
const READER: &str = "crates/logmill/src/config.rs";

#[test]
fn every_config_key_is_documented() {
    match get_text(DEFAULTS) {
        Some(text) => assert_none(
            &undocumented(&text),
            &format!("{DEFAULTS}: write a sentence directly above each of these keys:"),
        ),
        None => assert!(get_text(READER).is_none(), "{READER} is there, but {DEFAULTS} is not"),
    }
}

/// The keys without a comment directly above.
fn undocumented(text: &str) -> Vec<String> {
    let above = std::iter::once("").chain(text.lines());
    let lines = above.zip(text.lines());
    lines.filter(|(above, _)| !is_prose(above)).filter_map(|(_, line)| key(line)).collect()
}

/// Whether the line is a comment and not a key that is commented out.
fn is_prose(line: &str) -> bool {
    line.strip_prefix('#').is_some_and(|said| !said.trim().is_empty()) && key(line).is_none()
}

/// The key that `line` sets, even if it is commented out.
fn key(line: &str) -> Option<String> {
    let line = line.strip_prefix('#').unwrap_or(line).trim();
    let (key, value) = line.split_once('=')?;
    let key = key.trim();
    let is_key = |sign: char| sign.is_ascii_alphanumeric() || "_-.\"".contains(sign);
    // In prose no value follows: "`a = b`" starts with a backtick, "x == y" has a second equals sign.
    let is_value = !value.trim().is_empty() && !value.starts_with('=');
    (!key.is_empty() && key.chars().all(is_key) && is_value).then(|| key.to_owned())
}

#[test]
fn undocumented_keys_are_recognised() {
    for (text, expected) in [
        ("# How many.\nslots = 4\n", &[][..]),
        ("slots = 4\n", &["slots"]),
        ("# How many.\n\nslots = 4\n", &["slots"]),
        ("# How many.\nslots = 4\nwait_ms = 5\n", &["wait_ms"]),
        ("# Where.\n# url = \"postgres://h/d?a=b\"\n", &[]),
        ("# url = \"x\"\n", &["url"]),
        ("# Where.\n# url = \"x\"\n# other = 1\n", &["other"]),
        ("[queue]\nslots = 4\n", &["slots"]),
        ("#\nslots = 4\n", &["slots"]),
        ("# One of\n# a, b, as in `x = a`.\nkind = \"a\"\n", &[]),
        ("# Many.\nlist = [\n    \"a\",\n]\n", &[]),
    ] {
        assert_eq!(undocumented(text), expected, "{text:?}");
    }
}
