//! Locates the metadata document of an NFT from the URI that its contract returns.
//!
//! | URI | document |
//! |---|---|
//! | `data:…;base64,…`, `data:…,…`, or JSON itself | inside the URI |
//! | `ipfs://…`, `/ipfs/…`, a bare content id; `ipns://…` | at the configured IPFS gateways |
//! | `ar://…` | at the configured Arweave gateways |
//! | `http://…`, `https://…` | at that URL |
//!
//! Guarantees: pure; a URI cannot leave the path that a gateway has for its kind, and decoded `data:` is never larger
//! than the URI. Leaves to others: fetching, and which hosts may be contacted.

use std::borrow::Cow;

use alloy_primitives::U256;
use base64::Engine as _;
use base64::alphabet::URL_SAFE;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

/// Maximum length of a URL to fetch.
const URL_LENGTH_MAX: usize = 4_096;

/// Gateways to content-addressed networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateways {
    /// Base URLs for IPFS and IPNS, before `/ipfs/…` and `/ipns/…`.
    pub ipfs: Vec<String>,
    /// Base URLs for Arweave, before the id.
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

/// Location of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DocumentLocation {
    /// The document itself.
    Inline(Vec<u8>),
    /// A URL that the contract names.
    Web(String),
    /// Any of these gateway URLs.
    Gateway(Vec<String>),
    /// The URI cannot be used; why.
    Unusable(&'static str),
}

/// Replaces `{id}` as ERC-1155 specifies: by 64 lowercase hex digits without a prefix. A URI that is too long for a URL
/// contains the document itself and is left unchanged.
pub(crate) fn with_id(uri: &str, id: U256) -> Cow<'_, str> {
    if uri.len() > URL_LENGTH_MAX || !uri.contains("{id}") {
        return Cow::Borrowed(uri);
    }
    Cow::Owned(uri.replace("{id}", &format!("{id:064x}")))
}

/// Locates the document of a URI.
pub(crate) fn locate(uri: &str, gateways: &Gateways) -> DocumentLocation {
    let uri = uri.trim_matches(|letter: char| letter.is_whitespace() || letter.is_control());
    if uri.is_empty() {
        return DocumentLocation::Unusable("the contract returns an empty URI");
    }
    if let Some(data) = after_prefix(uri, "data:") {
        return inline(data);
    }
    if uri.starts_with('{') {
        return DocumentLocation::Inline(uri.as_bytes().to_vec());
    }
    if uri.len() > URL_LENGTH_MAX {
        return DocumentLocation::Unusable("the URI is too long");
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
        return DocumentLocation::Web(uri.to_owned());
    }
    let first = uri.split('/').next().unwrap_or_default();
    if is_content_id(first) {
        return gateway(&gateways.ipfs, Some("ipfs"), uri);
    }
    DocumentLocation::Unusable("the URI has an unknown scheme")
}

/// The text after a prefix, in either case.
fn after_prefix<'a>(text: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = text.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

/// Whether a text looks like an IPFS content id of version 0 or 1.
fn is_content_id(text: &str) -> bool {
    let alphanumeric = text.chars().all(|letter| letter.is_ascii_alphanumeric());
    alphanumeric && ((text.len() == 46 && text.starts_with("Qm")) || is_content_id_v1(text))
}

fn is_content_id_v1(text: &str) -> bool {
    (50..=128).contains(&text.len()) && (text.starts_with("baf") || text.starts_with("k51"))
}

fn gateway(gateways: &[String], kind: Option<&str>, path: &str) -> DocumentLocation {
    // Some contracts write the kind twice.
    let doubled = kind.and_then(|kind| path.strip_prefix(kind)?.strip_prefix('/'));
    let path = doubled.unwrap_or(path);
    if !is_path(path) {
        return DocumentLocation::Unusable("the URI is not a plain path");
    }
    if gateways.is_empty() {
        return DocumentLocation::Unusable("no gateway is configured for the URI");
    }
    // A `#` is part of a file name here, not a fragment.
    let path = path.replace('#', "%23");
    let url = |gateway: &String| {
        let gateway = gateway.trim_end_matches('/');
        match kind {
            Some(kind) => format!("{gateway}/{kind}/{path}"),
            None => format!("{gateway}/{path}"),
        }
    };
    DocumentLocation::Gateway(gateways.iter().map(url).collect())
}

/// Whether a path begins with an id or a name and never goes up.
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

/// The content of a `data:` URI, given without its scheme.
fn inline(data: &str) -> DocumentLocation {
    let Some((head, body)) = data.split_once(',') else {
        return DocumentLocation::Unusable("the data URI has no data");
    };
    if !head.to_ascii_lowercase().split(';').any(|word| word.trim() == "base64") {
        return DocumentLocation::Inline(unescaped(body));
    }
    let letters: Vec<u8> = unescaped(body)
        .into_iter()
        .filter(|byte| !byte.is_ascii_whitespace())
        // Both base64 alphabets are in use; they differ in two characters.
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
        Ok(bytes) => DocumentLocation::Inline(bytes),
        Err(_) => DocumentLocation::Unusable("the data URI has invalid base64"),
    }
}

/// Decodes percent escapes. A percent sign without two hex digits stands for itself, as contracts often leave it
/// unescaped.
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
    fn every_kind_of_uri_is_located() {
        let check = |uri: &str, expected: DocumentLocation| {
            assert_eq!(locate(uri, &gateways()), expected, "{uri:?}");
        };
        let ipfs = |path: &str| {
            let at = |gateway: &str| format!("{gateway}/{path}");
            DocumentLocation::Gateway(vec![at("https://a.example"), at("http://b.example:8080")])
        };
        check(&format!("ipfs://{CID}/1"), ipfs(&format!("ipfs/{CID}/1")));
        check(&format!("IPFS://{CID}"), ipfs(&format!("ipfs/{CID}")));
        check(&format!("ipfs://ipfs/{CID}/1"), ipfs(&format!("ipfs/{CID}/1")));
        check(&format!("/ipfs/{CID}/1.json"), ipfs(&format!("ipfs/{CID}/1.json")));
        check(&format!(" {CID}/7\0"), ipfs(&format!("ipfs/{CID}/7")));
        check(&format!("ipfs://{CID}/a #1.json"), ipfs(&format!("ipfs/{CID}/a %231.json")));
        check("ipns://docs.ipfs.tech/1", ipfs("ipns/docs.ipfs.tech/1"));
        let arweave = DocumentLocation::Gateway(vec!["https://ar.example/abc-_1/2".to_owned()]);
        check("ar://abc-_1/2", arweave);
        check(
            "https://x.example/1?a=b",
            DocumentLocation::Web("https://x.example/1?a=b".to_owned()),
        );
        check("HTTP://x.example/1", DocumentLocation::Web("HTTP://x.example/1".to_owned()));
        check(r#"{"name":"x"}"#, DocumentLocation::Inline(br#"{"name":"x"}"#.to_vec()));
    }

    #[test]
    fn a_path_cannot_leave_its_gateway() {
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
            assert!(matches!(locate(uri, &gateways()), DocumentLocation::Unusable(_)), "{uri}");
        }
    }

    #[test]
    fn unknown_uris_are_unusable() {
        let long = format!("https://x.example/{}", "x".repeat(URL_LENGTH_MAX));
        for uri in ["", "  ", "hello", "ftp://x/y", "file:///etc/passwd", "//x/y", "data:", &long] {
            assert!(matches!(locate(uri, &gateways()), DocumentLocation::Unusable(_)), "{uri:.40}");
        }
        let none = Gateways { ipfs: vec![], arweave: vec![] };
        assert!(matches!(locate(&format!("ipfs://{CID}"), &none), DocumentLocation::Unusable(_)));
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
            assert_eq!(locate(uri, &gateways()), DocumentLocation::Inline(json.clone()), "{uri}");
        }
        // The two characters in which the alphabets differ.
        for uri in ["data:;base64,-_8", "data:;base64,+/8="] {
            assert_eq!(
                locate(uri, &gateways()),
                DocumentLocation::Inline(vec![0xfb, 0xff]),
                "{uri}"
            );
        }
        assert_eq!(
            locate("data:,100%, %zz", &gateways()),
            DocumentLocation::Inline(b"100%, %zz".to_vec())
        );
        assert!(matches!(locate("data:;base64,***", &gateways()), DocumentLocation::Unusable(_)));
    }

    #[test]
    fn an_id_is_replaced_by_64_hex_digits() {
        let zeros = "0".repeat(62);
        let found = with_id("https://x/{id}.json?{id}", U256::from(0xab));
        assert_eq!(found, format!("https://x/{zeros}ab.json?{zeros}ab"));
        assert_eq!(with_id("{id}", U256::MAX), "f".repeat(64));
        let many = "{id}".repeat(URL_LENGTH_MAX);
        assert_eq!(with_id(&many, U256::MAX), many);
    }

    proptest! {
        #[test]
        fn any_text_is_located_and_never_outside_the_gateways(text in "(ipfs://|ar://|data:|)\\PC{0,60}") {
            match locate(&text, &gateways()) {
                DocumentLocation::Inline(bytes) => prop_assert!(bytes.len() <= text.len()),
                DocumentLocation::Gateway(urls) => for url in urls {
                    let known = ["https://a.example/ip", "http://b.example:8080/ip", "https://ar.example/"];
                    prop_assert!(known.iter().any(|start| url.starts_with(start)), "{}", url);
                },
                DocumentLocation::Web(_) | DocumentLocation::Unusable(_) => {}
            }
        }
    }
}
