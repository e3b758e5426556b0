//! Deserializes the fields of a received event.
//!
//! Guarantees: every field is borrowed from the text, present at most once, and either known or listed in
//! [`RawEvent::unknown`]: a misspelt `timestamp` must not silently count at another time. Leaves to others: which
//! values the fields may have.

use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{RawEvent, Text};

/// Maximum number of unknown fields that are listed.
const UNKNOWN_MAX: usize = 8;
/// Maximum length of each listed name.
const UNKNOWN_CHARS_MAX: usize = 64;

impl<'de: 'a, 'a> Deserialize<'de> for RawEvent<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = RawEvent<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut raw = RawEvent::default();
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            let field = match &*name {
                "eventType" => &mut raw.event_type,
                "customerId" => &mut raw.customer_id,
                "value" => &mut raw.value,
                "metadata" => &mut raw.metadata,
                "id" => &mut raw.id,
                "source" => &mut raw.source,
                "timestamp" => &mut raw.timestamp,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    raw.note_unknown(&name);
                    continue;
                }
            };
            if field.is_some() {
                return Err(A::Error::custom(format!("duplicate field `{name}`")));
            }
            *field = Some(map.next_value()?);
        }
        Ok(raw)
    }
}

impl RawEvent<'_> {
    fn note_unknown(&mut self, name: &str) {
        if self.unknown.len() < UNKNOWN_MAX {
            let shown: String = name.chars().take(UNKNOWN_CHARS_MAX).collect();
            self.unknown.push(shown.escape_debug().to_string());
        }
    }
}
