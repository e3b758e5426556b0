//! Metadata: the free part of an event, bounded in size and depth, from which groups are taken.
//!
//! Guarantees: the text is kept as it was sent. Its canonical form is the same for equal objects, whatever the order of
//! their fields and the whitespace between them; numbers are compared as they are written. Leaves to others: what the
//! fields mean.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::{ValidationErrors, present};
use crate::decimal::Decimal;
use crate::settings::{EventType, NAME_BYTES_MAX, Op, Settings};

/// Hexadecimal digits of the hash that replaces the rest of a long value.
const HASH_DIGITS: usize = 16;

type Fields<'a> = BTreeMap<Cow<'a, str>, &'a RawValue>;

/// The metadata of one event.
#[derive(Debug, Default)]
pub(super) struct Metadata<'a> {
    text: Option<&'a str>,
    fields: Fields<'a>,
    canonical: String,
}

impl<'a> Metadata<'a> {
    /// Parses metadata; returns `None` and adds to `errors` if it is invalid.
    pub(super) fn read(
        errors: &mut ValidationErrors,
        field: Option<&'a RawValue>,
        settings: &Settings,
    ) -> Option<Self> {
        let Some(text) = present(field) else { return Some(Self::default()) };
        if !text.starts_with('{') {
            errors.push("metadata must be an object if provided".to_owned());
            return None;
        }
        if text.len() > settings.metadata_bytes_max {
            errors.push(format!(
                "metadata has {} bytes: at most {} are allowed",
                text.len(),
                settings.metadata_bytes_max
            ));
            return None;
        }
        let mut canonical = String::with_capacity(text.len());
        if !write_canonical(text, settings.metadata_depth_max, &mut canonical) {
            errors.push(format!(
                "metadata is nested deeper than {}, or has a field twice",
                settings.metadata_depth_max
            ));
            return None;
        }
        let fields: Fields<'a> = read_fields(text)?;
        Some(Self { text: Some(text), fields, canonical })
    }

    /// The same for equal objects.
    pub(super) fn canonical(&self) -> &str {
        &self.canonical
    }

    /// The group: an object of the declared dimensions that are present, each a text of bounded length.
    pub(super) fn dims(&self, event_type: &EventType) -> String {
        let declared = event_type.dimensions.iter();
        let named: BTreeMap<&str, String> =
            declared.filter_map(|name| Some((name.as_str(), bounded(self.plain(name)?)))).collect();
        if named.is_empty() {
            return String::new();
        }
        serde_json::to_string(&named).unwrap_or_default()
    }

    /// The item that `unique` counts, if that is kept: a field, if present, or the value.
    pub(super) fn unique(&self, event_type: &EventType, value: Decimal) -> Option<Vec<u8>> {
        if !event_type.keeps(Op::Unique) {
            return None;
        }
        let thing = match event_type.unique_field.as_deref() {
            Some(field) => self.plain(field)?,
            None => value.to_string(),
        };
        Some(thing.into_bytes())
    }

    /// A field as text: the characters of a string, else the JSON of the value; `None` if it is missing or null.
    fn plain(&self, name: &str) -> Option<String> {
        let text = self.fields.get(name)?.get();
        if text == "null" {
            return None;
        }
        Some(serde_json::from_str::<String>(text).unwrap_or_else(|_| text.to_owned()))
    }

    pub(super) fn into_text(self) -> Option<String> {
        self.text.map(str::to_owned)
    }
}

/// The text that identifies a value of a dimension: the value itself or, if that is too long, its beginning and a hash
/// of the whole.
pub(crate) fn bounded(value: String) -> String {
    if value.len() <= NAME_BYTES_MAX {
        return value;
    }
    let hash = blake3::hash(value.as_bytes()).to_hex();
    let hash: String = hash.chars().take(HASH_DIGITS).collect();
    let end = value.floor_char_boundary(NAME_BYTES_MAX - HASH_DIGITS - 1);
    format!("{}~{hash}", &value[..end])
}

/// The item that `unique` counts in a stored event.
pub(crate) fn unique_of(
    metadata: Option<&str>,
    event_type: &EventType,
    value: Decimal,
) -> Option<Vec<u8>> {
    let fields = metadata.and_then(read_fields).unwrap_or_default();
    Metadata { fields, ..Metadata::default() }.unique(event_type, value)
}

fn read_fields(text: &str) -> Option<Fields<'_>> {
    serde_json::from_str::<BTreeMap<Name<'_>, &RawValue>>(text)
        .ok()
        .map(|fields| fields.into_iter().map(|(name, value)| (name.0, value)).collect())
}

/// A name, borrowed if it has no escapes.
#[derive(serde::Deserialize, PartialEq, Eq, PartialOrd, Ord)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// Writes objects with sorted fields and without whitespace; returns false if they are nested too deep.
fn write_canonical(text: &str, depth_left: usize, out: &mut String) -> bool {
    let text = text.trim();
    match text.as_bytes().first() {
        Some(b'{' | b'[') if depth_left == 0 => false,
        Some(b'{') => {
            let Some(fields) = read_fields(text) else { return false };
            out.push('{');
            for (name, value) in &fields {
                out.push_str(&serde_json::to_string(name).unwrap_or_default());
                out.push(':');
                if !write_canonical(value.get(), depth_left - 1, out) {
                    return false;
                }
                out.push(',');
            }
            out.push('}');
            true
        }
        Some(b'[') => {
            let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(text) else { return false };
            out.push('[');
            for item in items {
                if !write_canonical(item.get(), depth_left - 1, out) {
                    return false;
                }
                out.push(',');
            }
            out.push(']');
            true
        }
        Some(b'"') => {
            let plain = serde_json::from_str::<String>(text).unwrap_or_default();
            out.push_str(&serde_json::to_string(&plain).unwrap_or_default());
            true
        }
        _ => {
            out.push_str(text);
            true
        }
    }
}
