//! The fields of an event as it is sent, taken from JSON.
//!
//! Guarantees: every field is borrowed from the text, given at most once, and either known or named in
//! [`Incoming::unknown`]: a misspelt `timestamp` must not count at another time without a word. Leaves to others: what
//! the fields must be.

use std::fmt;

use serde::de::{Error as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::{Incoming, Text};

/// How many unknown fields are named.
const UNKNOWN_MAX: usize = 8;
/// How much of the name of one.
const UNKNOWN_CHARS_MAX: usize = 64;

impl<'de: 'a, 'a> Deserialize<'de> for Incoming<'a> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Incoming<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut incoming = Incoming::default();
        while let Some(Text(name)) = map.next_key::<Text<'de>>()? {
            let field = match &*name {
                "eventType" => &mut incoming.event_type,
                "customerId" => &mut incoming.customer_id,
                "value" => &mut incoming.value,
                "metadata" => &mut incoming.metadata,
                "id" => &mut incoming.id,
                "source" => &mut incoming.source,
                "timestamp" => &mut incoming.timestamp,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                    incoming.note_unknown(&name);
                    continue;
                }
            };
            if field.is_some() {
                return Err(A::Error::custom(format!("duplicate field `{name}`")));
            }
            *field = Some(map.next_value()?);
        }
        Ok(incoming)
    }
}

impl Incoming<'_> {
    fn note_unknown(&mut self, name: &str) {
        if self.unknown.len() < UNKNOWN_MAX {
            let shown: String = name.chars().take(UNKNOWN_CHARS_MAX).collect();
            self.unknown.push(shown.escape_debug().to_string());
        }
    }
}
