//! Where the document of an item is: what a contract says, as places to look.
//!
//! | a contract says | looked for |
//! |---|---|
//! | `data:…;base64,…`, `data:…,…`, or JSON itself | in what it says |
//! | `ipfs://…`, `/ipfs/…`, a bare content id; `ipns://…` | at the gateways that are set |
//! | `ar://…` | at the gateways that are set for it |
//! | `http://…`, `https://…` | there |
//!
//! Guarantees: pure; what a contract says can not leave the path that a gateway has for its kind, and no `data:` is
//! larger than what was said. Leaves to others: fetching, and which hosts may be asked.

use std::borrow::Cow;

use alloy_primitives::U256;
use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// The longest address that is asked.
const URL_LENGTH_MAX: usize = 4_096;

/// The servers through which content-addressed networks are reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateways {
    /// For IPFS and IPNS: what stands before `/ipfs/…` and `/ipns/…`.
    pub ipfs: Vec<String>,
    /// For Arweave: what stands before the id.
    pub arweave: Vec<String>,
}

impl Default for Gateways {
    fn default() -> Self {
        let owned = |list: &[&str]| list.iter().map(|url| (*url).to_owned()).collect();
        Self {
            ipfs: owned(&["https://ipfs.io", "https://dweb.link"]),
            arweave: owned(&["https://arweave.net"]),
        }
    }
}

/// Where a document is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Here.
    Here(Vec<u8>),
    /// At a server that the contract names.
    Web(String),
    /// At any of these gateways.
    Gateway(Vec<String>),
    /// Nowhere that we know of.
    Nowhere(&'static str),
}

/// The address with the item's id in it, as ERC-1155 asks for: 64 lowercase digits without a prefix. What is too long
/// for an address holds the document itself, and is left as it is.
pub fn with_id(uri: &str, id: U256) -> Cow<'_, str> {
    if uri.len() > URL_LENGTH_MAX || !uri.contains("{id}") {
        return Cow::Borrowed(uri);
    }
    Cow::Owned(uri.replace("{id}", &format!("{id:064x}")))
}

/// Where the document is that a contract tells of.
pub fn place(uri: &str, gateways: &Gateways) -> Place {
    let uri = uri.trim_matches(|letter: char| letter.is_whitespace() || letter.is_control());
    if uri.is_empty() {
        return Place::Nowhere("the contract gives an empty address");
    }
    if let Some(data) = after_prefix(uri, "data:") {
        return here(data);
    }
    if uri.starts_with('{') {
        return Place::Here(uri.as_bytes().to_vec());
    }
    if uri.len() > URL_LENGTH_MAX {
        return Place::Nowhere("the address is too long");
    }
    for (prefix, kind) in [
        ("ipfs://", "ipfs"),
        ("/ipfs/", "ipfs"),
        ("ipfs/", "ipfs"),
        ("ipns://", "ipns"),
        ("/ipns/", "ipns"),
    ] {
        if let Some(path) = after_prefix(uri, prefix) {
            return gateway(&gateways.ipfs, Some(kind), path);
        }
    }
    if let Some(path) = after_prefix(uri, "ar://") {
        return gateway(&gateways.arweave, None, path);
    }
    if after_prefix(uri, "https://").or_else(|| after_prefix(uri, "http://")).is_some() {
        return Place::Web(uri.to_owned());
    }
    let first = uri.split('/').next().unwrap_or_default();
    if is_content_id(first) {
        return gateway(&gateways.ipfs, Some("ipfs"), uri);
    }
    Place::Nowhere("the address is of no kind that is known")
}

/// What follows a prefix, however that is written.
fn after_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// The first words of ids of both versions.
fn is_content_id(text: &str) -> bool {
    let alphanumeric = text.chars().all(|letter| letter.is_ascii_alphanumeric());
    alphanumeric && ((text.len() == 46 && text.starts_with("Qm")) || is_content_id_v1(text))
}

fn is_content_id_v1(text: &str) -> bool {
    (50..=128).contains(&text.len()) && (text.starts_with("baf") || text.starts_with("k51"))
}

fn gateway(gateways: &[String], kind: Option<&str>, path: &str) -> Place {
    // Some write the kind twice.
    let doubled = kind.and_then(|kind| path.strip_prefix(kind)?.strip_prefix('/'));
    let path = doubled.unwrap_or(path);
    if !is_path(path) {
        return Place::Nowhere("the address is not a plain path");
    }
    if gateways.is_empty() {
        return Place::Nowhere("there is no gateway for the address");
    }
    // What would end the path belongs to a file's name here.
    let path = path.replace('#', "%23");
    let url = |gateway: &String| {
        let gateway = gateway.trim_end_matches('/');
        match kind {
            Some(kind) => format!("{gateway}/{kind}/{path}"),
            None => format!("{gateway}/{path}"),
        }
    };
    Place::Gateway(gateways.iter().map(url).collect())
}

/// Whether a path begins with an id or a name, and goes nowhere but down.
fn is_path(path: &str) -> bool {
    let mut parts = path.split(['?', '#']).next().unwrap_or_default().split('/');
    let is_name = |name: &str| {
        let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
        !name.is_empty() && !name.starts_with('.') && name.chars().all(plain)
    };
    let is_up = |part: &str| {
        let dots = part.to_ascii_lowercase().replace("%2e", ".");
        dots == "." || dots == ".."
    };
    let is_odd = |letter: char| letter.is_control() || letter == '\\';
    parts.next().is_some_and(is_name) && !parts.any(is_up) && !path.contains(is_odd)
}

/// What a `data:` address holds, after its first word.
fn here(data: &str) -> Place {
    let Some((head, body)) = data.split_once(',') else {
        return Place::Nowhere("a data address without data");
    };
    if !head.to_ascii_lowercase().split(';').any(|word| word.trim() == "base64") {
        return Place::Here(unescaped(body));
    }
    let letters: Vec<u8> = unescaped(body)
        .into_iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        // Both alphabets are in use; they differ in two letters.
        .map(|byte| match byte {
            b'+' => b'-',
            b'/' => b'_',
            byte => byte,
        })
        .collect();
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    match GeneralPurpose::new(&URL_SAFE, config).decode(letters) {
        Ok(bytes) => Place::Here(bytes),
        Err(_) => Place::Nowhere("a data address whose base64 is wrong"),
    }
}

/// Bytes with their escapes undone; a percent sign that begins none stands for itself, as contracts often leave it.
fn unescaped(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digit = |at: usize| char::from(*after.get(at)?).to_digit(16);
        let escaped = if *first == b'%' { digit(0).zip(digit(1)) } else { None };
        match escaped.and_then(|(high, low)| u8::try_from(high * 16 + low).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CID: &str = "QmeSjSinHpPnmXmspMjwiXyN6zS4E9zccariGR3jxcaWtq";

    fn gateways() -> Gateways {
        Gateways {
            ipfs: vec!["https://a.example".to_owned(), "http://b.example:8080/".to_owned()],
            arweave: vec!["https://ar.example".to_owned()],
        }
    }

    #[test]
    fn addresses_are_told_apart() {
        let check = |uri: &str, expected: Place| {
            assert_eq!(place(uri, &gateways()), expected, "{uri:?}");
        };
        let ipfs = |path: &str| {
            let at = |gateway: &str| format!("{gateway}/{path}");
            Place::Gateway(vec![at("https://a.example"), at("http://b.example:8080")])
        };
        check(&format!("ipfs://{CID}/1"), ipfs(&format!("ipfs/{CID}/1")));
        check(&format!("IPFS://{CID}"), ipfs(&format!("ipfs/{CID}")));
        check(&format!("ipfs://ipfs/{CID}/1"), ipfs(&format!("ipfs/{CID}/1")));
        check(&format!("/ipfs/{CID}/1.json"), ipfs(&format!("ipfs/{CID}/1.json")));
        check(&format!(" {CID}/7\0"), ipfs(&format!("ipfs/{CID}/7")));
        check(&format!("ipfs://{CID}/a #1.json"), ipfs(&format!("ipfs/{CID}/a %231.json")));
        check("ipns://docs.ipfs.tech/1", ipfs("ipns/docs.ipfs.tech/1"));
        let arweave = Place::Gateway(vec!["https://ar.example/abc-_1/2".to_owned()]);
        check("ar://abc-_1/2", arweave);
        check("https://x.example/1?a=b", Place::Web("https://x.example/1?a=b".to_owned()));
        check("HTTP://x.example/1", Place::Web("HTTP://x.example/1".to_owned()));
        check(r#"{"name":"x"}"#, Place::Here(br#"{"name":"x"}"#.to_vec()));
    }

    #[test]
    fn a_path_can_not_leave_its_gateway() {
        for uri in [
            "ipfs://../../admin",
            "ipfs://./x",
            "ipfs://Qm/../../admin",
            "ipfs://Qm/%2e%2E/x",
            "ipfs://Qm/.%2e/x",
            "ipfs://Qm\\..\\x",
            "ipfs://@evil.example/x",
            "ipfs:///x",
            "ipfs://",
            "ipfs://Qm/a\u{1}b",
            "ipns://evil.example:80@x/y",
            "ar://..",
            "ar://",
        ] {
            assert!(matches!(place(uri, &gateways()), Place::Nowhere(_)), "{uri}");
        }
    }

    #[test]
    fn what_is_of_no_kind_is_nowhere() {
        let long = format!("https://x.example/{}", "x".repeat(URL_LENGTH_MAX));
        for uri in ["", "  ", "hello", "ftp://x/y", "file:///etc/passwd", "//x/y", "data:", &long] {
            assert!(matches!(place(uri, &gateways()), Place::Nowhere(_)), "{uri:.40}");
        }
        let none = Gateways { ipfs: vec![], arweave: vec![] };
        assert!(matches!(place(&format!("ipfs://{CID}"), &none), Place::Nowhere(_)));
    }

    #[test]
    fn data_is_read_in_all_its_forms() {
        let json = br#"{"name":"a b"}"#.to_vec();
        for uri in [
            r#"data:application/json;utf8,{"name":"a b"}"#,
            r#"data:application/json,{"name":"a b"}"#,
            "data:application/json,%7B%22name%22%3A%22a%20b%22%7D",
            "data:application/json;base64,eyJuYW1lIjoiYSBiIn0=",
            "data:application/json;base64,eyJuYW1lIjoiYSBiIn0",
            "DATA:application/json;charset=utf-8;BASE64,eyJuYW1lIjoi\nYSBiIn0%3D",
        ] {
            assert_eq!(place(uri, &gateways()), Place::Here(json.clone()), "{uri}");
        }
        // The two letters in which the alphabets differ.
        for uri in ["data:;base64,-_8", "data:;base64,+/8="] {
            assert_eq!(place(uri, &gateways()), Place::Here(vec![0xfb, 0xff]), "{uri}");
        }
        assert_eq!(place("data:,100%, %zz", &gateways()), Place::Here(b"100%, %zz".to_vec()));
        assert!(matches!(place("data:;base64,***", &gateways()), Place::Nowhere(_)));
    }

    #[test]
    fn an_id_has_all_its_digits() {
        let zeros = "0".repeat(62);
        let found = with_id("https://x/{id}.json?{id}", U256::from(0xab));
        assert_eq!(found, format!("https://x/{zeros}ab.json?{zeros}ab"));
        assert_eq!(with_id("{id}", U256::MAX), "f".repeat(64));
        let many = "{id}".repeat(URL_LENGTH_MAX);
        assert_eq!(with_id(&many, U256::MAX), many);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fail_and_gateways_stay_what_they_are(text in "(ipfs://|ar://|data:|)\\PC{0,60}") {
            match place(&text, &gateways()) {
                Place::Here(bytes) => prop_assert!(bytes.len() <= text.len()),
                Place::Gateway(urls) => for url in urls {
                    let known = ["https://a.example/ip", "http://b.example:8080/ip", "https://ar.example/"];
                    prop_assert!(known.iter().any(|start| url.starts_with(start)), "{}", url);
                },
                Place::Web(_) | Place::Nowhere(_) => {}
            }
        }
    }
}
