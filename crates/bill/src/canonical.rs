//! The canonical form of a document (JCS, RFC 8785): the bytes that are signed.
//!
//! Documents contain no fractions: amounts are text, and numbers are integers that every JSON parser reads exactly.
//!
//! Guarantees: two documents with the same values have the same bytes, whatever the order of their fields or their
//! white space; a number that parsers may round is an error. Leaves to others: the meaning of the fields.

use serde_json::Value;

use crate::error::{Error, Result};

/// The largest integer that JavaScript reads exactly.
const INTEGER_MAX: u64 = (1 << 53) - 1;
/// Nesting that is accepted, well above that of a document.
const DEPTH_MAX: usize = 32;

/// The canonical bytes of a JSON value.
pub fn canonical_json(value: &Value) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    write(value, DEPTH_MAX, &mut out)?;
    Ok(out)
}

fn write(value: &Value, depth: usize, out: &mut Vec<u8>) -> Result<()> {
    let wrong = |why: String| Error::unreadable("a document", why);
    match value {
        Value::Number(number) => {
            let exact = number.as_u64().filter(|number| *number <= INTEGER_MAX);
            let exact = exact.ok_or_else(|| {
                wrong(format!("the number {number} is not an integer below 2^53"))
            })?;
            out.extend(exact.to_string().as_bytes());
        }
        Value::Array(items) => {
            let depth =
                depth.checked_sub(1).ok_or_else(|| wrong("it is nested too deeply".into()))?;
            out.push(b'[');
            for (at, item) in items.iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write(item, depth, out)?;
            }
            out.push(b']');
        }
        Value::Object(fields) => {
            let depth =
                depth.checked_sub(1).ok_or_else(|| wrong("it is nested too deeply".into()))?;
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            // The order of RFC 8785 is that of UTF-16, which differs from that of UTF-8 beyond the basic plane.
            fields.sort_by(|(a, _), (b, _)| a.encode_utf16().cmp(b.encode_utf16()));
            out.push(b'{');
            for (at, (name, value)) in fields.into_iter().enumerate() {
                if at > 0 {
                    out.push(b',');
                }
                write_text(name, out);
                out.push(b':');
                write(value, depth, out)?;
            }
            out.push(b'}');
        }
        Value::String(text) => write_text(text, out),
        Value::Bool(true) => out.extend(b"true"),
        Value::Bool(false) => out.extend(b"false"),
        Value::Null => out.extend(b"null"),
    }
    Ok(())
}

/// Escapes only what RFC 8785 escapes.
fn write_text(text: &str, out: &mut Vec<u8>) {
    out.push(b'"');
    for character in text.chars() {
        match character {
            '"' => out.extend(b"\\\""),
            '\\' => out.extend(b"\\\\"),
            '\u{8}' => out.extend(b"\\b"),
            '\t' => out.extend(b"\\t"),
            '\n' => out.extend(b"\\n"),
            '\u{c}' => out.extend(b"\\f"),
            '\r' => out.extend(b"\\r"),
            control if control < ' ' => {
                out.extend(format!("\\u{:04x}", u32::from(control)).as_bytes());
            }
            other => out.extend(other.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn check(value: &Value, expected: &str) {
        let bytes = canonical_json(value).expect("canonical");
        assert_eq!(String::from_utf8(bytes).expect("UTF-8"), expected);
    }

    #[test]
    fn fields_are_sorted_and_text_is_escaped_as_the_standard_says() {
        check(
            &json!({"b": 1, "a": [true, null, {}], "": "x"}),
            r#"{"":"x","a":[true,null,{}],"b":1}"#,
        );
        // The example of RFC 8785, section 3.2.3.
        let keys = json!({
            "\u{20ac}": "Euro Sign", "\r": "Carriage Return", "\u{fb33}": "Hebrew Letter Dalet With Dagesh",
            "1": "One", "\u{1f600}": "Emoji: Grinning Face", "\u{80}": "Control",
            "\u{f6}": "Latin Small Letter O With Diaeresis",
        });
        let text = String::from_utf8(canonical_json(&keys).expect("canonical")).expect("UTF-8");
        let names = ["Carriage", "One", "Control", "Latin", "Euro", "Emoji", "Hebrew"];
        let places: Vec<usize> = names.map(|name| text.find(name).expect("it is there")).into();
        assert!(places.is_sorted(), "{text}");
        check(
            &json!("\u{20ac}$\u{f}\nA'B\"\\\\\"/\u{7f}"),
            "\"\u{20ac}$\\u000f\\nA'B\\\"\\\\\\\\\\\"/\u{7f}\"",
        );
    }

    #[test]
    fn numbers_that_parsers_may_round_are_refused() {
        check(&json!(INTEGER_MAX), "9007199254740991");
        for number in [json!(INTEGER_MAX + 1), json!(-1), json!(0.5), json!(1e30)] {
            assert!(canonical_json(&number).is_err(), "{number}");
        }
        let mut deep = json!(1);
        for _ in 0..=DEPTH_MAX {
            deep = json!([deep]);
        }
        assert!(canonical_json(&deep).is_err());
    }

    proptest! {
        #[test]
        fn the_canonical_form_is_json_of_the_same_value(
            text in any::<String>(),
            number in 0..INTEGER_MAX,
        ) {
            let value = json!({"text": &text, text: [number, "a"]});
            let bytes = canonical_json(&value).expect("canonical");
            let parsed: Value = serde_json::from_slice(&bytes).expect("JSON");
            prop_assert_eq!(&parsed, &value);
            prop_assert_eq!(canonical_json(&parsed).expect("canonical"), bytes);
        }
    }
}
