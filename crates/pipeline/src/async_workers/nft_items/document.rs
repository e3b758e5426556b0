//! Parses the metadata document of an NFT: name, media, traits.
//!
//! Guarantees: pure; texts are free of hidden characters ([`plain`]), every part is bounded, and bytes that are not a
//! JSON object are an error that says so. Leaves to others: fetching the media that it names; nothing here does.

use serde_json::{Map, Value};

use crate::observe::plain::{NAME_CHARS_MAX, plain};

const DESCRIPTION_CHARS_MAX: usize = 4_096;
/// Maximum size of a URL; it may be a `data:` URL with the image itself.
const ADDRESS_BYTES_MAX: usize = 64 << 10;
/// Maximum size of all traits as JSON.
const TRAITS_BYTES_MAX: usize = 64 << 10;
/// Maximum length of one value of a trait.
const TRAIT_CHARS_MAX: usize = 1_024;
const TRAITS_DEPTH_MAX: usize = 8;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Document {
    pub name: Option<String>,
    pub description: Option<String>,
    /// URL of the image.
    pub image: Option<String>,
    /// URL of a video, a sound or a page.
    pub animation_url: Option<String>,
    /// URL of a page about the item.
    pub external_url: Option<String>,
    /// As JSON.
    pub traits: Option<String>,
}

pub(crate) fn read(bytes: &[u8]) -> Result<Document, String> {
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim_start_matches('\u{feff}').trim();
    // The parser itself limits nesting to 128.
    let parsed: Value =
        serde_json::from_str(text).map_err(|error| format!("the document is not JSON: {error}"))?;
    let Value::Object(fields) = parsed else {
        return Err("the document is not a JSON object".to_owned());
    };
    let image = ["image", "image_url", "image_data", "imageUrl"];
    let traits = ["attributes", "traits", "properties"];
    Ok(Document {
        name: text_of(&fields, &["name", "title"], NAME_CHARS_MAX),
        description: text_of(&fields, &["description"], DESCRIPTION_CHARS_MAX),
        image: url_of(&fields, &image),
        animation_url: url_of(&fields, &["animation_url", "animationUrl", "animation"]),
        external_url: url_of(&fields, &["external_url", "externalUrl", "external_link"]),
        traits: traits.iter().find_map(|name| clean_traits(fields.get(*name)?)),
    })
}

/// The first of these fields that is a text or a number.
fn text_of(fields: &Map<String, Value>, names: &[&str], chars_max: usize) -> Option<String> {
    names.iter().find_map(|name| match fields.get(*name)? {
        Value::String(text) => plain(text, chars_max),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    })
}

/// The first of these fields that is a text of acceptable length.
fn url_of(fields: &Map<String, Value>, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        let text = fields.get(*name)?.as_str()?;
        (text.len() <= ADDRESS_BYTES_MAX).then(|| plain(text, ADDRESS_BYTES_MAX))?
    })
}

fn clean_traits(traits: &Value) -> Option<String> {
    let is_filled = match traits {
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => false,
    };
    let text = clean(traits, TRAITS_DEPTH_MAX).filter(|_| is_filled)?.to_string();
    (text.len() <= TRAITS_BYTES_MAX).then_some(text)
}

/// A copy with cleaned texts; none if it is nested too deep.
fn clean(value: &Value, depth: usize) -> Option<Value> {
    let depth = depth.checked_sub(1)?;
    Some(match value {
        Value::String(text) => Value::from(plain(text, TRAIT_CHARS_MAX).unwrap_or_default()),
        Value::Array(list) => {
            Value::Array(list.iter().map(|value| clean(value, depth)).collect::<Option<_>>()?)
        }
        Value::Object(fields) => {
            let cleaned = fields.iter().map(|(name, value)| {
                let name = plain(name, NAME_CHARS_MAX).unwrap_or_default();
                Some((name, clean(value, depth)?))
            });
            Value::Object(cleaned.collect::<Option<_>>()?)
        }
        value => value.clone(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_usual_document_is_read() {
        let document = r#"{"name":"Ape #1","description":"An\nape","image":"ipfs://Qm/1.png",
            "animation_url":"https://x.example/1.mp4","external_url":"https://x.example",
            "attributes":[{"trait_type":"Fur","value":"Gold"},{"trait_type":"Age","value":7}]}"#;
        let owned = |text: &str| Some(text.to_owned());
        let expected = Document {
            name: owned("Ape #1"),
            description: owned("An ape"),
            image: owned("ipfs://Qm/1.png"),
            animation_url: owned("https://x.example/1.mp4"),
            external_url: owned("https://x.example"),
            traits: owned(
                r#"[{"trait_type":"Fur","value":"Gold"},{"trait_type":"Age","value":7}]"#,
            ),
        };
        assert_eq!(read(document.as_bytes()), Ok(expected));
    }

    #[test]
    fn unusual_documents_yield_the_fields_they_have() {
        let check = |document: &str, name: Option<&str>, image: Option<&str>| {
            let read = read(document.as_bytes()).expect(document);
            let found = (read.name.as_deref(), read.image.as_deref());
            assert_eq!(found, (name, image), "{document:.60}");
        };
        check("{}", None, None);
        check("\u{feff} {\"name\":7}", Some("7"), None);
        check(r#"{"name":null,"title":"T","image":5,"image_url":"u"}"#, Some("T"), Some("u"));
        check(r#"{"name":["x"],"image":{"a":1}}"#, None, None);
        check(r#"{"name":"a\u0000\u202eb"}"#, Some("ab"), None);
        check(r#"{"name":"\u0000","image":""}"#, None, None);
        let long = format!(r#"{{"image":"{}"}}"#, "x".repeat(ADDRESS_BYTES_MAX + 1));
        check(&long, None, None);
    }

    #[test]
    fn traits_are_bounded_and_free_of_hidden_characters() {
        let traits = |text: &str| read(format!(r#"{{"attributes":{text}}}"#).as_bytes());
        let found = |text: &str| traits(text).expect(text).traits;
        assert_eq!(found("[]"), None);
        assert_eq!(found("\"x\""), None);
        assert_eq!(found(r#"{"a":"\u202ex\u0000"}"#).as_deref(), Some(r#"{"a":"x"}"#));
        let deep = format!("{}1{}", "[".repeat(20), "]".repeat(20));
        assert_eq!(found(&deep), None);
        let many = format!("[{}1]", "1,".repeat(TRAITS_BYTES_MAX));
        assert_eq!(found(&many), None);
        // The first usable field counts.
        let other = read(br#"{"attributes":[],"properties":{"a":1}}"#).expect("fine");
        assert_eq!(other.traits.as_deref(), Some(r#"{"a":1}"#));
    }

    #[test]
    fn a_document_that_is_not_an_object_is_refused() {
        let deep = "[".repeat(100_000);
        for document in ["", "<html>", "[]", "\"x\"", "7", "{", "{\"a\":1}x", "\u{0}", &deep] {
            assert!(read(document.as_bytes()).is_err(), "{document:.20}");
        }
        assert!(read(&[0xff, 0xfe]).is_err());
    }

    proptest! {
        #[test]
        fn no_document_yields_hidden_characters(name in "\\PC{0,20}|[\\x00-\\x1f\u{202e}a]{0,20}") {
            let document = serde_json::json!({"name": name, "image": name, "traits": {"a": name}});
            let read = read(document.to_string().as_bytes()).expect("an object");
            for text in [read.name, read.image].into_iter().flatten() {
                prop_assert_eq!(plain(&text, usize::MAX), Some(text));
            }
            let traits: Value = serde_json::from_str(&read.traits.expect("traits")).expect("JSON");
            prop_assert!(!traits["a"].as_str().expect("text").contains(char::is_control));
        }
    }
}
